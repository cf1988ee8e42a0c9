// host.cpp - the runtime: devices, memory, streams, events, graphs, as host.h says.
//
// One lock; whoever holds it may run device work, so that device code itself is single-threaded.
// All work is items of one fixed pool, in a list per stream or per captured graph. Work is done one
// item at a time, and only what somebody waits for: an item that waits for another stream, or for
// what another device sends, has that one go on first.
#include "host.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "block.h"
#include "inside.h"

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

enum { ITEMS = 32768, STREAMS = 128, EVENTS = 512, GRAPHS = 64, ALLOCATIONS = 4096 };
enum { DEVICES = LK_HOST_DEVICES, LANES = 4 };

// --- things --------------------------------------------------------------------------------------

typedef enum item_kind { KERNEL, COPY, SET, WAIT, GRAPH, MARK, GROUP } item_kind;

struct item {
    item *next;
    item_kind kind;
    cudaLaunchConfig_t config;  // KERNEL
    cudaLaunchAttribute attribute;
    bool together;              // its blocks are
    const void *which;          // .. of this kernel
    void (*call)(const void *memory);
    alignas(16) uint8_t memory[LK_HOST_CALL_BYTES];
    void *to;  // COPY, SET
    const void *from;
    size_t bytes;
    int value;
    cudaStream_t stream;  // WAIT: until so much of that stream is done
    uint64_t until;
    cudaGraphExec_t exec;  // GRAPH
    void *group;           // GROUP: of nccl.cpp
    // Captured: of which of the graph's streams, and in a WAIT for how much of which other one.
    uint32_t lane, until_lane;
};

struct list {
    item *head, *tail;
};

// A graph under way: what is next in each of its lanes.
struct replay {
    bool under_way;
    uint32_t favourite, patience;  // the lane that is ahead of the others, and how long
    const item *next[LANES];
    uint64_t done[LANES];
};

struct CUstream_st {
    bool used, non_blocking;
    int device;
    list work;
    uint64_t enqueued, done;
    item_kind last;       // enqueued
    replay graph;         // that the first item is
    cudaGraph_t capture;  // what is enqueued goes there,
    uint32_t lane;        // to this one of its lanes
};

struct CUevent_st {
    bool used;
    cudaStream_t stream;  // that it was last recorded in; NULL: never
    uint64_t until;
    int device;
    cudaGraph_t capture;  // then `until` counts in `lane` of it
    uint32_t lane;
    struct timespec time;
};

struct CUgraph_st {
    bool used, invalid;
    uint32_t holders;  // the graph itself and what was made of it
    list work;
    uint32_t lanes;
    uint64_t enqueued[LANES];
};

struct CUgraphExec_st {
    bool used;
    cudaGraph_t graph;
    int device;
    uint32_t pending;  // launches that are not over
    bool doomed;       // destroyed, but for these
};

struct allocation {
    uint8_t *at;
    size_t bytes;
    enum { DEVICE, PINNED, REGISTERED } kind;
    int device;
    uint8_t *map;  // with the page behind it that nobody may touch
    size_t map_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static item items[ITEMS];
static item *free_items;
static uint32_t items_taken;          // once, from the pool
static CUstream_st streams[STREAMS];  // the first are the devices' default streams
static CUevent_st events[EVENTS];
static CUgraph_st graphs[GRAPHS];
static CUgraphExec_st execs[GRAPHS];
static allocation allocations[ALLOCATIONS];
static uint32_t allocation_count;
static lk_host_counts counts;
static cudaError_t last_error;
static int device_count = 1, current;
static size_t live_bytes[DEVICES];
static size_t device_bytes = (size_t)8 << 30;
static const size_t context_bytes = (size_t)300 << 20;  // a driver takes about as much
enum { KERNELS = 4096, KERNEL_BYTES = 64 << 10 };       // a power of two; what one takes
static struct {
    const void *kernel;
    uint32_t devices;  // on which it was launched, a bit each
} launched[KERNELS];
static size_t kernel_bytes[DEVICES];  // for kernels
static uint64_t random_state, seed_given;
static uint32_t moments_alone;  // since the host was last here
static struct {
    char function[64];
    uint32_t left;
} failure;
static uint64_t stuck_at = UINT64_MAX;  // the graph that never begins
extern uint64_t lk_host_barriers_passed;

static void read_environment(void) {
    const char *seed = getenv("LOCKSTEP_HOST_CUDA_SEED");
    const char *devices = getenv("LOCKSTEP_HOST_CUDA_DEVICES");
    const char *memory = getenv("LOCKSTEP_HOST_CUDA_MEMORY");
    const char *fail = getenv("LOCKSTEP_HOST_CUDA_FAIL");
    const char *stuck = getenv("LOCKSTEP_HOST_CUDA_STUCK");
    if (stuck) stuck_at = strtoull(stuck, NULL, 10);
    if (seed) random_state = seed_given = strtoull(seed, NULL, 10);
    if (devices) device_count = atoi(devices) < DEVICES ? atoi(devices) : DEVICES;
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
    for (int d = 0; d < DEVICES; d++) streams[d].used = true, streams[d].device = d;
}

// Holds the lock for as long as a runtime function runs, and says whether it is to fail.
struct entry {
    explicit entry(const char *function) {
        pthread_mutex_lock(&lock);
        moments_alone = 0;
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

static int mapped = -1;  // the device that works

// Device memory is there only while its device works: -1 for none.
static void map_device(int device) {
    if (device == mapped) return;
    for (uint32_t i = 0; i < allocation_count; i++) {
        allocation *a = &allocations[i];
        if (a->kind != allocation::DEVICE || (a->device != device && a->device != mapped)) continue;
        mprotect(a->map, a->map_bytes - 4096,
                 a->device == device ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
    mapped = device;
}

// The parts of two devices for a copy between them.
static void map_both(int a, int b) {
    map_device(a);
    if (a == b) return;
    for (uint32_t i = 0; i < allocation_count; i++) {
        allocation *other = &allocations[i];
        if (other->kind != allocation::DEVICE || other->device != b) continue;
        mprotect(other->map, other->map_bytes - 4096, PROT_READ | PROT_WRITE);
    }
}

static void unmap_other(int a, int b) {
    if (a == b) return;
    for (uint32_t i = 0; i < allocation_count; i++) {
        allocation *other = &allocations[i];
        if (other->kind != allocation::DEVICE || other->device != b) continue;
        mprotect(other->map, other->map_bytes - 4096, PROT_NONE);
    }
}

static cudaError_t allocate(void **pointer, size_t bytes, bool device) {
    if (bytes == 0 || allocation_count == ALLOCATIONS) return cudaErrorInvalidValue;
    if (device && bytes > device_bytes - context_bytes - live_bytes[current]) {
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
    map_device(-1);
    allocations[allocation_count++] = {at,
                                       bytes,
                                       device ? allocation::DEVICE : allocation::PINNED,
                                       current,
                                       static_cast<uint8_t *>(map),
                                       rounded + 4096};
    mprotect(static_cast<uint8_t *>(map) + rounded, 4096, PROT_NONE);
    if (device) mprotect(map, rounded, PROT_NONE);
    counts.allocations++;
    if (device) counts.live_bytes += bytes, live_bytes[current] += bytes;
    *pointer = at;
    return cudaSuccess;
}

static cudaError_t release(void *pointer, bool device) {
    allocation *a = holding(pointer, 0);
    if (!a || a->at != pointer || a->kind != (device ? allocation::DEVICE : allocation::PINNED)) {
        return cudaErrorInvalidValue;
    }
    map_device(-1);
    ASAN_UNPOISON_MEMORY_REGION(a->map, a->map_bytes - 4096);
    munmap(a->map, a->map_bytes);
    if (device) counts.live_bytes -= a->bytes, live_bytes[a->device] -= a->bytes;
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

// What an item that cannot be done waits for: a stream, or what a group does.
struct obstacle {
    cudaStream_t stream;
    lk_host_hold group;
};

static bool held_elsewhere;  // the last that could not go on: by another process

// A driver may take memory when a kernel is first launched on a device, for what its threads need.
static void first_launch(const void *kernel, int device) {
    uintptr_t at = reinterpret_cast<uintptr_t>(kernel) / 16 % KERNELS;
    for (uint32_t tries = 0; launched[at].kernel && launched[at].kernel != kernel; tries++) {
        if (tries == KERNELS) lk_host_die("more than %d kernels", (int)KERNELS);
        at = (at + 1) % KERNELS;
    }
    launched[at].kernel = kernel;
    if (launched[at].devices >> device & 1) return;
    launched[at].devices |= 1u << device;
    kernel_bytes[device] += KERNEL_BYTES;
}

static void run_kernel(const item *i, int device) {
    cudaLaunchAttribute attribute = i->attribute;
    cudaLaunchConfig_t config = i->config;
    config.attrs = &attribute;
    map_device(device);
    counts.launches++;
    first_launch(i->which, device);
    lk_host_run_grid(&config, i->together, i->call, i->memory,
                     seed_given ? lk_host_draw(&random_state) : 0);
}

// Does an item of this device; false where it has to wait.
static bool run_item(const item *i, int device, obstacle *why) {
    switch (i->kind) {
    case KERNEL: run_kernel(i, device); return true;
    case COPY:
        map_device(device);
        memmove(i->to, i->from, i->bytes);
        return true;
    case SET:
        map_device(device);
        memset(i->to, i->value, i->bytes);
        return true;
    case WAIT: why->stream = i->stream; return i->stream->done >= i->until;
    case GROUP: return lk_host_group_run(i->group, &why->group);
    default: return true;
    }
}

static const item *next_of_lane(const item *i, uint32_t lane) {
    while (i && i->lane != lane) i = i->next;
    return i;
}

// Something of the graph that is the stream's first item: of any lane whose next item has nothing
// to wait for. Without a seed it is the first of them; with one, each replay has a favourite, which
// it leaves often or seldom.
static bool run_graph(cudaStream_t stream, const CUgraph_st *graph, obstacle *why) {
    replay *r = &stream->graph;
    for (uint32_t lane = 0; !r->under_way && lane < LANES; lane++) {
        r->next[lane] = next_of_lane(graph->work.head, lane);
        r->done[lane] = 0;
    }
    const uint32_t drawn = seed_given ? (uint32_t)lk_host_draw(&random_state) : 0;
    if (!r->under_way) r->favourite = drawn / 8 % graph->lanes, r->patience = 1u << drawn % 4;
    r->under_way = true;
    const uint32_t first = drawn % r->patience ? r->favourite : drawn / 8 % graph->lanes;
    for (uint32_t k = 0; k < graph->lanes; k++) {
        const uint32_t lane = (first + k) % graph->lanes;
        const item *i = r->next[lane];
        if (!i || (i->kind == WAIT && r->done[i->until_lane] < i->until)) continue;
        if (i->kind != WAIT && !run_item(i, stream->device, why)) continue;
        r->next[lane] = next_of_lane(i->next, lane);
        r->done[lane]++;
        return true;
    }
    return false;
}

static bool is_replayed(const CUstream_st *stream) {
    for (uint32_t lane = 0; lane < LANES; lane++) {
        if (stream->graph.next[lane]) return false;
    }
    return stream->graph.under_way;
}

static void let_go(cudaGraph_t graph) {
    if (--graph->holders > 0) return;
    give_back(&graph->work);
    graph->used = false;
}

static void end_exec(CUgraphExec_st *exec) {
    if (!exec->doomed || exec->pending > 0) return;
    let_go(exec->graph);
    exec->used = false;
}

static void finish_first(cudaStream_t stream) {
    item *i = stream->work.head;
    if (i->kind == GRAPH) i->exec->pending--, end_exec(i->exec);
    stream->work.head = i->next;
    if (!i->next) stream->work.tail = NULL;
    stream->graph = {};
    stream->done++;
    i->next = free_items;
    free_items = i;
}

// Something for the stream to go on: of its own work or, where that has to wait, of what it waits
// for. False where nothing of it can go on: `tried` are the streams that were found so.
static bool advance(cudaStream_t stream, bool *tried) {
    obstacle why = {};
    const item *i = stream->work.head;
    if (!i || tried[stream - streams]) return false;
    tried[stream - streams] = true;
    if (i->kind == GRAPH) {
        if (!is_replayed(stream) && run_graph(stream, i->exec->graph, &why)) return true;
        if (is_replayed(stream)) return finish_first(stream), true;
    } else if (run_item(i, stream->device, &why)) {
        return finish_first(stream), true;
    }
    if (why.group.moved || (why.stream && advance(why.stream, tried))) return true;
    held_elsewhere |= why.group.elsewhere;
    const uint32_t devices = why.group.devices;
    for (uint32_t k = 0; devices && k < STREAMS; k++) {
        if (!(devices >> streams[k].device & 1) || !streams[k].used) continue;
        if (advance(&streams[k], tried)) return true;
    }
    return false;
}

// As advance; where another process holds the stream up, which may wait for any of this one's
// devices, these go on meanwhile.
static bool advance_some(cudaStream_t stream) {
    bool tried[STREAMS] = {};
    held_elsewhere = false;
    bool moved = advance(stream, tried);
    for (uint32_t k = 0; !moved && held_elsewhere && k < STREAMS; k++) {
        if (streams[k].used) moved = advance(&streams[k], tried);
    }
    return moved;
}

// Until so much of a stream is done, or nothing of it can go on.
static bool try_to_drain(cudaStream_t stream, uint64_t until) {
    while (stream->done < until && advance_some(stream)) continue;
    map_device(-1);
    return stream->done >= until;
}

// Where another process holds a stream up, waits for it, for ever if need be, as the driver does.
static void drain(cudaStream_t stream, uint64_t until) {
    const struct timespec moment = {0, 20000};
    do {
        if (try_to_drain(stream, until)) return;
        if (held_elsewhere) nanosleep(&moment, NULL);
    } while (held_elsewhere);
    lk_host_die("the host waits for a stream of device %d that will never go on", stream->device);
}

static void drain_all(bool blocking_only) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (!streams[i].used || (blocking_only && streams[i].non_blocking)) continue;
        drain(&streams[i], streams[i].enqueued);
    }
}

static cudaStream_t stream_of(cudaStream_t stream) { return stream ? stream : &streams[current]; }

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
    if (!stream->used || stream->device != current) return cudaErrorInvalidResourceHandle;
    if (seed_given && !stream->capture && stream->done < stream->enqueued) {
        uint64_t waiting = stream->enqueued - stream->done;
        (void)try_to_drain(stream, stream->done + lk_host_draw(&random_state) % (waiting + 1));
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
    i->lane = stream->lane;
    stream->last = i->kind;
    append(stream->capture ? &stream->capture->work : &stream->work, i);
    if (stream->capture)
        stream->capture->enqueued[stream->lane]++;
    else
        stream->enqueued++;
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
    counts.driver_bytes = 0;
    for (int d = 0; d < DEVICES; d++) {
        counts.driver_bytes += kernel_bytes[d] + lk_host_nccl_bytes(d);
    }
    return counts;
}

void lk_host_took_no_more(uint64_t driver_bytes) {
    const uint64_t now = lk_host_counted().driver_bytes;
    if (now <= driver_bytes) return;
    lk_host_die("the driver took %llu bytes of device memory, for what was launched too late",
                (unsigned long long)(now - driver_bytes));
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
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge",
     "too many blocks in cooperative launch"},
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
    *device = current;
    LEAVE(usable());
}

cudaError_t cudaSetDevice(int device) {
    ENTER_OR(cudaErrorInitializationError);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    REQUIRE(device >= 0 && device < device_count, cudaErrorInvalidDevice);
    current = device;
    LEAVE(cudaSuccess);
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
    prop->uuid.bytes[0] = (char)(1 + device);
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
    const size_t taken =
        context_bytes + live_bytes[current] + kernel_bytes[current] + lk_host_nccl_bytes(current);
    *total_bytes = device_bytes;
    *free_bytes = taken < device_bytes ? device_bytes - taken : 0;
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
    allocations[allocation_count++] = {
        static_cast<uint8_t *>(pointer), bytes, allocation::REGISTERED, current, NULL, 0};
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

// Of the current device: to another one's memory there is no way by these calls.
static bool is_device(const void *at, size_t bytes) {
    allocation *a = holding(at, bytes);
    if (a && a->kind == allocation::DEVICE && a->device != current) {
        lk_host_die("a copy to or from memory of device %d on device %d", a->device, current);
    }
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
    map_device(current);
    memmove(to, from, bytes);
    map_device(-1);
    LEAVE(cudaSuccess);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    ENTER_OR(cudaErrorIllegalAddress);
    REQUIRE(!spoils_capture(), cudaErrorStreamCaptureUnsupported);
    REQUIRE(holding(to, bytes), cudaErrorInvalidValue);
    drain_all(true);
    map_device(current);
    memset(to, value, bytes);
    map_device(-1);
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
    uint32_t i = DEVICES;
    while (i < STREAMS && streams[i].used) i++;
    REQUIRE(i < STREAMS, cudaErrorMemoryAllocation);
    streams[i] = {};
    streams[i].used = true;
    streams[i].device = current;
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
    REQUIRE(stream && stream->used && stream >= &streams[DEVICES], cudaErrorInvalidResourceHandle);
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
    if (stream->done < until) (void)advance_some(stream);
    map_device(-1);
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
        REQUIRE(!stream->capture || stream->capture == event->capture,
                cudaErrorStreamCaptureInvalidated);
        if (!stream->capture) {
            REQUIRE(event->capture->lanes < LANES, cudaErrorStreamCaptureUnsupported);
            stream->capture = event->capture;
            stream->lane = event->capture->lanes++;
        }
        item wait = {};
        wait.kind = WAIT;
        wait.until_lane = event->lane;
        wait.until = event->until;
        LEAVE(enqueue(stream, &wait));
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
    events[i].device = current;
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
    REQUIRE(event->device == stream->device, cudaErrorInvalidResourceHandle);
    item mark = {};
    mark.kind = MARK;
    cudaError_t error = enqueue(stream, &mark);
    event->stream = stream;
    event->capture = stream->capture;
    event->lane = stream->lane;
    event->until = stream->capture ? stream->capture->enqueued[stream->lane] : stream->enqueued;
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
    graphs[i].lanes = 1;
    stream->last = MARK;
    stream->capture = &graphs[i];
    stream->lane = 0;
    LEAVE(cudaSuccess);
}

// Does the graph's first lane wait for all of another one?
static bool is_joined(const CUgraph_st *graph, uint32_t lane) {
    for (const item *i = graph->work.head; i; i = i->next) {
        if (i->kind != WAIT || i->lane != 0 || i->until_lane != lane) continue;
        if (i->until == graph->enqueued[lane]) return true;
    }
    return false;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    ENTER_OR(cudaErrorUnknown);
    *graph = NULL;
    REQUIRE(stream && stream->capture, cudaErrorStreamCaptureUnmatched);
    cudaGraph_t captured = stream->capture;
    // Every stream that was drawn in has come back to the first one.
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (streams[i].capture != captured) continue;
        captured->invalid |= &streams[i] != stream && !is_joined(captured, streams[i].lane);
        streams[i].capture = NULL;
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
    execs[i] = {true, graph, current, 0, false};
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
    REQUIRE(exec->device == stream_of(stream)->device, cudaErrorInvalidValue);
    if (++counts.graph_launches >= stuck_at) {
        item never = {};
        never.kind = WAIT;
        never.stream = stream_of(stream);
        never.until = UINT64_MAX;
        REQUIRE(enqueue(stream, &never) == cudaSuccess, cudaErrorMemoryAllocation);
    }
    item launch = {};
    launch.kind = GRAPH;
    launch.exec = exec;
    cudaError_t error = enqueue(stream, &launch);
    exec->pending += error == cudaSuccess;
    LEAVE(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(graph && graph->used, cudaErrorInvalidValue);
    let_go(graph);
    LEAVE(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    ENTER_OR(cudaErrorUnknown);
    REQUIRE(exec && exec->used && !exec->doomed, cudaErrorInvalidValue);
    exec->doomed = true;
    end_exec(exec);
    LEAVE(cudaSuccess);
}

// --- kernels -------------------------------------------------------------------------------------

static bool fits(const cudaLaunchConfig_t *c) {
    uint64_t threads = (uint64_t)c->blockDim.x * c->blockDim.y * c->blockDim.z;
    // More than 48 KiB of shared memory is for kernels that ask for it, which none does.
    return threads > 0 && threads <= LK_HOST_THREADS_MAX && c->gridDim.x > 0 && c->gridDim.y > 0 &&
           c->gridDim.z > 0 && c->gridDim.x <= 0x7fffffffu && c->gridDim.y <= 65535 &&
           c->gridDim.z <= 65535 && c->dynamicSmemBytes <= 48 * 1024 && c->numAttrs <= 1;
}

static bool is_cooperative(const cudaLaunchConfig_t *c) {
    return c->numAttrs > 0 && c->attrs[0].id == cudaLaunchAttributeCooperative &&
           c->attrs[0].val.cooperative;
}

// Blocks of so many threads that can be there at once. The seed says how many that shall be, so
// that nothing depends on it; two at least, so that there is somebody to wait for.
static uint32_t together_max(uint32_t threads) {
    const uint32_t most = LK_HOST_TOGETHER_MAX / threads;
    const uint32_t there = LK_HOST_BLOCKS_MAX, blocks = most < there ? most : there;
    return seed_given ? 2 + (uint32_t)(seed_given % (blocks - 1)) : blocks;
}

static bool fits_together(const cudaLaunchConfig_t *c) {
    const uint64_t blocks = (uint64_t)c->gridDim.x * c->gridDim.y * c->gridDim.z;
    return blocks <= together_max(c->blockDim.x * c->blockDim.y * c->blockDim.z);
}

cudaError_t lk_host_launch(const cudaLaunchConfig_t *config, const void *which,
                           void (*call)(const void *memory), const void *memory, size_t bytes) {
    entry entered("cudaLaunchKernelEx");
    cudaError_t error = entered.fails ? cudaErrorLaunchFailure : usable();
    if (error == cudaSuccess && !fits(config)) error = cudaErrorInvalidConfiguration;
    const bool together = is_cooperative(config);
    if (error == cudaSuccess && together && !fits_together(config)) {
        error = cudaErrorCooperativeLaunchTooLarge;
    }
    if (error != cudaSuccess) return entered.end(error);
    // The real runtime makes something of it, but who asks for it has lost count.
    if (lk_host_is_dependent(config) && stream_of(config->stream)->last != KERNEL) {
        lk_host_die("a dependent launch behind what is no kernel");
    }
    item kernel = {};
    kernel.kind = KERNEL;
    kernel.together = together;
    kernel.config = *config;
    if (config->numAttrs > 0) kernel.attribute = config->attrs[0];
    kernel.which = which;
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

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared_bytes) {
    ENTER_OR(cudaErrorUnknown);
    cudaError_t error = usable();
    REQUIRE(error == cudaSuccess, error);
    REQUIRE(kernel && threads > 0 && threads <= LK_HOST_THREADS_MAX, cudaErrorInvalidValue);
    *blocks = shared_bytes <= 48 * 1024 ? (int)together_max((uint32_t)threads) : 0;
    LEAVE(cudaSuccess);
}

// --- for nccl.cpp --------------------------------------------------------------------------------

bool lk_host_enter(const char *function) {
    pthread_mutex_lock(&lock);
    moments_alone = 0;
    open_once();
    return failure.left > 0 && strcmp(failure.function, function) == 0 && --failure.left == 0;
}

void lk_host_leave(void) { pthread_mutex_unlock(&lock); }

int lk_host_current_device(void) { return current; }

int lk_host_stream_device(cudaStream_t stream) { return stream_of(stream)->device; }

int lk_host_stream_number(cudaStream_t stream) { return (int)(stream_of(stream) - streams); }

bool lk_host_is_captured(cudaStream_t stream) { return stream_of(stream)->capture != NULL; }

int lk_host_device_holding(const void *at, size_t bytes) {
    const allocation *a = holding(at, bytes);
    return a && a->kind == allocation::DEVICE ? a->device : -1;
}

bool lk_host_has_graphs(int device) {
    for (const CUgraphExec_st &exec : execs) {
        if (exec.used && !exec.doomed && exec.device == device) return true;
    }
    return false;
}

bool lk_host_extent(const void *at, const uint8_t **first, size_t *bytes) {
    const allocation *a = holding(at, 1);
    if (!a || (a->kind == allocation::DEVICE && a->device != mapped)) return false;
    *first = a->at;
    *bytes = a->bytes;
    return true;
}

uint64_t lk_host_offset(const void *at) {
    const allocation *a = holding(at, 1);
    return a ? static_cast<uint64_t>(static_cast<const uint8_t *>(at) - a->at) : 0;
}

uint64_t lk_host_random(void) { return seed_given ? lk_host_draw(&random_state) : 0; }

cudaError_t lk_host_enqueue_group(cudaStream_t stream, void *group) {
    const int before = current;
    item i = {};
    i.kind = GROUP;
    i.group = group;
    current = stream_of(stream)->device;  // a group has calls for all devices of the process
    cudaError_t error = enqueue(stream, &i);
    current = before;
    return error;
}

void lk_host_move(void *to, const void *from, size_t bytes) {
    const int a = lk_host_device_holding(from, bytes), b = lk_host_device_holding(to, bytes);
    map_both(a, b);
    memmove(to, from, bytes);
    unmap_other(a, b);
}

void lk_host_count_communicator(void) { counts.allocations++; }

// --- devices that go on by themselves ------------------------------------------------------------

// Lets go again where nothing moves: the host may have something to say.
static void go_on_a_while(void) {
    for (uint32_t n = 0, stuck = 0; n < 1000 && stuck < STREAMS; n++) {
        bool tried[STREAMS] = {};
        CUstream_st *stream = &streams[n % STREAMS];
        stuck = stream->used && advance(stream, tried) ? 0 : stuck + 1;
    }
    map_device(-1);
}

static void *go_on_for_ever(void *unused) {
    const struct timespec moment = {0, 500000};
    for (;;) {
        nanosleep(&moment, NULL);
        if (pthread_mutex_trylock(&lock) != 0) continue;
        if (++moments_alone > 3) go_on_a_while();
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

bool lk_host_go_by_itself(void) {
    static bool goes;
    static pthread_t thread;
    sigset_t all, before;
    if (goes) return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the program's
    goes = pthread_create(&thread, NULL, go_on_for_ever, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return goes;
}
