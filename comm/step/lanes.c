// lanes.c - the acts of a step (driver.h) by replicas on this processor. Freestanding.
#include "comm/step/driver.h"

static uint32_t grains_of(const lk_driver *d) {
    const lk_program *p = d->world->program;
    return d->test ? lk_grains_of(p, d->test_count) : lk_step_grains(p, d->step);
}

static uint64_t examples_of(const lk_driver *d) {
    return d->test ? d->test_count : lk_step_examples(d->world->program->spec, d->step);
}

static void compute_whole(lk_member *m) {
    lk_step_compute(m->driver->world, m->replica, m->driver->step);
}

static void update_partition(lk_member *m) {
    lk_world *world = m->driver->world;
    if (m->verdict == LK_VERDICT_APPLY) {
        lk_step_update(world, m->replica, m->driver->step);
    } else {
        (void)lk_world_begin_update(world, m->replica);
    }
}

static void evaluate_share(lk_member *m) {
    const lk_driver *d = m->driver;
    lk_evaluate_compute(d->world, m->replica, d->test, d->test_count);
}

// --- one worker --------------------------------------------------------------------------------

static uint32_t flag_of_replicas(const lk_driver *d) {
    uint32_t bad_op = LK_NONE;
    for (uint32_t r = 0; r < d->world->replicas; r++) {
        bad_op = LK_MIN(bad_op, d->world->frames[r].bad_op);
    }
    return bad_op;
}

static lk_step_result finish_step(lk_driver *d) {
    lk_step_result result = lk_step_finish(d->world, d->step);
    result.step = d->step;
    return result;
}

static lk_step_result finish_alone(lk_driver *d) {
    return d->test ? lk_evaluate_finish(d->world, d->test_count) : finish_step(d);
}

const lk_lanes lk_lanes_alone = {.compute = compute_whole,
                                 .apply = update_partition,
                                 .evaluate = evaluate_share,
                                 .flag = flag_of_replicas,
                                 .finish = finish_alone};

const lk_lanes lk_lanes_steps = {.compute = compute_whole,
                                 .apply = update_partition,
                                 .flag = flag_of_replicas,
                                 .finish = finish_step};

// --- one of several ----------------------------------------------------------------------------

static uint32_t flag_of_all(const lk_driver *d) {
    uint32_t bad_op = LK_NONE;
    for (uint32_t w = 0; w < d->exchange->world; w++) {
        bad_op = LK_MIN(bad_op, d->exchange->note[w]->bad_op);
    }
    return bad_op;
}

static void write_note(lk_driver *d) {
    const uint32_t leaves = grains_of(d), grains = d->test ? leaves : d->world->program->grains;
    if (d->world->program->layout.shared && !d->test) lk_step_foresee(d->world, d->step);
    lk_exchange_write_note(d->exchange, d->world, grains, leaves, d->stop);
}

static void complete_note(lk_driver *d) { lk_exchange_complete_note(d->exchange, d->world); }

static lk_step_result finish_with_all(lk_driver *d) {
    if (!d->test) lk_world_check(d->world);
    lk_step_result result = lk_exchange_finish(d->exchange, d->world, grains_of(d), examples_of(d));
    if (!d->test) result.step = d->step;
    return result;
}

const lk_lanes lk_lanes_shared = {.compute = compute_whole,
                                  .apply = update_partition,
                                  .evaluate = evaluate_share,
                                  .flag = flag_of_all,
                                  .note = write_note,
                                  .complete = complete_note,
                                  .finish = finish_with_all};

// The replica's work up to the end of a part. The first member sees to it that messages get on.
static void compute_part(lk_member *m) {
    const lk_driver *d = m->driver;
    const lk_part *parts = d->exchange->parts.part;
    uint32_t op = m->part ? parts[m->part - 1].after_op : parts[0].after_op;
    if (m->part == 0) lk_step_start(d->world, m->replica, d->step, &m->walk);
    for (; op <= parts[m->part].after_op; op++) {
        lk_step_walk(d->world, m->replica, &m->walk, op);
        lk_member_lap(m, LK_LAP_COMPUTING, LK_NO_TURN);
        if (m->replica != 0 || m->part == 0) continue;
        (void)d->transport->look(m->driver, LK_TURN_BOXES, d->here);
        lk_member_lap(m, LK_LAP_EARLY, LK_NO_TURN);
    }
    if (m->part == 0 && m->replica == 0) lk_exchange_foresee(d->exchange, d->step);
}

static lk_adder adder_of(const lk_member *m) {
    const lk_world *world = m->driver->world;
    return (lk_adder){world->kernels, m->replica, world->replicas};
}

static void share_part(lk_member *m) {
    const lk_driver *d = m->driver;
    const lk_adder by = adder_of(m);
    const lk_holding *held = lk_exchange_held(d->exchange, d->world, m->replica);
    lk_exchange_share(d->exchange, &by, held, d->world->replicas, m->part);
}

static void join_part(lk_member *m, uint32_t part) {
    const lk_adder by = adder_of(m);
    lk_exchange_join(m->driver->exchange, &by, part);
}

static void apply_part(lk_member *m) {
    lk_driver *d = m->driver;
    if (m->verdict == LK_VERDICT_APPLY) {
        lk_exchange_apply(d->exchange, d->world, m->replica, d->step, m->part);
    } else if (m->part == 0) {
        (void)lk_world_begin_update(d->world, m->replica);
    }
}

const lk_lanes lk_lanes_boxes = {.compute = compute_part,
                                 .share = share_part,
                                 .join = join_part,
                                 .apply = apply_part,
                                 .evaluate = evaluate_share,
                                 .flag = flag_of_all,
                                 .note = write_note,
                                 .complete = complete_note,
                                 .finish = finish_with_all};
