// tasks.c - the list of a step's launches, their levels, and the table made of them. Knows no CUDA.
#include "ops/cuda/tasks.h"

#include <string.h>

#include "ops/op.h"

// --- levels --------------------------------------------------------------------------------------

static bool overlap(const lk_cuda_span *a, const lk_cuda_span *b) {
    const uintptr_t from_a = (uintptr_t)a->from, from_b = (uintptr_t)b->from;
    return (a->writes || b->writes) && from_a < from_b + b->bytes && from_b < from_a + a->bytes;
}

static bool conflict(const lk_cuda_spans *a, const lk_cuda_spans *b) {
    if (a->count == 0 || b->count == 0) return true;
    for (uint32_t i = 0; i < a->count; i++) {
        for (uint32_t k = 0; k < b->count; k++) {
            if (overlap(&a->span[i], &b->span[k])) return true;
        }
    }
    return false;
}

static uint32_t level_of(const lk_cuda_tasks *t, const lk_cuda_spans *spans) {
    uint32_t level = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->kept[i].level < level) continue;
        if (conflict(&t->kept[i].spans, spans)) level = t->kept[i].level + 1;
    }
    return level;
}

// --- recording -----------------------------------------------------------------------------------

void lk_cuda_tasks_open(lk_cuda_tasks *t) {
    t->count = t->levels = t->used = 0;
    t->refused = NULL;
    t->refused_op = LK_NONE;
}

static void refuse(lk_cuda_tasks *t, const char *why, uint32_t op) {
    t->refused = why;
    t->refused_op = op;
}

void lk_cuda_tasks_keep(lk_cuda_tasks *t, lk_cuda_body body, const lk_cuda_launched *launched,
                        const lk_cuda_spans *spans, const void *arguments, uint64_t bytes) {
    if (t->refused) return;
    if (body == LK_CUDA_BODY_NONE) {
        refuse(t, "it has no body of", launched->op);
        return;
    }
    const uint32_t room = (uint32_t)lk_round_up(bytes, LK_CUDA_TASK_ALIGN_BYTES);
    if (t->count == LK_CUDA_TASKS_MAX || t->used + room > LK_CUDA_ARGUMENTS_BYTES_MAX) {
        refuse(t, "a step has too many launches for its table", LK_NONE);
        return;
    }
    lk_assert(bytes == lk_cuda_body_bytes(body) && launched->blocks[2] == 1);
    lk_cuda_kept *kept = &t->kept[t->count];
    *kept = (lk_cuda_kept){.launched = *launched,
                           .body = body,
                           .level = level_of(t, spans),
                           .arguments = t->used,
                           .spans = *spans};
    memcpy(t->arguments + t->used, arguments, bytes);
    t->levels = LK_MAX(t->levels, kept->level + 1);
    t->used += room;
    t->count++;
}

// --- the table -----------------------------------------------------------------------------------

_Static_assert(sizeof(lk_cuda_table) + LK_CUDA_ARGUMENTS_BYTES_MAX + LK_CUDA_TASK_ALIGN_BYTES +
                       LK_CUDA_TASKS_MAX * (sizeof(lk_cuda_level) + sizeof(lk_cuda_task)) <=
                   LK_CUDA_TABLE_BYTES_MAX,
               "a table");

static lk_cuda_table table_of(const lk_cuda_tasks *t) {
    lk_cuda_table table = {.levels = t->levels, .level = sizeof table};
    table.task = table.level + t->levels * (uint32_t)sizeof(lk_cuda_level);
    return table;
}

static uint64_t arguments_at(const lk_cuda_tasks *t) {
    const uint64_t tasks = table_of(t).task + t->count * sizeof(lk_cuda_task);
    return lk_round_up(tasks, LK_CUDA_TASK_ALIGN_BYTES);
}

uint64_t lk_cuda_tasks_bytes(const lk_cuda_tasks *t) { return arguments_at(t) + t->used; }

static uint32_t tiles_of(const lk_cuda_kept *kept) {
    return kept->launched.blocks[0] * kept->launched.blocks[1];
}

void lk_cuda_tasks_write(const lk_cuda_tasks *t, uint8_t *to) {
    const lk_cuda_table table = table_of(t);
    uint32_t number = 0;
    memset(to, 0, lk_cuda_tasks_bytes(t));
    memcpy(to, &table, sizeof table);
    for (uint32_t l = 0; l < t->levels; l++) {
        lk_cuda_level level = {.task = number};
        for (uint32_t i = 0; i < t->count; i++) {
            const lk_cuda_kept *kept = &t->kept[i];
            if (kept->level != l) continue;
            const lk_cuda_task task = {.body = kept->body,
                                       .tile = level.tiles,
                                       .tiles = tiles_of(kept),
                                       .in_x = kept->launched.blocks[0],
                                       .arguments = (uint32_t)arguments_at(t) + kept->arguments};
            memcpy(to + table.task + number++ * sizeof task, &task, sizeof task);
            level.tiles += task.tiles;
        }
        memcpy(to + table.level + l * sizeof level, &level, sizeof level);
    }
    memcpy(to + arguments_at(t), t->arguments, t->used);
}

// --- what it is reckoned to take -----------------------------------------------------------------

// Of an H100 SXM, as tests/cuda/launches/budget_test.py has them: a node of a graph, a barrier of
// the persistent kernel, a trip to the second-level cache.
enum { PROCESSORS = 132, FMA = 128, RESIDENT = 2048, TRIP_CYCLES = 700 };
enum { BLOCKS = 2 * PROCESSORS };  // of the persistent kernel
static const double cycles = 1.755e9, bytes_per_second = 5.5e12, node_seconds = 1.5e-6;
static const double barrier_seconds = 2 * TRIP_CYCLES / 1.755e9;

static uint64_t up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
static double most(double a, double b) { return a > b ? a : b; }

// Trips of a tile's threads, one after another.
static double trips_of(const lk_cuda_kept *kept) {
    const lk_cuda_work *w = &kept->launched.work;
    const uint64_t threads = (uint64_t)tiles_of(kept) * kept->launched.threads;
    return (double)up(up(w->items, threads) * w->steps, kept->launched.ahead);
}

double lk_cuda_launch_seconds(const lk_cuda_launched *l) {
    const lk_cuda_work *w = &l->work;
    const uint64_t blocks = (uint64_t)l->blocks[0] * l->blocks[1] * l->blocks[2];
    const uint64_t threads = blocks * l->threads;
    const double share = (double)w->fma / (double)blocks * (double)up(blocks, PROCESSORS);
    const uint64_t turns =
        LK_MAX(up(w->items, threads), up(threads, (uint64_t)PROCESSORS * RESIDENT));
    const double trips = (double)up(turns * w->steps, l->ahead);
    return node_seconds + most(most(share / FMA / cycles, (double)w->bytes / bytes_per_second),
                               trips * TRIP_CYCLES / cycles);
}

static double level_seconds(const lk_cuda_tasks *t, uint32_t level) {
    double fma = 0, bytes = 0, trips = 0, longest = 0, widest = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const lk_cuda_kept *kept = &t->kept[i];
        if (kept->level != level) continue;
        const double tiles = (double)tiles_of(kept), own = trips_of(kept);
        fma += (double)kept->launched.work.fma;
        bytes += (double)kept->launched.work.bytes;
        trips += own * tiles;
        longest = most(longest, own);
        widest = most(widest, (double)kept->launched.work.fma / tiles);
    }
    const double share = most(widest, fma / PROCESSORS) / FMA / cycles;
    const double chain = most(longest, trips / BLOCKS) * TRIP_CYCLES / cycles;
    return barrier_seconds + most(most(share, bytes / bytes_per_second), chain);
}

double lk_cuda_tasks_seconds(const lk_cuda_tasks *t) {
    double seconds = 0;
    for (uint32_t l = 0; l < t->levels; l++) seconds += level_seconds(t, l);
    return seconds;
}
