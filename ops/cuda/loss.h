// loss.h - softmax cross-entropy as a block has it: one warp an example. The launches are
// loss.cu's, and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_LOSS_H
#define LOCKSTEP_OPS_CUDA_LOSS_H

#include "ops/cuda/device.h"
#include "ops/math.h"

enum { LANES = 32, ALL = 0xffffffff };

// The greatest of an example's logits and where it first stands; the same in all lanes.
typedef struct greatest {
    float value;
    uint32_t at;
} greatest;

static inline __device__ greatest first_maximum(uint32_t classes, const float *logits,
                                                uint32_t lane) {
    greatest top = {0.0f, UINT32_MAX};
    for (uint32_t k = lane; k < classes; k += LANES) {
        if (top.at == UINT32_MAX || logits[k] > top.value) top = {logits[k], k};
    }
    for (int with = LANES / 2; with > 0; with /= 2) {
        greatest other = {__shfl_xor_sync(ALL, top.value, with),
                          __shfl_xor_sync(ALL, top.at, with)};
        bool before = other.value == top.value && other.at < top.at;
        bool better = top.at == UINT32_MAX || other.value > top.value || before;
        if (other.at != UINT32_MAX && better) top = other;
    }
    return top;
}

// The sum of exp(logit - top), or of logit - top, in the arithmetic's order: every lane adds all of
// them, and computes its own.
static inline __device__ float sum_over(uint32_t classes, const float *logits, float top,
                                        uint32_t lane, bool of_powers) {
    lk_cuda_tree tree;
    tree.leaves = 0;
    float chain = 0.0f;
    for (uint32_t first = 0; first < classes; first += LANES) {
        if (first > 0 && first % LK_SLICE_TERMS == 0) {
            lk_cuda_tree_leaf(&tree, chain);
            chain = 0.0f;
        }
        float mine = first + lane < classes ? logits[first + lane] - top : 0.0f;
        if (of_powers && first + lane < classes) mine = lk_expf(mine);
        for (uint32_t i = 0; i < LANES && first + i < classes; i++) {
            chain = chain + __shfl_sync(ALL, mine, (int)i);
        }
    }
    lk_cuda_tree_leaf(&tree, chain);
    return lk_cuda_tree_finish(&tree) + 0.0f;
}

// A block of so many warps.
template <int WARPS>
static inline __device__ void softmax_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                           uint32_t m_count, uint32_t classes, float smoothing,
                                           const float *weights, const float *logits,
                                           const uint32_t *labels, float *dlogits, float *loss) {
    uint32_t lane = threadIdx.x % LANES;
    uint64_t m = (uint64_t)block.x * WARPS + threadIdx.x / LANES;
    if (m >= m_count) return;  // the whole warp
    logits += m * classes;
    const bool missing = labels[m] == LK_CUDA_NO_EXAMPLE;
    const uint32_t label = missing ? 0 : labels[m];
    const float weight = weights && label < classes ? weights[label] : 1.0f;
    const greatest top = first_maximum(classes, logits, lane);
    const float sum = sum_over(classes, logits, top.value, lane, true);
    const float reciprocal = 1.0f / sum;
    const float off = smoothing / (float)classes, on = 1.0f - smoothing + off;
    const float all = smoothing == 0.0f ? 0.0f : sum_over(classes, logits, top.value, lane, false);
    bool bad = false;
    if (lane == 0) {
        const float *own = label < classes ? logits + label : NULL;
        float distance = own ? *own - top.value : 0.0f;
        if (smoothing != 0.0f) distance = lk_fmaf(off, all, (1.0f - smoothing) * distance);
        float value =
            own ? (lk_logf(sum) - distance + 0.0f) * weight + 0.0f : __uint_as_float(0x7fc00000);
        loss[m] = missing ? 0.0f : value;
        bad = lk_cuda_not_finite(value);
        if (top.at == label && !missing) atomicAdd(&state->counts[0], 1u);
    }
    for (uint32_t k = lane; dlogits && k < classes; k += LANES) {
        float p = lk_expf(logits[k] - top.value) * reciprocal;
        float g = (p - (k == label ? on : off) + 0.0f) * weight + 0.0f;
        bad |= lk_cuda_not_finite(g);
        dlogits[m * classes + k] = missing ? 0.0f : g;
    }
    lk_cuda_report(state, op, bad);
}

#endif
