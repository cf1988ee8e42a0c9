// run_step.c - one step or one evaluation of a run (run.h): which lanes compute it and over which
// transport, for the driver (comm/step/driver.h). Knows no configuration and no file.
#include "apps/run/run.h"

#include "comm/mpi/transport.h"
#include "comm/threads/threads.h"

static void lap_ends(void *clock, lk_lap lap, lk_turn turn) {
    if (turn == LK_NO_TURN) {
        lk_lap_ends(clock, lap);
    } else {
        lk_lap_turn_ends(clock, lk_mpi_last_given(turn));
    }
}

// Who computes, and how the workers' bytes travel: known once they have met.
static lk_driver *driver_of(lk_run *run) {
    lk_driver *d = &run->driver;
    const bool joined = run->workers.joined;
    d->lanes = !joined ? &lk_lanes_alone : run->layout.shared ? &lk_lanes_shared : &lk_lanes_boxes;
    d->transport = !joined ? &lk_threads : run->layout.shared ? &lk_window : &lk_messages;
    d->worlds = &run->world;
    d->exchanges = joined ? &run->exchange : NULL;
    d->programs = 1;
    d->lost = &run->lost;
    d->lap = lap_ends;
    d->clock = &run->laps;
    d->stop = run->stop;
    d->save_by_clock = run->save_by_clock;
    return d;
}

// This worker's GPUs compute; between their two halves of the step it is a worker like any other.
static lk_step_result staged_step(lk_run *run, uint64_t step) {
    lk_step_result result = {0};
    lk_exchange *x = &run->exchange;
    lk_error *error = &run->lost;
    if (run->cuda->begin(&run->gpus, step, error) != LK_OK) return result;
    if (run->cuda->give(&run->gpus, x, step, run->stop, error) != LK_OK) return result;
    if (lk_mpi_turn(x, LK_TURN_BOXES, step, error) != LK_OK) return result;
    run->cuda->join(&run->gpus, x, step);
    if (lk_mpi_turn(x, LK_TURN_SUMS, step, error) != LK_OK) return result;
    if (run->cuda->take(&run->gpus, x, step, error) != LK_OK) return result;
    if (run->cuda->settle(&run->gpus, &result, error) != LK_OK) return (lk_step_result){0};
    for (uint32_t w = 0; w < x->world; w++) result.stop = LK_MAX(result.stop, x->note[w]->stop);
    return result;
}

// The GPUs exchange by themselves; workers only tell each other what comes after the step.
static lk_step_result direct_step(lk_run *run, uint64_t step) {
    lk_step_result result = {.step = step, .pending = true};
    lk_exchange *x = &run->exchange;
    if (run->cuda->begin(&run->gpus, step, &run->lost) != LK_OK) return result;
    *x->note_out = (lk_note){.stop = run->stop,
                             .save_by_clock = run->save_by_clock,
                             .writes_checkpoint = x->writes_checkpoint,
                             .bad_op = LK_NONE,
                             .bad_param = LK_NONE};
    if (lk_mpi_turn(x, LK_TURN_STEP, step, &run->lost) != LK_OK) return result;
    for (uint32_t w = 0; w < x->world; w++) result.stop = LK_MAX(result.stop, x->note[w]->stop);
    result.save_by_clock = x->note[0]->save_by_clock;
    return result;
}

lk_step_result lk_run_step(lk_run *run, uint64_t step) {
    if (lk_run_is_direct(run)) return direct_step(run, step);
    if (run->cuda && run->workers.joined) return staged_step(run, step);
    if (run->cuda) {
        (void)run->cuda->begin(&run->gpus, step, &run->lost);
        return (lk_step_result){.step = step, .pending = true};
    }
    lk_driver *d = driver_of(run);
    lk_driver_start(d, 0, step);
    lk_laps_start(&run->laps);
    lk_threads_run(d, &run->team);
    lk_lap_ends(&run->laps, LK_LAP_WAITING);
    return run->lost.status == LK_OK ? lk_driver_finish(d) : (lk_step_result){0};
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
    lk_program_initialize(&run->program, run->core.device);
    if (run->cuda) run->cuda->upload(&run->gpus);
}

static lk_step_result finish_evaluation(lk_run *run) {
    return lk_exchange_finish(&run->exchange, &run->world,
                              lk_grains_of(&run->program, run->test.count), run->test.count);
}

static lk_step_result evaluate_share(lk_run *run, uint64_t steps_done) {
    lk_exchange *x = &run->exchange;
    for (uint32_t r = 0; r < run->world.replicas; r++) run->world.bad_param[r] = LK_NONE;
    if (run->cuda->evaluate_share(&run->gpus, &run->test_source, run->test.count, x, run->stop,
                                  &run->lost) != LK_OK ||
        lk_mpi_turn(x, LK_TURN_NOTES, steps_done, &run->lost) != LK_OK) {
        return (lk_step_result){0};
    }
    return finish_evaluation(run);
}

lk_step_result lk_run_evaluate(lk_run *run, uint64_t steps_done) {
    if (run->cuda && run->workers.joined) return evaluate_share(run, steps_done);
    if (run->cuda) {
        lk_step_result result = {0};
        (void)run->cuda->evaluate(&run->gpus, &run->test_source, run->test.count,
                                  run->world.on_logits, run->world.on_logits_context, &result,
                                  &run->lost);
        return result;
    }
    lk_driver *d = driver_of(run);
    lk_driver_start_evaluation(d, 0, steps_done, &run->test_source, run->test.count);
    lk_threads_run(d, &run->team);
    return run->lost.status == LK_OK ? lk_driver_finish(d) : (lk_step_result){0};
}
