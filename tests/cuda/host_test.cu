// host_test.cu - the host execution layer finds what it is there to find: kernels and calls that
// are wrong on purpose, each in a process of its own, and the right ones beside them.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_pipeline.h>

#include "host.h"

extern __shared__ __align__(128) float lk_cuda_shared[];

enum { THREADS = 96 };

static void launch(void (*kernel)(float *), float *out) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = THREADS * sizeof(float);
    assert_int_equal(cudaLaunchKernelEx(&config, kernel, out), cudaSuccess);
}

static float *device(size_t floats) {
    float *at = nullptr;
    assert_int_equal(cudaMalloc(&at, floats * sizeof(float)), cudaSuccess);
    return at;
}

// Runs `what` in a process of its own; its exit code, 256 for a signal, and what it said.
static int apart(void (*what)(void), char *said, size_t bytes) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        // Not cmocka's handlers, which would go on with the next test.
        for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) signal(number, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        what();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; (got = read(ends[0], said + length, bytes - 1 - length)) > 0;) {
        length += (size_t)got;
        if (length == bytes - 1) break;
    }
    said[length] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
}

static char said[1 << 16];

// --- what is right -------------------------------------------------------------------------------

// Each thread's number goes to its neighbour, through shared memory and through a shuffle.
static __global__ void neighbours(float *out) {
    uint32_t t = threadIdx.x;
    lk_cuda_shared[t] = (float)t;
    __syncthreads();
    float left = lk_cuda_shared[(t + THREADS - 1) % THREADS];
    float right = __shfl_sync(0xffffffffu, (float)t, (int)(t + 1));
    uint32_t votes = __ballot_sync(0xffffffffu, t % 2 == 0);
    __syncwarp();
    out[blockIdx.x * THREADS + t] = left * 1000.0f + right + (votes == 0x55555555u ? 0.5f : 0.0f);
}

static void test_threads_meet(void **state) {
    (void)state;
    float *out = device(2 * THREADS), got[2 * THREADS];
    for (uint64_t seed = 0; seed < 20; seed++) {
        lk_host_seed(seed);
        launch(neighbours, out);
        cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
        for (uint32_t i = 0; i < 2 * THREADS; i++) {
            uint32_t t = i % THREADS, lane = t % 32;
            float right = (float)(t - lane + (lane + 1) % 32);
            assert_true(got[i] == (float)((t + THREADS - 1) % THREADS) * 1000.0f + right + 0.5f);
        }
    }
    cudaFree(out);
}

// --- blocks that wait for each other -------------------------------------------------------------

enum { ROUNDS = 5, BLOCKS_MAX = 16 };

typedef struct meeting {
    uint32_t arrived, round;
} meeting;

// All threads of all blocks have come here.
static __device__ void meet(meeting *m) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t round = *(volatile uint32_t *)&m->round;
        if (atomicAdd(&m->arrived, 1) == gridDim.x - 1) {
            m->arrived = 0;
            m->round = round + 1;
        }
        while (*(volatile uint32_t *)&m->round == round) __nanosleep(20);
    }
    __syncthreads();
}

// In each round a block takes what its neighbour wrote in the round before, through shared memory.
template <bool MEETS>
static __global__ void relay(meeting *m, float *out) {
    const uint32_t b = blockIdx.x, left = (b + gridDim.x - 1) % gridDim.x, t = threadIdx.x;
    out[b * THREADS + t] = (float)b;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        if (MEETS) meet(m);
        lk_cuda_shared[t] = out[((round - 1) * gridDim.x + left) * THREADS + t];
        __syncthreads();
        out[(round * gridDim.x + b) * THREADS + t] = lk_cuda_shared[THREADS - 1 - t];
        __syncthreads();
    }
}

static int blocks_together(void) {
    int blocks = 0;
    assert_int_equal(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, relay<true>, THREADS,
                                                                   THREADS * sizeof(float)),
                     cudaSuccess);
    assert_in_range(blocks, 2, BLOCKS_MAX);
    return blocks;
}

static cudaError_t launch_together(void (*kernel)(meeting *, float *), int blocks, bool together,
                                   meeting *m, float *out) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = together;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = THREADS * sizeof(float);
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaMemset(m, 0, sizeof *m);
    return cudaLaunchKernelEx(&config, kernel, m, out);
}

// Rows of the last round that are not what the relay leaves there.
static uint32_t wrong_after(void (*kernel)(meeting *, float *), uint64_t seed) {
    static float got[(ROUNDS + 1) * BLOCKS_MAX * THREADS];
    lk_host_seed(seed);
    const int blocks = blocks_together();
    const size_t floats = (size_t)(ROUNDS + 1) * (size_t)blocks * THREADS;
    float *out = device(floats), *room = device(2);
    meeting *m = reinterpret_cast<meeting *>(room);
    assert_int_equal(launch_together(kernel, blocks, true, m, out), cudaSuccess);
    assert_int_equal(cudaMemcpy(got, out, floats * sizeof(float), cudaMemcpyDeviceToHost),
                     cudaSuccess);
    uint32_t wrong = 0;
    for (int b = 0; b < blocks; b++) {
        const float wanted = (float)((b + ROUNDS * (blocks - 1)) % blocks);
        for (uint32_t t = 0; t < THREADS; t++) {
            wrong += !(got[((size_t)ROUNDS * (size_t)blocks + (size_t)b) * THREADS + t] == wanted);
        }
    }
    cudaFree(out);
    cudaFree(room);
    return wrong;
}

static void test_blocks_meet(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        assert_int_equal(wrong_after(relay<true>, seed), 0);
        assert_true(wrong_after(relay<false>, seed) > 0);
    }
}

static void meet_in_turn(void) {
    float *out = device((ROUNDS + 1) * BLOCKS_MAX * THREADS), *room = device(2);
    meeting *m = reinterpret_cast<meeting *>(room);
    (void)launch_together(relay<true>, 2, false, m, out);
    cudaDeviceSynchronize();
}

static __global__ void nobody_comes(meeting *m, float *) {
    while (*(volatile uint32_t *)&m->round == 0) __nanosleep(20);
}
static void wait_for_nobody(void) {
    float *room = device(2);
    (void)launch_together(nobody_comes, 2, true, reinterpret_cast<meeting *>(room), room);
    cudaDeviceSynchronize();
}

static void test_waits_for_blocks_are_looked_at(void **state) {
    (void)state;
    assert_int_equal(apart(meet_in_turn, said, sizeof said), 70);
    assert_non_null(strstr(said, "not cooperative"));
    assert_int_equal(apart(wait_for_nobody, said, sizeof said), 70);
    assert_non_null(strstr(said, "never come"));
    lk_host_seed(0);
    float *room = device(2);
    assert_int_equal(launch_together(nobody_comes, blocks_together() + 1, true,
                                     reinterpret_cast<meeting *>(room), room),
                     cudaErrorCooperativeLaunchTooLarge);
    cudaFree(room);
}

// --- asynchronous copies -------------------------------------------------------------------------

enum { COPY_STAGES = 3, COPY_TURNS = 8 };

// Sums what the neighbour copied, turn by turn: two groups are under way while one is read. Four
// zeros follow of one thread in three.
template <int PRIOR, bool MEETS, bool ZEROS>
static __global__ void copies(const float *in, float *out) {
    const uint32_t t = threadIdx.x, other = THREADS - 1 - t;
    float sum = 0.0f;
    for (int n = -2; n < COPY_TURNS; n++) {
        if (n >= 0) {
            __pipeline_wait_prior(PRIOR);
            if (MEETS) __syncthreads();
        }
        if (n + 2 < COPY_TURNS) {
            float *to = lk_cuda_shared + ((n + 2) % COPY_STAGES * THREADS + t);
            const float *from = in + ((n + 2) * THREADS + (int)t);
            if (t % 3 > 0)
                __pipeline_memcpy_async(to, from, sizeof(float));
            else if (ZEROS)
                __pipeline_memcpy_async(to, from, sizeof(float), sizeof(float));
        }
        __pipeline_commit();
        if (n >= 0) sum = 2.0f * sum + lk_cuda_shared[n % COPY_STAGES * THREADS + (int)other];
    }
    __pipeline_wait_prior(0);
    out[blockIdx.x * THREADS + t] = sum;
}

static uint32_t wrong_copies(void (*kernel)(const float *, float *), uint64_t seed) {
    static float given[COPY_TURNS * THREADS], got[2 * THREADS];
    for (uint32_t n = 0; n < COPY_TURNS * THREADS; n++) given[n] = (float)(n * 7 % 31);
    float *in = device(COPY_TURNS * THREADS), *out = device(2 * THREADS);
    lk_host_seed(seed);
    cudaMemcpy(in, given, sizeof given, cudaMemcpyHostToDevice);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = COPY_STAGES * THREADS * sizeof(float);
    const float *from = in;
    assert_int_equal(cudaLaunchKernelEx(&config, kernel, from, out), cudaSuccess);
    cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        const uint32_t other = THREADS - 1 - i % THREADS;
        float sum = 0.0f;
        for (uint32_t n = 0; n < COPY_TURNS; n++) {
            sum = 2.0f * sum + (other % 3 > 0 ? given[n * THREADS + other] : 0.0f);
        }
        wrong += !(got[i] == sum);
    }
    cudaFree(in);
    cudaFree(out);
    return wrong;
}

static void test_copies(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        assert_int_equal(wrong_copies(copies<1, true, true>, seed), 0);
        assert_int_equal(wrong_copies(copies<0, true, true>, seed), 0);
        assert_true(wrong_copies(copies<2, true, true>, seed) > 0);   // waits for too few
        assert_true(wrong_copies(copies<1, false, true>, seed) > 0);  // no barrier
        assert_true(wrong_copies(copies<1, true, false>, seed) > 0);  // not filled with zeros
    }
}

template <int TO, int FROM, int BYTES>
static __global__ void copy_once(float *at) {
    if (threadIdx.x > 0) return;
    __pipeline_memcpy_async(reinterpret_cast<uint8_t *>(lk_cuda_shared) + TO,
                            reinterpret_cast<const uint8_t *>(at) + FROM, BYTES);
    __pipeline_commit();
    __pipeline_wait_prior(0);
}
static __global__ void copy_and_go(float *at) {
    __pipeline_memcpy_async(lk_cuda_shared + threadIdx.x, at, sizeof(float));
    __pipeline_commit();
}

template <void (*KERNEL)(float *)>
static void run(void) {
    float *out = device(2 * THREADS);
    launch(KERNEL, out);
    cudaDeviceSynchronize();
}

static void test_copies_are_looked_at(void **state) {
    (void)state;
    const struct {
        void (*run)(void);
        const char *wanted;
    } wrong[] = {
        {run<copy_once<2, 0, 4>>, "not aligned"},
        {run<copy_once<0, 2, 4>>, "not aligned"},
        {run<copy_once<0, 8, 16>>, "not aligned"},
        {run<copy_once<8, 0, 16>>, "not aligned"},
        {run<copy_once<0, 0, 12>>, "copies 12 bytes"},
        {run<copy_once<THREADS * 4, 0, 4>>, "shared memory"},
        {run<copy_and_go>, "never waited for"},
    };
    assert_int_equal(apart(run<copy_once<16, 32, 16>>, said, sizeof said), 0);
    for (const auto &one : wrong) {
        assert_int_equal(apart(one.run, said, sizeof said), 70);
        assert_non_null(strstr(said, one.wanted));
    }
}

// --- what is wrong -------------------------------------------------------------------------------

// Reads what another thread may not have written yet.
static __global__ void no_barrier(float *out) {
    lk_cuda_shared[threadIdx.x] = (float)threadIdx.x;
    out[blockIdx.x * THREADS + threadIdx.x] = lk_cuda_shared[THREADS - 1 - threadIdx.x];
}

static void test_missing_barrier_shows(void **state) {
    (void)state;
    float *out = device(2 * THREADS), got[2 * THREADS];
    for (uint64_t seed = 0; seed < 10; seed++) {
        uint32_t wrong = 0;
        lk_host_seed(seed);
        launch(no_barrier, out);
        cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
        for (uint32_t i = 0; i < 2 * THREADS; i++) {
            wrong += !(got[i] == (float)(THREADS - 1 - i % THREADS));
        }
        assert_true(wrong > 0);  // what was not written yet is NaN
    }
    cudaFree(out);
}

static __global__ void half_barrier(float *out) {
    if (threadIdx.x < 40) __syncthreads();
    out[0] = 0.0f;
}
static __global__ void two_barriers(float *out) {
    if (threadIdx.x < 40)
        __syncthreads();
    else
        __syncthreads(), out[0] = 0.0f;
}
static __global__ void lost_lane(float *out) {
    if (threadIdx.x % 32 != 5) __syncwarp();
    out[0] = 0.0f;
}
static void test_divergence_is_named(void **state) {
    (void)state;
    assert_int_equal(apart(run<half_barrier>, said, sizeof said), 70);
    assert_non_null(strstr(said, "host_test.cu"));
    assert_non_null(strstr(said, "half_barrier"));
    assert_non_null(strstr(said, "block ("));
    assert_int_equal(apart(run<two_barriers>, said, sizeof said), 70);
    assert_non_null(strstr(said, "two_barriers"));
    assert_int_equal(apart(run<lost_lane>, said, sizeof said), 70);
    assert_non_null(strstr(said, "lost_lane"));
    assert_int_equal(apart(run<neighbours>, said, sizeof said), 0);
}

static void touch_device(void) {
    float *at = device(1000);
    cudaDeviceSynchronize();
    at[5] = 1.0f;
}
static void beyond_device(void) {
    float *at = device(1024);
    cudaMemset(at, 0, 4096);
    launch([](float *out) { out[1024 + threadIdx.x] = 0.0f; }, at + 0);
    cudaDeviceSynchronize();
}

static void test_external_memory(void **state) {
    (void)state;
    assert_int_not_equal(apart(touch_device, said, sizeof said), 0);
    assert_int_not_equal(apart(beyond_device, said, sizeof said), 0);
}

#ifdef __SANITIZE_ADDRESS__
static __global__ void beyond_shared(float *out) { out[0] = lk_cuda_shared[THREADS]; }
static __global__ void beyond_end(float *out) { out[2 * THREADS] = 0.0f; }

static void test_bounds(void **state) {
    (void)state;
    assert_int_not_equal(apart(run<beyond_shared>, said, sizeof said), 0);
    assert_non_null(strstr(said, "AddressSanitizer"));
    assert_int_not_equal(apart(run<beyond_end>, said, sizeof said), 0);
}
#else
static void test_bounds(void **state) { (void)state; }  // only ASan sees a few bytes
#endif

// --- the runtime ---------------------------------------------------------------------------------

static __global__ void count(float *out) {
    if (threadIdx.x == 0 && blockIdx.x == 0) out[0] += 1.0f;
}

// A host that does not wait sees that nothing has happened.
static void test_work_waits(void **state) {
    (void)state;
    lk_host_seed(0);
    float *pinned = nullptr, *at = device(1), zero = 0.0f;
    assert_int_equal(cudaHostAlloc((void **)&pinned, 4, cudaHostAllocDefault), cudaSuccess);
    cudaMemcpy(at, &zero, 4, cudaMemcpyHostToDevice);
    cudaStream_t stream;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    *pinned = 7.0f;
    launch(count, at);
    assert_int_equal(cudaEventRecord(event, 0), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
    cudaMemcpyAsync(pinned, at, 4, cudaMemcpyDeviceToHost, stream);
    assert_true(*pinned == 7.0f);
    cudaStreamSynchronize(stream);
    assert_true(*pinned == 1.0f);  // the other stream's kernel came first
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
    cudaFreeHost(pinned);
    cudaFree(at);
}

static void test_captures(void **state) {
    (void)state;
    float *at = device(1), zero = 0.0f, got = 0.0f, *more = nullptr;
    cudaMemcpy(at, &zero, 4, cudaMemcpyHostToDevice);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamCreate(&stream);
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < 3; i++) cudaLaunchKernelEx(&config, count, at);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    cudaGraphDestroy(graph);
    for (int i = 0; i < 5; i++) assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    cudaStreamSynchronize(stream);
    cudaMemcpy(&got, at, 4, cudaMemcpyDeviceToHost);
    assert_true(got == 15.0f);
    cudaGraphExecDestroy(exec);

    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    assert_int_equal(cudaMalloc(&more, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaStreamDestroy(stream);
    cudaFree(at);
}

static __global__ void first(float *out) { out[0] = 1.0f; }
static __global__ void third(float *out) { out[0] = 3.0f; }
static __global__ void second(float *out) { out[0] = 2.0f; }

// Memory is taken where a kernel runs for the first time, not where it is launched.
static void test_the_driver_takes_memory(void **state) {
    (void)state;
    float *at = device(2 * THREADS);
    size_t before = 0, now = 0, total = 0;
    const uint64_t taken = lk_host_counted().driver_bytes;
    cudaMemGetInfo(&before, &total);
    launch(first, at);
    cudaMemGetInfo(&now, &total);
    assert_int_equal(now, before);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaMemGetInfo(&now, &total);
    assert_true(now < before);
    assert_int_equal(lk_host_counted().driver_bytes - taken, before - now);
    launch(first, at);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaMemGetInfo(&before, &total);
    assert_int_equal(now, before);
    lk_host_took_no_more(lk_host_counted().driver_bytes);
    launch(second, at);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaMemGetInfo(&now, &total);
    assert_true(now < before);
    cudaFree(at);
}

static void takes_too_late(void) {
    float *at = device(2 * THREADS);
    const uint64_t before = lk_host_counted().driver_bytes;
    launch(third, at);
    cudaDeviceSynchronize();
    lk_host_took_no_more(before);
}

static void test_what_is_taken_late_shows(void **state) {
    (void)state;
    assert_int_equal(apart(takes_too_late, said, sizeof said), 70);
    assert_non_null(strstr(said, "bytes of device memory, for what was launched too late"));
}

static void test_failures_and_counts(void **state) {
    (void)state;
    float *at = nullptr;
    size_t free_bytes = 0, total = 0, left = 0;
    lk_host_fail("cudaMalloc", 2);
    at = device(256);
    float *second = nullptr;
    assert_int_equal(cudaMalloc(&second, 4), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    cudaMemGetInfo(&free_bytes, &total);
    uint64_t allocations = lk_host_counted().allocations;
    assert_int_equal(cudaMalloc(&second, 1 << 20), cudaSuccess);
    cudaMemGetInfo(&left, &total);
    assert_int_equal(free_bytes - left, 1 << 20);
    assert_int_equal(lk_host_counted().allocations, allocations + 1);
    assert_int_equal(cudaMalloc(&at, total), cudaErrorMemoryAllocation);
    cudaFree(second);
    lk_host_devices(0);
    int count_now = 5;
    assert_int_equal(cudaGetDeviceCount(&count_now), cudaErrorNoDevice);
    assert_int_equal(count_now, 0);
    lk_host_devices(-1);
    assert_int_equal(cudaGetDeviceCount(&count_now), cudaErrorInsufficientDriver);
    lk_host_devices(1);
    cudaDeviceReset();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_meet),
        cmocka_unit_test(test_blocks_meet),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_copies_are_looked_at),
        cmocka_unit_test(test_waits_for_blocks_are_looked_at),
        cmocka_unit_test(test_missing_barrier_shows),
        cmocka_unit_test(test_divergence_is_named),
        cmocka_unit_test(test_external_memory),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_work_waits),
        cmocka_unit_test(test_captures),
        cmocka_unit_test(test_the_driver_takes_memory),
        cmocka_unit_test(test_what_is_taken_late_shows),
        cmocka_unit_test(test_failures_and_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
