// simulate_test.c - several workers in one thread: the driver of a step (comm/step/driver.h) with
// its lanes and exchange, as they are, over a transport and a clock that are made up from one seed.
//
//   test_simulate [COUNT [FIRST]]    COUNT seeds, from FIRST on (1)
//
// A seed says how the work is cut into workers and replicas, which workers share a host, whether
// gradients are exchanged all at the end or in buckets while the rest is computed, who is slow, how
// long each message takes, and in which order all that could happen next does happen: one row of
// one member of one worker, or a piece of a message. On a host others read a worker's own memory,
// as late as the rounds allow; between hosts bytes are copied from it piece by piece, as late as
// its sends are under way. Every third seed loses something: a worker dies or stops at some point
// of a step, or a message never comes. Then whoever waits for longer than the deadline ends with
// LK_RETRY, and others go on from the leader's state. In many seeds a kernel finds something that
// is not finite, and in some of these a verdict is asked for: such steps are skipped, done again
// until nothing is wrong with them, or the last; others who go on have the same verdicts.
//
// Whatever the seed, a step that a worker has finished has left the state of one worker alone.
// Buffers are full of NaN before the first step, so that what is read too early is seen. At the end
// the same is done with a round left out, which must be noticed.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/order.h"
#include "comm/step/driver.h"
#include "comm/step/norms.h"
#include "comm/step/hash.h"
#include "ops/variant.h"
#include "tests/ops/layers.h"

#ifndef SEEDS
#define SEEDS 3000
#endif

enum {
    STEPS = 5,  // of 24, 24 and 10 examples, 24, 24
    BATCH = 24,
    GRAIN = 2,
    GRAINS = BATCH / GRAIN,
    EXAMPLES = 58,
    TEST_EXAMPLES = 11,
    SHARDS = 4,
    PIXELS = 16,
    CLASSES = 3,
    WORKERS_MAX = 6,
    PARTS = 3,  // layers with parameters
    STATE_MAX = 1024,
    POOL_BYTES = 8 << 20,
    DEADLINE = 50000,  // ticks
    STOP_SIGNAL = 15,
};

// --- the run -----------------------------------------------------------------------------------

static const lk_layer layers[] = {
    {.type = &lk_layer_conv2d,
     .name = "conv",
     .units = 3,
     .size_h = 3,
     .size_w = 3,
     .stride_h = 1,
     .stride_w = 1,
     .padding = LK_PADDING_SAME,
     .use_bias = true,
     .activation = &lk_layer_relu,
     .initializer = &lk_initializer_glorot_uniform},
    POOL("pool", 2, 2, LK_PADDING_VALID),
    FLATTEN,
    {.type = &lk_layer_dense,
     .name = "hidden",
     .units = 5,
     .use_bias = true,
     .activation = &lk_layer_relu,
     .initializer = &lk_initializer_glorot_uniform},
    {.type = &lk_layer_dense,
     .name = "logits",
     .units = CLASSES,
     .use_bias = true,
     .initializer = &lk_initializer_glorot_uniform},
};

static const uint64_t shard_first[SHARDS + 1] = {0, 15, 30, 44, EXAMPLES};
static uint8_t images[EXAMPLES + TEST_EXAMPLES][PIXELS];

static const lk_optimizer optimizers[] = {
    {.type = &lk_optimizer_momentum, .learning_rate = 0.125f, .momentum = 0.9f},
    {.type = &lk_optimizer_lars_tf, .learning_rate = 0.5f, .momentum = 0.9f, .eta = 0.1f},
    {.type = &lk_optimizer_momentum,
     .learning_rate = 0.125f,
     .momentum = 0.9f,
     .global_clipnorm = 0.01f},
};

// Orders 0 and 1 with the first optimizer, 2 and 3 with the second, ..
enum { ORDERS = 2 * LK_COUNT(optimizers) };

static lk_run_spec spec_of(uint32_t number) {
    const bool sharded = number % 2;
    return (lk_run_spec){.model = {.in_h = 4, .in_w = 4, .in_c = 1,
                                   .classes = CLASSES,
                                   .layer_count = LK_COUNT(layers), .layers = layers},
                         .optimizer = optimizers[number / 2],
                         .seed = 5,
                         .global_batch = BATCH,
                         .grain = GRAIN,
                         .example_count = EXAMPLES,
                         .shards = sharded ? SHARDS : 0,
                         .shard_first = sharded ? shard_first : NULL};
}

static void order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                  uint64_t *index) {
    lk_order_many(context, &lk_kernels_portable, epoch, position, count, index);
}

static const uint8_t *image(void *context, uint64_t index) {
    (void)context;
    return images[index];
}

static const uint8_t *test_image(void *context, uint64_t index) {
    (void)context;
    return images[EXAMPLES + index];
}

static uint32_t label(void *context, uint64_t index) {
    return (uint32_t)(image(context, index)[7] % CLASSES);
}

static const lk_source test_set = {NULL, order, test_image, label, false, NULL, false};

// What one worker with one replica has after each step, in either order of the examples, and with
// any of the steps skipped: bit s of the second index is step s.
typedef struct wanted {
    lk_run_spec spec;
    lk_source source;
    float first_state[STATE_MAX], state[STEPS][STATE_MAX];
    lk_step_result step[STEPS], evaluation[STEPS];
    char digest[LK_SHA256_HEX_BYTES];
} wanted;

static wanted orders[ORDERS][1 << STEPS];

// Parameters and slots, one after the other: compared with `floats`, or replaced by them.
static bool walk_state(const lk_program *p, uint8_t *device, float *floats, int direction) {
    uint32_t slots = lk_optimizer_slot_count(&p->spec->optimizer), used = 0;
    for (uint32_t i = 0; i < p->param_count; i++) {
        for (uint32_t s = 0; s <= slots; s++) {
            uint32_t tensor = s ? p->params[i].slots[s - 1] : p->params[i].tensor;
            size_t bytes = p->params[i].count * sizeof(float);
            uint8_t *at = device + p->tensors[tensor].offset;
            lk_assert(used + p->params[i].count <= STATE_MAX);
            if (direction == 0 && memcmp(at, floats + used, bytes) != 0) return false;
            if (direction > 0) memcpy(at, floats + used, bytes);
            if (direction < 0) memcpy(floats + used, at, bytes);
            used += (uint32_t)p->params[i].count;
        }
    }
    return true;
}

// --- memory, chance ----------------------------------------------------------------------------

static _Alignas(4096) uint8_t pool[POOL_BYTES];
static uint64_t pool_used;

// Full of NaN.
static void *take(uint64_t bytes) {
    uint8_t *at = pool + pool_used;
    pool_used += lk_round_up(bytes, 4096);
    lk_assert(pool_used <= POOL_BYTES);
    memset(at, 0xff, bytes);
    return at;
}

static uint64_t chance;

static uint32_t draw(uint32_t below) {
    uint64_t x = chance += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) % below);
}

// --- the simulated workers ---------------------------------------------------------------------

typedef enum kind { NOTE_EVEN, NOTE_ODD, BOX, SUM = BOX + PARTS, KINDS = SUM + PARTS } kind;

// What one worker sends another again and again.
typedef struct message {
    const uint8_t *from;
    uint8_t *to;
    uint64_t bytes, copied, not_before;
    bool expected, started;  // by the receiver; by the sender
    bool arrived, gone;      // not yet seen by the receiver; by the sender
    bool dropped;
} message;

// What a member of a worker waits for.
typedef enum waiting { FOR_NOTHING, FOR_MEMBERS, FOR_WORKERS } waiting;

typedef struct worker {
    lk_layout layout;
    lk_program program;
    lk_group group;
    lk_exchange exchange;
    lk_core_regions core;
    lk_driver driver;
    lk_member members[GRAINS];
    waiting waits[GRAINS];
    uint32_t arrived[GRAINS];  // meetings that a member has come to
    lk_report reports[2], remote_reports[2][WORKERS_MAX];
    uint32_t host, slowness, report_round;
    uint32_t given[LK_ROUND_LAST], wanted[LK_ROUND_LAST][PARTS];  // as in comm/mpi/round.c
    uint32_t shown;       // buckets whose boxes it has given in this step,
    bool come[PARTS];     // .. and those that have come from all
    uint64_t step, rows;  // rows that its members have done in this step
    uint32_t attempt;     // of this step
    bool evaluates, dead;
    lk_round awaited;
    uint32_t awaited_bucket;
    uint64_t asleep_until, waiting_since;
    lk_error lost;
    lk_status status;
    bool ended, stopped;
    uint32_t gave_up;  // rows of its first member since
    // Where others are lost, one of its members may sleep meanwhile.
    uint32_t drowsy, drowsy_at;
    uint64_t drowsy_until;
} worker;

// A kernel says that what it has computed is not finite: a dense layer's forward or backward of one
// replica of one worker, or the update of one element of a parameter, whoever makes it. Nothing is
// lost by that; all must hear of the same tensor, in that step alone.
typedef enum bad_kind { ALL_FINITE, BAD_FORWARD, BAD_BACKWARD, BAD_UPDATE, BAD_KINDS } bad_kind;

typedef struct bad_wish {
    bad_kind kind;
    uint32_t param;
    uint64_t step, element;        // of an update
    bool seen;                     // it has happened
    uint32_t at_rank, at_replica;  // who computes now
    uint64_t at_step;
    uint32_t attempt;  // at this step
} bad_wish;

// What one replica that has work in a step flags in forward or backward: the first `times` attempts
// at the step.
typedef struct overflow {
    uint32_t times, rank, replica;
} overflow;

typedef enum loss { NO_LOSS, DIES, SLEEPS, DROPS } loss;

static struct {
    const wanted *want;
    uint32_t order;
    bool shared;
    uint32_t buckets;
    uint32_t world;
    lk_worker list[WORKERS_MAX];
    worker w[WORKERS_MAX];
    message m[WORKERS_MAX][WORKERS_MAX][KINDS];  // from, to
    uint64_t now, delay;
    loss loss;
    uint32_t victim, loss_at, stopper;
    lk_transport transport;
    uint64_t loss_step, stop_step;
    bool lost;           // it has happened
    uint32_t starved;    // who never gets the message that is dropped
    lk_round left_out;    // in which nobody waits, or LK_NO_ROUND
    bad_wish bad;        // what is not finite, as the kernels say,
    overflow over[STEPS];
    lk_verdict verdict;  // .. and what is done then
    char failure[160];
} sim;

// What a seed may not choose, where one worker of three shall have a flag (all_obey).
static struct {
    bool wished, shared;
    uint32_t rank;
    lk_verdict verdict;
} wish;

// What those who go on have of those who were lost.
static struct {
    bool on;
    bad_kind kind;
    lk_verdict verdict;
    uint32_t times[STEPS];
} kept;

static void fail(const char *what, uint32_t rank, uint64_t step) {
    if (sim.failure[0]) return;
    lk_format(sim.failure, sizeof sim.failure, "worker %u, step %llu: %s", rank,
              (unsigned long long)step, what);
}

static bool same_host(uint32_t a, uint32_t b) { return sim.w[a].host == sim.w[b].host; }

// --- set-up ------------------------------------------------------------------------------------

static void cut_work(void) {
    uint32_t left = GRAINS;
    sim.world = 2 + draw(WORKERS_MAX - 1);
    if (wish.wished) sim.world = 3;
    for (uint32_t w = 0, before = 0; w < sim.world; w++) {
        uint32_t most = LK_MIN(left - (sim.world - 1 - w), 3u);
        sim.list[w] = (lk_worker){.replicas = 1 + draw(most), .before = before};
        before += sim.list[w].replicas;
        left -= sim.list[w].replicas;
    }
}

// --- what is not finite ------------------------------------------------------------------------

static lk_kernels real_kernels, bad_kernels;

static uint32_t bad_now(bad_kind wished) {
    bad_wish *b = &sim.bad;
    if (b->at_step >= STEPS) return 0;
    const overflow *o = &sim.over[b->at_step];
    bool now = b->kind == wished && b->attempt < o->times && b->at_rank == o->rank &&
               b->at_replica == o->replica;
    b->seen = b->seen || now;
    return now;
}

static uint32_t dense_forward(lk_lane *lane, const lk_op *op) {
    return lk_kernel_of(&real_kernels, op->type)(lane, op) | bad_now(BAD_FORWARD);
}

static uint32_t dense_input_gradient(lk_lane *lane, const lk_op *op) {
    return lk_kernel_of(&real_kernels, op->type)(lane, op) | bad_now(BAD_BACKWARD);
}

static uint32_t apply(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                      const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    bad_wish *b = &sim.bad;
    const worker *here = &sim.w[b->at_rank];
    uint32_t found = lk_apply_of(&real_kernels, o)(o, scalars, count, sum, w, slots);
    if (b->kind != BAD_UPDATE || b->at_step != b->step) return found;
    const lk_tensor *t = &here->program.tensors[here->program.params[b->param].tensor];
    const float *element = (const float *)(void *)(here->core.device + t->offset) + b->element;
    if (element < w || element >= w + count) return found;
    b->seen = true;
    return 1;
}

// The kernels that say so, where this seed wants any.
static const lk_kernels *choose_bad(const lk_kernels *kernels) {
    sim.bad = (bad_wish){.kind = (bad_kind)draw(BAD_KINDS), .step = draw(STEPS)};
    if (wish.wished) sim.bad = (bad_wish){.kind = BAD_FORWARD, .step = 1};
    if (kept.on) sim.bad.kind = kept.kind;
    real_kernels = bad_kernels = *kernels;
    bad_kernels.kernel[LK_OP_DENSE] = dense_forward;
    bad_kernels.kernel[LK_OP_DENSE_INPUT_GRADIENT] = dense_input_gradient;
    for (uint32_t i = 0; i < LK_OPTIMIZER_COUNT; i++) bad_kernels.apply[i] = apply;
    return sim.bad.kind ? &bad_kernels : kernels;
}

// .. and the parameter, once there is a program.
static void choose_bad_param(void) {
    const lk_program *p = &sim.w[0].program;
    sim.bad.param = draw(p->param_count);
    sim.bad.element = draw((uint32_t)p->params[sim.bad.param].count);
}

// The tensor that all must name after a step; NULL: none.
static const char *bad_tensor(const lk_program *p, uint64_t step, uint32_t attempt) {
    const bool forward = sim.bad.kind == BAD_FORWARD;
    const lk_op_type *type = forward ? &lk_op_dense : &lk_op_dense_input_gradient;
    uint32_t i = 0;
    if (sim.bad.kind == BAD_UPDATE) {
        if (!sim.bad.seen || step != sim.bad.step) return NULL;
        return p->tensors[p->params[sim.bad.param].tensor].name;
    }
    if (step >= STEPS || attempt >= sim.over[step].times) return NULL;
    while (p->ops[i].type != type) i++;
    return p->tensors[p->ops[i].tensor[forward ? LK_Y : LK_DX]].name;
}

static void build(uint32_t rank, const lk_layout *layout, bool guards, const lk_kernels *kernels) {
    worker *w = &sim.w[rank];
    lk_error error = {.status = LK_OK};
    const lk_plan_options options = {.overlay = true, .guards = guards};
    w->layout = *layout;
    w->layout.replicas = sim.list[rank].replicas;
    w->layout.replicas_before = sim.list[rank].before;
    void *tables = take(lk_program_bytes(&sim.want->spec.model));
    lk_status status =
        lk_program_build(&sim.want->spec, &w->layout, &options, tables, &w->program, &error);
    if (status != LK_OK) {
        printf("%s\n", error.text);
        exit(1);
    }
    const lk_program *p = &w->program;
    uint64_t stride = lk_round_up(p->regions[LK_REGION_REPLICA].bytes, 64) + 64;
    w->core.device =
        sim.shared && rank ? sim.w[0].core.device : take(p->regions[LK_REGION_DEVICE].bytes);
    w->core.replicas = take(stride * w->layout.replicas);
    w->core.replica_bytes = stride;
    lk_group_make(&w->group, p, kernels, &sim.want->source, w->core.device, w->core.replicas,
                  stride, take(lk_group_bytes(p)));
}

static void set_message(uint32_t from, uint32_t to, kind k, const void *out, const void *in,
                        uint64_t bytes) {
    sim.m[from][to][k] = (message){.from = out, .to = (uint8_t *)(uintptr_t)in, .bytes = bytes};
}

// What worker w gives worker v, and where that finds it.
static void connect_pair(uint32_t from, uint32_t to) {
    lk_exchange *give = &sim.w[from].exchange, *get = &sim.w[to].exchange;
    for (uint32_t k = 0; k < give->buckets.count; k++) {
        const uint32_t place = k * sim.world + from;
        lk_partition mine = lk_bucket_partition(&give->buckets.bucket[k], sim.world, from);
        lk_partition theirs = lk_bucket_partition(&give->buckets.bucket[k], sim.world, to);
        const float *box = give->boxes_out + give->slots * theirs.begin;
        const float *sum =
            give->sum_out + lk_exchange_sum_floats(&give->buckets, sim.world, from, k);
        uint64_t box_bytes = give->slots * (theirs.end - theirs.begin) * sizeof(float);
        uint64_t sum_bytes = (mine.end - mine.begin) * sizeof(float);
        get->box[place] = box;
        get->sum[place] = sum;
        if (same_host(from, to)) continue;
        get->box[place] = take(box_bytes);
        get->sum[place] = take(sum_bytes);
        set_message(from, to, BOX + k, box, get->box[place], box_bytes);
        set_message(from, to, SUM + k, sum, get->sum[place], sum_bytes);
    }
    if (same_host(from, to)) return;
    for (int i = 0; i < 2; i++) {
        set_message(from, to, NOTE_EVEN + i, &sim.w[from].reports[i],
                    &sim.w[to].remote_reports[i][from], sizeof(lk_report));
    }
}

static const lk_lanes *lanes_of_all(void) {
    return sim.shared ? &lk_lanes_shared : &lk_lanes_boxes;
}

static lk_wait meet(lk_member *m);
static void give(lk_driver *d, lk_round round, uint32_t bucket);
static bool look(lk_driver *d, lk_round round, uint32_t bucket);
static lk_wait await(lk_driver *d, lk_round round, uint32_t bucket);

// All know it alike: the flag, and by themselves nothing else.
static lk_verdict decide(const void *context, uint64_t step, const lk_flags *flags) {
    const worker *w = context;
    if (step != w->step) return LK_VERDICT_STOP;
    return lk_is_flagged(flags) ? sim.verdict : LK_VERDICT_APPLY;
}

// As the run does (apps/run/run_step.c).
static void prepare_driver(worker *w) {
    w->driver = (lk_driver){.lanes = lanes_of_all(),
                            .transport = &sim.transport,
                            .transport_context = w,
                            .groups = &w->group,
                            .exchanges = &w->exchange,
                            .programs = 1,
                            .lost = &w->lost,
                            .decide = sim.verdict ? decide : NULL,
                            .decide_context = w};
}

static void connect_all(void) {
    for (uint32_t r = 0; r < sim.world; r++) {
        worker *w = &sim.w[r];
        lk_exchange *x = &w->exchange;
        void *tables = take(lk_exchange_bytes(&w->program, sim.world));
        lk_exchange_make(x, &w->program, sim.list, sim.world, r, tables);
        x->boxes_out =
            take(lk_exchange_floats(&w->program, sim.list, sim.world, r) * sizeof(float));
        x->sum_out = x->boxes_out + x->slots * w->program.loss_offset;
        x->report_out = &w->reports[0];
        for (uint32_t o = 0; sim.shared && o < sim.world; o++) {
            for (uint32_t i = 0; o != r && i < sim.list[o].replicas; i++) {
                lk_group_reach(&w->group, sim.list[o].before + i,
                               sim.w[o].core.replicas + i * sim.w[o].core.replica_bytes);
            }
        }
    }
    sim.buckets = sim.w[0].exchange.buckets.count;
    lk_assert(sim.buckets <= PARTS);
    sim.transport = (lk_transport){.step = sim.shared ? &lk_course_shared : &lk_course_boxes,
                                   .evaluation = &lk_course_evaluates,
                                   .meet = meet,
                                   .give = give,
                                   .look = look,
                                   .await = await};
    for (uint32_t r = 0; r < sim.world; r++) prepare_driver(&sim.w[r]);
    for (uint32_t a = 0; !sim.shared && a < sim.world; a++) {
        for (uint32_t b = 0; b < sim.world; b++) connect_pair(a, b);
    }
    for (uint32_t a = 0; a < sim.world; a++) {
        for (uint32_t b = 0; b < sim.world; b++) {
            if (same_host(a, b)) continue;
            sim.m[a][b][NOTE_EVEN].expected = true;
            for (uint32_t k = 0; k < sim.buckets; k++) sim.m[a][b][BOX + k].expected = true;
        }
    }
}

static uint32_t rows_of(const lk_course *course) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < LK_SECTIONS_MAX; i++) {
        const lk_section *s = &course->section[i];
        rows += s->count * (s->repeat == LK_ONCE ? 1 : sim.buckets);
    }
    return rows;
}

static void choose_loss(void) {
    sim.loss = DIES + draw(3);
    bool inter_host = false;
    for (uint32_t w = 1; w < sim.world; w++) inter_host = inter_host || !same_host(0, w);
    if (sim.loss == DROPS && !inter_host) sim.loss = SLEEPS;
    sim.victim = draw(sim.world);
    sim.loss_step = draw(STEPS);
    sim.loss_at = draw(rows_of(&lk_course_evaluates) + rows_of(sim.transport.step)) *
                  sim.list[sim.victim].replicas;
}

// A member other than the first, late by more than the deadline in the step of the loss.
static void choose_drowsy(worker *w) {
    if (w->layout.replicas == 1 || draw(2)) return;
    w->drowsy = 1 + draw(w->layout.replicas - 1);
    w->drowsy_at = 1 + draw(rows_of(sim.transport.step) * w->layout.replicas);
}

// Does this replica of this worker compute a grain of the step?
static bool has_work(uint32_t rank, uint32_t replica, uint64_t step) {
    const lk_run_spec *spec = &orders[sim.order][0].spec;
    const lk_worker *last = &sim.list[sim.world - 1];
    const lk_grain_range range =
        lk_replica_grains(GRAINS, last->before + last->replicas, sim.list[rank].before + replica);
    return range.count > 0 && range.first * GRAIN < lk_step_positions(spec, step);
}

// Who has a flag in how many attempts at a step. Where nobody asks there is one flag, in one step.
static void choose_overflow(uint64_t step) {
    static const uint32_t often[] = {0, 0, 1, 3};
    overflow *o = &sim.over[step];
    const bool again = sim.verdict == LK_VERDICT_REPLAY;
    o->times = sim.verdict ? LK_MIN(often[draw(4)], again ? 3u : 1u) : step == sim.bad.step;
    if (wish.wished) o->times = step == sim.bad.step;
    if (kept.on) o->times = kept.times[step];
    do {
        o->rank = wish.wished ? wish.rank : draw(sim.world);
        o->replica = draw(sim.list[o->rank].replicas);
    } while (kept.on && !has_work(o->rank, o->replica, step));
    if (!has_work(o->rank, o->replica, step)) o->times = 0;
}

// What is done about it, where somebody asks.
static void choose_verdict(uint64_t first_step) {
    const uint32_t drawn = draw(2 * LK_VERDICT_STOP + 2);
    const bool flagged = sim.bad.kind == BAD_FORWARD || sim.bad.kind == BAD_BACKWARD;
    uint32_t skipped = 0;
    if (flagged && drawn <= LK_VERDICT_STOP && first_step == 0) sim.verdict = (lk_verdict)drawn;
    if (wish.wished) sim.verdict = wish.verdict;
    if (kept.on) sim.verdict = kept.verdict;
    for (uint64_t step = 0; flagged && step < STEPS; step++) {
        choose_overflow(step);
        if (sim.verdict == LK_VERDICT_SKIP && sim.over[step].times) skipped |= 1u << step;
    }
    sim.want = &orders[sim.order][skipped];
}

static void start(uint32_t rank);

static void set_up(uint64_t seed, uint64_t first_step, bool lossy, lk_round left_out) {
    static const uint32_t microbatches[] = {0, 2, 4, 8}, slow[] = {1, 1, 1, 6, 30},
                          delays[] = {1, 30, 900};
    const lk_kernels *kernels = &lk_kernels_reference;
    lk_error none = {.status = LK_OK};
    chance = seed * 0x2545f4914f6cdd1du;
    pool_used = 0;
    memset(&sim, 0, sizeof sim);
    sim.left_out = left_out;
    sim.order = draw(2) + 2 * (draw(2) ? draw(LK_COUNT(optimizers)) : 0);
    if (draw(4)) (void)lk_kernels_choose("auto", &kernels, &none);
    cut_work();
    uint32_t hosts = 1 + draw(3);
    sim.shared = hosts == 1 && draw(2);
    if (wish.wished) sim.shared = wish.shared;
    if (sim.shared) hosts = 1;
    sim.delay = delays[draw(LK_COUNT(delays))];
    sim.stopper = draw(sim.world);
    sim.stop_step = draw(STEPS);
    kernels = choose_bad(kernels);
    choose_verdict(first_step);
    const lk_worker *last = &sim.list[sim.world - 1];
    const lk_layout layout = {.replicas_all = last->before + last->replicas,
                              .shared = sim.shared,
                              .microbatch_examples = microbatches[draw(LK_COUNT(microbatches))],
                              .fuse = draw(4) != 0,
                              .bucket_floats = !sim.shared && draw(2) ? 1 : 0,
                              .reduce = (lk_reduce_choice)draw(3)};
    bool guards = draw(64) == 0;  // they cost a pass over the memory at every op
    for (uint32_t w = 0; w < sim.world; w++) {
        sim.w[w].host = hosts == 3 ? w : draw(hosts);
        sim.w[w].slowness = slow[draw(LK_COUNT(slow))];
        sim.w[w].step = first_step;
        sim.w[w].lost.status = LK_OK;
        build(w, &layout, guards, kernels);
        uint8_t *device = sim.w[w].core.device;
        if (!sim.shared || w == 0) lk_program_initialize(&sim.w[w].program, device);
        if (first_step == 0) continue;
        walk_state(&sim.w[w].program, device, (float *)sim.want->state[first_step - 1], 1);
    }
    choose_bad_param();
    connect_all();
    if (lossy) choose_loss();
    for (uint32_t w = 0; lossy && w < sim.world; w++) choose_drowsy(&sim.w[w]);
    for (uint32_t w = 0; w < sim.world; w++) start(w);
}

// --- the transport -----------------------------------------------------------------------------

static void start_receives(uint32_t to, kind k) {
    for (uint32_t from = 0; from < sim.world; from++) {
        message *m = &sim.m[from][to][k];
        if (same_host(from, to)) continue;
        if (m->expected || m->arrived) fail("a receive is started twice", to, sim.w[to].step);
        m->expected = true;
    }
}

static void start_sends(uint32_t from, kind k) {
    for (uint32_t to = 0; to < sim.world; to++) {
        message *m = &sim.m[from][to][k];
        if (same_host(from, to)) continue;
        bool gone = sim.w[to].dead || sim.w[to].ended;
        if ((!m->expected && !gone) || m->started) {
            fail("bytes that nobody waits for yet", from, sim.w[from].step);
        }
        m->started = true;
        m->copied = 0;
        m->not_before = sim.now + draw((uint32_t)sim.delay);
        if (sim.loss != DROPS || sim.lost || sim.victim != from) continue;
        if (sim.w[from].step < sim.loss_step) continue;
        m->dropped = sim.lost = true;
        sim.starved = to;
    }
}

// A bucket of a message, from the sender's memory as it is now.
static void carry(message *m) {
    uint64_t most = 1 + draw((uint32_t)m->bytes + 1), count = LK_MIN(m->bytes - m->copied, most);
    memcpy(m->to + m->copied, m->from + m->copied, count);
    m->copied += count;
    if (m->copied < m->bytes) return;
    m->expected = m->started = false;
    m->arrived = m->gone = true;
}

// What goes with a bucket of a round; reports with the last of the boxes.
static uint32_t kinds_of(lk_round round, uint32_t bucket, uint32_t parity, kind kinds[2]) {
    uint32_t count = 0;
    const kind report = parity ? NOTE_ODD : NOTE_EVEN;
    if (round == LK_ROUND_NORMS) return 0;
    if (round == LK_ROUND_REPORTS || (round == LK_ROUND_BOXES && bucket + 1 == sim.buckets)) {
        kinds[count++] = report;
    }
    if (sim.shared || round == LK_ROUND_REPORTS) return count;
    kinds[count++] = (round == LK_ROUND_BOXES ? BOX : SUM) + bucket;
    return count;
}

static bool has_note(lk_round round, uint32_t bucket) {
    kind kinds[2];
    return kinds_of(round, bucket, 0, kinds) > 0 && kinds[0] == NOTE_EVEN;
}

static struct { uint64_t lossless, lost, retried, resumed, early, verdicts[4]; } counts;

static void give(lk_driver *d, lk_round round, uint32_t bucket) {
    worker *w = d->transport_context;
    const uint32_t rank = (uint32_t)(w - sim.w), parity = w->report_round & 1;
    kind kinds[2];
    uint32_t count = kinds_of(round, bucket, parity, kinds);
    if (round == LK_ROUND_SUMS) start_receives(rank, BOX + bucket);
    if (round == LK_ROUND_BOXES) start_receives(rank, SUM + bucket);
    if (has_note(round, bucket)) start_receives(rank, parity ? NOTE_EVEN : NOTE_ODD);
    w->wanted[round][bucket] = ++w->given[round];
    w->shown += round == LK_ROUND_BOXES;
    counts.early += round == LK_ROUND_SUMS && !sim.shared && w->members[0].section == 0;
    for (uint32_t k = 0; k < count; k++) start_sends(rank, kinds[k]);
}

static bool round_is_over(uint32_t rank, lk_round round, uint32_t bucket) {
    const worker *w = &sim.w[rank];
    kind kinds[2];
    uint32_t count = kinds_of(round, bucket, w->report_round & 1, kinds);
    if (round == sim.left_out) return true;
    for (uint32_t o = 0; o < sim.world; o++) {
        if (same_host(o, rank)) {
            if (sim.w[o].given[round] < w->wanted[round][bucket]) return false;
            continue;
        }
        for (uint32_t k = 0; k < count; k++) {
            if (!sim.m[o][rank][kinds[k]].arrived || !sim.m[rank][o][kinds[k]].gone) return false;
        }
    }
    return true;
}

static void end_round(uint32_t rank, lk_round round, uint32_t bucket) {
    worker *w = &sim.w[rank];
    uint32_t parity = w->report_round & 1;
    kind kinds[2];
    uint32_t count = kinds_of(round, bucket, parity, kinds);
    bool noted = has_note(round, bucket);
    for (uint32_t o = 0; o < sim.world; o++) {
        for (uint32_t k = 0; k < count; k++) {
            sim.m[o][rank][kinds[k]].arrived = sim.m[rank][o][kinds[k]].gone = false;
        }
        bool near = same_host(o, rank);
        if (noted)
            w->exchange.report[o] =
                near ? &sim.w[o].reports[parity] : &w->remote_reports[parity][o];
    }
    if (!noted) return;
    w->report_round++;
    w->exchange.report_given = &w->reports[parity];
    w->exchange.report_out = &w->reports[parity ^ 1];
}

// Asked for a bucket that is not given yet, it only sees to it that messages get on.
static bool look(lk_driver *d, lk_round round, uint32_t bucket) {
    worker *w = d->transport_context;
    const uint32_t rank = (uint32_t)(w - sim.w);
    lk_assert(round == LK_ROUND_BOXES);
    if (bucket >= w->shown) return false;
    if (!w->come[bucket] && round_is_over(rank, round, bucket)) {
        end_round(rank, round, bucket);
        w->come[bucket] = true;
    }
    return w->come[bucket];
}

// What look has seen is not awaited.
static lk_wait await(lk_driver *d, lk_round round, uint32_t bucket) {
    worker *w = d->transport_context;
    const uint32_t rank = (uint32_t)(w - sim.w);
    const bool waits = w->waits[0] == FOR_WORKERS;
    if (round == LK_ROUND_BOXES && w->come[bucket])
        fail("a bucket is awaited twice", rank, w->step);
    if (waits && round_is_over(rank, round, bucket)) {
        end_round(rank, round, bucket);
        return LK_WAIT_OVER;
    }
    if (!waits) {
        w->waiting_since = sim.now;
        w->awaited = round;
        w->awaited_bucket = bucket;
    } else if (sim.lost && sim.now >= w->waiting_since + DEADLINE) {
        (void)lk_fail(d->lost, LK_RETRY, "the deadline has passed");
        return LK_WAIT_LOST;
    }
    w->waits[0] = FOR_WORKERS;
    return LK_WAIT_ON;
}

static bool all_have_come(const worker *w, uint32_t meeting) {
    for (uint32_t r = 0; r < w->layout.replicas; r++) {
        if (w->arrived[r] < meeting) return false;
    }
    return true;
}

static lk_wait meet(lk_member *m) {
    worker *w = m->driver->transport_context;
    w->arrived[m->replica] = m->meetings + 1;
    if (all_have_come(w, m->meetings + 1)) return LK_WAIT_OVER;
    w->waits[m->replica] = FOR_MEMBERS;
    return LK_WAIT_ON;
}

// --- steps and evaluations -----------------------------------------------------------------------

static void check(uint32_t rank, const lk_step_result *found, const lk_step_result *want,
                  uint32_t stop, const char *bad, uint64_t step) {
    bool same = memcmp(found->means, want->means, sizeof found->means) == 0 &&
                memcmp(found->counts, want->counts, sizeof found->counts) == 0 &&
                found->examples == want->examples;
    if (!same) fail("another result than one worker's", rank, step);
    if (!found->bad_tensor != !bad || (bad && strcmp(bad, found->bad_tensor) != 0)) {
        fail("another tensor than the one that is not finite", rank, step);
    }
    if (found->stop != stop) fail("the stop of one worker is not known to all", rank, step);
}

// Begins a step, or an evaluation after it, of all members of a worker.
static void start(uint32_t rank) {
    worker *w = &sim.w[rank];
    w->driver.stop = rank == sim.stopper && w->step == sim.stop_step ? STOP_SIGNAL : 0;
    if (w->evaluates) {
        lk_driver_start_evaluation(&w->driver, 0, w->step, &test_set, TEST_EXAMPLES);
    } else {
        lk_driver_start(&w->driver, 0, w->step);
    }
    w->shown = 0;
    memset(w->come, 0, sizeof w->come);
    memset(w->arrived, 0, sizeof w->arrived);
    memset(w->waits, 0, sizeof w->waits);
    for (uint32_t r = 0; r < w->layout.replicas; r++) {
        lk_member_start(&w->members[r], &w->driver, r);
    }
}

static bool state_is(const worker *w, const float *state) {
    return walk_state(&w->program, w->core.device, (float *)state, 0);
}

// The state before a step.
static const float *state_before(uint64_t step) {
    return step ? sim.want->state[step - 1] : sim.want->first_state;
}

// The verdict of the step that all have finished.
static lk_verdict verdict_of(const worker *w) {
    return w->attempt < sim.over[w->step].times ? sim.verdict : LK_VERDICT_APPLY;
}

static void end_step(uint32_t rank, worker *w) {
    const lk_step_result r = lk_driver_finish(&w->driver);
    const lk_verdict verdict = verdict_of(w);
    const bool writes = verdict != LK_VERDICT_REPLAY && verdict != LK_VERDICT_STOP;
    counts.verdicts[verdict]++;
    if (r.verdict != verdict) fail("another verdict", rank, w->step);
    if (!state_is(w, writes ? sim.want->state[w->step] : state_before(w->step))) {
        fail("another state than one worker's", rank, w->step);
    }
    check(rank, &r, &sim.want->step[w->step], w->step == sim.stop_step ? STOP_SIGNAL : 0,
          bad_tensor(&w->program, w->step, w->attempt), w->step);
    w->attempt = verdict == LK_VERDICT_REPLAY ? w->attempt + 1 : 0;
    w->stopped = w->ended = verdict == LK_VERDICT_STOP;
    w->evaluates = verdict != LK_VERDICT_REPLAY;
}

static void end_evaluation(uint32_t rank, worker *w) {
    const lk_step_result r = lk_driver_finish(&w->driver);
    check(rank, &r, &sim.want->evaluation[w->step], w->step == sim.stop_step ? STOP_SIGNAL : 0,
          NULL, w->step);
    w->evaluates = false;
    w->rows = 0;
    w->ended = ++w->step == STEPS;
}

// All members have come to the end.
static void end_all(uint32_t rank, worker *w) {
    if (w->lost.status != LK_OK) {
        w->status = w->lost.status;
        w->ended = true;
        return;
    }
    if (w->evaluates) {
        end_evaluation(rank, w);
    } else {
        end_step(rank, w);
    }
    if (!w->ended) start(rank);
}

// Was this the last thing that worker `rank` did for a while?
static bool is_lost_here(uint32_t rank, worker *w) {
    if (!sim.loss || sim.loss == DROPS || sim.lost || rank != sim.victim ||
        w->step != sim.loss_step || w->rows < sim.loss_at) {
        return false;
    }
    sim.lost = true;
    w->dead = sim.loss == DIES;
    w->asleep_until = sim.now + 3 * DEADLINE;
    return true;
}

// From when on a member can do something; UINT64_MAX: not before something else has happened.
static uint64_t member_ready(uint32_t rank, uint32_t member) {
    const worker *w = &sim.w[rank];
    const lk_member *m = &w->members[member];
    if (m->over) return UINT64_MAX;
    const bool drowsy = w->drowsy == member && member > 0 && w->drowsy_until > w->asleep_until;
    const uint64_t awake = drowsy ? w->drowsy_until : w->asleep_until;
    switch (w->waits[member]) {
    case FOR_MEMBERS: return all_have_come(w, m->meetings + 1) ? awake : UINT64_MAX;
    case FOR_WORKERS:
        if (round_is_over(rank, w->awaited, w->awaited_bucket)) return w->asleep_until;
        return sim.lost ? LK_MAX(w->waiting_since + DEADLINE, w->asleep_until) : UINT64_MAX;
    default: return awake;
    }
}

static bool is_drowsy_now(worker *w, uint32_t member) {
    if (!w->drowsy || member != w->drowsy || w->drowsy_until || w->step < sim.loss_step ||
        w->rows < w->drowsy_at) {
        return false;
    }
    w->drowsy_until = sim.now + 2 * DEADLINE;
    return true;
}

// One row of one of its members that can do one.
static void do_next(uint32_t rank) {
    worker *w = &sim.w[rank];
    if (is_lost_here(rank, w)) return;
    const uint32_t replicas = w->layout.replicas;
    uint32_t r = draw(replicas);
    while (member_ready(rank, r) > sim.now) r = (r + 1) % replicas;
    if (is_drowsy_now(w, r)) return;
    sim.bad.at_rank = rank;
    sim.bad.at_replica = r;
    sim.bad.at_step = w->evaluates ? STEPS : w->step;
    sim.bad.attempt = w->attempt;
    w->rows++;
    const lk_going going = lk_member_next(&w->members[r]);
    if (going != LK_WAITS) w->waits[r] = FOR_NOTHING;
    // The first that has lost others meets its own members once more, and that is all.
    if (r == 0 && w->lost.status != LK_OK && going == LK_GOES_ON && w->gave_up++) {
        fail("it goes on without those who are lost", rank, w->step);
    }
    for (r = 0; r < replicas && w->members[r].over; r++) {
    }
    if (r == replicas) end_all(rank, w);
}

// --- the clock ---------------------------------------------------------------------------------

static uint64_t worker_ready(uint32_t rank) {
    const worker *w = &sim.w[rank];
    uint64_t soonest = UINT64_MAX;
    if (w->dead || w->ended) return UINT64_MAX;
    for (uint32_t r = 0; r < w->layout.replicas; r++) {
        soonest = LK_MIN(soonest, member_ready(rank, r));
    }
    return soonest;
}

static uint64_t message_ready(uint32_t from, uint32_t to, kind k) {
    const message *m = &sim.m[from][to][k];
    bool cut = sim.w[from].dead || sim.w[to].dead || sim.w[from].ended || sim.w[to].ended;
    return !m->started || m->dropped || cut ? UINT64_MAX : m->not_before;
}

// Lets one of all that can happen now happen; returns false where nothing ever will.
static bool tick(void) {
    uint64_t soonest = UINT64_MAX;
    uint32_t choices = 0, chosen = WORKERS_MAX;
    message *carried = NULL;
    for (uint32_t a = 0; a < sim.world; a++) {
        uint64_t ready = worker_ready(a);
        soonest = LK_MIN(soonest, ready);
        if (ready <= sim.now && draw(++choices) == 0) chosen = a;
        for (uint32_t b = 0; b < sim.world; b++) {
            for (kind k = 0; k < KINDS && !same_host(a, b); k++) {
                ready = message_ready(a, b, k);
                soonest = LK_MIN(soonest, ready);
                if (ready > sim.now || draw(++choices) != 0) continue;
                chosen = WORKERS_MAX;
                carried = &sim.m[a][b][k];
            }
        }
        if (chosen != WORKERS_MAX) carried = NULL;
    }
    if (soonest == UINT64_MAX) return false;
    sim.now = LK_MAX(sim.now + 1, soonest);
    if (choices == 0) return true;
    if (carried) {
        carry(carried);
    } else if (draw(sim.w[chosen].slowness) == 0) {
        do_next(chosen);
    }
    return true;
}

// --- judging -----------------------------------------------------------------------------------

// Nobody gets further than the rounds allow; who was not lost ends well or with LK_RETRY.
static void judge(void) {
    uint64_t least = STEPS;
    for (uint32_t w = 0; w < sim.world; w++) least = LK_MIN(least, sim.w[w].step);
    for (uint32_t w = 0; w < sim.world; w++) {
        const worker *them = &sim.w[w];
        char digest[LK_SHA256_HEX_BYTES];
        if (them->dead) continue;
        if (!them->ended) fail("it waits for ever", w, them->step);
        if (them->step > least + 1) fail("it went on without another", w, them->step);
        if (them->status != LK_OK) {
            if (!sim.lost) fail("nothing was lost, but it gave up", w, them->step);
            continue;
        }
        if (them->stopped) {
            if (!sim.over[them->step].times) fail("it stopped at another step", w, them->step);
            continue;
        }
        lk_digest(&them->program, them->core.device, digest);
        if (them->step != STEPS || strcmp(digest, sim.want->digest) != 0) {
            fail("it ended well with another digest", w, them->step);
        }
        bool starved = sim.loss == DROPS && sim.lost && sim.starved == w;
        if (starved) fail("it ended well without a message", w, them->step);
    }
}

static bool simulate(uint64_t seed, uint64_t first_step, bool lossy, lk_round left_out) {
    set_up(seed, first_step, lossy, left_out);
    while (!sim.failure[0] && tick()) {
    }
    if (!sim.failure[0]) judge();
    return sim.failure[0] == '\0';
}

static jmp_buf panicked;

static void on_panic(const char *file, int line, const char *what) {
    lk_format(sim.failure, sizeof sim.failure, "%s:%d: %s", file, line, what);
    longjmp(panicked, 1);
}

// One seed, and where something was lost the way on, by other workers. True: all is as it should.
static bool try_seed(uint64_t seed) {
    bool lossy = seed % 3 == 0;
    if (!simulate(seed, 0, lossy, LK_NO_ROUND)) return false;
    counts.lossless += !sim.lost;
    counts.lost += sim.lost;
    for (uint32_t w = 0; w < sim.world; w++) counts.retried += sim.w[w].status == LK_RETRY;
    uint64_t done = sim.w[0].step;  // the leader's checkpoint
    const uint32_t order_of_seed = sim.order;
    if (!sim.lost || done == STEPS) return true;
    counts.resumed++;
    // The cut comes from another seed; the order of the examples must be that of this one, and with
    // verdicts so must these.
    kept.on = sim.verdict != LK_VERDICT_APPLY;
    kept.kind = sim.bad.kind;
    kept.verdict = sim.verdict;
    for (uint32_t i = 0; i < STEPS; i++) kept.times[i] = sim.over[i].times;
    do {
        seed += (uint64_t)1 << 32;
        set_up(seed, done, false, LK_NO_ROUND);
    } while (sim.order != order_of_seed);
    const bool good = simulate(seed, done, false, LK_NO_ROUND);
    kept.on = false;
    return good;
}

// --- verdicts ------------------------------------------------------------------------------------

// One worker of three has a flag in a step: the verdict on it is one of all three.
static bool all_obey(void) {
    for (uint32_t i = 0; i < 2 * 3 * LK_VERDICT_STOP * 4; i++) {
        const uint64_t seed = 1 + i;
        wish.wished = true;
        wish.shared = i % 2;
        wish.rank = i / 2 % 3;
        wish.verdict = (lk_verdict)(1 + i / 6 % LK_VERDICT_STOP);
        memset(counts.verdicts, 0, sizeof counts.verdicts);
        const bool good = simulate(seed, 0, false, LK_NO_ROUND);
        wish.wished = false;
        if (good && counts.verdicts[wish.verdict] == 3 && sim.bad.seen) continue;
        printf("FAILED: verdict %d on worker %u of 3, seed %llu: %s\n", (int)wish.verdict,
               wish.rank, (unsigned long long)seed, sim.failure);
        return false;
    }
    memset(counts.verdicts, 0, sizeof counts.verdicts);
    return true;
}

// --- a round left out ---------------------------------------------------------------------------

// How many of `seeds` are noticed if nobody waits in a round.
static uint32_t notice(lk_round left_out, uint32_t seeds) {
    static volatile uint32_t noticed, seed;
    for (noticed = 0, seed = 1; seed <= seeds; seed++) {
        if (setjmp(panicked) || !simulate(seed, 0, false, left_out)) noticed++;
    }
    return noticed;
}

// --- the reference -----------------------------------------------------------------------------

static void update_alone(worker *w, uint64_t step) {
    if (lk_program_norm(&w->program)) {
        lk_step_reduce(&w->group, 0, step);
        lk_norms_square(&w->group, 0);
        lk_norms_apply(&w->group, 0, step);
    } else {
        lk_step_update(&w->group, 0, step);
    }
}

static void make_wanted(wanted *want, uint32_t number, uint32_t skipped) {
    const lk_layout layout = {.replicas_all = 1, .fuse = true};
    want->spec = spec_of(number);
    want->source = (lk_source){&want->spec, order, image, label, false, NULL, false};
    memset(&sim, 0, sizeof sim);
    pool_used = 0;
    sim.want = want;
    sim.world = 1;
    sim.list[0] = (lk_worker){.replicas = 1};
    build(0, &layout, false, &lk_kernels_reference);
    worker *w = &sim.w[0];
    lk_program_initialize(&w->program, w->core.device);
    walk_state(&w->program, w->core.device, want->first_state, -1);
    for (uint64_t step = 0; step < STEPS; step++) {
        lk_step_compute(&w->group, 0, step);
        if (!(skipped >> step & 1)) update_alone(w, step);
        want->step[step] = lk_step_finish(&w->group, step);
        walk_state(&w->program, w->core.device, want->state[step], -1);
        lk_evaluate_compute(&w->group, 0, &test_set, TEST_EXAMPLES);
        want->evaluation[step] = lk_evaluate_finish(&w->group, TEST_EXAMPLES);
    }
    lk_digest(&w->program, w->core.device, want->digest);
}

// One worker of several replicas, each of which may be the one that has something to tell; in the
// first step and in no other.
static bool tells_alone(bad_kind kind_of_bad, uint32_t replica) {
    enum { REPLICAS = 3 };
    const lk_layout layout = {.replicas_all = REPLICAS, .reduce = LK_REDUCE_ALL_PARTIALS};
    memset(&sim, 0, sizeof sim);
    pool_used = 0;
    sim.want = &orders[0][0];
    sim.world = 1;
    sim.list[0] = (lk_worker){.replicas = REPLICAS};
    (void)choose_bad(&lk_kernels_reference);
    build(0, &layout, false, &bad_kernels);
    worker *w = &sim.w[0];
    choose_bad_param();
    sim.bad.kind = kind_of_bad;
    sim.bad.step = 0;
    sim.bad.element = 0;
    sim.over[0] = (overflow){.times = kind_of_bad != BAD_UPDATE, .replica = replica};
    lk_program_initialize(&w->program, w->core.device);
    for (sim.bad.at_step = 0; sim.bad.at_step < 2; sim.bad.at_step++) {
        const uint64_t step = sim.bad.at_step;
        for (uint32_t r = sim.bad.at_replica = 0; r < REPLICAS; sim.bad.at_replica = ++r) {
            lk_step_compute(&w->group, r, step);
        }
        for (uint32_t r = 0; r < REPLICAS; r++) lk_step_update(&w->group, r, step);
        const char *found = lk_step_finish(&w->group, step).bad_tensor;
        const char *wanted_one = bad_tensor(&w->program, step, 0);
        if (!found != !wanted_one || (found && strcmp(found, wanted_one) != 0)) return false;
    }
    return sim.bad.seen;
}

static bool all_tell_alone(void) {
    for (bad_kind k = BAD_FORWARD; k < BAD_KINDS; k++) {
        for (uint32_t i = 0; i < 30; i++) {
            if (tells_alone(k, i % 3)) continue;
            printf("FAILED: kind %d, replica %u alone does not tell what is not finite\n", (int)k,
                   i % 3);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    chance = 1;
    for (uint32_t i = 0; i < EXAMPLES + TEST_EXAMPLES; i++) {
        for (uint32_t k = 0; k < PIXELS; k++) images[i][k] = (uint8_t)draw(256);
    }
    for (uint32_t i = 0; i < ORDERS; i++) {
        for (uint32_t skipped = 0; skipped < 1u << STEPS; skipped++) {
            make_wanted(&orders[i][skipped], i, skipped);
        }
    }
    if (!all_tell_alone()) return 1;
    lk_set_panic_handler(on_panic);
    if (setjmp(panicked) || !all_obey()) {
        printf("FAILED: verdicts: %s\n", sim.failure);
        return 1;
    }
    for (volatile uint64_t seed = first; seed < first + count; seed++) {
        if (setjmp(panicked) == 0 && try_seed(seed)) continue;
        printf("FAILED: seed %llu (test_simulate 1 %llu): %s\n", (unsigned long long)seed,
               (unsigned long long)seed, sim.failure);
        return 1;
    }
    printf(
        "%llu seeds: %llu without a loss, %llu with one; %llu workers gave up with exit code %d, "
        "%llu runs went on with others; %llu buckets were joined while others were computed; of "
        "the "
        "steps of workers %llu were skipped, %llu done again, %llu the last; every state that of "
        "one worker\n",
        (unsigned long long)count, (unsigned long long)counts.lossless,
        (unsigned long long)counts.lost, (unsigned long long)counts.retried, LK_RETRY,
        (unsigned long long)counts.resumed, (unsigned long long)counts.early,
        (unsigned long long)counts.verdicts[LK_VERDICT_SKIP],
        (unsigned long long)counts.verdicts[LK_VERDICT_REPLAY],
        (unsigned long long)counts.verdicts[LK_VERDICT_STOP]);
    if (argc > 2) return 0;
    if (count >= 100 && counts.early == 0) return 1;
    static const lk_round rounds[] = {LK_ROUND_BOXES, LK_ROUND_SUMS, LK_ROUND_REPORTS};
    for (uint32_t i = 0; i < LK_COUNT(rounds); i++) {
        uint32_t noticed = notice(rounds[i], 100);
        printf("round %u of 3 left out: noticed in %u of 100 seeds\n", i + 1, noticed);
        if (noticed < 90) return 1;
    }
    const uint32_t noticed = notice(LK_ROUND_NORMS, 400);  // few of which have norms in one memory
    printf("the round of norms left out: noticed in %u of 400 seeds\n", noticed);
    return noticed < 5;
}
