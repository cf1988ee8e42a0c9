// misc_neon.inc.h - pixels and the update on NEON, four vectors at a time. Included by table.inc.h.

static void load_u8_neon(uint64_t count, const uint8_t *src, float *dst) {
    const vf scale = v_set1(0x1.010102p-8f);
    uint64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const uint8x16_t bytes = vld1q_u8(src + i);
        const uint16x8_t half[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)};
        V_UNROLL for (int h = 0; h < 2; h++) {
            uint32x4_t low = vmovl_u16(vget_low_u16(half[h])), high = vmovl_high_u16(half[h]);
            v_store(dst + i + 8 * h, v_mul(vcvtq_f32_u32(low), scale));
            v_store(dst + i + 8 * h + 4, v_mul(vcvtq_f32_u32(high), scale));
        }
    }
    load_u8(count - i, src + i, dst + i);
}

static uint32_t apply_sgd_neon(const lk_optimizer *o, const lk_step_scalars *step, uint64_t count,
                               const float *sum, float *w,
                               float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    const vf scale = v_set1(step->inverse_n), rate = v_set1(-step->learning_rate);
    vf bad = v_zero();
    uint64_t i = 0;
    if (o->clipvalue > 0.0f || step->regularizer != 0.0f) {
        return apply_sgd(o, step, count, sum, w, slots);
    }
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
    return v_noted(bad) | apply_sgd(o, step, count - i, sum, w, slots);
}
