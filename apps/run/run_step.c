// run_step.c - one step or one evaluation of a run (run.h): which lanes compute it and over which
// transport, for the driver (comm/step/driver.h). Knows no configuration and no file.
#include "apps/run/run.h"

#include "comm/mpi/transport.h"
#include "comm/threads/threads.h"

static void lap_ends(void *clock, lk_lap lap, lk_round turn) {
    if (turn == LK_NO_ROUND) {
        lk_lap_ends(clock, lap);
    } else {
        lk_lap_round_ends(clock, lk_mpi_last_given(turn));
    }
}

static const lk_lanes *lanes_of(const lk_run *run) {
    if (!run->workers.joined) return &lk_lanes_alone;
    return run->layout.shared ? &lk_lanes_shared : &lk_lanes_boxes;
}

static const lk_transport *transport_of(const lk_run *run) {
    if (!run->workers.joined) return &lk_threads;
    return run->layout.shared ? &lk_window : &lk_messages;
}

// Known once the workers have met. Of a GPU's steps nobody sees the laps.
static lk_driver *driver_of(lk_run *run) {
    run->driver.lanes = lanes_of(run);
    if (run->trace.on) lk_trace_drive(&run->trace, &run->driver);
    run->driver.transport = transport_of(run);
    run->driver.groups = &run->group;
    run->driver.exchanges = run->workers.joined ? &run->exchange : NULL;
    run->driver.programs = 1;
    run->driver.lost = &run->lost;
    run->driver.decide = NULL;
    if (run->program.loss_scale != LK_NONE) {
        run->driver.decide = lk_step_decide;
        run->driver.decide_context = &run->group;
    }
    run->driver.lap = run->cuda ? NULL : lap_ends;
    run->driver.clock = &run->laps;
    run->driver.stop = run->stop;
    run->driver.save_by_clock = run->save_by_clock;
    if (run->cuda) run->cuda->drive(&run->gpus, &run->driver);
    return &run->driver;
}

static void use_program(lk_run *run, const lk_program *program) {
    lk_group_use(&run->group, program);
    if (run->workers.joined) lk_exchange_use(&run->exchange, program);
    if (run->cuda) run->cuda->use(&run->gpus, program);
}

static lk_step_result result_of(lk_run *run) {
    if (run->lost.status != LK_OK) return (lk_step_result){0};
    return lk_driver_finish(&run->driver);
}

static lk_step_result try_step(lk_run *run, uint64_t step) {
    lk_trace_begin(&run->trace, step);
    use_program(run, lk_program_of_step(&run->program, step));
    lk_driver_start(driver_of(run), 0, step);
    if (!run->cuda) lk_laps_start(&run->laps);
    lk_threads_run(&run->driver, &run->team);
    if (!run->cuda) lk_lap_ends(&run->laps, LK_LAP_WAITING);
    lk_trace_end(&run->trace);
    return result_of(run);
}

// What the logs say of the loss scale: that of the objective whose program is in use.
static void say_scale(lk_run *run, lk_step_result *result) {
    const lk_program *p = run->group.program;
    const lk_scale_state *state = lk_scale_of(p, run->core.device);
    if (!state || run->lost.status != LK_OK) return;
    result->loss_scale = lk_scale_value(&p->spec->model.loss_scale, state);
    result->skipped = lk_steps_skipped(p, run->core.device, p->objective);
    result->replayed = lk_scale_replays(state);
}

lk_step_result lk_run_step(lk_run *run, uint64_t step) {
    lk_step_result result;
    do result = try_step(run, step);
    while (run->lost.status == LK_OK && result.verdict == LK_VERDICT_REPLAY);
    if (result.verdict == LK_VERDICT_SKIP) result.bad_tensor = NULL;
    say_scale(run, &result);
    return result;
}

lk_step_result lk_run_settle(lk_run *run) {
    lk_step_result result = {0};
    lk_assert(run->cuda);
    if (run->lost.status == LK_OK) (void)run->cuda->settle(&run->gpus, &result, &run->lost);
    return result;
}

lk_status lk_run_fetch(lk_run *run, lk_error *error) {
    return run->cuda ? run->cuda->download(&run->gpus, error) : LK_OK;
}

void lk_run_initialize(lk_run *run) {
    (void)lk_program_initialize(&run->program, run->core.device);  // lk_run_start has judged them
    if (run->cuda) run->cuda->upload(&run->gpus);
}

// Do both take scores of the same network, and does `generator` apply one that `of` trains?
static bool is_judged(const lk_objective *generator, const lk_objective *of) {
    const uint32_t scores = generator->values[generator->output].network;
    if (scores != of->values[of->output].network) return false;
    for (uint32_t v = 0; v < generator->value_count; v++) {
        const uint32_t network = generator->values[v].network;
        if (network != LK_NONE && of->trains >> network & 1) return true;
    }
    return false;
}

// The program that is evaluated beside the one that reads the test set, or NULL: of the generator
// that this discriminator judges.
static const lk_program *beside(const lk_run *run) {
    const lk_program *evaluated = lk_run_evaluated(run);
    const lk_loss_type *wanted = lk_program_loss(evaluated)->beside;
    const lk_graph *g = lk_graph_of(&run->config.spec.model);
    for (uint32_t k = 0; g && wanted && k < run->program.programs; k++) {
        if (lk_program_loss(&run->programs[k]) == wanted &&
            is_judged(&g->objectives[k], &g->objectives[evaluated->objective])) {
            return &run->programs[k];
        }
    }
    return NULL;
}

const lk_metrics *lk_run_evaluated_metrics(const lk_run *run) {
    const lk_loss_type *loss = lk_program_loss(lk_run_evaluated(run));
    if (beside(run)) return loss->together;
    return loss->evaluated ? loss->evaluated : &loss->metrics;
}

static lk_step_result evaluate(lk_run *run, const lk_program *program, uint64_t steps_done,
                               const lk_source *source, uint64_t count) {
    use_program(run, program);
    lk_driver_start_evaluation(driver_of(run), 0, steps_done, source, count);
    run->group.given_up = false;
    lk_threads_run(&run->driver, &run->team);
    if (run->group.given_up) return (lk_step_result){0};
    lk_step_result result = result_of(run);
    result.names = lk_program_loss(program)->evaluated;
    return result;
}

// As many examples of noise as there are of the test set.
static void add_other(lk_run *run, const lk_program *other, uint64_t steps_done,
                      lk_step_result *result) {
    const uint32_t first = lk_program_metrics(result->program)->sum_count;
    const lk_step_result more =
        evaluate(run, other, steps_done, &run->test_source, lk_run_test_examples(run));
    for (uint32_t i = 0; i < lk_program_metrics(other)->sum_count; i++) {
        result->means[first + i] = more.means[i];
    }
    if (!result->bad_tensor) result->bad_tensor = more.bad_tensor;
    result->names = lk_program_loss(result->program)->together;
    if (more.stop) result->stop = more.stop;
}

lk_step_result lk_run_evaluate_examples(lk_run *run, uint64_t steps_done, const lk_source *source,
                                        uint64_t count) {
    lk_step_result result = evaluate(run, lk_run_evaluated(run), steps_done, source, count);
    if (!run->group.given_up) say_scale(run, &result);
    return result;
}

lk_step_result lk_run_evaluate(lk_run *run, uint64_t steps_done) {
    lk_step_result result =
        lk_run_evaluate_examples(run, steps_done, &run->test_source, lk_run_test_examples(run));
    const lk_program *other = beside(run);
    if (run->group.given_up) return result;
    if (other && run->lost.status == LK_OK && !run->group.on_logits) {
        add_other(run, other, steps_done, &result);
    }
    return result;
}
