// ragged.c - see ragged.h.
#include "io/ragged.h"

typedef unsigned long long ull;

bool lk_ragged_number(const uint8_t *item, uint32_t item_bytes, bool is_signed, uint64_t *out) {
    uint64_t value = 0;
    for (uint32_t b = item_bytes; b-- > 0;) value = value << 8 | item[b];
    *out = value;
    return !is_signed || !(item[item_bytes - 1] & 0x80);
}

lk_status lk_ragged_next(lk_ragged *r, const uint8_t *item, uint64_t *length, lk_error *error) {
    uint64_t offset;
    const uint64_t number = r->offsets, before = r->last;
    *length = 0;
    if (!lk_ragged_number(item, r->item_bytes, r->is_signed, &offset)) {
        return lk_fail(error, LK_BAD_DATA, "%s: offset %llu is negative, wanted 0 or more", r->name,
                       (ull)number);
    }
    r->offsets++;
    r->last = offset;
    if (number == 0) {
        if (offset == 0) return LK_OK;
        return lk_fail(error, LK_BAD_DATA, "%s: offset 0: found %llu, wanted 0", r->name,
                       (ull)offset);
    }
    if (offset < before || offset > r->total) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: offset %llu: found %llu, wanted %llu, the one before, to %llu, the "
                       "number of all values",
                       r->name, (ull)number, (ull)offset, (ull)before, (ull)r->total);
    }
    *length = offset - before;
    r->longest = LK_MAX(r->longest, *length);
    if (*length >= r->least && *length <= r->most) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: offset %llu: sequence %llu has %llu values, wanted %llu to %llu", r->name,
                   (ull)number, (ull)number - 1, (ull)*length, (ull)r->least, (ull)r->most);
}

lk_status lk_ragged_end(const lk_ragged *r, lk_error *error) {
    if (r->offsets >= 2 && r->last == r->total) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: found %llu offsets up to %llu, wanted one more than there are sequences, "
                   "two at least, and the last to be %llu, the number of all values",
                   r->name, (ull)r->offsets, (ull)r->last, (ull)r->total);
}
