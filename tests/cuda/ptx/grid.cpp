// grid.cpp - runs a grid: a few blocks at a time, a warp of one of them for some instructions, then
// another; which, and for how many, a seed decides. Without a seed block after block, and warp
// after warp up to where each waits.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

namespace {

enum { RESIDENT_MAX = 3, STRETCH_MAX = 128 };
const uint32_t POISON = 0x7fa1a1a1u;

lk_ptx_block residents[RESIDENT_MAX];
uint8_t *arena;  // of all residents, for one launch after the other
size_t arena_bytes;

void fill(void *at, size_t bytes) {
    for (size_t n = 0; n < bytes / 4; n++) static_cast<uint32_t *>(at)[n] = POISON;
}

size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

// A block's memory: shared, then of each warp its registers and local memory; and who touched what
// of shared memory. The first part is poisoned for each block.
size_t poisoned_bytes(const lk_ptx_block *b) {
    const lk_ptx_kernel *k = b->kernel;
    return rounded(b->shared_bytes) +
           b->warp_count * (rounded(k->register_bytes) + rounded((size_t)k->local_bytes * 32));
}
size_t bytes_of(const lk_ptx_block *b) {
    return poisoned_bytes(b) + rounded((size_t)b->shared_bytes / 4 * LK_PTX_WORD_BYTES);
}

void place(lk_ptx_block *b, uint8_t *at) {
    const lk_ptx_kernel *k = b->kernel;
    b->shared = at;
    at += rounded(b->shared_bytes);
    for (uint32_t n = 0; n < b->warp_count; n++) {
        b->warps[n].registers = at;
        at += rounded(k->register_bytes);
        b->warps[n].local = at;
        at += rounded((size_t)k->local_bytes * 32);
    }
    b->words = at;
}

void set_up(lk_ptx_block *b, lk_ptx_kernel *k, const cudaLaunchConfig_t *config,
            const uint8_t *parameters, uint64_t *seed) {
    const dim3 &t = config->blockDim;
    b->kernel = k;
    b->config = config;
    b->parameters = parameters;
    b->seed = seed;
    b->threads = t.x * t.y * t.z;
    b->warp_count = (b->threads + 31) / 32;
    b->shared_bytes = static_cast<uint32_t>(config->dynamicSmemBytes);
}

void start(lk_ptx_block *b, uint64_t number) {
    const dim3 &grid = b->config->gridDim;
    b->index = {static_cast<unsigned>(number % grid.x),
                static_cast<unsigned>(number / grid.x % grid.y),
                static_cast<unsigned>(number / grid.x / grid.y)};
    fill(b->shared, poisoned_bytes(b));
    b->number = static_cast<uint32_t>(number);
    b->waiting = b->ended = 0;
    b->epoch = 1;
    for (uint32_t n = 0; n < b->warp_count; n++) {
        lk_ptx_warp *w = &b->warps[n];
        const uint32_t left = b->threads - 32 * n;
        w->constants = b->kernel->constants;
        w->at = w->depth = w->ended = 0;
        w->join = static_cast<uint32_t>(b->kernel->code.size());
        w->mask = w->born = left >= 32 ? UINT32_MAX : ((uint32_t)1 << left) - 1;
        w->state = LK_PTX_RUNS;
        w->copies.clear();
        memset(w->groups, 0, sizeof w->groups);
        w->block = b;
        w->waited = 0;
        w->first_thread = 32 * n;
    }
    b->kernel->blocks++;
    b->kernel->warps += b->warp_count;
}

// Where lanes meet those that wait for them, or their end.
inline void meet(lk_ptx_warp *w) {
    while (w->at == w->join) {
        if (w->depth == 0) {
            if (!w->copies.empty()) {
                lk_ptx_die(w, &w->block->kernel->code.back(), w->copies[0].lane,
                           "ends with a copy that it never waited for");
            }
            w->state = LK_PTX_ENDED;
            w->block->ended++;
            return;
        }
        const lk_ptx_path &p = w->paths[--w->depth];
        w->join = p.join;
        w->mask = p.mask & ~w->ended;
        w->at = w->mask ? p.at : p.join;
    }
}

void run_warp(lk_ptx_warp *w, uint64_t budget) {
    lk_ptx_kernel *k = w->block->kernel;
    const lk_ptx_instruction *code = k->code.data();
    lk_ptx_count *counts = k->counts.data();
    for (; budget > 0 && w->state == LK_PTX_RUNS; budget--) {
        lk_ptx_count *count = &counts[w->at];
        const lk_ptx_instruction *i = &code[w->at++];
        uint32_t mask = w->mask;
        if (i->guard != LK_PTX_NONE) {
            const uint32_t p = lk_ptx_predicate(w, i->guard);
            mask &= i->guard_is_not ? ~p : p;
        }
        count->runs++;
        count->lanes += static_cast<uint32_t>(__builtin_popcount(mask));
        if (mask) i->run(w, i, mask);
        meet(w);
    }
}

// All that live have come to the barrier: they go on, and what they did before is past.
bool release(lk_ptx_block *b) {
    if (b->waiting == 0) return false;
    for (uint32_t n = 0; n < b->warp_count; n++) {
        lk_ptx_warp *w = &b->warps[n];
        if (w->state == LK_PTX_ENDED || b->ended == 0) continue;
        lk_ptx_die(w, &b->kernel->code[w->at - 1], 0,
                   "waits for others that never come: %u of %u warps have ended", b->ended,
                   b->warp_count);
    }
    for (uint32_t n = 0; n < b->warp_count; n++) b->warps[n].state = LK_PTX_RUNS;
    b->waiting = 0;
    if (++b->epoch == LK_PTX_UNDER_WAY)
        lk_ptx_die(&b->warps[0], b->kernel->code.data(), 0, "too many barriers");
    return true;
}

// One warp of a block goes on for a stretch; false where the block has ended.
bool go_on(lk_ptx_block *b, uint64_t *seed) {
    if (b->waiting + b->ended == b->warp_count && !release(b)) return false;
    const uint64_t drawn = *seed ? lk_host_draw(seed) : 0;
    uint32_t n = static_cast<uint32_t>(drawn >> 32) % b->warp_count;
    while (b->warps[n].state != LK_PTX_RUNS) n = (n + 1) % b->warp_count;
    run_warp(&b->warps[n], *seed ? 1 + drawn % STRETCH_MAX : UINT64_MAX);
    return true;
}

// All blocks, in a circle from one that is drawn, on or back; a resident that ends takes the next.
void run_blocks(uint32_t resident, uint64_t count, uint64_t *seed) {
    const uint64_t first = *seed ? lk_host_draw(seed) % count : 0;
    const bool backwards = *seed && (lk_host_draw(seed) & 1);
    uint64_t started = 0;
    const auto start_next = [&](lk_ptx_block *b) {
        const uint64_t n = (first + started++) % count;
        start(b, backwards ? count - 1 - n : n);
    };
    lk_ptx_block *running[RESIDENT_MAX];
    for (uint32_t r = 0; r < resident; r++) start_next(running[r] = &residents[r]);
    while (resident > 0) {
        const uint32_t r = resident == 1 ? 0 : static_cast<uint32_t>(lk_host_draw(seed) % resident);
        if (go_on(running[r], seed)) continue;
        if (started < count)
            start_next(running[r]);
        else
            running[r] = running[--resident];
    }
}

}  // namespace

void lk_ptx_die(const lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane,
                const char *format, ...) {
    const lk_ptx_block *b = w->block;
    const dim3 &t = b->config->blockDim;
    const uint32_t thread = w->first_thread + lane;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    lk_host_die("%s, PTX line %u, block (%u, %u, %u), thread (%u, %u, %u): %s: %s",
                b->kernel->name.c_str(), i->line, b->index.x, b->index.y, b->index.z, thread % t.x,
                thread / t.x % t.y, thread / t.x / t.y,
                b->kernel->texts[static_cast<size_t>(i - b->kernel->code.data())].c_str(), text);
}

void lk_ptx_grid_run(lk_ptx_kernel *k, const cudaLaunchConfig_t *config, const uint8_t *parameters,
                     uint64_t seed) {
    const dim3 &grid = config->gridDim;
    const uint64_t count = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t state = seed;
    uint32_t resident = seed ? 1 + static_cast<uint32_t>(lk_host_draw(&state) % RESIDENT_MAX) : 1;
    if (resident > count) resident = static_cast<uint32_t>(count);
    for (uint32_t r = 0; r < resident; r++) set_up(&residents[r], k, config, parameters, &state);
    if (k->threads_max && residents[0].threads > k->threads_max) {
        lk_host_die("%s: %u threads, but it is compiled for %u", k->name.c_str(),
                    residents[0].threads, k->threads_max);
    }
    const size_t bytes = bytes_of(&residents[0]);
    if (bytes * resident > arena_bytes) {
        free(arena);
        arena_bytes = bytes * resident;
        arena = static_cast<uint8_t *>(aligned_alloc(128, arena_bytes));
        if (!arena) lk_host_die("no memory for %zu bytes of blocks", arena_bytes);
    }
    for (uint32_t r = 0; r < resident; r++) place(&residents[r], arena + r * bytes);
    fill(arena, bytes * resident);  // what another launch left there means nothing now
    lk_ptx_forget_memory();
    lk_ptx_begin_races();
    k->launches++;
    run_blocks(resident, count, &state);
}
