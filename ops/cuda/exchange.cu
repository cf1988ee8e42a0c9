// exchange.cu - what devices that share a batch compute for each other: whole tree nodes and
// reports. Nothing here knows how bytes travel.
#include "ops/cuda/device.h"

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    join(const lk_cuda_node *__restrict__ nodes, uint32_t node_count, uint64_t first,
         uint64_t count, float *out) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, count) out[i] = lk_cuda_reduce(nodes, node_count, first + i);
}

void lk_cuda_join(lk_cuda_stream *s, const lk_cuda_node *nodes, uint32_t node_count, uint64_t first,
                  uint64_t count, float *out) {
    if (node_count == 0) return;
    lk_cuda_launch(s, join,
                   lk_cuda_blocks(count, node_count, count * (node_count + 1) * sizeof(float)),
                   LK_CUDA_THREADS, 0, nodes, node_count, first, count, out);
}

static __global__ void note_write(const lk_cuda_state *state, lk_gpu_report *report) {
    lk_cuda_begin();
    if (threadIdx.x > 0) return;
    for (uint32_t k = 0; k < LK_METRIC_COUNTS_MAX; k++) report->counts[k] = state->counts[k];
    report->bad_op = state->bad_op;
}

void lk_cuda_report_write(lk_cuda_stream *s, lk_gpu_report *report) {
    lk_cuda_launch(s, note_write, {dim3(1), {1, 1, 0, sizeof *report}}, 32, 0, s->state, report);
}

static __global__ void note_join(lk_cuda_state *state, const lk_gpu_report *reports,
                                 uint32_t count) {
    lk_cuda_begin();
    if (threadIdx.x > 0) return;
    uint32_t counts[LK_METRIC_COUNTS_MAX] = {0}, bad_op = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < LK_METRIC_COUNTS_MAX; k++) counts[k] += reports[i].counts[k];
        bad_op = LK_MIN(bad_op, reports[i].bad_op);
    }
    for (uint32_t k = 0; k < LK_METRIC_COUNTS_MAX; k++) state->counts[k] = counts[k];
    state->bad_op = bad_op;
}

void lk_cuda_report_join(lk_cuda_stream *s, const lk_gpu_report *reports, uint32_t count) {
    lk_cuda_launch(s, note_join, {dim3(1), {1, count, 0, count * sizeof *reports}}, 32, 0, s->state,
                   reports, count);
}

int lk_cuda_prepare_exchange(void) { return lk_cuda_prepare_kernels(join, note_write, note_join); }
