// memory.c - the four functions that a compiler takes for granted, for targets without a C library.
//
// Compiled so that the compiler does not find these very functions in their loops (CMakeLists.txt).
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    uint8_t *t = to;
    const uint8_t *f = from;
    while (bytes--) *t++ = *f++;
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    uint8_t *t = to;
    const uint8_t *f = from;
    if ((uintptr_t)t < (uintptr_t)f) {
        while (bytes--) *t++ = *f++;
    } else {
        while (bytes--) t[bytes] = f[bytes];
    }
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    uint8_t *t = to;
    while (bytes--) *t++ = (uint8_t)value;
    return to;
}

int memcmp(const void *a, const void *b, size_t bytes) {
    const uint8_t *x = a, *y = b;
    for (; bytes--; x++, y++) {
        if (*x != *y) return *x < *y ? -1 : 1;
    }
    return 0;
}
