// host.cpp - the runtime: devices, memory, streams, events, graphs, as host.h says.
//
// One lock; whoever holds it may run device work, so that device code itself is single-threaded.
// All work is items of one fixed pool, in a list per stream or per captured graph.
#include "host.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "block.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { ITEMS = 16384, STREAMS = 64, EVENTS = 256, GRAPHS = 64, ALLOCATIONS = 4096 };

// --- things --------------------------------------------------------------------------------------

typedef enum item_kind { KERNEL, COPY, SET, WAIT, GRAPH, MARK } item_kind;

struct item {
    item *next;
    item_kind kind;
    cudaLaunchConfig_t config;  // KERNEL
    void (*call)(const void *memory);
    alignas(16) uint8_t memory[LK_HOST_CALL_BYTES];
    void *to;  // COPY, SET
    const void *from;
    size_t bytes;
    int value;
    cudaStream_t stream;  // WAIT: until so much of that stream is done
    uint64_t until;
    cudaGraphExec_t exec;  // GRAPH
};

struct list {
    item *head, *tail;
};

struct CUstream_st {
    bool used, non_blocking;
    list work;
    uint64_t enqueued, done;
    cudaGraph_t capture;  // what is enqueued goes there
};

struct CUevent_st {
    bool used;
    cudaStream_t stream;  // that it was last recorded in; NULL: never
    uint64_t until;
    cudaGraph_t capture;
    struct timespec time;
};

struct CUgraph_st {
    bool used, invalid;
    uint32_t holders;  // the graph itself and what was made of it
    list work;
};

struct CUgraphExec_st {
    bool used;
    cudaGraph_t graph;
};

struct allocation {
    uint8_t *at;
    size_t bytes;
    enum { DEVICE, PINNED, REGISTERED } kind;
    uint8_t *map;  // with the page behind it that nobody may touch
    size_t map_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static item items[ITEMS];
static item *free_items;
static uint32_t items_taken;          // once, from the pool
static CUstream_st streams[STREAMS];  // the first is the default stream
static CUevent_st events[EVENTS];
static CUgraph_st graphs[GRAPHS];
static CUgraphExec_st execs[GRAPHS];
static allocation allocations[ALLOCATIONS];
static uint32_t allocation_count;
static lk_host_counts counts;
static cudaError_t last_error;
static int device_count = 1;
static size_t device_bytes = (size_t)8 << 30;
static const size_t context_bytes = (size_t)300 << 20;  // a driver takes about as much
static uint64_t random_state, seed_given;
static struct {
    char function[64];
    uint32_t left;
} failure;
extern uint64_t lk_host_barriers_passed;

static void read_environment(void) {
    const char *seed = getenv("LOCKSTEP_HOST_CUDA_SEED");
    const char *devices = getenv("LOCKSTEP_HOST_CUDA_DEVICES");
    const char *memory = getenv("LOCKSTEP_HOST_CUDA_MEMORY");
    const char *fail = getenv("LOCKSTEP_HOST_CUDA_FAIL");
    if (seed) random_state = seed_given = strtoull(seed, NULL, 10);
    if (devices) device_count = atoi(devices);
    if (memory) device_bytes = strtoull(memory, NULL, 10);
    if (!fail) return;
    const char *colon = strchr(fail, ':');
    size_t length = colon ? (size_t)(colon - fail) : strlen(fail);
    snprintf(failure.function, sizeof failure.function, "%.*s", (int)length, fail);
    failure.left = colon ? (uint32_t)atoi(colon + 1) : 1;
}

static void open_once(void) {
    static bool opened;
    if (opened) return;
    opened = true;
    read_environment();
    streams[0].used = true;
}

// Holds the lock for as long as a runtime function runs, and says whether it is to fail.
struct entry {
    explicit entry(const char *function) {
        pthread_mutex_lock(&lock);
        open_once();
        fails = failure.left > 0 && strcmp(failure.function, function) == 0 && --failure.left == 0;
    }
    ~entry() { pthread_mutex_unlock(&lock); }
    cudaError_t end(cudaError_t error) const {
        if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
        return error;
    }
    bool fails;
};

#define ENTER_OR(error_)   \
    entry call_(__func__); \
    if (call_.fails) return call_.end(error_)
#define LEAVE(error_) return call_.end(error_)
#define REQUIRE(condition, error_) \
    if (!(condition)) return call_.end(error_)

static cudaError_t usable(void) {
    if (device_count < 0) return cudaErrorInsufficientDriver;
    if (device_count == 0) return cudaErrorNoDevice;
    return lk_host_block_open() ? cudaSuccess : cudaErrorMemoryAllocation;
}

// --- memory --------------------------------------------------------------------------------------

static allocation *holding(const void *at, size_t bytes) {
    const uint8_t *p = static_cast<const uint8_t *>(at);
    for (uint32_t i = 0; i < allocation_count; i++) {
        allocation *a = &allocations[i];
        if (p >= a->at && p + bytes <= a->at + a->bytes) return a;
    }
    return NULL;
}

// The device's memory is there only while it works.
static void map_device(bool there) {
    static uint32_t depth;
    if (there ? depth++ > 0 : --depth > 0) return;
    for (uint32_t i = 0; i < allocation_count; i++) {
        allocation *a = &allocations[i];
        if (a->kind != allocation::DEVICE) continue;
        mprotect(a->map, a->map_bytes - 4096, there ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

static cudaError_t allocate(void **pointer, size_t bytes, bool device) {
    if (bytes == 0 || allocation_count == ALLOCATIONS) return cudaErrorInvalidValue;
    if (device && bytes > device_bytes - context_bytes - counts.live_bytes) {
        return cudaErrorMemoryAllocation;
    }
    size_t rounded = (bytes + 4095) / 4096 * 4096;
    void *map = mmap(NULL, rounded + 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return cudaErrorMemoryAllocation;
    uint8_t *at = static_cast<uint8_t *>(map);
    // To the end of the page as far as an alignment of 256 bytes allows.
    at += (rounded - bytes) / 256 * 256;
    for (size_t i = 0; i + 4 <= bytes; i += 4) *reinterpret_cast<uint32_t *>(at + i) = 0x7fa1a1a1u;
    ASAN_POISON_MEMORY_REGION(at + bytes, static_cast<uint8_t *>(map) + rounded - (at + bytes));
    allocations[allocation_count++] = {at, bytes, device ? allocation::DEVICE : allocation::PINNED,
                                       static_cast<uint8_t *>(map), rounded + 4096};
    mprotect(static_cast<uint8_t *>(map) + rounded, 4096, PROT_NONE);
    if (device) mprotect(map, rounded, PROT_NONE);
    counts.allocations++;
    if (device) counts.live_bytes += bytes;
    *pointer = at;
    return cudaSuccess;
}

static cudaError_t release(void *pointer, bool device) {
    allocation *a = holding(pointer, 0);
    if (!a || a->at != pointer || a->kind != (device ? allocation::DEVICE : allocation::PINNED)) {
        return cudaErrorInvalidValue;
    }
    ASAN_UNPOISON_MEMORY_REGION(a->map, a->map_bytes - 4096);
    munmap(a->map, a->map_bytes);
    if (device) counts.live_bytes -= a->bytes;
    *a = allocations[--allocation_count];
    return cudaSuccess;
}

// --- work ----------------------------------------------------------------------------------------

static void append(list *l, item *i) {
    i->next = NULL;
    if (l->tail)
        l->tail->next = i;
    else
        l->head = i;
    l->tail = i;
}

static void give_back(list *l) {
    while (l->head) {
        item *i = l->head;
        l->head = i->next;
        i->next = free_items;
        free_items = i;
    }
    l->tail = NULL;
}

static void drain(cudaStream_t stream, uint64_t until);

static void run_item(const item *i) {
    switch (i->kind) {
    case KERNEL:
        counts.launches++;
        lk_host_grid_run(&i->config, i->call, i->memory,
                         seed_given ? lk_host_draw(&random_state) : 0);
        break;
    case COPY: memmove(i->to, i->from, i->bytes); break;
    case SET: memset(i->to, i->value, i->bytes); break;
    case WAIT: drain(i->stream, i->until); break;
    case GRAPH:
        for (const item *node = i->exec->graph->work.head; node; node = node->next) run_item(node);
        break;
    case MARK: break;
    }
}

// Runs what is enqueued in a stream, in order, until so much of it is done.
static void drain(cudaStream_t stream, uint64_t until) {
    if (stream->done >= until) return;
    map_device(true);
    while (stream->done < until) {
        item *i = stream->work.head;
        stream->work.head = i->next;
        if (!i->next) stream->work.tail = NULL;
        run_item(i);
        stream->done++;
        i->next = free_items;
        free_items = i;
    }
    map_device(false);
}

static void drain_all(bool blocking_only) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (!streams[i].used || (blocking_only && streams[i].non_blocking)) continue;
        drain(&streams[i], streams[i].enqueued);
    }
}

static cudaStream_t stream_of(cudaStream_t stream) { return stream ? stream : &streams[0]; }

static bool capturing(void) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (streams[i].capture) return true;
    }
    return false;
}

// A call that a capture under way does not allow spoils it.
static bool spoils_capture(void) {
    bool some = false;
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (!streams[i].capture) continue;
        streams[i].capture->invalid = true;
        some = true;
    }
    return some;
}

static cudaError_t enqueue(cudaStream_t stream, const item *what) {
    stream = stream_of(stream);
    if (!stream->used) return cudaErrorInvalidResourceHandle;
    if (seed_given && !stream->capture && stream->done < stream->enqueued) {
        uint64_t waiting = stream->enqueued - stream->done;
        drain(stream, stream->done + lk_host_draw(&random_state) % (waiting + 1));
    }
    if (!free_items && items_taken == ITEMS && !capturing()) drain_all(false);
    item *i = free_items;
    if (i)
        free_items = i->next;
    else if (items_taken < ITEMS)
        i = &items[items_taken++];
    else
        return cudaErrorMemoryAllocation;
    *i = *what;
    append(stream->capture ? &stream->capture->work : &stream->work, i);
    if (!stream->capture) stream->enqueued++;
    return cudaSuccess;
}

// --- what tests set and see ----------------------------------------------------------------------

void lk_host_seed(uint64_t seed) {
    entry call(__func__);
    random_state = seed_given = seed;
}

void lk_host_devices(int count) {
    entry call(__func__);
    device_count = count;
}

void lk_host_fail(const char *function, uint32_t n) {
    entry call(__func__);
    snprintf(failure.function, sizeof failure.function, "%s", function);
    failure.left = n;
}

lk_host_counts lk_host_counted(void) {
    entry call(__func__);
    counts.barriers = lk_host_barriers_passed;
    return counts;
}

// --- for other stand-ins -------------------------------------------------------------------------

bool lk_host_fails(const char *function) { return entry(function).fails; }

bool lk_host_captures(void) {
    entry call(__func__);
    return capturing();
}

bool lk_host_on_device(const void *at, size_t bytes) {
    entry call(__func__);
    const allocation *a = holding(at, bytes);
    return a && a->kind == allocation::DEVICE;
}

void lk_host_count_allocation(void) {
    entry call(__func__);
    counts.allocations++;
}

// --- devices -------------------------------------------------------------------------------------

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
};

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &e : error_texts) {
        if (e.error == error) return e.name;
    }
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : error_texts) {
        if (e.error == error) return e.text;
    }
    return "unknown error";
}

cudaError_t cudaPeekAtLastError(void) {
    entry call(__func__);
    return last_error;
}

cudaError_t cudaGetLastError(void) {
    entry call(__func__);
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaDriverGetVersion(int *version) {
    ENTER_OR(cudaErrorUnknown);
    *version = device_count < 0 ? 0 : CUDART_VERSION;
    LEAVE(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER_OR(cudaErrorUnknown);
    *count = device_count > 0 ? device_count : 0;
    cudaError_t error = usable();
    LEAVE(error == cudaErrorMemoryAllocation ? cudaSuccess : error);
}

cudaError_t cudaGetDevice(int *device) {
    ENTER_OR(cudaErrorUnknown);
    *device = 0;
    LEAVE(usable());
}

cudaError_t cudaSetDevice(int device) {
    ENTER_OR(cudaErrorInitializationError);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    LEAVE(device >= 0 && device < device_count ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    ENTER_OR(cudaErrorUnknown);
    (void)flags;
    LEAVE(usable());
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    ENTER_OR(cudaErrorUnknown);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    REQUIRE(device >= 0 && device < device_count, cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    const char *name = getenv("LOCKSTEP_HOST_CUDA_NAME");
    snprintf(prop->name, sizeof prop->name, "%s", name ? name : "host execution layer");
    prop->totalGlobalMem = device_bytes;
    prop->sharedMemPerBlock = 48 * 1024;
    prop->sharedMemPerBlockOptin = LK_HOST_SHARED_BYTES;
    prop->sharedMemPerMultiprocessor = LK_HOST_SHARED_BYTES + 1024;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = LK_HOST_THREADS_MAX;
    prop->major = 9;
    prop->multiProcessorCount = 1;
    prop->canMapHostMemory = 1;
    prop->l2CacheSize = 1 << 20;
    LEAVE(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER_OR(cudaErrorLaunchFailure);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    counts.synchronisations++;
    drain_all(false);
    LEAVE(usable());
}

cudaError_t cudaDeviceReset(void) {
    ENTER_OR(cudaErrorUnknown);
    drain_all(false);
    while (allocation_count > 0) {
        allocation *a = &allocations[allocation_count - 1];
        if (a->kind == allocation::REGISTERED)
            allocation_count--;
        else
            release(a->at, a->kind == allocation::DEVICE);
    }
    LEAVE(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER_OR(cudaErrorUnknown);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    *total_bytes = device_bytes;
    *free_bytes = device_bytes - context_bytes - counts.live_bytes;
    LEAVE(cudaSuccess);
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    ENTER_OR(cudaErrorMemoryAllocation);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    LEAVE(allocate(pointer, bytes, true));
}

cudaError_t cudaFree(void *pointer) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    if (!pointer) LEAVE(usable());
    drain_all(false);
    LEAVE(release(pointer, true));
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    ENTER_OR(cudaErrorMemoryAllocation);
    (void)flags;
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    LEAVE(allocate(pointer, bytes, false));
}

cudaError_t cudaFreeHost(void *pointer) {
    ENTER_OR(cudaErrorUnknown);
    if (!pointer) LEAVE(cudaSuccess);
    drain_all(false);
    LEAVE(release(pointer, false));
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    ENTER_OR(cudaErrorMemoryAllocation);
    (void)flags;
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    REQUIRE(pointer && bytes > 0 && allocation_count < ALLOCATIONS, cudaErrorInvalidValue);
    REQUIRE(!holding(pointer, 0), cudaErrorHostMemoryAlreadyRegistered);
    counts.allocations++;
    allocations[allocation_count++] = {static_cast<uint8_t *>(pointer), bytes,
                                       allocation::REGISTERED, NULL, 0};
    LEAVE(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *pointer) {
    ENTER_OR(cudaErrorUnknown);
    drain_all(false);
    allocation *a = holding(pointer, 0);
    REQUIRE(a && a->kind == allocation::REGISTERED && a->at == pointer,
            cudaErrorHostMemoryNotRegistered);
    *a = allocations[--allocation_count];
    LEAVE(cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags) {
    ENTER_OR(cudaErrorUnknown);
    (void)flags;
    allocation *a = holding(host, 1);
    REQUIRE(a && a->kind != allocation::DEVICE, cudaErrorInvalidValue);
    *device = host;
    LEAVE(cudaSuccess);
}

// --- copies --------------------------------------------------------------------------------------

static bool is_device(const void *at, size_t bytes) {
    allocation *a = holding(at, bytes);
    return a && a->kind == allocation::DEVICE;
}

// Each end of a copy lies where its kind says.
static bool copy_allowed(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return true;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return is_device(to, bytes) == to_device && is_device(from, bytes) == from_device;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    ENTER_OR(cudaErrorIllegalAddress);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    REQUIRE(copy_allowed(to, from, bytes, kind), cudaErrorInvalidValue);
    counts.synchronisations++;
    drain_all(true);
    map_device(true);
    memmove(to, from, bytes);
    map_device(false);
    LEAVE(cudaSuccess);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    ENTER_OR(cudaErrorIllegalAddress);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    REQUIRE(holding(to, bytes), cudaErrorInvalidValue);
    drain_all(true);
    map_device(true);
    memset(to, value, bytes);
    map_device(false);
    LEAVE(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    ENTER_OR(cudaErrorIllegalAddress);
    REQUIRE(copy_allowed(to, from, bytes, kind), cudaErrorInvalidValue);
    // Pageable memory is not for graphs: what lies there at replay is anybody's guess.
    bool pinned = holding(to, bytes) && holding(from, bytes);
    REQUIRE(pinned || !stream_of(stream)->capture, cudaErrorStreamCaptureUnsupported);
    item copy = {};
    copy.kind = COPY;
    copy.to = to;
    copy.from = from;
    copy.bytes = bytes;
    LEAVE(enqueue(stream, &copy));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    ENTER_OR(cudaErrorIllegalAddress);
    REQUIRE(holding(to, bytes), cudaErrorInvalidValue);
    item set = {};
    set.kind = SET;
    set.to = to;
    set.value = value;
    set.bytes = bytes;
    LEAVE(enqueue(stream, &set));
}

// --- streams and events --------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    ENTER_OR(cudaErrorMemoryAllocation);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    uint32_t i = 1;
    while (i < STREAMS && streams[i].used) i++;
    REQUIRE(i < STREAMS, cudaErrorMemoryAllocation);
    streams[i] = {};
    streams[i].used = true;
    streams[i].non_blocking = flags & cudaStreamNonBlocking;
    counts.allocations++;
    *stream = &streams[i];
    LEAVE(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(stream && stream->used && stream != &streams[0], cudaErrorInvalidResourceHandle);
    drain(stream, stream->enqueued);
    stream->used = false;
    LEAVE(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER_OR(cudaErrorLaunchFailure);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    counts.synchronisations++;
    drain(stream_of(stream), stream_of(stream)->enqueued);
    LEAVE(cudaSuccess);
}

// A host that polls sees progress, one item at a time.
static cudaError_t poll(cudaStream_t stream, uint64_t until) {
    if (stream->done < until) drain(stream, stream->done + 1);
    return stream->done < until ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    ENTER_OR(cudaErrorLaunchFailure);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    LEAVE(poll(stream_of(stream), stream_of(stream)->enqueued));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    ENTER_OR(cudaErrorUnknown);
    (void)flags;
    REQUIRE(event && event->used, cudaErrorInvalidResourceHandle);
    stream = stream_of(stream);
    if (event->capture) {
        // A graph runs in the order of its capture: joining it is all there is to do.
        REQUIRE(!stream->capture || stream->capture == event->capture,
                cudaErrorStreamCaptureInvalidated);
        stream->capture = event->capture;
        LEAVE(cudaSuccess);
    }
    if (!event->stream) LEAVE(cudaSuccess);
    REQUIRE(!stream->capture, cudaErrorStreamCaptureUnsupported);
    item wait = {};
    wait.kind = WAIT;
    wait.stream = event->stream;
    wait.until = event->until;
    LEAVE(enqueue(stream, &wait));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    ENTER_OR(cudaErrorMemoryAllocation);
    (void)flags;
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    uint32_t i = 0;
    while (i < EVENTS && events[i].used) i++;
    REQUIRE(i < EVENTS, cudaErrorMemoryAllocation);
    events[i] = {};
    events[i].used = true;
    counts.allocations++;
    *event = &events[i];
    LEAVE(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(event && event->used, cudaErrorInvalidResourceHandle);
    event->used = false;
    LEAVE(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(event && event->used, cudaErrorInvalidResourceHandle);
    stream = stream_of(stream);
    item mark = {};
    mark.kind = MARK;
    cudaError_t error = enqueue(stream, &mark);
    event->stream = stream;
    event->until = stream->enqueued;
    event->capture = stream->capture;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    LEAVE(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER_OR(cudaErrorLaunchFailure);
    REQUIRE(event && event->used, cudaErrorInvalidResourceHandle);
    REQUIRE(!event->capture && !spoils_capture(), cudaErrorStreamCaptureUnsupported);
    counts.synchronisations++;
    if (event->stream) drain(event->stream, event->until);
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    LEAVE(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER_OR(cudaErrorLaunchFailure);
    REQUIRE(event && event->used, cudaErrorInvalidResourceHandle);
    REQUIRE(!event->capture && !spoils_capture(), cudaErrorStreamCaptureUnsupported);
    LEAVE(event->stream ? poll(event->stream, event->until) : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(start && end && start->stream && end->stream, cudaErrorInvalidResourceHandle);
    REQUIRE(end->stream->done >= end->until, cudaErrorNotReady);
    *milliseconds = (float)(end->time.tv_sec - start->time.tv_sec) * 1e3f +
                    (float)(end->time.tv_nsec - start->time.tv_nsec) * 1e-6f;
    LEAVE(cudaSuccess);
}

// --- graphs --------------------------------------------------------------------------------------

static void let_go(cudaGraph_t graph) {
    if (--graph->holders > 0) return;
    give_back(&graph->work);
    graph->used = false;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    ENTER_OR(cudaErrorUnknown);
    (void)mode;
    REQUIRE(stream && stream->used, cudaErrorStreamCaptureUnsupported);  // not the default stream
    REQUIRE(!stream->capture, cudaErrorInvalidValue);
    uint32_t i = 0;
    while (i < GRAPHS && graphs[i].used) i++;
    REQUIRE(i < GRAPHS, cudaErrorMemoryAllocation);
    graphs[i] = {};
    graphs[i].used = true;
    graphs[i].holders = 1;
    stream->capture = &graphs[i];
    LEAVE(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    ENTER_OR(cudaErrorUnknown);
    *graph = NULL;
    REQUIRE(stream && stream->capture, cudaErrorStreamCaptureUnmatched);
    cudaGraph_t captured = stream->capture;
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (streams[i].capture == captured) streams[i].capture = NULL;
    }
    for (uint32_t i = 0; i < EVENTS; i++) {
        if (events[i].capture == captured) events[i].capture = NULL, events[i].stream = NULL;
    }
    if (captured->invalid) {
        let_go(captured);
        LEAVE(cudaErrorStreamCaptureInvalidated);
    }
    counts.allocations++;
    *graph = captured;
    LEAVE(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags) {
    ENTER_OR(cudaErrorMemoryAllocation);
    (void)flags;
    REQUIRE(graph && graph->used, cudaErrorInvalidValue);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    uint32_t i = 0;
    while (i < GRAPHS && execs[i].used) i++;
    REQUIRE(i < GRAPHS, cudaErrorMemoryAllocation);
    execs[i] = {true, graph};
    graph->holders++;
    counts.allocations++;
    *exec = &execs[i];
    LEAVE(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    ENTER_OR(cudaErrorMemoryAllocation);
    REQUIRE(exec && exec->used && !stream_of(stream)->capture, cudaErrorInvalidValue);
    LEAVE(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    ENTER_OR(cudaErrorLaunchFailure);
    REQUIRE(exec && exec->used, cudaErrorInvalidValue);
    REQUIRE(!stream_of(stream)->capture, cudaErrorStreamCaptureUnsupported);
    counts.graph_launches++;
    item launch = {};
    launch.kind = GRAPH;
    launch.exec = exec;
    LEAVE(enqueue(stream, &launch));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(graph && graph->used, cudaErrorInvalidValue);
    let_go(graph);
    LEAVE(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(exec && exec->used, cudaErrorInvalidValue);
    drain_all(false);
    let_go(exec->graph);
    exec->used = false;
    LEAVE(cudaSuccess);
}

// --- kernels -------------------------------------------------------------------------------------

static bool fits(const cudaLaunchConfig_t *c) {
    uint64_t threads = (uint64_t)c->blockDim.x * c->blockDim.y * c->blockDim.z;
    // More than 48 KiB of shared memory is for kernels that ask for it, which none does.
    return threads > 0 && threads <= LK_HOST_THREADS_MAX && c->gridDim.x > 0 && c->gridDim.y > 0 &&
           c->gridDim.z > 0 && c->gridDim.x <= 0x7fffffffu && c->gridDim.y <= 65535 &&
           c->gridDim.z <= 65535 && c->dynamicSmemBytes <= 48 * 1024;
}

cudaError_t lk_host_launch(const cudaLaunchConfig_t *config, void (*call)(const void *memory),
                           const void *memory, size_t bytes) {
    entry entered("cudaLaunchKernelEx");
    cudaError_t error = entered.fails ? cudaErrorLaunchFailure : usable();
    if (error == cudaSuccess && !fits(config)) error = cudaErrorInvalidConfiguration;
    if (error != cudaSuccess) return entered.end(error);
    item kernel = {};
    kernel.kind = KERNEL;
    kernel.config = *config;
    kernel.call = call;
    memcpy(kernel.memory, memory, bytes);
    return entered.end(enqueue(config->stream, &kernel));
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    ENTER_OR(cudaErrorUnknown);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    REQUIRE(kernel, cudaErrorInvalidValue);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = LK_HOST_THREADS_MAX;
    attributes->numRegs = 32;
    LEAVE(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    ENTER_OR(cudaErrorUnknown);
    (void)attribute;
    LEAVE(kernel && value <= LK_HOST_SHARED_BYTES ? cudaSuccess : cudaErrorInvalidValue);
}
