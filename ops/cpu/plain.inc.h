// plain.inc.h - kernels that ops/op.h's lane and op say all about: plain_NAME for each of
// LK_PLAIN_OP_LIST. In the words of vector.h; included by table.inc.h, compiled once per variant.

// --- sums ----------------------------------------------------------------------------------------

V_INLINE uint32_t plain_sum(uint64_t count, const float *a, const float *b, float *sum) {
    vf bad = v_zero();
    EACH_VECTOR(count) {
        vf left = v_load_first(a + i, (uint32_t)rest), right = v_load_first(b + i, (uint32_t)rest);
        vf both = v_add(left, right);
        bad = v_note(bad, both);
        v_store_first(sum + i, (uint32_t)rest, both);
    }
    return v_noted(bad);
}

static uint32_t plain_add(lk_lane *l, const lk_op *op) {
    return plain_sum(l->examples * op->floats, l->at[LK_X], l->at[LK_X2], l->at[LK_Y]);
}

static uint32_t plain_add_backward(lk_lane *l, const lk_op *op) {
    memcpy(l->at[LK_DX], l->at[LK_DY], l->examples * op->floats * sizeof(float));
    return 0;
}

static uint32_t plain_add_gradient(lk_lane *l, const lk_op *op) {
    return plain_sum(l->examples * op->floats, l->at[LK_X], l->at[LK_DY], l->at[LK_DX]);
}
