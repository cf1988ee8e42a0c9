// misc_neon.inc.h - the update on NEON, where ld1 fetches four vectors at once. Included by
// table.inc.h.

static uint32_t apply_neon(const lk_optimizer *o, uint64_t count, const float *sum, float inverse_n,
                           float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    if (o->kind != LK_SGD) return apply(o, count, sum, inverse_n, w, slots);
    const vf scale = v_set1(inverse_n), rate = v_set1(-o->learning_rate);
    vf bad = v_zero();
    uint64_t i = 0;
    for (; i + LINE <= count; i += LINE, sum += LINE, w += LINE) {
        vf4 s = vld1q_f32_x4(sum);
        V_UNROLL for (int v = 0; v < 4; v++) {
            vf g = v_mul(v_add(s.val[v], v_zero()), scale);
            // A gradient that is not finite makes a parameter that is not: one look is enough.
            s.val[v] = v_fma(rate, g, v_load(w + v * V_LANES));
            bad = v_note(bad, s.val[v]);
        }
        V_UNROLL for (int v = 0; v < 4; v++) v_store(w + v * V_LANES, s.val[v]);
    }
    return v_noted(bad) | apply(o, count - i, sum, inverse_n, w, slots);
}
