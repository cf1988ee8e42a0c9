// nccl.c - NCCL behind nccl.h: loaded at run time, settings pinned, every call looked at.
#define _GNU_SOURCE
#include "comm/cuda/nccl.h"

#ifdef LK_HAVE_NCCL
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "arena/cuda_memory.h"

_Static_assert(sizeof(ncclUniqueId) == LK_NCCL_ID_BYTES, "the name of a world has 128 bytes");

// Loaded, not linked: a program that was built with NCCL runs where it is not installed, and a
// single GPU is not touched by it.
#define NCCL_CALLS(X)         \
    X(ncclCommAbort)          \
    X(ncclCommDestroy)        \
    X(ncclCommGetAsyncError)  \
    X(ncclCommInitRankConfig) \
    X(ncclGetErrorString)     \
    X(ncclGetUniqueId) X(ncclGetVersion) X(ncclGroupEnd) X(ncclGroupStart) X(ncclRecv) X(ncclSend)

static struct {
#define CALL_FIELD(name) __typeof__(&name) name;
    NCCL_CALLS(CALL_FIELD)
#undef CALL_FIELD
} calls;

// What NCCL would otherwise choose by machine, or do later: memory taken at the first use of a
// peer, buffers of another size, sums in the switch (never used; off, they take no memory).
static const struct {
    const char *name, *value;
} settings[] = {{"NCCL_RUNTIME_CONNECT", "0"},
                {"NCCL_NVLS_ENABLE", "0"},
                {"NCCL_ALGO", "Ring"},
                {"NCCL_PROTO", "Simple"},
                {"NCCL_BUFFSIZE", "4194304"}};

static lk_status load(lk_error *error) {
    static bool loaded;
    if (loaded) return LK_OK;
    for (size_t i = 0; i < LK_COUNT(settings); i++) setenv(settings[i].name, settings[i].value, 1);
    void *library = dlopen(LK_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL), *found = NULL;
    const char *missing = library ? NULL : dlerror();
#define CALL_FIND(name)                                                \
    if (!missing && !(found = dlsym(library, #name))) missing = #name; \
    memcpy(&calls.name, &found, sizeof found);
    NCCL_CALLS(CALL_FIND)
#undef CALL_FIND
    loaded = !missing;
    if (loaded) return LK_OK;
    return lk_fail(
        error, LK_UNAVAILABLE,
        "several GPUs: NCCL cannot be loaded: %s; install NCCL 2.18 or newer, or use one "
        "GPU: the result is the same",
        missing);
}

static lk_status check(const char *what, ncclResult_t code, lk_error *error) {
    if (code == ncclSuccess) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "NCCL: %s: %s; use one GPU, the result is the same; NCCL_DEBUG=INFO says more",
                   what, calls.ncclGetErrorString(code));
}

lk_status lk_nccl_load(lk_nccl *n, lk_error *error) {
    int version = 0;
    memset(n, 0, sizeof *n);
    LK_CHECK(load(error));
    LK_CHECK(check("its version", calls.ncclGetVersion(&version), error));
    lk_format(n->version, sizeof n->version, "%d.%d.%d", version / 10000, version / 100 % 100,
              version % 100);
    return LK_OK;
}

lk_status lk_nccl_name(lk_nccl *n, uint8_t id[LK_NCCL_ID_BYTES], lk_error *error) {
    ncclUniqueId made;
    (void)n;
    LK_CHECK(check("naming the world", calls.ncclGetUniqueId(&made), error));
    memcpy(id, &made, sizeof made);
    return LK_OK;
}

lk_status lk_nccl_start(lk_nccl *n, const uint8_t id[LK_NCCL_ID_BYTES], uint32_t world,
                        uint32_t first, uint32_t count, const uint32_t *devices, lk_error *error) {
    ncclUniqueId name;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    lk_assert(count <= LK_NCCL_GPUS_MAX);
    memcpy(&name, id, sizeof name);
    config.blocking = 1;
    n->world = world;
    n->first = first;
    n->count = count;
    ncclResult_t code = calls.ncclGroupStart();
    const bool open = code == ncclSuccess;
    for (uint32_t i = 0; i < count && code == ncclSuccess; i++) {
        lk_cuda_use(devices[i]);
        code =
            calls.ncclCommInitRankConfig(&n->comms[i], (int)world, name, (int)(first + i), &config);
    }
    // A group of which a call failed ends at once, without the other workers.
    const ncclResult_t ended = open ? calls.ncclGroupEnd() : ncclSuccess;
    if (code == ncclSuccess) code = ended;
    // Half joined, they could wait for the others for ever: the end of the process is theirs.
    if (code != ncclSuccess) memset(n->comms, 0, sizeof n->comms);
    return check("joining the world", code, error);
}

// --- bytes -------------------------------------------------------------------------------------

static void note(lk_nccl *n, ncclResult_t code) {
    if (n->code == 0) n->code = (int)code;
}

void lk_nccl_begin(lk_nccl *n) {
    if (n->code) return;
    n->in_group = true;
    note(n, calls.ncclGroupStart());
}

void lk_nccl_send(lk_nccl *n, uint32_t gpu, const void *from, uint64_t bytes, uint32_t to,
                  struct CUstream_st *stream) {
    if (n->code || bytes == 0) return;
    note(n, calls.ncclSend(from, bytes, ncclUint8, (int)to, n->comms[gpu], stream));
}

void lk_nccl_receive(lk_nccl *n, uint32_t gpu, void *to, uint64_t bytes, uint32_t from,
                     struct CUstream_st *stream) {
    if (n->code || bytes == 0) return;
    note(n, calls.ncclRecv(to, bytes, ncclUint8, (int)from, n->comms[gpu], stream));
}

void lk_nccl_end(lk_nccl *n) {
    if (!n->in_group) return;
    n->in_group = false;
    note(n, calls.ncclGroupEnd());
}

bool lk_nccl_is_well(lk_nccl *n, const char **what) {
    for (uint32_t i = 0; i < n->count && n->code == 0; i++) {
        ncclResult_t code = ncclSuccess;
        ncclResult_t asked = calls.ncclCommGetAsyncError(n->comms[i], &code);
        n->bad = n->first + i;
        note(n, asked == ncclSuccess && code == ncclInProgress ? ncclSuccess : LK_MAX(asked, code));
    }
    if (n->code == 0) return true;
    *what = calls.ncclGetErrorString((ncclResult_t)n->code);
    return false;
}

void lk_nccl_abort(lk_nccl *n) {
    for (uint32_t i = 0; i < n->count; i++) {
        if (n->comms[i]) (void)calls.ncclCommAbort(n->comms[i]);
        n->comms[i] = NULL;
    }
    n->count = 0;
}

// After a failure something may be under way that never ends.
void lk_nccl_close(lk_nccl *n) {
    if (n->code) lk_nccl_abort(n);
    for (uint32_t i = 0; i < n->count; i++) {
        if (n->comms[i]) (void)calls.ncclCommDestroy(n->comms[i]);
        n->comms[i] = NULL;
    }
    n->count = 0;
}

#else
lk_status lk_nccl_load(lk_nccl *n, lk_error *error) {
    (void)n;
    return lk_fail(error, LK_UNAVAILABLE,
                   "several GPUs: this build has no NCCL; install it and configure with "
                   "-DLOCKSTEP_NCCL=ON, or use one GPU: the result is the same");
}

// Nobody comes further: that has refused.
lk_status lk_nccl_name(lk_nccl *n, uint8_t id[LK_NCCL_ID_BYTES], lk_error *error) {
    (void)id;
    return lk_nccl_load(n, error);
}

lk_status lk_nccl_start(lk_nccl *n, const uint8_t id[LK_NCCL_ID_BYTES], uint32_t world,
                        uint32_t first, uint32_t count, const uint32_t *devices, lk_error *error) {
    (void)id, (void)world, (void)first, (void)count, (void)devices;
    return lk_nccl_load(n, error);
}

void lk_nccl_begin(lk_nccl *n) { (void)n; }

void lk_nccl_send(lk_nccl *n, uint32_t gpu, const void *from, uint64_t bytes, uint32_t to,
                  struct CUstream_st *stream) {
    (void)n, (void)gpu, (void)from, (void)bytes, (void)to, (void)stream;
}

void lk_nccl_receive(lk_nccl *n, uint32_t gpu, void *to, uint64_t bytes, uint32_t from,
                     struct CUstream_st *stream) {
    (void)n, (void)gpu, (void)to, (void)bytes, (void)from, (void)stream;
}

void lk_nccl_end(lk_nccl *n) { (void)n; }

bool lk_nccl_is_well(lk_nccl *n, const char **what) {
    (void)n, (void)what;
    return true;
}

void lk_nccl_abort(lk_nccl *n) { (void)n; }
void lk_nccl_close(lk_nccl *n) { (void)n; }
#endif
