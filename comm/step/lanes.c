// lanes.c - the acts of a step (driver.h) by replicas on this processor. Freestanding.
#include "comm/step/driver.h"
#include "comm/step/norms.h"

static uint32_t grains_of(const lk_driver *d) {
    const lk_program *p = d->group->program;
    return d->test ? lk_grains_of(p, d->test_count) : lk_step_grains(p, d->step);
}

static uint64_t examples_of(const lk_driver *d) {
    return d->test ? d->test_count : lk_step_examples(d->group->program->spec, d->step);
}

static void compute_whole(lk_member *m) {
    lk_step_compute(m->driver->group, m->replica, m->driver->step);
}

// Where the update asks for norms.
static void reduce_partition(lk_member *m) {
    lk_group *group = m->driver->group;
    if (m->verdict == LK_VERDICT_APPLY) lk_step_reduce(group, m->replica, m->driver->step);
}

static void square_partition(lk_member *m) {
    if (m->verdict == LK_VERDICT_APPLY) lk_norms_square(m->driver->group, m->replica);
}

static bool flags_of_norms(const lk_member *m, lk_flags *out) {
    lk_norms_flags(m->driver->group, m->replica, out);
    return true;
}

static void apply_normed(lk_member *m) {
    lk_group *group = m->driver->group;
    if (m->verdict == LK_VERDICT_APPLY) {
        lk_norms_apply(group, m->replica, m->driver->step);
    } else {
        lk_step_pass(group, m->replica, m->verdict == LK_VERDICT_SKIP);
        group->bad_param[m->replica] = m->bad_param;
    }
}

// Where it asks for none.
static void apply_judged(lk_member *m) {
    lk_group *group = m->driver->group;
    lk_step_follow(group, m->replica, m->verdict);
    if (m->verdict == LK_VERDICT_APPLY) {
        lk_step_update(group, m->replica, m->driver->step);
    } else {
        lk_step_pass(group, m->replica, m->verdict == LK_VERDICT_SKIP);
    }
}

static void follow_and_apply_normed(lk_member *m) {
    lk_step_follow(m->driver->group, m->replica, m->verdict);
    apply_normed(m);
}

static void update_partition(lk_member *m) {
    if (m->driver->when == LK_NORMED) {
        follow_and_apply_normed(m);
    } else {
        apply_judged(m);
    }
}

// Of a board, where nobody asks for a verdict or takes norms.
static void update_all(lk_member *m) {
    lk_step_update(m->driver->group, m->replica, m->driver->step);
}

static void evaluate_share(lk_member *m) {
    const lk_driver *d = m->driver;
    lk_evaluate_compute(d->group, m->replica, d->test, d->test_count);
}

// --- one worker --------------------------------------------------------------------------------

static bool flags_of_replicas(const lk_member *m, lk_flags *out) {
    lk_step_flags(m->driver->group, m->replica, m->driver->step, out);
    return true;
}

static lk_step_result finish_step(lk_driver *d) {
    lk_step_result result = lk_step_finish(d->group, d->step);
    result.step = d->step;
    return result;
}

static lk_step_result finish_alone(lk_driver *d) {
    return d->test ? lk_evaluate_finish(d->group, d->test_count) : finish_step(d);
}

const lk_lanes lk_lanes_alone = {.compute = compute_whole,
                                 .reduce = reduce_partition,
                                 .square = square_partition,
                                 .norm_flags = flags_of_norms,
                                 .apply = update_partition,
                                 .evaluate = evaluate_share,
                                 .flags = flags_of_replicas,
                                 .finish = finish_alone};

const lk_lanes lk_lanes_steps = {
    .compute = compute_whole, .apply = update_all, .finish = finish_step};

const lk_lanes lk_lanes_scaled = {.compute = compute_whole,
                                  .apply = apply_judged,
                                  .flags = flags_of_replicas,
                                  .finish = finish_step};

const lk_lanes lk_lanes_normed = {.compute = compute_whole,
                                  .reduce = reduce_partition,
                                  .square = square_partition,
                                  .norm_flags = flags_of_norms,
                                  .apply = follow_and_apply_normed,
                                  .flags = flags_of_replicas,
                                  .finish = finish_step};

// --- one of several ----------------------------------------------------------------------------

static bool flags_of_all(const lk_member *m, lk_flags *out) {
    const lk_driver *d = m->driver;
    lk_exchange_flags(d->exchange, m->replica, grains_of(d), examples_of(d), d->group->penalty,
                      out);
    return true;
}

static void write_report(lk_driver *d) {
    const uint32_t leaves = grains_of(d), grains = d->test ? leaves : d->group->program->grains;
    if (d->group->program->layout.shared && !d->test) lk_step_foresee(d->group, d->step);
    lk_exchange_write_report(d->exchange, d->group, grains, leaves, d->stop);
}

static void complete_report(lk_driver *d) { lk_exchange_complete_report(d->exchange, d->group); }

static lk_step_result finish_with_all(lk_driver *d) {
    if (!d->test) lk_group_check(d->group);
    lk_step_result result = lk_exchange_finish(d->exchange, d->group, grains_of(d), examples_of(d));
    if (!d->test) result.step = d->step;
    return result;
}

const lk_lanes lk_lanes_shared = {.compute = compute_whole,
                                  .reduce = reduce_partition,
                                  .square = square_partition,
                                  .norm_flags = flags_of_norms,
                                  .apply = update_partition,
                                  .evaluate = evaluate_share,
                                  .flags = flags_of_all,
                                  .report = write_report,
                                  .complete = complete_report,
                                  .finish = finish_with_all};

// The replica's work up to the end of a bucket. The first member sees to it that messages get on.
static void compute_bucket(lk_member *m) {
    const lk_driver *d = m->driver;
    const lk_bucket *buckets = d->exchange->buckets.bucket;
    uint32_t op = m->bucket ? buckets[m->bucket - 1].after_op : buckets[0].after_op;
    if (m->bucket == 0) lk_step_start(d->group, m->replica, d->step, &m->walk);
    for (; op <= buckets[m->bucket].after_op; op++) {
        lk_step_walk(d->group, m->replica, &m->walk, op);
        lk_member_lap(m, LK_LAP_COMPUTING, LK_NO_ROUND);
        if (m->replica != 0 || m->bucket == 0) continue;
        (void)d->transport->look(m->driver, LK_ROUND_BOXES, d->here);
        lk_member_lap(m, LK_LAP_EARLY, LK_NO_ROUND);
    }
    if (m->bucket == 0 && m->replica == 0) lk_exchange_foresee(d->exchange, d->step);
}

static lk_adder adder_of(const lk_member *m) {
    const lk_group *group = m->driver->group;
    return (lk_adder){group->kernels, m->replica, group->replicas};
}

static void share_bucket(lk_member *m) {
    const lk_driver *d = m->driver;
    const lk_adder by = adder_of(m);
    const lk_holding *held = lk_exchange_held(d->exchange, d->group, m->replica);
    lk_exchange_share(d->exchange, &by, held, d->group->replicas, m->bucket);
}

static void join_bucket(lk_member *m, uint32_t bucket) {
    const lk_adder by = adder_of(m);
    lk_exchange_join(m->driver->exchange, &by, bucket);
}

static void reduce_bucket(lk_member *m) {
    lk_driver *d = m->driver;
    if (m->verdict == LK_VERDICT_APPLY) {
        lk_exchange_store(d->exchange, d->group, m->replica, m->bucket);
    }
}

static void apply_bucket(lk_member *m) {
    lk_driver *d = m->driver;
    if (m->bucket == 0) lk_step_follow(d->group, m->replica, m->verdict);
    if (d->when == LK_NORMED) {
        apply_normed(m);
    } else if (m->verdict == LK_VERDICT_APPLY) {
        lk_exchange_apply(d->exchange, d->group, m->replica, d->step, m->bucket);
    } else if (m->bucket == 0) {
        lk_step_pass(d->group, m->replica, m->verdict == LK_VERDICT_SKIP);
    }
}

const lk_lanes lk_lanes_boxes = {.compute = compute_bucket,
                                 .share = share_bucket,
                                 .join = join_bucket,
                                 .reduce = reduce_bucket,
                                 .square = square_partition,
                                 .norm_flags = flags_of_norms,
                                 .apply = apply_bucket,
                                 .evaluate = evaluate_share,
                                 .flags = flags_of_all,
                                 .report = write_report,
                                 .complete = complete_report,
                                 .finish = finish_with_all};
