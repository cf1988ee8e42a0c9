// nccl_processes_test.cu - the stand-in for NCCL between processes: bytes of a replayed graph come
// through whole, and what is wrong shows: ends that differ, a GPU that is there twice, a process
// that is gone, noticed or not.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>

#include "host.h"
#include "nccl.h"

enum { BYTES = 100001, ROUNDS = 3, PATIENCE_MS = 300 };

// One of two ranks, on a device of its own.
struct rank {
    ncclComm_t comm;
    cudaStream_t stream;
    uint8_t *out, *in;  // of its device
    cudaGraphExec_t graph;
};

#define MUST(condition_)                                                 \
    if (!(condition_)) {                                                 \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition_); \
        _exit(1);                                                        \
    }

static void open(rank *r, ncclUniqueId id, int number, int on_device, size_t bytes) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cudaGraph_t graph;
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    lk_host_devices(2);
    MUST(cudaSetDevice(on_device) == cudaSuccess);
    ncclResult_t code = ncclCommInitRankConfig(&r->comm, 2, id, number, &config);
    if (code != ncclSuccess) _exit(10 + (int)code);
    MUST(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking) == cudaSuccess);
    MUST(cudaMalloc(&r->out, BYTES) == cudaSuccess && cudaMalloc(&r->in, BYTES) == cudaSuccess);
    MUST(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(ncclSend(r->out, bytes, ncclUint8, 1 - number, r->comm, r->stream) == ncclSuccess);
    MUST(ncclRecv(r->in, BYTES, ncclUint8, 1 - number, r->comm, r->stream) == ncclSuccess);
    MUST(ncclGroupEnd() == ncclSuccess);
    MUST(cudaStreamEndCapture(r->stream, &graph) == cudaSuccess);
    MUST(cudaGraphInstantiate(&r->graph, graph, 0) == cudaSuccess);
}

static void exchange(rank *r, int number) {
    static uint8_t host[BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BYTES; i++) host[i] = (uint8_t)(i * 7 + round + 100 * number);
        MUST(cudaMemcpy(r->out, host, BYTES, cudaMemcpyHostToDevice) == cudaSuccess);
        MUST(cudaGraphLaunch(r->graph, r->stream) == cudaSuccess);
        MUST(cudaStreamSynchronize(r->stream) == cudaSuccess);
        MUST(cudaMemcpy(host, r->in, BYTES, cudaMemcpyDeviceToHost) == cudaSuccess);
        for (int i = 0; i < BYTES; i++) {
            MUST(host[i] == (uint8_t)(i * 7 + round + 100 * (1 - number)));
        }
    }
}

// Until the stream is empty, the other is said to be gone, or patience ends.
static ncclResult_t wait_for(rank *r) {
    const struct timespec moment = {0, 1000000};
    ncclResult_t code = ncclSuccess;
    for (int ms = 0; ms < PATIENCE_MS && cudaStreamQuery(r->stream) != cudaSuccess; ms++) {
        nanosleep(&moment, NULL);
        MUST(ncclCommGetAsyncError(r->comm, &code) == ncclSuccess);
        if (code != ncclSuccess) break;
    }
    return code;
}

enum scenario { GOOD, SEEDED, DIFFERENT, TWICE, DIES, DIES_UNHEARD };

static void take_part(scenario s, ncclUniqueId id, int number) {
    static rank r;
    if (s == SEEDED) lk_host_seed(77 + (uint64_t)number);
    open(&r, id, number, s == TWICE ? 0 : number, s == DIFFERENT && number ? BYTES - 1 : BYTES);
    if (s == DIES || s == DIES_UNHEARD) {
        if (number == 1) _exit(0);
        MUST(cudaGraphLaunch(r.graph, r.stream) == cudaSuccess);
        MUST(wait_for(&r) == (s == DIES ? ncclRemoteError : ncclSuccess));
        MUST(cudaStreamQuery(r.stream) == cudaErrorNotReady);
        MUST(cudaGraphExecDestroy(r.graph) == cudaSuccess);
        MUST(ncclCommAbort(r.comm) == ncclSuccess);
        MUST(cudaStreamSynchronize(r.stream) == cudaSuccess);  // nothing waits any more
    } else {
        exchange(&r, number);
    }
    _exit(0);
}

// Exit codes of both, in processes that hold nothing of this one.
static void play(scenario s, int codes[2]) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    if (fork() == 0) {
        ncclUniqueId id;
        pid_t children[2];
        int status = 0;
        if (s == DIES_UNHEARD) setenv("LOCKSTEP_HOST_NCCL_FAIL", "deaf", 1);
        if (ncclGetUniqueId(&id) != ncclSuccess) _exit(1);
        for (int number = 0; number < 2; number++) {
            children[number] = fork();
            if (children[number] == 0) take_part(s, id, number);
        }
        for (int ended = 0; ended < 2; ended++) {
            const int number = wait(&status) == children[1];
            codes[number] = WIFEXITED(status) ? WEXITSTATUS(status) : 256;
            // The other one waits for ever for what this one ended over.
            if (codes[number] == 70) kill(children[1 - number], SIGKILL);
        }
        if (write(ends[1], codes, 2 * sizeof *codes) < 0) _exit(1);
        _exit(0);
    }
    assert_int_equal(read(ends[0], codes, 2 * sizeof *codes), 2 * sizeof *codes);
    wait(NULL);
    close(ends[0]);
    close(ends[1]);
}

static void test_bytes_come_through(void **state) {
    (void)state;
    for (scenario s : {GOOD, SEEDED}) {
        int codes[2];
        play(s, codes);
        assert_int_equal(codes[0], 0);
        assert_int_equal(codes[1], 0);
    }
}

static void test_ends_differ(void **state) {
    int codes[2];
    (void)state;
    play(DIFFERENT, codes);
    assert_true(codes[0] == 70 || codes[1] == 70);
}

static void test_a_gpu_is_one_rank(void **state) {
    int codes[2];
    (void)state;
    play(TWICE, codes);
    assert_int_equal(codes[0], 10 + ncclInvalidUsage);
    assert_int_equal(codes[1], 10 + ncclInvalidUsage);
}

static void test_a_process_is_gone(void **state) {
    (void)state;
    for (scenario s : {DIES, DIES_UNHEARD}) {
        int codes[2];
        play(s, codes);
        assert_int_equal(codes[0], 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_through),
        cmocka_unit_test(test_ends_differ),
        cmocka_unit_test(test_a_gpu_is_one_rank),
        cmocka_unit_test(test_a_process_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
