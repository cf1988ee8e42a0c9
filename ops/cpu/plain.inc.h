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

// --- activations ---------------------------------------------------------------------------------

static uint32_t plain_leaky_relu(lk_lane *l, const lk_op *op) {
    const vf slope = v_set1(op->slope);
    const float *from = l->at[LK_X];
    float *to = l->at[LK_Y];
    EACH_VECTOR(l->examples * op->floats) {
        vf x = v_load_first(from + i, (uint32_t)rest);
        v_store_first(to + i, (uint32_t)rest, v_select(v_gt(x, v_zero()), x, v_mul(slope, x)));
    }
    return 0;
}

static uint32_t plain_leaky_relu_backward(lk_lane *l, const lk_op *op) {
    const vf slope = v_set1(op->slope);
    const float *y = l->at[LK_Y], *from = l->at[LK_DY];
    float *to = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vm open = v_gt(v_load_first(y + i, (uint32_t)rest), v_zero());
        vf dy = v_load_first(from + i, (uint32_t)rest);
        v_store_first(to + i, (uint32_t)rest, v_select(open, dy, v_mul(slope, dy)));
    }
    return 0;
}

// Loops that compilers vectorise.
static uint32_t plain_tanh(lk_lane *l, const lk_op *op) {
    const float *restrict x = l->at[LK_X];
    float *restrict y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = lk_tanhf(x[i]);
    return 0;
}

static uint32_t plain_sigmoid(lk_lane *l, const lk_op *op) {
    const float *restrict x = l->at[LK_X];
    float *restrict y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = lk_sigmoidf(x[i]);
    return 0;
}

static uint32_t plain_tanh_backward(lk_lane *l, const lk_op *op) {
    const float *from = l->at[LK_Y], *dy = l->at[LK_DY];
    float *to = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vf y = v_load_first(from + i, (uint32_t)rest);
        vf slope = v_fma(v_sub(v_zero(), y), y, v_set1(1.0f));
        v_store_first(to + i, (uint32_t)rest, v_mul(v_load_first(dy + i, (uint32_t)rest), slope));
    }
    return 0;
}

static uint32_t plain_sigmoid_backward(lk_lane *l, const lk_op *op) {
    const float *from = l->at[LK_Y], *dy = l->at[LK_DY];
    float *to = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vf y = v_load_first(from + i, (uint32_t)rest);
        vf slope = v_mul(y, v_sub(v_set1(1.0f), y));
        v_store_first(to + i, (uint32_t)rest, v_mul(v_load_first(dy + i, (uint32_t)rest), slope));
    }
    return 0;
}
