// decimal.c - all digits of a float, then the first nine of them. Freestanding.
//
// A float is m * 2^q with m < 2^24 and -149 <= q <= 104. If q < 0 it is m * 5^-q / 10^-q: so either
// way its digits are those of an integer, m times 2 or 5 again and again, and only the place of the
// point differs. That integer has at most 8 + 105 digits, and nothing is rounded before the end.
#include "io/decimal.h"

enum { SIGNIFICANT = 9, DIGITS_MAX = 128 };

// The digits of an integer, the lowest first.
typedef struct digits {
    uint8_t digit[DIGITS_MAX];
    int count;  // without leading zeros; 0 is no digit at all
} digits;

static void multiply(digits *d, unsigned factor, int times) {
    for (; times > 0; times--) {
        unsigned carry = 0;
        for (int i = 0; i < d->count; i++) {
            carry += d->digit[i] * factor;
            d->digit[i] = (uint8_t)(carry % 10);
            carry /= 10;
        }
        if (carry) d->digit[d->count++] = (uint8_t)carry;  // factor < 10: one digit at most
    }
}

// Drops the lowest digits until SIGNIFICANT are left, ties to even. Returns how many were dropped.
static int round_off(digits *d) {
    int dropped = d->count - SIGNIFICANT;
    if (dropped <= 0) return 0;
    bool rest = false;
    for (int i = 0; i < dropped - 1; i++) rest |= d->digit[i] != 0;
    unsigned next = d->digit[dropped - 1];
    bool up = next > 5 || (next == 5 && (rest || d->digit[dropped] % 2 == 1));
    for (int i = 0; i < SIGNIFICANT; i++) d->digit[i] = d->digit[i + dropped];
    d->count = SIGNIFICANT;
    for (int i = 0; up && i < SIGNIFICANT; i++) {
        up = d->digit[i] == 9;
        d->digit[i] = (uint8_t)(up ? 0 : d->digit[i] + 1);
    }
    if (!up) return dropped;
    d->digit[SIGNIFICANT - 1] = 1;  // 999,999,999 and more: all digits are zeros now
    return dropped + 1;
}

// `exponent` is that of the first digit. Zeros after the last digit are not printed, as %g wants.
static void print(const digits *d, int exponent, char *out) {
    int last = 0, at = d->count - 1;
    while (last < at && d->digit[last] == 0) last++;
    bool scientific = exponent < -4 || exponent >= SIGNIFICANT;
    int point = scientific ? 0 : exponent;  // the exponent of the digit before the point
    if (point < 0) {
        *out++ = '0';
        *out++ = '.';
        for (int i = point + 1; i < 0; i++) *out++ = '0';
    }
    for (; at >= last || point >= 0; at--, point--) {
        *out++ = (char)('0' + (at >= 0 ? d->digit[at] : 0));
        if (point == 0 && at > last) *out++ = '.';
    }
    if (scientific) {
        *out++ = 'e';
        *out++ = exponent < 0 ? '-' : '+';
        unsigned size = (unsigned)(exponent < 0 ? -exponent : exponent);
        *out++ = (char)('0' + size / 10);
        *out++ = (char)('0' + size % 10);
    }
    *out = '\0';
}

void lk_decimal(float value, char out[LK_DECIMAL_BYTES]) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    uint32_t mantissa = bits & 0x7fffff, biased = bits >> 23 & 255;
    if (bits >> 31) *out++ = '-';
    if (biased == 255 || (biased == 0 && mantissa == 0)) {
        const char *text = biased == 0 ? "0" : mantissa ? "nan" : "inf";
        while (*text) *out++ = *text++;
        *out = '\0';
        return;
    }
    if (biased) mantissa |= 0x800000;
    int q = (int)(biased ? biased : 1) - 150;
    digits d = {.count = 0};
    for (; mantissa; mantissa /= 10) d.digit[d.count++] = (uint8_t)(mantissa % 10);
    multiply(&d, q < 0 ? 5 : 2, q < 0 ? -q : q);
    int dropped = round_off(&d);
    print(&d, d.count - 1 + dropped + (q < 0 ? q : 0), out);
}
