// gpu_measure.cu - what a GPU can do, where it decides how Lockstep uses it: a kernel of a replayed
// graph, a barrier of the whole grid, chains of fused multiply-adds, the fp32 peak, copies. One
// JSON object on standard output.
//
//   gpu_measure [--small]    little work, one block: for the host execution layer
//
// Times are those between two events of the device, the shortest of a few rounds.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ops/cuda/device.h"

enum { ROUNDS = 5, SHARED_TERMS = 512, LANES = 8 };

typedef struct measure {
    cudaStream_t stream;
    cudaEvent_t start, stop;
    uint32_t blocks;   // one on every processor of the device
    uint32_t repeats;  // of short things
    bool small;
    float *floats;  // of the device
    uint32_t *words;
    uint64_t float_count;
} measure;

static void must(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "gpu_measure: %s: %s (%s)\n", what, cudaGetErrorString(error),
            cudaGetErrorName(error));
    exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 69 : 70);
}

// --- kernels -------------------------------------------------------------------------------------

static __global__ void step_kernel(uint32_t *count) {
    if (threadIdx.x == 0) count[0] = count[0] + 1;
}

// All blocks are on the device at once: one on each processor, and nothing else runs. One that
// waits too long gives up and says so, instead of hanging.
static __global__ void barrier_kernel(uint32_t *arrived, uint32_t *failed, uint32_t barriers) {
    const uint32_t polls_max = 1u << 24;
    for (uint32_t i = 1; i <= barriers; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t polls = 0;
            __threadfence();
            atomicAdd(arrived, 1);
            while (atomicAdd(arrived, 0) < i * gridDim.x && polls < polls_max) polls++;
            if (polls == polls_max) atomicAdd(failed, 1);
            __threadfence();
        }
        __syncthreads();
    }
}

// One chain in each thread, operands in registers.
static __global__ void chain_kernel(uint32_t terms, float factor, float *out) {
    float sum = out[threadIdx.x];
    for (uint32_t k = 0; k < terms; k++) sum = lk_fmaf(sum, factor, factor);
    out[threadIdx.x] = sum;
}

// One chain in each thread, `repeats` times, as the dense kernels run them: operands in shared
// memory.
static __global__ void slice_kernel(uint32_t terms, uint32_t repeats, float *out) {
    float sum = out[threadIdx.x];
    for (uint32_t k = threadIdx.x; k < SHARED_TERMS; k += blockDim.x) {
        lk_cuda_shared[k] = 1.0f / (float)(k + 2);
    }
    __syncthreads();
    for (uint32_t r = 0; r < repeats; r++) {
        for (uint32_t k = 0; k < terms; k++) sum = lk_fmaf(lk_cuda_shared[k], 0.5f, sum);
    }
    out[threadIdx.x] = sum;
}

static __global__ void peak_kernel(uint32_t terms, float factor, float *out) {
    float sum[LANES];
    for (uint32_t l = 0; l < LANES; l++) sum[l] = (float)(threadIdx.x + l);
    for (uint32_t k = 0; k < terms; k++) {
        for (uint32_t l = 0; l < LANES; l++) sum[l] = lk_fmaf(sum[l], factor, factor);
    }
    float all = 0.0f;
    for (uint32_t l = 0; l < LANES; l++) all += sum[l];
    out[(uint64_t)blockIdx.x * blockDim.x + threadIdx.x] = all;
}

// --- time ----------------------------------------------------------------------------------------

// Microseconds of what `work` enqueues: the shortest of some rounds, after one to warm up.
template <typename Work>
static double microseconds(const measure *m, Work work) {
    float best = 0.0f;
    for (int round = -1; round < ROUNDS; round++) {
        float now = 0.0f;
        must(cudaEventRecord(m->start, m->stream), "an event");
        work();
        must(cudaEventRecord(m->stop, m->stream), "an event");
        must(cudaEventSynchronize(m->stop), "a measurement");
        must(cudaEventElapsedTime(&now, m->start, m->stop), "a time");
        if (round <= 0 || now < best) best = now;
    }
    return 1000.0 * (double)best;
}

template <typename... Wanted, typename... Given>
static void launch(const measure *m, void (*kernel)(Wanted...), uint32_t blocks, uint32_t threads,
                   Given... given) {
    lk_cuda_stream s = {};
    s.stream = m->stream;
    lk_cuda_launch(&s, kernel, {dim3(blocks), {}}, threads, SHARED_TERMS, given...);
    must((cudaError_t)s.error, "a launch");
}

// --- what is measured ----------------------------------------------------------------------------

// A graph of `kernels` small kernels in a row, `blocks` wide: for each of them.
static double graph_kernel(const measure *m, uint32_t kernels, uint32_t blocks) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamBeginCapture(m->stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (uint32_t k = 0; k < kernels; k++) {
        launch(m, step_kernel, blocks, LK_CUDA_THREADS, m->words);
    }
    must(cudaStreamEndCapture(m->stream, &graph), "capturing");
    must(cudaGraphInstantiate(&exec, graph, 0), "a graph");
    must(cudaGraphUpload(exec, m->stream), "a graph");
    const double time = microseconds(m, [&] {
        for (uint32_t r = 0; r < m->repeats; r++) must(cudaGraphLaunch(exec, m->stream), "a graph");
    });
    must(cudaGraphExecDestroy(exec), "a graph");
    must(cudaGraphDestroy(graph), "a graph");
    return time / m->repeats / kernels;
}

// A negative number where a block was missing: the barrier means nothing then.
static double grid_barrier(const measure *m) {
    const uint32_t barriers = m->repeats * 10;
    uint32_t failed = 0;
    const double time = microseconds(m, [&] {
        must(cudaMemsetAsync(m->words, 0, 2 * sizeof *m->words, m->stream), "clearing");
        launch(m, barrier_kernel, m->blocks, LK_CUDA_THREADS, m->words, m->words + 1, barriers);
    });
    must(cudaMemcpy(&failed, m->words + 1, sizeof failed, cudaMemcpyDeviceToHost), "a copy");
    return failed ? -1.0 : time / barriers;
}

// Nanoseconds of one term of a chain: of two lengths, so that what starting costs drops out.
static double chain_term(const measure *m) {
    const uint32_t terms = m->repeats * 1000;
    const double one =
        microseconds(m, [&] { launch(m, chain_kernel, 1, 32, terms, 0.5f, m->floats); });
    const double two =
        microseconds(m, [&] { launch(m, chain_kernel, 1, 32, 2 * terms, 0.5f, m->floats); });
    return 1000.0 * (two - one) / terms;
}

static double slice(const measure *m, uint32_t terms) {
    const double one =
        microseconds(m, [&] { launch(m, slice_kernel, 1, 32, terms, m->repeats, m->floats); });
    const double two =
        microseconds(m, [&] { launch(m, slice_kernel, 1, 32, terms, 2 * m->repeats, m->floats); });
    return (two - one) / m->repeats;
}

static double fma_peak_gflops(const measure *m) {
    const uint32_t terms = m->small ? 10 : 20000, blocks = m->small ? 1 : 8 * m->blocks;
    const double time = microseconds(
        m, [&] { launch(m, peak_kernel, blocks, LK_CUDA_THREADS, terms, 0.5f, m->floats); });
    return 2.0 * LANES * terms * blocks * LK_CUDA_THREADS / (time * 1e3);
}

// GB/s, read and written counted once.
static double copy_rate(const measure *m, void *to, const void *from, enum cudaMemcpyKind kind) {
    const uint64_t bytes = m->float_count * sizeof(float) / 2;
    const double time =
        microseconds(m, [&] { must(cudaMemcpyAsync(to, from, bytes, kind, m->stream), "a copy"); });
    return (double)bytes / (time * 1e3);
}

static measure open_device(bool small) {
    measure m = {};
    struct cudaDeviceProp properties;
    must(cudaSetDevice(0), "no GPU can be used here");
    must(cudaGetDeviceProperties(&properties, 0), "no GPU can be used here");
    m.small = small;
    m.blocks = small ? 1 : (uint32_t)properties.multiProcessorCount;
    m.repeats = small ? 2 : 100;
    m.float_count = small ? 1u << 12 : 1u << 27;
    must(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreate(&m.start), "an event");
    must(cudaEventCreate(&m.stop), "an event");
    must(cudaMalloc((void **)&m.floats, m.float_count * sizeof *m.floats), "memory");
    must(cudaMalloc((void **)&m.words, 2 * sizeof *m.words), "memory");
    must(cudaMemset(m.floats, 0, m.float_count * sizeof *m.floats), "clearing");
    must(cudaMemset(m.words, 0, 2 * sizeof *m.words), "clearing");
    printf("{\"device\": \"%s\", \"capability\": \"%d.%d\", \"processors\": %d", properties.name,
           properties.major, properties.minor, properties.multiProcessorCount);
    return m;
}

int main(int argc, char **argv) {
    const measure m = open_device(argc > 1 && strcmp(argv[1], "--small") == 0);
    void *host = NULL;
    must(cudaHostAlloc(&host, m.float_count * sizeof(float) / 2, cudaHostAllocDefault), "memory");
    printf(", \"graph_kernel_us\": %.4g", graph_kernel(&m, m.small ? 3 : 50, 1));
    printf(", \"graph_wide_kernel_us\": %.4g", graph_kernel(&m, m.small ? 3 : 50, m.blocks));
    printf(", \"grid_barrier_us\": %.4g", grid_barrier(&m));
    printf(", \"chain_term_ns\": %.4g", chain_term(&m));
    for (uint32_t terms = 256; terms <= SHARED_TERMS; terms *= 2) {
        printf(", \"slice_%u_us\": %.4g", terms, slice(&m, terms));
    }
    printf(", \"fma_peak_gflops\": %.6g", fma_peak_gflops(&m));
    float *const half = m.floats + m.float_count / 2;
    printf(", \"copy_gbs\": %.4g", copy_rate(&m, half, m.floats, cudaMemcpyDeviceToDevice));
    printf(", \"upload_gbs\": %.4g", copy_rate(&m, m.floats, host, cudaMemcpyHostToDevice));
    printf(", \"download_gbs\": %.4g}\n", copy_rate(&m, host, m.floats, cudaMemcpyDeviceToHost));
    return 0;
}
