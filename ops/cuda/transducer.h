// transducer.h - the launches of a transducer's ops (transducer.cu), as those of kernels.h. Plain
// C; who calls them is transducer.c.
#ifndef LOCKSTEP_OPS_CUDA_TRANSDUCER_H
#define LOCKSTEP_OPS_CUDA_TRANSDUCER_H

#include "ops/cuda/kernels.h"
#include "ops/layers/decode.h"

#ifdef __cplusplus
extern "C" {
#endif

// Cells [first, first + count) of a microbatch, which has fewer than 2^30, and what all of them are
// made of. What is made of cells lies in rows, one for each of them from `first` on.
typedef struct lk_cuda_cells {
    uint32_t first, count;
    const uint32_t *labels;  // (examples, 1 + labels)
    const float *x, *x2;     // (examples, frames, values), (examples, labels + 1, values)
    uint8_t dtype;           // what h and dz are rounded to
} lk_cuda_cells;

void lk_cuda_label_embedding(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                             const uint32_t *labels, const float *w, float *y);
// labels: of the grains' first example. Scratch: (examples, labels + 1)
void lk_cuda_label_embedding_gradient(lk_cuda_stream *s, const lk_joint *j,
                                      const lk_cuda_grains *grains, const uint32_t *labels,
                                      float *dw);

// h (count, values): +0 where there is no cell, as all that follows.
void lk_cuda_joint_states(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c, float *h);
// From scores z (count, symbols) to the microbatch's y and kept.
void lk_cuda_joint_outputs(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c,
                           const float *z, float *kept, float *y);
// z becomes dz. says: what is not finite is noted.
void lk_cuda_joint_slopes(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c, bool says,
                          const float *kept, const float *dy, float *z);
// d of each cell is added to the microbatch's dx and dx2, where they are wanted.
void lk_cuda_joint_add(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c,
                       const float *h, const float *dh, float *dx, float *dx2);
// to[i] = from[i]
void lk_cuda_move(lk_cuda_stream *s, uint64_t count, const float *from, float *to);

// dy: NULL, not wanted. Scratch: (examples, 2, cells)
void lk_cuda_transducer(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                        const uint32_t *labels, const float *y, float *loss, float *dy);

// Scratch: (examples, values + symbols); of the counting (examples, 1 + labels)
void lk_cuda_decode_start(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                          const uint32_t *labels, uint32_t *said, lk_decoding *states);
void lk_cuda_decode(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count, const lk_cuda_cells *c,
                    const float *w, const float *bias, uint32_t *said, lk_decoding *states);
void lk_cuda_decode_count(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                          const uint32_t *labels, const uint32_t *said);

#ifdef __cplusplus
}
#endif
#endif
