// simulate_test.c - several workers in one thread: the scheduler (comm/step/step.h) and the
// exchange (comm/step/exchange.h) as they are, over a transport and a clock that are made up from
// one seed.
//
//   test_simulate [COUNT [FIRST]]    COUNT seeds, from FIRST on (1)
//
// A seed says how the work is cut into workers and replicas, which workers share a host, whether
// gradients are exchanged all at the end or in parts while the rest is computed, who is slow, how
// long each message takes, and in which order all that could happen next does happen. On
// a host others read a worker's own memory, as late as the turns allow; between hosts bytes are
// copied from it piece by piece, as late as its sends are under way. Every third seed loses
// something: a worker dies or stops at some point of a step, or a message never comes. Then whoever
// waits for longer than the deadline ends with LK_RETRY, and others go on from the leader's state.
//
// Whatever the seed, a step that a worker has finished has left the state of one worker alone.
// Buffers are full of NaN before the first step, so that what is read too early is seen. At the end
// the same is done with a turn left out, which must be noticed.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/order.h"
#include "comm/step/hash.h"
#include "comm/mpi/mpi.h"
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
    ACTS_MAX = 9 * PARTS + 8,
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

static lk_run_spec spec_of(bool sharded) {
    return (lk_run_spec){.model = {4, 4, 1, CLASSES, LK_COUNT(layers), layers, NULL},
                         .optimizer = {&lk_optimizer_momentum, 0.125f, 0.9f, false},
                         .seed = 5,
                         .global_batch = BATCH,
                         .grain = GRAIN,
                         .example_count = EXAMPLES,
                         .shards = sharded ? SHARDS : 0,
                         .shard_first = sharded ? shard_first : NULL};
}

static uint64_t order(void *context, uint64_t epoch, uint64_t position) {
    return lk_order(context, epoch, position);
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

static const lk_source test_set = {NULL, order, test_image, label};

// What one worker with one replica has after each step, in either order of the examples.
typedef struct wanted {
    lk_run_spec spec;
    lk_source source;
    float state[STEPS][STATE_MAX];
    lk_step_result step[STEPS], evaluation[STEPS];
    char digest[LK_SHA256_HEX_BYTES];
} wanted;

static wanted orders[2];

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

typedef enum phase {
    COMPUTE,
    LOOK,
    SHARE,
    NOTE,
    GIVE_BOXES,
    BOXES,  // wait for them
    JOIN,
    UPDATE,
    COMPLETE,
    GIVE_SUMS,
    SUMS,  // wait
    APPLY,
    FINISH,
    EVALUATE,
    EVALUATION_NOTE,
    GIVE_NOTES,
    NOTES,  // wait
    EVALUATION_FINISH,
    PHASES
} phase;

typedef struct act {
    phase phase;
    uint32_t part;
} act;

static bool for_each_replica(phase p) {
    return p == COMPUTE || p == SHARE || p == JOIN || p == UPDATE || p == APPLY || p == EVALUATE;
}

static bool is_waiting(phase p) { return p == BOXES || p == SUMS || p == NOTES; }

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

typedef struct worker {
    lk_layout layout;
    lk_program program;
    lk_world world;
    lk_exchange exchange;
    lk_core_regions core;
    lk_note notes[2], far_notes[2][WORKERS_MAX];
    lk_walk walks[GRAINS];
    uint32_t host, slowness, notes_turn;
    uint32_t given[PHASES], wanted[PHASES][PARTS];  // as in mpi_turn.c, by what is waited for
    uint32_t here, joined;                          // parts of this step
    uint64_t step;
    uint32_t at, replicas_done;  // of the acts; bits of replicas
    bool waiting, dead;
    uint64_t asleep_until, waiting_since;
    lk_status status;
    bool ended;
} worker;

// A kernel says that what it has computed is not finite: the first dense layer's forward or
// backward of one replica of one worker, or the update of one element of a parameter, whoever makes
// it. Nothing is lost by that; all must hear of the same tensor, in that step alone.
typedef enum bad_kind { ALL_FINITE, BAD_FORWARD, BAD_BACKWARD, BAD_UPDATE, BAD_KINDS } bad_kind;

typedef struct bad_wish {
    bad_kind kind;
    uint32_t rank, replica, param;
    uint64_t step, element;
    bool seen;                     // it has happened
    uint32_t at_rank, at_replica;  // who computes now
    uint64_t at_step;
} bad_wish;

typedef enum loss { NO_LOSS, DIES, SLEEPS, DROPS } loss;

static struct {
    const wanted *want;
    bool shared;
    act acts[ACTS_MAX];
    uint32_t act_count, parts;
    uint32_t world;
    lk_worker list[WORKERS_MAX];
    worker w[WORKERS_MAX];
    message m[WORKERS_MAX][WORKERS_MAX][KINDS];  // from, to
    uint64_t now, delay;
    loss loss;
    uint32_t victim, loss_at, stopper;
    uint64_t loss_step, stop_step;
    bool lost;         // it has happened
    uint32_t starved;  // who never gets the message that is dropped
    int left_out;      // a turn in which nobody waits, or PHASES
    bad_wish bad;      // what is not finite, as the kernels say
    char failure[160];
} sim;

static void fail(const char *what, uint32_t rank, uint64_t step) {
    if (sim.failure[0]) return;
    lk_format(sim.failure, sizeof sim.failure, "worker %u, step %llu: %s", rank,
              (unsigned long long)step, what);
}

static bool is_near(uint32_t a, uint32_t b) { return sim.w[a].host == sim.w[b].host; }

// --- set-up ------------------------------------------------------------------------------------

static void cut_work(void) {
    uint32_t left = GRAINS;
    sim.world = 2 + draw(WORKERS_MAX - 1);
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
    bool now = b->kind == wished && b->at_step == b->step && b->at_rank == b->rank &&
               b->at_replica == b->replica;
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
    sim.bad.rank = draw(sim.world);
    sim.bad.replica = draw(sim.list[sim.bad.rank].replicas);
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
static const char *bad_tensor(const lk_program *p, uint64_t step) {
    const bool forward = sim.bad.kind == BAD_FORWARD;
    const lk_op_type *type = forward ? &lk_op_dense : &lk_op_dense_input_gradient;
    uint32_t i = 0;
    if (!sim.bad.seen || step != sim.bad.step) return NULL;
    if (sim.bad.kind == BAD_UPDATE) return p->tensors[p->params[sim.bad.param].tensor].name;
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
    lk_world_make(&w->world, p, kernels, &sim.want->source, w->core.device, w->core.replicas,
                  stride, take(lk_world_bytes(p)));
}

static void set_message(uint32_t from, uint32_t to, kind k, const void *out, const void *in,
                        uint64_t bytes) {
    sim.m[from][to][k] = (message){.from = out, .to = (uint8_t *)(uintptr_t)in, .bytes = bytes};
}

// What worker w gives worker v, and where that finds it.
static void connect_pair(uint32_t from, uint32_t to) {
    lk_exchange *give = &sim.w[from].exchange, *get = &sim.w[to].exchange;
    for (uint32_t k = 0; k < give->parts.count; k++) {
        const uint32_t place = k * sim.world + from;
        lk_slice mine = lk_part_slice(&give->parts.part[k], sim.world, from);
        lk_slice theirs = lk_part_slice(&give->parts.part[k], sim.world, to);
        const float *box = give->boxes_out + give->slots * theirs.begin;
        const float *sum = give->sum_out + lk_exchange_sum_floats(&give->parts, sim.world, from, k);
        uint64_t box_bytes = give->slots * (theirs.end - theirs.begin) * sizeof(float);
        uint64_t sum_bytes = (mine.end - mine.begin) * sizeof(float);
        get->box[place] = box;
        get->sum[place] = sum;
        if (is_near(from, to)) continue;
        get->box[place] = take(box_bytes);
        get->sum[place] = take(sum_bytes);
        set_message(from, to, BOX + k, box, get->box[place], box_bytes);
        set_message(from, to, SUM + k, sum, get->sum[place], sum_bytes);
    }
    if (is_near(from, to)) return;
    for (int i = 0; i < 2; i++) {
        set_message(from, to, NOTE_EVEN + i, &sim.w[from].notes[i], &sim.w[to].far_notes[i][from],
                    sizeof(lk_note));
    }
}

static void plan_act(phase p, uint32_t part) {
    lk_assert(sim.act_count < ACTS_MAX);
    sim.acts[sim.act_count++] = (act){p, part};
}

static void plan_acts(const phase *phases, uint32_t count, uint32_t part) {
    for (uint32_t i = 0; i < count; i++) plan_act(phases[i], part);
}

// As the run goes through a step, for workers that share one memory and for those with memories
// of their own; and through an evaluation.
static void plan_step(void) {
    static const phase shared[] = {COMPUTE, NOTE,     GIVE_BOXES, BOXES,
                                   UPDATE,  COMPLETE, GIVE_SUMS,  SUMS},
                       early[] = {COMPUTE, LOOK, SHARE}, joined[] = {BOXES, JOIN, GIVE_SUMS},
                       late[] = {SUMS, APPLY}, then[] = {FINISH,     EVALUATE, EVALUATION_NOTE,
                                                         GIVE_NOTES, NOTES,    EVALUATION_FINISH};
    sim.parts = sim.w[0].exchange.parts.count;
    lk_assert(sim.parts <= PARTS);
    if (sim.shared) plan_acts(shared, LK_COUNT(shared), 0);
    for (uint32_t k = 0; !sim.shared && k < sim.parts; k++) {
        plan_acts(early, LK_COUNT(early), k);
        if (k + 1 == sim.parts) plan_act(NOTE, 0);
        plan_act(GIVE_BOXES, k);
    }
    for (uint32_t k = 0; !sim.shared && k < sim.parts; k++) {
        plan_acts(joined, LK_COUNT(joined), k);
    }
    for (uint32_t k = 0; !sim.shared && k < sim.parts; k++) plan_acts(late, LK_COUNT(late), k);
    plan_acts(then, LK_COUNT(then), 0);
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
        x->note_out = &w->notes[0];
        for (uint32_t o = 0; sim.shared && o < sim.world; o++) {
            for (uint32_t i = 0; o != r && i < sim.list[o].replicas; i++) {
                lk_world_reach(&w->world, sim.list[o].before + i,
                               sim.w[o].core.replicas + i * sim.w[o].core.replica_bytes);
            }
        }
    }
    plan_step();
    for (uint32_t a = 0; !sim.shared && a < sim.world; a++) {
        for (uint32_t b = 0; b < sim.world; b++) connect_pair(a, b);
    }
    for (uint32_t a = 0; a < sim.world; a++) {
        for (uint32_t b = 0; b < sim.world; b++) {
            if (is_near(a, b)) continue;
            sim.m[a][b][NOTE_EVEN].expected = true;
            for (uint32_t k = 0; k < sim.parts; k++) sim.m[a][b][BOX + k].expected = true;
        }
    }
}

static void choose_loss(void) {
    sim.loss = DIES + draw(3);
    bool far = false;
    for (uint32_t w = 1; w < sim.world; w++) far = far || !is_near(0, w);
    if (sim.loss == DROPS && !far) sim.loss = SLEEPS;
    sim.victim = draw(sim.world);
    sim.loss_step = draw(STEPS);
    sim.loss_at = draw(sim.act_count);
}

static void set_up(uint64_t seed, uint64_t first_step, bool lossy, int left_out) {
    static const uint32_t waves[] = {0, 2, 4, 8}, slow[] = {1, 1, 1, 6, 30},
                          delays[] = {1, 30, 900};
    const lk_kernels *kernels = &lk_kernels_reference;
    lk_error none = {.status = LK_OK};
    chance = seed * 0x2545f4914f6cdd1du;
    pool_used = 0;
    memset(&sim, 0, sizeof sim);
    sim.left_out = left_out;
    sim.want = &orders[draw(2)];
    if (draw(4)) (void)lk_kernels_choose("auto", &kernels, &none);
    cut_work();
    uint32_t hosts = 1 + draw(3);
    sim.shared = hosts == 1 && draw(2);
    sim.delay = delays[draw(LK_COUNT(delays))];
    sim.stopper = draw(sim.world);
    sim.stop_step = draw(STEPS);
    kernels = choose_bad(kernels);
    const lk_worker *last = &sim.list[sim.world - 1];
    const lk_layout layout = {.replicas_all = last->before + last->replicas,
                              .shared = sim.shared,
                              .wave_examples = waves[draw(LK_COUNT(waves))],
                              .fuse = draw(4) != 0,
                              .part_floats = !sim.shared && draw(2) ? 1 : 0,
                              .reduce = (lk_reduce_choice)draw(3)};
    bool guards = draw(64) == 0;  // they cost a pass over the memory at every op
    for (uint32_t w = 0; w < sim.world; w++) {
        sim.w[w].host = hosts == 3 ? w : draw(hosts);
        sim.w[w].slowness = slow[draw(LK_COUNT(slow))];
        sim.w[w].step = first_step;
        build(w, &layout, guards, kernels);
        uint8_t *device = sim.w[w].core.device;
        if (!sim.shared || w == 0) lk_program_initialize(&sim.w[w].program, device);
        if (first_step == 0) continue;
        walk_state(&sim.w[w].program, device, (float *)sim.want->state[first_step - 1], 1);
    }
    choose_bad_param();
    connect_all();
    if (lossy) choose_loss();
}

// --- the transport -----------------------------------------------------------------------------

static void start_receives(uint32_t to, kind k) {
    for (uint32_t from = 0; from < sim.world; from++) {
        message *m = &sim.m[from][to][k];
        if (is_near(from, to)) continue;
        if (m->expected || m->arrived) fail("a receive is started twice", to, sim.w[to].step);
        m->expected = true;
    }
}

static void start_sends(uint32_t from, kind k) {
    for (uint32_t to = 0; to < sim.world; to++) {
        message *m = &sim.m[from][to][k];
        if (is_near(from, to)) continue;
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

// A part of a message, from the sender's memory as it is now.
static void carry(message *m) {
    uint64_t most = 1 + draw((uint32_t)m->bytes + 1), count = LK_MIN(m->bytes - m->copied, most);
    memcpy(m->to + m->copied, m->from + m->copied, count);
    m->copied += count;
    if (m->copied < m->bytes) return;
    m->expected = m->started = false;
    m->arrived = m->gone = true;
}

// What goes with a part of a turn; notes with the last of the boxes.
static uint32_t kinds_of(act now, uint32_t parity, kind kinds[2]) {
    uint32_t count = 0;
    const kind note = parity ? NOTE_ODD : NOTE_EVEN;
    if (now.phase == NOTES || (now.phase == BOXES && now.part + 1 == sim.parts)) {
        kinds[count++] = note;
    }
    if (sim.shared || now.phase == NOTES) return count;
    kinds[count++] = (now.phase == BOXES ? BOX : SUM) + now.part;
    return count;
}

static bool has_note(act now) {
    kind kinds[2];
    return kinds_of(now, 0, kinds) > 0 && kinds[0] == NOTE_EVEN;
}

// Gives what is waited for in `turn`.
static void give(uint32_t rank, act turn) {
    worker *w = &sim.w[rank];
    uint32_t parity = w->notes_turn & 1;
    kind kinds[2];
    uint32_t count = kinds_of(turn, parity, kinds);
    if (turn.phase == SUMS) start_receives(rank, BOX + turn.part);
    if (turn.phase == BOXES) start_receives(rank, SUM + turn.part);
    if (has_note(turn)) start_receives(rank, parity ? NOTE_EVEN : NOTE_ODD);
    w->wanted[turn.phase][turn.part] = ++w->given[turn.phase];
    for (uint32_t k = 0; k < count; k++) start_sends(rank, kinds[k]);
}

static bool turn_is_over(uint32_t rank, act turn) {
    const worker *w = &sim.w[rank];
    kind kinds[2];
    uint32_t count = kinds_of(turn, w->notes_turn & 1, kinds);
    if ((int)turn.phase == sim.left_out) return true;
    for (uint32_t o = 0; o < sim.world; o++) {
        if (is_near(o, rank)) {
            if (sim.w[o].given[turn.phase] < w->wanted[turn.phase][turn.part]) return false;
            continue;
        }
        for (uint32_t k = 0; k < count; k++) {
            if (!sim.m[o][rank][kinds[k]].arrived || !sim.m[rank][o][kinds[k]].gone) return false;
        }
    }
    return true;
}

static void end_turn(uint32_t rank, act turn) {
    worker *w = &sim.w[rank];
    uint32_t parity = w->notes_turn & 1;
    kind kinds[2];
    uint32_t count = kinds_of(turn, parity, kinds);
    bool noted = has_note(turn);
    w->waiting = false;
    for (uint32_t o = 0; o < sim.world; o++) {
        for (uint32_t k = 0; k < count; k++) {
            sim.m[o][rank][kinds[k]].arrived = sim.m[rank][o][kinds[k]].gone = false;
        }
        bool near = is_near(o, rank);
        if (noted) w->exchange.note[o] = near ? &sim.w[o].notes[parity] : &w->far_notes[parity][o];
    }
    if (!noted) return;
    w->notes_turn++;
    w->exchange.note_given = &w->notes[parity];
    w->exchange.note_out = &w->notes[parity ^ 1];
}

// --- the phases --------------------------------------------------------------------------------

static void check(uint32_t rank, const lk_step_result *found, const lk_step_result *want,
                  uint32_t stop, const char *bad, uint64_t step) {
    bool same = memcmp(&found->loss, &want->loss, sizeof found->loss) == 0 &&
                found->correct == want->correct && found->examples == want->examples;
    if (!same) fail("another result than one worker's", rank, step);
    if (!found->bad_tensor != !bad || (bad && strcmp(bad, found->bad_tensor) != 0)) {
        fail("another tensor than the one that is not finite", rank, step);
    }
    if (found->stop != stop) fail("the stop of one worker is not known to all", rank, step);
}

static void finish(uint32_t rank, worker *w) {
    const lk_program *p = &w->program;
    lk_world_check(&w->world);
    lk_step_result r = lk_exchange_finish(&w->exchange, &w->world, lk_step_grains(p, w->step),
                                          lk_step_examples(p->spec, w->step));
    if (!walk_state(p, w->core.device, (float *)sim.want->state[w->step], 0)) {
        fail("another state than one worker's", rank, w->step);
    }
    check(rank, &r, &sim.want->step[w->step], w->step == sim.stop_step ? STOP_SIGNAL : 0,
          bad_tensor(p, w->step), w->step);
}

static struct { uint64_t lossless, lost, retried, resumed, early; } counts;

// A replica's work up to the end of a part.
static void compute(worker *w, uint32_t replica, uint32_t part) {
    const lk_parts *parts = &w->exchange.parts;
    if (part == 0) lk_step_start(&w->world, replica, w->step, &w->walks[replica]);
    lk_step_walk(&w->world, replica, &w->walks[replica], parts->part[part].after_op);
}

// Before a part is shared: which others have come meanwhile?
static void look(uint32_t rank, worker *w, uint32_t part) {
    if (part == 0) {
        lk_exchange_foresee(&w->exchange, w->step);
        w->here = w->joined = 0;
    }
    for (; w->here < part && turn_is_over(rank, (act){BOXES, w->here}); w->here++) {
        end_turn(rank, (act){BOXES, w->here});
    }
}

static void share(worker *w, uint32_t replica, uint32_t part) {
    lk_exchange_share(&w->exchange, &w->world, replica, part);
    for (uint32_t k = w->joined; k < w->here; k++) {
        lk_exchange_join(&w->exchange, &w->world, replica, k);
    }
}

static void give_boxes(uint32_t rank, worker *w, uint32_t part) {
    give(rank, (act){BOXES, part});
    for (; w->joined < w->here; w->joined++, counts.early++) give(rank, (act){SUMS, w->joined});
}

static void run(uint32_t rank, act now, uint32_t replica) {
    worker *w = &sim.w[rank];
    lk_exchange *x = &w->exchange;
    const lk_program *p = &w->program;
    uint32_t grains = lk_grains_of(p, TEST_EXAMPLES);
    sim.bad.at_rank = rank;
    sim.bad.at_replica = replica;
    sim.bad.at_step = now.phase < EVALUATE ? w->step : STEPS;
    uint32_t stop = rank == sim.stopper && w->step == sim.stop_step ? STOP_SIGNAL : 0;
    switch (now.phase) {
    case COMPUTE: compute(w, replica, now.part); break;
    case LOOK: look(rank, w, now.part); break;
    case SHARE: share(w, replica, now.part); break;
    case NOTE:
        if (sim.shared) lk_step_foresee(&w->world, w->step);
        lk_exchange_write_note(x, &w->world, p->grains, lk_step_grains(p, w->step), stop);
        break;
    case GIVE_BOXES: give_boxes(rank, w, now.part); break;
    case JOIN: lk_exchange_join(x, &w->world, replica, now.part); break;
    case UPDATE: lk_step_update(&w->world, replica, w->step); break;
    case COMPLETE: lk_exchange_complete_note(x, &w->world); break;
    case GIVE_SUMS: give(rank, (act){SUMS, now.part}); break;
    case APPLY: lk_exchange_apply(x, &w->world, replica, w->step, now.part); break;
    case FINISH: finish(rank, w); break;
    case EVALUATE: lk_evaluate_compute(&w->world, replica, &test_set, TEST_EXAMPLES); break;
    case EVALUATION_NOTE: lk_exchange_write_note(x, &w->world, grains, grains, stop); break;
    case GIVE_NOTES: give(rank, (act){NOTES, 0}); break;
    case EVALUATION_FINISH: {
        lk_step_result r = lk_exchange_finish(x, &w->world, grains, TEST_EXAMPLES);
        check(rank, &r, &sim.want->evaluation[w->step], w->step == sim.stop_step ? STOP_SIGNAL : 0,
              NULL, w->step);
        break;
    }
    default: lk_assert(!"a phase of a replica or a worker");
    }
}

static act act_of(const worker *w) { return sim.acts[w->at]; }

static bool is_done_already(const worker *w) {
    act now = act_of(w);
    return !sim.shared && now.part < w->joined &&
           (now.phase == BOXES || now.phase == JOIN || now.phase == GIVE_SUMS);
}

static void next_act(worker *w) {
    w->replicas_done = 0;
    do {
        if (++w->at < sim.act_count) continue;
        w->at = 0;
        w->ended = ++w->step == STEPS;
    } while (is_done_already(w));
}

// Was this the last thing that worker `rank` did for a while?
static bool is_lost_here(uint32_t rank, worker *w) {
    if (!sim.loss || sim.loss == DROPS || sim.lost || rank != sim.victim ||
        w->step != sim.loss_step || w->at < sim.loss_at) {
        return false;
    }
    sim.lost = true;
    w->dead = sim.loss == DIES;
    w->asleep_until = sim.now + 3 * DEADLINE;
    return true;
}

// One thing that worker `rank` does.
static void do_next(uint32_t rank) {
    worker *w = &sim.w[rank];
    act now = act_of(w);
    if (w->waiting) {
        if (!turn_is_over(rank, now)) {  // the deadline has passed
            w->status = LK_RETRY;
            w->ended = true;
            return;
        }
        end_turn(rank, now);
        next_act(w);
        return;
    }
    if (is_lost_here(rank, w)) return;
    if (is_waiting(now.phase)) {
        w->waiting = true;
        w->waiting_since = sim.now;
        return;
    }
    if (!for_each_replica(now.phase)) {
        run(rank, now, 0);
        next_act(w);
        return;
    }
    uint32_t replica = draw(w->layout.replicas);
    while (w->replicas_done >> replica & 1) replica = (replica + 1) % w->layout.replicas;
    run(rank, now, replica);
    w->replicas_done |= 1u << replica;
    if (w->replicas_done == (1u << w->layout.replicas) - 1) next_act(w);
}

// --- the clock ---------------------------------------------------------------------------------

// From when on worker `rank` can do something; UINT64_MAX: not before something else has happened.
static uint64_t worker_ready(uint32_t rank) {
    const worker *w = &sim.w[rank];
    if (w->dead || w->ended) return UINT64_MAX;
    if (!w->waiting || turn_is_over(rank, act_of(w))) return w->asleep_until;
    return sim.lost ? LK_MAX(w->waiting_since + DEADLINE, w->asleep_until) : UINT64_MAX;
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
            for (kind k = 0; k < KINDS && !is_near(a, b); k++) {
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

// Nobody gets further than the turns allow; who was not lost ends well or with LK_RETRY.
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
        lk_digest(&them->program, them->core.device, digest);
        if (them->step != STEPS || strcmp(digest, sim.want->digest) != 0) {
            fail("it ended well with another digest", w, them->step);
        }
        bool starved = sim.loss == DROPS && sim.lost && sim.starved == w;
        if (starved) fail("it ended well without a message", w, them->step);
    }
}

static bool simulate(uint64_t seed, uint64_t first_step, bool lossy, int left_out) {
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
    if (!simulate(seed, 0, lossy, PHASES)) return false;
    counts.lossless += !sim.lost;
    counts.lost += sim.lost;
    for (uint32_t w = 0; w < sim.world; w++) counts.retried += sim.w[w].status == LK_RETRY;
    uint64_t done = sim.w[0].step;  // the leader's checkpoint
    bool sharded = sim.want == &orders[1];
    if (!sim.lost || done == STEPS) return true;
    counts.resumed++;
    // The cut comes from another seed; the order of the examples must be that of this one.
    do {
        seed += (uint64_t)1 << 32;
        set_up(seed, done, false, PHASES);
    } while ((sim.want == &orders[1]) != sharded);
    return simulate(seed, done, false, PHASES);
}

// --- a turn left out ---------------------------------------------------------------------------

// How many of `seeds` are noticed if nobody waits in a turn.
static uint32_t notice(int left_out, uint32_t seeds) {
    static volatile uint32_t noticed, seed;
    for (noticed = 0, seed = 1; seed <= seeds; seed++) {
        if (setjmp(panicked) || !simulate(seed, 0, false, left_out)) noticed++;
    }
    return noticed;
}

// --- the reference -----------------------------------------------------------------------------

static void make_wanted(wanted *want, bool sharded) {
    const lk_layout layout = {.replicas_all = 1, .fuse = true};
    want->spec = spec_of(sharded);
    want->source = (lk_source){&want->spec, order, image, label};
    memset(&sim, 0, sizeof sim);
    pool_used = 0;
    sim.want = want;
    sim.world = 1;
    sim.list[0] = (lk_worker){.replicas = 1};
    build(0, &layout, false, &lk_kernels_reference);
    worker *w = &sim.w[0];
    lk_program_initialize(&w->program, w->core.device);
    for (uint64_t step = 0; step < STEPS; step++) {
        lk_step_compute(&w->world, 0, step);
        lk_step_update(&w->world, 0, step);
        want->step[step] = lk_step_finish(&w->world, step);
        walk_state(&w->program, w->core.device, want->state[step], -1);
        lk_evaluate_compute(&w->world, 0, &test_set, TEST_EXAMPLES);
        want->evaluation[step] = lk_evaluate_finish(&w->world, TEST_EXAMPLES);
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
    sim.want = &orders[0];
    sim.world = 1;
    sim.list[0] = (lk_worker){.replicas = REPLICAS};
    (void)choose_bad(&lk_kernels_reference);
    build(0, &layout, false, &bad_kernels);
    worker *w = &sim.w[0];
    choose_bad_param();
    sim.bad.kind = kind_of_bad;
    sim.bad.step = 0;
    sim.bad.replica = replica;
    sim.bad.element = 0;
    lk_program_initialize(&w->program, w->core.device);
    for (sim.bad.at_step = 0; sim.bad.at_step < 2; sim.bad.at_step++) {
        const uint64_t step = sim.bad.at_step;
        for (uint32_t r = sim.bad.at_replica = 0; r < REPLICAS; sim.bad.at_replica = ++r) {
            lk_step_compute(&w->world, r, step);
        }
        for (uint32_t r = 0; r < REPLICAS; r++) lk_step_update(&w->world, r, step);
        const char *found = lk_step_finish(&w->world, step).bad_tensor;
        const char *wanted_one = bad_tensor(&w->program, step);
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
    for (int i = 0; i < 2; i++) make_wanted(&orders[i], i == 1);
    if (!all_tell_alone()) return 1;
    lk_set_panic_handler(on_panic);
    for (volatile uint64_t seed = first; seed < first + count; seed++) {
        if (setjmp(panicked) == 0 && try_seed(seed)) continue;
        printf("FAILED: seed %llu (test_simulate 1 %llu): %s\n", (unsigned long long)seed,
               (unsigned long long)seed, sim.failure);
        return 1;
    }
    printf(
        "%llu seeds: %llu without a loss, %llu with one; %llu workers gave up with exit code %d, "
        "%llu runs went on with others; %llu parts were joined while others were computed; every "
        "state that of one worker\n",
        (unsigned long long)count, (unsigned long long)counts.lossless,
        (unsigned long long)counts.lost, (unsigned long long)counts.retried, LK_RETRY,
        (unsigned long long)counts.resumed, (unsigned long long)counts.early);
    if (argc > 2) return 0;
    if (count >= 100 && counts.early == 0) return 1;
    static const phase turns[] = {BOXES, SUMS, NOTES};
    for (uint32_t i = 0; i < LK_COUNT(turns); i++) {
        uint32_t noticed = notice((int)turns[i], 100);
        printf("turn %u of 3 left out: noticed in %u of 100 seeds\n", i + 1, noticed);
        if (noticed < 90) return 1;
    }
    return 0;
}
