// block.cpp - the threads of a block as fibers: each runs until it ends or waits for others.
//
// A fiber runs threads one after another, as plain calls. Only where a thread waits does the fiber
// stop, with that thread in it, and the remaining threads go on in another fiber: a kernel without
// barriers costs no switch at all. Who is released goes into a queue, in an order drawn from the
// seed.
//
// The blocks of a grid run one after another, unless it is launched cooperatively: then all are
// there at once, each with fibers, barriers and shared memory of its own. The seed decides which of
// them goes on wherever one waits for others (lk_host_spin), and at some of its barriers.
//
// Asynchronous copies of a thread (cuda_pipeline.h) are kept until it waits for them.
#include "block.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "cuda_pipeline.h"
#include "host.h"

#if defined(__SANITIZE_ADDRESS__)
#define LK_HOST_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LK_HOST_ASAN
#endif
#endif
#ifdef LK_HOST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// The dynamic shared memory of every kernel (ops/cuda/device.h declares it).
alignas(128) float lk_cuda_shared[LK_HOST_SHARED_BYTES / sizeof(float)];

// A report of ASan takes most of this.
enum { STACK_BYTES = 256 * 1024, WARPS_MAX = LK_HOST_THREADS_MAX / 32 };
enum { FIBERS = LK_HOST_TOGETHER_MAX, CALLER = FIBERS };  // the last stands for who runs a block
enum { SHARED_FLOATS_MAX = 48 * 1024 / sizeof(float), IDLE_MAX = 10000 };

// --- switching stacks ----------------------------------------------------------------------------

// The callee's registers are on the stack of who does not run.
#ifdef __x86_64__
extern "C" void lk_host_switch(void **from, void *to);
__asm__(
    ".text\n"
    ".type lk_host_switch, @function\n"
    "lk_host_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size lk_host_switch, . - lk_host_switch\n");

static void *first_frame(uint8_t *stack, void (*entry)(void)) {
    void **top = reinterpret_cast<void **>(stack + STACK_BYTES);
    top[-2] =
        reinterpret_cast<void *>(entry);  // where `ret` goes; the stack is then as after a call
    return top - 8;
}
#else
#include <ucontext.h>
static void lk_host_switch(void **from, void *to) {
    ucontext_t mine;
    *from = &mine;
    swapcontext(&mine, static_cast<ucontext_t *>(to));
}
static void *first_frame(uint8_t *stack, void (*entry)(void)) {
    ucontext_t *context = reinterpret_cast<ucontext_t *>(stack);
    getcontext(context);
    context->uc_stack.ss_sp = stack + sizeof *context;
    context->uc_stack.ss_size = STACK_BYTES - sizeof *context;
    makecontext(context, entry, 0);
    return context;
}
#endif

// What shared memory holds that nobody has written: a signalling NaN with a mark.
static const uint32_t POISON = 0x7fa1a1a1u;

// --- the block that runs -------------------------------------------------------------------------

// Where a thread waits, if it does.
struct waiting {
    const char *file, *function;
    int line;
    bool block;  // for the whole block, not for lanes of its warp
};

struct fiber {
    void *frame;       // while it does not run
    void *fake_stack;  // ASan's
    uint32_t thread;   // the one that waits in it
    waiting at;
};

// An asynchronous copy, and which of the thread's groups it is of.
struct copy {
    uint8_t *to;
    const uint8_t *from;
    uint32_t bytes, zeros;
    uint64_t group;
};
struct copier {
    std::vector<copy> open;  // in the order of their groups
    uint64_t groups;         // committed
};
static copier copiers[FIBERS];  // of the threads of all blocks under way

struct warp {
    uint32_t arrived, mask;
    uint32_t fibers[32];
    uint32_t values[2][32];
    uint32_t round[32];  // of each lane: which of the two values is in use
};

static fiber fibers[FIBERS + 1];
static uint8_t *stacks;
#ifdef LK_HOST_ASAN
static const void *caller_stack;
static size_t caller_stack_bytes;
#endif

// A block under way.
struct crew {
    uint3 index;
    uint32_t first;  // of its fibers
    uint32_t started, ended;
    uint32_t step, offset;  // thread number i to start is (i * step + offset) % threads
    uint32_t arrived;       // at the block's barrier
    uint32_t fibers;        // that have a thread
    bool pauses;            // it can go on, but another block is to have a turn
    warp warps[WARPS_MAX];
    uint32_t ready[LK_HOST_THREADS_MAX];  // fibers that may go on
    uint32_t ready_first, ready_count;
};
static crew crews[LK_HOST_BLOCKS_MAX];
static crew *block = crews;

static struct {
    void (*call)(const void *memory);
    const void *memory;
    uint64_t seed;
    uint32_t threads;   // of a block
    uint32_t current;   // the fiber that runs
    uint32_t previous;  // the one before it
    bool together;      // all blocks are there at once
    uint64_t waited;    // threads that have waited for the kernel ahead
    size_t shared_bytes;
    uint32_t idle;  // pauses since a block last got further
} grid;

uint64_t lk_host_barriers_passed;

void lk_host_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "host execution layer: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    fflush(stderr);
    _Exit(70);
}

static uint32_t thread_number(void) {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

static void set_thread(uint32_t thread) {
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / blockDim.x / blockDim.y;
}

// A number from 1 that has no divisor in common with `count`: steps by it visit everyone.
static uint32_t draw_step(uint32_t count) {
    uint32_t step = 1 + (uint32_t)(lk_host_draw(&grid.seed) % count);
    for (;; step++) {
        uint32_t a = step, b = count;
        while (b) {
            uint32_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return step;
    }
}

static void make_ready(const uint32_t *who, uint32_t count) {
    uint32_t step = draw_step(count), at = (uint32_t)(lk_host_draw(&grid.seed) % count);
    for (uint32_t i = 0; i < count; i++, at = (at + step) % count) {
        block->ready[(block->ready_first + block->ready_count++) % LK_HOST_THREADS_MAX] = who[at];
    }
}

// ASan wants to know which stack is in use; it also tells which one was, the caller's too.
static void leave(uint32_t me, uint32_t next) {
    grid.previous = me;
    grid.current = next;
#ifdef LK_HOST_ASAN
    bool caller = next == CALLER;
    const void *stack = caller ? caller_stack : stacks + (size_t)next * STACK_BYTES;
    __sanitizer_start_switch_fiber(&fibers[me].fake_stack, stack,
                                   caller ? caller_stack_bytes : (size_t)STACK_BYTES);
#endif
}

static void arrive(void *fake_stack) {
#ifdef LK_HOST_ASAN
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
    if (grid.previous != CALLER) return;
    caller_stack = stack;
    caller_stack_bytes = bytes;
#else
    (void)fake_stack;
#endif
}

// Leaves the running fiber for another one, and comes back when somebody leaves for it.
static void go_to(uint32_t next) {
    uint32_t me = grid.current;
    leave(me, next);
    lk_host_switch(&fibers[me].frame, fibers[next].frame);
    arrive(fibers[me].fake_stack);
}

static void run_threads(void);

static void fiber_entry(void) {
    arrive(NULL);
    for (;;) run_threads();
}

// Threads that have not started, those that may go on, or else back to the caller of the block.
static uint32_t next_fiber(void) {
    if (block->pauses) return CALLER;
    if (block->started < grid.threads) return block->first + block->fibers++;
    if (block->ready_count == 0) return CALLER;
    uint32_t next = block->ready[block->ready_first];
    block->ready_first = (block->ready_first + 1) % LK_HOST_THREADS_MAX;
    block->ready_count--;
    return next;
}

static copier *own_copies(void) { return &copiers[block->first + thread_number()]; }

static void end_copies(void) {
    copier *c = own_copies();
    if (!c->open.empty()) {
        lk_host_die(
            "block (%u, %u, %u): thread (%u, %u, %u) ends with copies that it never waited "
            "for",
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    }
    c->groups = 0;
}

// What a fiber does: threads, until there are none to start.
static void run_threads(void) {
    while (block->started < grid.threads) {
        uint32_t thread =
            (uint32_t)(((uint64_t)block->started++ * block->step + block->offset) % grid.threads);
        set_thread(thread);
        grid.call(grid.memory);
        end_copies();
        block->ended++;
    }
    go_to(next_fiber());
}

static void wait_here(const waiting *at) {
    uint32_t me = grid.current, thread = thread_number();
    fibers[me].thread = thread;
    fibers[me].at = *at;
    uint32_t next = next_fiber();
    if (next != me) go_to(next);
    fibers[me].at.line = 0;
    set_thread(thread);
}

// --- barriers ------------------------------------------------------------------------------------

// A barrier or a wait that a test leaves out, as FILE:LINE, the file without its folder.
static bool left_out(const waiting *at) {
    static const char *wanted, *colon;
    static bool asked;
    if (!asked) {
        asked = true;
        wanted = getenv("LOCKSTEP_HOST_CUDA_LEAVE_OUT");
        colon = wanted ? strchr(wanted, ':') : NULL;
    }
    if (!colon || atoi(colon + 1) != at->line) return false;
    const char *slash = strrchr(at->file, '/'), *name = slash ? slash + 1 : at->file;
    return strncmp(name, wanted, (size_t)(colon - wanted)) == 0;
}

void lk_host_block_barrier(const char *file, int line, const char *function) {
    const waiting at = {file, function, line, true};
    if (left_out(&at)) return;
    if (++block->arrived == grid.threads) {
        // The last one releases all, itself too. Every fiber holds one waiting thread.
        static uint32_t all[LK_HOST_THREADS_MAX];
        for (uint32_t i = 0; i < grid.threads; i++) {
            const fiber *f = &fibers[all[i] = block->first + i];
            if (all[i] != grid.current && f->at.line != line) {
                lk_host_die(
                    "block (%u, %u, %u): thread %u waits at %s:%d (%s), but thread %u at "
                    "%s:%d (%s)",
                    blockIdx.x, blockIdx.y, blockIdx.z, f->thread, f->at.file, f->at.line,
                    f->at.function, thread_number(), file, line, function);
            }
        }
        block->arrived = 0;
        grid.idle = 0;
        lk_host_barriers_passed++;
        make_ready(all, grid.threads);
        block->pauses = grid.together && lk_host_draw(&grid.seed) % 4 == 0;
    }
    wait_here(&at);
}

// A thread that waits for other blocks: these go on.
void lk_host_spin(const char *file, int line, const char *function) {
    const uint32_t me = grid.current, thread = thread_number();
    if (!grid.together) {
        lk_host_die("%s:%d (%s): waits for other blocks in a launch that is not cooperative", file,
                    line, function);
    }
    if (++grid.idle > IDLE_MAX) {
        lk_host_die("%s:%d (%s): block (%u, %u, %u) waits for blocks that never come", file, line,
                    function, blockIdx.x, blockIdx.y, blockIdx.z);
    }
    make_ready(&me, 1);
    block->pauses = true;
    go_to(CALLER);
    set_thread(thread);
}

uint32_t lk_host_lane(void) { return thread_number() % 32; }

const uint32_t *lk_host_warp_barrier(uint32_t mask, uint32_t mine, const char *file, int line,
                                     const char *function) {
    uint32_t thread = thread_number();
    warp *w = &block->warps[thread / 32];
    uint32_t lane = thread % 32, round = w->round[lane]++ & 1;
    const waiting at = {file, function, line, false};
    w->values[round][lane] = mine;
    if (left_out(&at)) return w->values[round];
    if (!(mask >> lane & 1)) {
        lk_host_die("%s:%d (%s): lane %u is not in its own mask %08x", file, line, function, lane,
                    mask);
    }
    if (w->arrived != 0 && w->mask != mask) {
        lk_host_die("%s:%d (%s): lane %u names the lanes %08x, others %08x", file, line, function,
                    lane, mask, w->mask);
    }
    w->mask = mask;
    w->fibers[lane] = grid.current;
    w->arrived |= 1u << lane;
    if (w->arrived == mask) {
        uint32_t who[32], count = 0;
        for (uint32_t i = 0; i < 32; i++) {
            if (mask >> i & 1) who[count++] = w->fibers[i];
        }
        w->arrived = 0;
        make_ready(who, count);
    }
    wait_here(&at);
    return w->values[round];
}

// --- asynchronous copies -------------------------------------------------------------------------

void lk_host_copy_async(void *to, const void *from, size_t bytes, size_t zeros, const char *file,
                        int line, const char *function) {
    const size_t at =
        (size_t)(static_cast<uint8_t *>(to) - reinterpret_cast<uint8_t *>(lk_cuda_shared));
    if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes) {
        lk_host_die("%s:%d (%s): copies %zu bytes, %zu of them zeros", file, line, function, bytes,
                    zeros);
    }
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & (bytes - 1)) {
        lk_host_die("%s:%d (%s): copies %zu bytes from %p to %p: not aligned", file, line, function,
                    bytes, from, to);
    }
    if (at >= grid.shared_bytes || at + bytes > grid.shared_bytes) {
        lk_host_die("%s:%d (%s): copies to what is not the block's shared memory", file, line,
                    function);
    }
    for (size_t n = 0; n < bytes; n += 4) memcpy(static_cast<uint8_t *>(to) + n, &POISON, 4);
    copier *c = own_copies();
    c->open.push_back({static_cast<uint8_t *>(to), static_cast<const uint8_t *>(from),
                       (uint32_t)bytes, (uint32_t)zeros, c->groups});
}

void lk_host_copy_commit(void) { own_copies()->groups++; }

// The copies of all groups but the last `prior`.
void lk_host_copy_wait(size_t prior, const char *file, int line, const char *function) {
    const waiting at = {file, function, line, false};
    if (left_out(&at)) return;
    copier *c = own_copies();
    size_t done = 0;
    for (; done < c->open.size() && c->open[done].group + prior < c->groups; done++) {
        const copy &one = c->open[done];
        if (one.zeros < one.bytes) memcpy(one.to, one.from, one.bytes - one.zeros);
        memset(one.to + one.bytes - one.zeros, 0, one.zeros);
    }
    c->open.erase(c->open.begin(), c->open.begin() + (ptrdiff_t)done);
}

// --- blocks --------------------------------------------------------------------------------------

// Not all threads came to where some wait.
[[noreturn]] static void diverged(void) {
    for (uint32_t i = 0; i < block->fibers; i++) {
        const fiber *f = &fibers[block->first + i];
        if (!f->at.line) continue;
        set_thread(f->thread);
        lk_host_die(
            "block (%u, %u, %u): thread (%u, %u, %u) waits at %s:%d (%s) for others that "
            "never come: %u of %u threads have ended",
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, f->at.file,
            f->at.line, f->at.function, block->ended, grid.threads);
    }
    lk_host_die("block (%u, %u, %u): threads are lost", blockIdx.x, blockIdx.y, blockIdx.z);
}

bool lk_host_block_open(void) {
    if (stacks) return true;
    size_t bytes = (size_t)FIBERS * STACK_BYTES;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    stacks = static_cast<uint8_t *>(memory);
    for (uint32_t i = 0; i < FIBERS; i++) {
        fibers[i].frame = first_frame(stacks + (size_t)i * STACK_BYTES, fiber_entry);
    }
    ASAN_POISON_MEMORY_REGION(lk_cuda_shared, sizeof lk_cuda_shared);
    return true;
}

// Block number b, before its first thread.
static void start_block(crew *c, uint64_t b, uint32_t first) {
    block = c;
    c->index = {(unsigned)(b % gridDim.x), (unsigned)(b / gridDim.x % gridDim.y),
                (unsigned)(b / gridDim.x / gridDim.y)};
    c->first = first;
    c->started = c->ended = c->arrived = c->fibers = 0;
    c->step = draw_step(grid.threads);
    c->offset = (uint32_t)(lk_host_draw(&grid.seed) % grid.threads);
    c->ready_first = c->ready_count = 0;
    for (uint32_t i = 0; i < (grid.threads + 31) / 32; i++) {
        c->warps[i].arrived = 0;
        memset(c->warps[i].round, 0, sizeof c->warps[i].round);
    }
}

// Until all its threads have ended, or it pauses.
static void run_block(crew *c) {
    block = c;
    blockIdx = c->index;
    c->pauses = false;
    grid.current = CALLER;
    while (c->ended < grid.threads && !c->pauses) {
        uint32_t next = next_fiber();
        if (next == CALLER) diverged();
        go_to(next);
    }
}

static void poison_shared(float *shared, size_t floats) {
    for (size_t f = 0; f < floats; f++) reinterpret_cast<uint32_t *>(shared)[f] = POISON;
}

static void run_in_turn(uint64_t blocks, size_t shared_floats) {
    uint64_t order = lk_host_draw(&grid.seed) % blocks;
    for (uint64_t i = 0; i < blocks; i++) {
        start_block(crews, (i + order) % blocks, 0);
        poison_shared(lk_cuda_shared, shared_floats);
        run_block(crews);
    }
}

// The shared memory of the block that runs is in its place; that of the others is kept here.
static void run_together(uint32_t blocks, size_t shared_floats) {
    static float kept[LK_HOST_BLOCKS_MAX][SHARED_FLOATS_MAX];
    uint32_t live[LK_HOST_BLOCKS_MAX], count = blocks;
    for (uint32_t b = 0; b < blocks; b++) {
        start_block(&crews[b], b, b * grid.threads);
        poison_shared(kept[b], shared_floats);
        live[b] = b;
    }
    while (count > 0) {
        const uint32_t at = (uint32_t)(lk_host_draw(&grid.seed) % count), b = live[at];
        memcpy(lk_cuda_shared, kept[b], shared_floats * sizeof(float));
        run_block(&crews[b]);
        memcpy(kept[b], lk_cuda_shared, shared_floats * sizeof(float));
        if (crews[b].ended == grid.threads) live[at] = live[--count], grid.idle = 0;
    }
}

void lk_host_depend(void) { grid.waited++; }

void (*lk_host_run_grid)(const cudaLaunchConfig_t *config, bool together,
                         void (*call)(const void *memory), const void *memory,
                         uint64_t seed) = lk_host_grid_run;

void lk_host_grid_run(const cudaLaunchConfig_t *config, bool together,
                      void (*call)(const void *memory), const void *memory, uint64_t seed) {
    uint64_t blocks = (uint64_t)config->gridDim.x * config->gridDim.y * config->gridDim.z;
    size_t shared = config->dynamicSmemBytes;
    blockDim = config->blockDim;
    gridDim = config->gridDim;
    grid.call = call;
    grid.memory = memory;
    grid.seed = seed;
    grid.threads = blockDim.x * blockDim.y * blockDim.z;
    grid.together = together;
    grid.shared_bytes = shared;
    grid.idle = 0;
    grid.waited = 0;
    ASAN_UNPOISON_MEMORY_REGION(lk_cuda_shared, shared);
    if (together) {
        run_together((uint32_t)blocks, shared / sizeof(float));
    } else {
        run_in_turn(blocks, shared / sizeof(float));
    }
    ASAN_POISON_MEMORY_REGION(lk_cuda_shared, sizeof lk_cuda_shared);
    if (lk_host_is_dependent(config) && grid.waited != blocks * grid.threads) {
        lk_host_die("a dependent launch: %llu of %llu threads waited for the kernel ahead",
                    (unsigned long long)grid.waited,
                    (unsigned long long)(blocks * grid.threads));
    }
}
