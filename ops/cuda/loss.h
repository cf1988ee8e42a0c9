// loss.h - losses as a block has them. The launches are loss.cu's and plain.cu's, and the
// persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_LOSS_H
#define LOCKSTEP_OPS_CUDA_LOSS_H

#include "ops/cuda/device.h"
#include "ops/gan.h"
#include "ops/math.h"

enum { LANES = 32, ALL = 0xffffffff };

// --- softmax cross-entropy -----------------------------------------------------------------------

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

// A block has WARPS examples, one a warp.
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

// --- other losses --------------------------------------------------------------------------------

struct slice_sums {
    lk_cuda_tree tree;
    float chain;
};

static inline __device__ void slice_start(slice_sums *s) { s->tree.leaves = 0, s->chain = 0.0f; }
static inline __device__ void slice_cut(slice_sums *s) {
    lk_cuda_tree_leaf(&s->tree, s->chain);
    s->chain = 0.0f;
}
static inline __device__ float slice_finish(slice_sums *s) {
    slice_cut(s);
    return lk_cuda_tree_finish(&s->tree) + 0.0f;
}

static inline __device__ bool is_missing(const uint32_t *labels, uint64_t m) {
    return labels && labels[m] == LK_CUDA_NO_EXAMPLE;
}

// Of every value in two: the mean of their squared distances, and of their distances. One warp an
// example: each lane computes its own terms, and every lane adds all of them, in the arithmetic's
// order.
template <int WARPS>
static inline __device__ void squares_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                           uint32_t m_count, uint32_t count, const float *p,
                                           const float *t, const uint32_t *labels, float *dp,
                                           float *y) {
    const uint32_t lane = threadIdx.x % LANES;
    const uint64_t m = (uint64_t)block.x * WARPS + threadIdx.x / LANES;
    if (m >= m_count) return;  // the whole warp
    const bool missing = is_missing(labels, m);
    const float part = 1.0f / (float)count;
    slice_sums squares, absolutes;
    bool bad = false;
    slice_start(&squares), slice_start(&absolutes);
    for (uint32_t first = 0; first < count; first += LANES) {
        if (first > 0 && first % LK_SLICE_TERMS == 0) slice_cut(&squares), slice_cut(&absolutes);
        const uint64_t at = m * count + first + lane;
        const float mine = first + lane < count ? p[at] - t[at] : 0.0f;
        for (uint32_t i = 0; i < LANES && first + i < count; i++) {
            const float d = __shfl_sync(ALL, mine, (int)i);
            squares.chain = lk_fmaf(d, d, squares.chain);
            absolutes.chain = absolutes.chain + (d < 0.0f ? -d : d);
        }
        if (!dp || first + lane >= count) continue;
        const float g = mine * (2.0f * part) + 0.0f;
        bad |= lk_cuda_not_finite(g);
        dp[at] = missing ? 0.0f : g;
    }
    const float square = slice_finish(&squares) * part, absolute = slice_finish(&absolutes) * part;
    bad |= lk_cuda_not_finite(square) || lk_cuda_not_finite(absolute);
    if (lane == 0) {
        y[2 * m] = missing ? 0.0f : square;
        y[2 * m + 1] = missing ? 0.0f : absolute;
    }
    lk_cuda_report(state, op, bad);
}

template <int WARPS>
static inline __device__ void mean_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                        uint32_t m_count, uint32_t count, float scale,
                                        const float *x, const uint32_t *labels, float *dx,
                                        float *y) {
    const uint32_t lane = threadIdx.x % LANES;
    const uint64_t m = (uint64_t)block.x * WARPS + threadIdx.x / LANES;
    if (m >= m_count) return;  // the whole warp
    const bool missing = is_missing(labels, m);
    const float part = 1.0f / (float)count, slope = part * scale + 0.0f;
    slice_sums sum;
    slice_start(&sum);
    for (uint32_t first = 0; first < count; first += LANES) {
        if (first > 0 && first % LK_SLICE_TERMS == 0) slice_cut(&sum);
        const uint64_t at = m * count + first + lane;
        const float mine = first + lane < count ? x[at] : 0.0f;
        for (uint32_t i = 0; i < LANES && first + i < count; i++) {
            sum.chain = sum.chain + __shfl_sync(ALL, mine, (int)i);
        }
        if (dx && first + lane < count) dx[at] = missing ? 0.0f : slope;
    }
    const float value = slice_finish(&sum) * part * scale + 0.0f;
    if (lane == 0) y[m] = missing ? 0.0f : value;
    lk_cuda_report(state, op, lk_cuda_not_finite(value) || lk_cuda_not_finite(slope));
}

// One thread an example, whose logits are few.
static inline __device__ void binary_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                          uint64_t m_count, uint32_t count, float smoothing,
                                          const float *logits, const uint32_t *labels,
                                          float *dlogits, float *loss) {
    const float part = 1.0f / (float)count, off = smoothing * 0.5f, on = 1.0f - smoothing + off;
    bool bad = false;
    LK_CUDA_EACH_AT(block, m, m_count) {
        const bool missing = is_missing(labels, m);
        const uint32_t label = missing ? 0 : labels[m];
        const float *z = logits + m * count;
        uint32_t top = 0;
        slice_sums sum;
        slice_start(&sum);
        for (uint32_t k = 0; k < count; k++) {
            const float y = (count == 1 ? label == 1 : label == k) ? on : off;
            if (k > 0 && k % LK_SLICE_TERMS == 0) slice_cut(&sum);
            sum.chain =
                sum.chain + lk_fmaf(y, lk_log1pexpf(-z[k]), (1.0f - y) * lk_log1pexpf(z[k]));
            if (z[k] > z[top]) top = k;
            const float d = (lk_sigmoidf(z[k]) - y) * part + 0.0f;
            bad |= dlogits && lk_cuda_not_finite(d);
            if (dlogits) dlogits[m * count + k] = missing ? 0.0f : d;
        }
        if (count == 1) top = z[0] > 0.0f;
        const bool known = label < LK_MAX(count, 2u);
        const float value = known ? slice_finish(&sum) * part : __uint_as_float(0x7fc00000);
        bad |= lk_cuda_not_finite(value);
        loss[m] = missing ? 0.0f : value;
        if (top == label && !missing) atomicAdd(&state->counts[0], 1u);
    }
    lk_cuda_report(state, op, bad);
}

// One thread an example, whose scores are few. `fake` NULL: the generator's loss, of made examples.
static inline __device__ void gan_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                       uint64_t m_count, uint32_t count, const lk_gan &of,
                                       const float *first, const float *fake,
                                       const uint32_t *labels, float *dfirst, float *dfake,
                                       float *y) {
    const float part = 1.0f / (float)count;
    bool bad = false;
    LK_CUDA_EACH_AT(block, m, m_count) {
        const bool missing = is_missing(labels, m);
        slice_sums losses, scores, others;
        slice_start(&losses), slice_start(&scores), slice_start(&others);
        for (uint32_t k = 0; k < count; k++) {
            const uint64_t at = m * count + k;
            if (k > 0 && k % LK_SLICE_TERMS == 0) {
                slice_cut(&losses), slice_cut(&scores), slice_cut(&others);
            }
            const lk_gan_loss a =
                fake ? lk_gan_real(of, first[at]) : lk_gan_generator(of.kind, first[at]);
            losses.chain = losses.chain + a.loss;
            scores.chain = scores.chain + first[at];
            const float da = a.slope * part + 0.0f;
            bad |= dfirst && lk_cuda_not_finite(da);
            if (dfirst) dfirst[at] = missing ? 0.0f : da;
            if (!fake) continue;
            const lk_gan_loss b = lk_gan_fake(of.kind, fake[at]);
            others.chain = others.chain + b.loss;
            const float db = b.slope * part + 0.0f;
            bad |= dfake && lk_cuda_not_finite(db);
            if (dfake) dfake[at] = missing ? 0.0f : db;
        }
        float loss = slice_finish(&losses) * part;
        if (fake) loss = loss + slice_finish(&others) * part;
        const float score = slice_finish(&scores) * part;
        bad |= lk_cuda_not_finite(loss) || lk_cuda_not_finite(score);
        y[2 * m] = missing ? 0.0f : loss;
        y[2 * m + 1] = missing ? 0.0f : score;
    }
    lk_cuda_report(state, op, bad);
}

#endif
