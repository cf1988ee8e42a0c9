// hash.c - see hash.h.
#include "comm/step/hash.h"

uint64_t lk_step_hash(const float *values, uint64_t first, uint64_t count) {
    return lk_step_hash_loop(values, first, count);
}

// All targets are little-endian (checked at configure time), so memory is already the canonical
// encoding.
static void add_tensor(const lk_program *p, const uint8_t *device, lk_sha256 *hash,
                       uint32_t tensor) {
    const lk_tensor *t = &p->tensors[tensor];
    lk_sha256_add(hash, device + t->offset, (size_t)t->bytes);
}

static void finish_hex(lk_sha256 *hash, char hex[LK_SHA256_HEX_BYTES]) {
    uint8_t bytes[LK_SHA256_BYTES];
    lk_sha256_finish(hash, bytes);
    lk_hex(bytes, LK_SHA256_BYTES, hex);
}

void lk_digest(const lk_program *p, const uint8_t *device, char hex[LK_SHA256_HEX_BYTES]) {
    lk_sha256 hash;
    lk_sha256_start(&hash);
    for (uint32_t i = 0; i < p->param_count; i++)
        add_tensor(p, device, &hash, p->params[i].tensor);
    for (uint32_t i = p->param_count; i < lk_entry_count(p); i++) {
        if (lk_state_evaluated(p, i)) add_tensor(p, device, &hash, p->params[i].tensor);
    }
    finish_hex(&hash, hex);
}

void lk_state_hash(const lk_program *p, const uint8_t *device, uint64_t steps_done,
                   char hex[LK_SHA256_HEX_BYTES]) {
    lk_sha256 hash;
    lk_sha256_start(&hash);
    for (uint32_t i = 0; i < p->param_count; i++)
        add_tensor(p, device, &hash, p->params[i].tensor);
    for (uint32_t k = 0; k < LK_MAX(p->programs, 1u); k++) {
        const lk_program *own = p->all ? &p->all[k] : p;
        for (uint32_t s = 0; s < lk_optimizer_slot_count(own->optimizer); s++) {
            for (uint32_t i = 0; i < own->param_count; i++) {
                if (own->params[i].gradient_op == LK_NONE) continue;
                add_tensor(p, device, &hash, own->params[i].slots[s]);
            }
        }
    }
    lk_sha256_add_u64(&hash, steps_done);
    for (uint32_t i = p->param_count; i < lk_entry_count(p); i++)
        add_tensor(p, device, &hash, p->params[i].tensor);
    finish_hex(&hash, hex);
}
