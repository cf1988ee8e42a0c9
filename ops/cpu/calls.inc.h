// calls.inc.h - kernels as ops/op.h calls them: from a lane and an op to what each kernel wants.
// Included by table.inc.h, after the kernels. Without TABLE_HALF: for a table that reads no floats
// of 16 bits.

static uint32_t call_dense(lk_lane *l, const lk_op *op) {
#ifdef TABLE_HALF
    if (l->half || l->all) {
        return dense_forward_from(&op->dense, l, 0, l->examples, l->at[LK_X], l->param[0],
                                  l->param[1], l->at[LK_Y], l->at[LK_SCRATCH]);
    }
#endif
    return TABLE_BEST(dense_forward)(&op->dense, l->examples, l->at[LK_X], l->param[0], l->param[1],
                                     l->at[LK_Y], l->at[LK_SCRATCH]);
}
static uint32_t call_dense_input_gradient(lk_lane *l, const lk_op *op) {
#ifdef TABLE_HALF
    if (l->half || l->all) {
        return dense_input_gradient_of(&op->dense, l, l->examples, l->param[0], l->at[LK_DY],
                                       l->at[LK_MASK], l->at[LK_DX], l->at[LK_SCRATCH]);
    }
#endif
    return TABLE_BEST(dense_input_gradient)(&op->dense, l->examples, l->param[0], l->at[LK_DY],
                                            l->at[LK_MASK], l->at[LK_DX], l->at[LK_SCRATCH]);
}
static uint32_t call_dense_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_weight_rows all = {.end = op->dense.k_count};
    TABLE_BEST(dense_weight_gradient)
    (&op->dense, l->grain_count, l->grains, l->rows ? l->rows : &all, l->sums[0],
     l->at[LK_SCRATCH]);
    return 0;
}
static uint32_t call_dense_bias_gradient(lk_lane *l, const lk_op *op) {
#ifdef TABLE_HALF
    if (l->half && l->half->dy) {
        column_sums_half(l->half->dtype, op->dense.n_count, l->grain_count, l->grains, l->sums[1]);
        return 0;
    }
#endif
    column_sums(op->dense.n_count, l->grain_count, l->grains, l->sums[1]);
    return 0;
}

static uint32_t call_conv2d(lk_lane *l, const lk_op *op) {
    return conv2d_forward(&op->conv, l->examples, l->at[LK_X], l->param[0], l->param[1],
                          l->at[LK_Y], l->at[LK_SCRATCH]);
}
static uint32_t call_conv2d_pool(lk_lane *l, const lk_op *op) {
#ifdef TABLE_HALF
    if (l->half) {
        return conv2d_pool_forward_half(&op->conv, l->half, l->examples, l->at[LK_X], l->param[0],
                                        l->param[1], l->at[LK_Y], l->at[LK_AUX], l->ahead,
                                        l->at[LK_SCRATCH]);
    }
#endif
    return TABLE_BEST(conv2d_pool_forward)(&op->conv, l->examples, l->at[LK_X], l->param[0],
                                           l->param[1], l->at[LK_Y], l->at[LK_AUX], l->ahead,
                                           l->at[LK_SCRATCH]);
}
static uint32_t call_conv2d_input_gradient(lk_lane *l, const lk_op *op) {
    return conv2d_input_gradient(&op->conv, l->examples, l->param[0], l->at[LK_DY], l->at[LK_MASK],
                                 l->at[LK_DX], l->at[LK_SCRATCH]);
}
static uint32_t call_conv2d_pool_input_gradient(lk_lane *l, const lk_op *op) {
    return conv2d_pool_input_gradient(&op->conv, l->examples, l->param[0], l->at[LK_DY],
                                      l->at[LK_AUX], l->at[LK_MASK], l->at[LK_DX],
                                      l->at[LK_SCRATCH]);
}
static uint32_t call_conv2d_weight_gradient(lk_lane *l, const lk_op *op) {
    conv2d_weight_gradient(&op->conv, l->half, l->grain_count, l->grains, l->sums[0], l->sums[1],
                           l->at[LK_SCRATCH]);
    return 0;
}
static uint32_t call_conv2d_pool_weight_gradient(lk_lane *l, const lk_op *op) {
    conv2d_pool_weight_gradient(&op->conv, l->half, l->grain_count, l->grains, l->sums[0],
                                l->sums[1], l->at[LK_SCRATCH]);
    return 0;
}

static uint32_t call_conv2d_transpose(lk_lane *l, const lk_op *op) {
    return conv2d_transpose_forward(&op->conv, l->examples, l->at[LK_X], l->param[0], l->param[1],
                                    l->at[LK_Y], l->at[LK_SCRATCH]);
}
static uint32_t call_conv2d_transpose_input_gradient(lk_lane *l, const lk_op *op) {
    return conv2d_forward(&op->conv, l->examples, l->at[LK_DY], l->param[0], NULL, l->at[LK_DX],
                          l->at[LK_SCRATCH]);
}
static uint32_t call_conv2d_transpose_weight_gradient(lk_lane *l, const lk_op *op) {
    conv2d_weight_gradient(&op->conv, l->half, l->grain_count, l->grains, l->sums[0], NULL,
                           l->at[LK_SCRATCH]);
    return 0;
}
static uint32_t call_conv2d_transpose_bias_gradient(lk_lane *l, const lk_op *op) {
    conv2d_bias_gradient(&op->conv, l->half, l->grain_count, l->grains, l->sums[1],
                         l->at[LK_SCRATCH]);
    return 0;
}

static uint32_t call_max_pool2d(lk_lane *l, const lk_op *op) {
    max_pool_forward(&op->pool, l->examples, l->at[LK_X], l->at[LK_Y], l->at[LK_AUX]);
    return 0;
}
static uint32_t call_max_pool2d_backward(lk_lane *l, const lk_op *op) {
    return max_pool_backward(&op->pool, l->examples, l->at[LK_DY], l->at[LK_AUX], l->at[LK_DX]);
}
static uint32_t call_relu(lk_lane *l, const lk_op *op) {
    relu_forward(l->examples * op->floats, l->at[LK_X], l->at[LK_Y]);
    return 0;
}
static uint32_t call_relu_backward(lk_lane *l, const lk_op *op) {
    relu_backward(l->examples * op->floats, l->at[LK_Y], l->at[LK_DY], l->at[LK_DX]);
    return 0;
}
static uint32_t call_softmax_cross_entropy(lk_lane *l, const lk_op *op) {
    return softmax_cross_entropy(l->examples, (uint32_t)op->floats, op->scale,
                                 l->train ? l->at[LK_AUX] : NULL, l->at[LK_X], l->at[LK_X2],
                                 l->train ? l->at[LK_DX] : NULL, l->at[LK_Y], &l->counts[0]);
}
