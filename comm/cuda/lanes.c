// lanes.c - steps and evaluations of a worker's GPUs, as a driver asks for them: alone; directly,
// where the GPUs of all workers exchange by themselves; staged, by way of the hosts. What is staged
// is shared, joined and told as a worker of threads does it (comm/step/exchange.h).
#include "comm/cuda/lanes.h"

#include "comm/cuda/staged.h"
#include "comm/mpi/transport.h"

static lk_cuda_group *group_of(const lk_driver *d) { return d->lanes_context; }

// A GPU that fails is the end of this worker's step.
static void go_on(lk_member *m, lk_status status) {
    if (status != LK_OK) lk_member_end(m);
}

static void compute_on_gpus(lk_member *m) {
    const lk_scale_state *scale = lk_cuda_group_scale(group_of(m->driver));
    if (scale) m->driver->group->scale = *scale;
    go_on(m, lk_cuda_group_begin(group_of(m->driver), m->driver->step, m->driver->lost));
}

// Where nobody asks for a verdict nobody waits for the step: its result is asked for when it is
// wanted.
static lk_step_result result_or_pending(lk_driver *d) {
    lk_step_result result = {.step = d->step, .pending = true};
    if (!d->decide) return result;
    if (lk_cuda_group_settle(group_of(d), &result, d->lost) != LK_OK) return (lk_step_result){0};
    lk_cuda_group_follow(group_of(d), d->verdict);
    return result;
}

// All GPUs of all workers know the same, and have followed it.
static bool flags_of_gpus(const lk_member *m, lk_flags *out) {
    const lk_driver *d = m->driver;
    return lk_cuda_group_flags(group_of(d), out, d->lost) == LK_OK;
}

// --- alone -------------------------------------------------------------------------------------

static void evaluate_on_gpus(lk_member *m) {
    const lk_driver *d = m->driver;
    lk_on_logits on_logits = d->exchange ? NULL : d->group->on_logits;
    const lk_status status = lk_cuda_group_evaluate(group_of(d), d->test, d->test_count, on_logits,
                                                    d->group->on_logits_context, d->lost);
    if (status == LK_OK) d->group->penalty = group_of(d)->gpu[0].host.state->penalty;
    go_on(m, status);
}

static lk_step_result finish_on_gpus(lk_driver *d) {
    return d->test ? lk_cuda_group_evaluated(group_of(d), d->test_count) : result_or_pending(d);
}

static const lk_lanes alone = {.compute = compute_on_gpus,
                               .evaluate = evaluate_on_gpus,
                               .flags = flags_of_gpus,
                               .finish = finish_on_gpus};

static const lk_transport device = {
    .step = &lk_course_device, .evaluation = &lk_course_evaluate, .meet = lk_threads_meet};

// --- directly ----------------------------------------------------------------------------------

static void report_of_evaluation(lk_driver *d) {
    lk_cuda_staged_evaluated(group_of(d), d->exchange, d->test_count, d->stop);
}

// The sums are the GPUs' business; workers only tell each other what comes after the step.
static void report_directly(lk_driver *d) {
    if (d->test) {
        report_of_evaluation(d);
        return;
    }
    *d->exchange->report_out = (lk_report){.stop = d->stop,
                                       .save_by_clock = d->save_by_clock,
                                       .writes_checkpoint = d->exchange->writes_checkpoint,
                                       .bad_op = LK_NONE,
                                       .bad_param = LK_NONE};
}

static lk_step_result finish_evaluation(lk_driver *d) {
    for (uint32_t r = 0; r < d->group->replicas; r++) d->group->bad_param[r] = LK_NONE;
    return lk_exchange_finish(d->exchange, d->group, lk_grains_of(d->group->program, d->test_count),
                              d->test_count);
}

static uint32_t stop_of_all(const lk_exchange *x) {
    uint32_t stop = 0;
    for (uint32_t w = 0; w < x->world; w++) stop = LK_MAX(stop, x->report[w]->stop);
    return stop;
}

static lk_step_result finish_directly(lk_driver *d) {
    if (d->test) return finish_evaluation(d);
    lk_step_result result = result_or_pending(d);
    result.stop = stop_of_all(d->exchange);
    result.save_by_clock = d->exchange->report[0]->save_by_clock;
    return result;
}

static const lk_lanes directly = {.compute = compute_on_gpus,
                                  .evaluate = evaluate_on_gpus,
                                  .flags = flags_of_gpus,
                                  .report = report_directly,
                                  .finish = finish_directly};

// --- staged ------------------------------------------------------------------------------------

// The host adds for its GPUs: alone, with the kernels of a worker of threads.
static lk_adder host_of(const lk_driver *d) {
    return (lk_adder){group_of(d)->choice.kernels, 0, 1};
}

static void share_staged(lk_member *m) {
    lk_driver *d = m->driver;
    const lk_adder by = host_of(d);
    lk_cuda_staged_nodes held;
    const lk_status status = lk_cuda_group_wait(group_of(d), d->lost);
    go_on(m, status);
    if (status != LK_OK) return;
    lk_exchange_foresee(d->exchange, d->step);
    lk_cuda_staged_held(group_of(d), d->exchange->leaves, &held);
    lk_exchange_share(d->exchange, &by, held.list, group_of(d)->count, m->bucket);
}

static void join_staged(lk_member *m, uint32_t bucket) {
    const lk_adder by = host_of(m->driver);
    lk_exchange_join(m->driver->exchange, &by, bucket);
}

static void report_staged(lk_driver *d) {
    if (d->test) {
        report_of_evaluation(d);
    } else {
        lk_cuda_staged_report(group_of(d), d->exchange, d->step, d->stop);
    }
}

// The penalty is not in them: GPUs weigh it later, with the update, and their results say it.
static bool flags_staged(const lk_member *m, lk_flags *out) {
    const lk_driver *d = m->driver;
    const lk_program *p = d->group->program;
    lk_exchange_flags(d->exchange, 0, lk_step_grains(p, d->step),
                      lk_step_examples(p->spec, d->step), 0.0f, out);
    return true;
}

// The norms are the GPUs' own business, in the second graph.
static void leave_to_gpus(lk_member *m) { (void)m; }

static bool no_flags(const lk_member *m, lk_flags *out) {
    (void)m;
    *out = (lk_flags){.bad_op = LK_NONE, .bad_param = LK_NONE};
    return true;
}

// Whatever the verdict: the GPUs know the flags, and write nothing where there is one.
static void apply_staged(lk_member *m) {
    const lk_driver *d = m->driver;
    lk_cuda_staged_sums(group_of(d), d->exchange, d->step);
    go_on(m, lk_cuda_group_update(group_of(d), d->step, d->lost));
}

static lk_step_result finish_staged(lk_driver *d) {
    lk_step_result result = {0};
    if (d->test) return finish_evaluation(d);
    if (lk_cuda_group_settle(group_of(d), &result, d->lost) != LK_OK) return (lk_step_result){0};
    lk_cuda_group_follow(group_of(d), d->verdict);
    result.stop = stop_of_all(d->exchange);
    return result;
}

static const lk_lanes staged = {.compute = compute_on_gpus,
                                .share = share_staged,
                                .join = join_staged,
                                .apply = apply_staged,
                                .evaluate = evaluate_on_gpus,
                                .reduce = leave_to_gpus,
                                .square = leave_to_gpus,
                                .flags = flags_staged,
                                .norm_flags = no_flags,
                                .report = report_staged,
                                .finish = finish_staged};

void lk_cuda_drive(lk_cuda_group *g, lk_driver *d) {
    const bool stages = g->choice.way == LK_CUDA_STAGED;
    d->lanes = !d->exchanges ? &alone : stages ? &staged : &directly;
    d->transport = !d->exchanges ? &device : stages ? &lk_messages : &lk_reports_alone;
    d->lanes_context = g;
    lk_assert(!d->decide || !g->gpu[0].persist.is);
    for (uint32_t i = 0; i < g->count; i++) g->gpu[i].asks = d->decide != NULL;
}
