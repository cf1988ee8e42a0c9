// loss.cu - softmax cross-entropy: one warp an example.
#include "ops/cuda/loss.h"

enum { WARPS = 4 };

static __global__ void __launch_bounds__(WARPS *LANES)
    softmax_cross_entropy(lk_cuda_state *state, uint32_t op, uint32_t m_count, uint32_t classes,
                          float smoothing, const float *__restrict__ weights,
                          const float *__restrict__ logits, const uint32_t *__restrict__ labels,
                          float *__restrict__ dlogits, float *__restrict__ loss) {
    lk_cuda_begin();
    softmax_body<WARPS>(lk_cuda_here(), state, op, m_count, classes, smoothing, weights, logits,
                        labels, dlogits, loss);
}

void lk_cuda_softmax_cross_entropy(lk_cuda_stream *s, uint32_t m_count, uint32_t classes,
                                   float smoothing, const float *weights, const float *logits,
                                   const uint32_t *labels, float *dlogits, float *loss) {
    const uint64_t examples = m_count, values = examples * classes;
    const uint32_t warps = (s->tasks ? (uint32_t)LK_CUDA_THREADS : WARPS * LANES) / LANES;
    const lk_cuda_grid grid = {dim3((m_count + warps - 1) / warps),
                               {examples * LANES, classes, 0,
                                (values * (dlogits ? 2 : 1) + examples * 2) * sizeof(float)}};
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, weights, classes);
    lk_cuda_reads(&spans, logits, values);
    lk_cuda_reads(&spans, labels, examples);
    lk_cuda_writes(&spans, dlogits, values);
    lk_cuda_writes(&spans, loss, examples);
    lk_cuda_launch_body(s, LK_CUDA_BODY_SOFTMAX, spans, softmax_cross_entropy, grid, WARPS * LANES,
                        0, s->state, s->op, m_count, classes, smoothing, weights, logits, labels,
                        dlogits, loss);
}

int lk_cuda_prepare_loss(void) { return lk_cuda_prepare_kernels(softmax_cross_entropy); }
