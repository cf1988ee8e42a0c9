// table.h - a GPU's kernels as a table of ops/op.h: strict, and the fast one, which overrides the
// products. Plain C, needs no CUDA header. A kernel enqueues a launch and returns 0: what is not
// finite is noted on the device (ops/cuda/kernels.h).
#ifndef LOCKSTEP_OPS_CUDA_TABLE_H
#define LOCKSTEP_OPS_CUDA_TABLE_H

#include "ops/cuda/fast.h"
#include "ops/op.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a lane carries as `device`.
typedef struct lk_cuda_lane {
    const struct lk_mixed_hands *hands;  // the first: whoever walks says it (ops/graph/mixed.h)
    lk_cuda_stream *stream;
    lk_fast *fast;  // NULL: the strict arithmetic
} lk_cuda_lane;

extern const lk_kernels lk_kernels_cuda;       // "cuda"
extern const lk_kernels lk_kernels_cuda_fast;  // the same, products by cuBLASLt

#define LK_CUDA_PLAIN(NUMBER, name) uint32_t lk_cuda_plain_##name(lk_lane *lane, const lk_op *op);
LK_PLAIN_OP_LIST(LK_CUDA_PLAIN)
#undef LK_CUDA_PLAIN

// Layers with a state (sequence.cu), and the scratch of them.
uint32_t lk_cuda_lstm(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_lstm_backward(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_gru(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_gru_backward(lk_lane *lane, const lk_op *op);
uint64_t lk_cuda_recurrent_scratch_floats(const lk_sequence *sequence, uint32_t examples);

// Of a transducer (transducer.c), and its scratch.
uint32_t lk_cuda_embed_labels(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_embed_labels_gradient(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_joint(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_joint_input_gradient(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_joint_weight_gradient(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_transducer_loss(lk_lane *lane, const lk_op *op);
uint32_t lk_cuda_decode_labels(lk_lane *lane, const lk_op *op);
uint64_t lk_cuda_transducer_scratch_floats(const lk_op *op, uint32_t examples);

// Before and after the rounds of a decoding: lk_decode_start, lk_decode_count.
void lk_cuda_decode_begin(lk_lane *lane, const lk_op *op);
void lk_cuda_decode_end(lk_lane *lane, const lk_op *op);

// Scratch of an op's launches in floats, for at most `examples` examples in grains of `grain`;
// `rules` of the fast arithmetic, or NULL.
uint64_t lk_cuda_op_scratch_floats(const lk_op *op, uint32_t grain, uint32_t examples,
                                   const lk_fast_rules *rules);

// Is the op a product of matrices, which the fast arithmetic leaves to cuBLAS?
bool lk_cuda_is_product(const lk_op *op);

// Is it one job of sums (sums.h), in the strict arithmetic, that may leave its parts
// (lk_cuda_stream.left)? Sum i is element i of its kernel, behind which those of its bias come.
bool lk_cuda_leaves_parts(const lk_op *op);

#ifdef __cplusplus
}
#endif
#endif
