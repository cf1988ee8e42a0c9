// run_step.c - one step or one evaluation of a run (run.h) on whatever computes it: threads, alone
// or among workers that share memory or send messages, or GPUs, alone, by way of the hosts or over
// NCCL. Knows no configuration and no file.
#include "apps/run/run.h"

typedef struct work {
    lk_run *run;
    uint64_t step;
} work;

// The first member reads the clock for all.
static void lap(const work *w, uint32_t member, lk_lap which) {
    if (member == 0) lk_lap_ends(&w->run->laps, which);
}

// A turn of the exchange, by the first member for all; the others wait. False where workers are
// lost.
static bool turn(const work *w, uint32_t member, lk_team *team, lk_turn which) {
    lk_run *run = w->run;
    if (member == 0) {
        (void)lk_mpi_turn(&run->exchange, which, w->step, &run->lost);
        lk_lap_turn_ends(&run->laps, lk_mpi_last_given(which));
    }
    lk_team_barrier(team);
    return run->lost.status == LK_OK;
}

// The workers of one host: what replicas hold is in the window, and every one updates its part.
static void shared_step_body(void *context, uint32_t member, lk_team *team) {
    const work *w = context;
    lk_run *run = w->run;
    const lk_program *p = &run->program;
    lk_step_compute(&run->world, member, w->step);
    lap(w, member, LK_LAP_COMPUTING);
    lk_team_barrier(team);
    if (member == 0) {
        lk_step_foresee(&run->world, w->step);
        lk_exchange_write_note(&run->exchange, &run->world, p->grains, lk_step_grains(p, w->step),
                               run->stop);
    }
    if (!turn(w, member, team, LK_TURN_BOXES)) return;
    lk_step_update(&run->world, member, w->step);
    lap(w, member, LK_LAP_UPDATING);
    lk_team_barrier(team);
    if (member == 0) lk_exchange_complete_note(&run->exchange, &run->world);
    (void)turn(w, member, team, LK_TURN_SUMS);
}

// The replica's work up to the end of a part. The first member sees to it that messages get on.
static void walk_to(const work *w, uint32_t member, lk_walk *walk, uint32_t part) {
    lk_run *run = w->run;
    const lk_part *parts = run->exchange.parts.part;
    for (uint32_t op = part ? parts[part - 1].after_op : parts[0].after_op;
         op <= parts[part].after_op; op++) {
        lk_step_walk(&run->world, member, walk, op);
        lap(w, member, LK_LAP_COMPUTING);
        if (member != 0 || part == 0) continue;
        (void)lk_mpi_look(&run->exchange, LK_TURN_BOXES, run->boxes_here);
        lap(w, member, LK_LAP_EARLY);
    }
}

// Gives a part's boxes and joins the parts whose boxes have come, from `joined` on. Returns how
// many parts are joined now.
static uint32_t exchange_part(const work *w, uint32_t member, lk_team *team, uint32_t part,
                              uint32_t joined) {
    lk_run *run = w->run;
    lk_exchange *x = &run->exchange;
    const bool last = part + 1 == x->parts.count;
    if (member == 0) {
        if (part == 0) lk_exchange_foresee(x, w->step);
        while (run->boxes_here < part && lk_mpi_look(x, LK_TURN_BOXES, run->boxes_here)) {
            run->boxes_here++;
        }
    }
    lk_team_barrier(team);
    const uint32_t here = run->boxes_here;
    lk_exchange_share(x, &run->world, member, part);
    for (uint32_t k = joined; k < here; k++) lk_exchange_join(x, &run->world, member, k);
    lk_team_barrier(team);
    if (member == 0) {
        const lk_program *p = &run->program;
        if (last) lk_exchange_write_note(x, &run->world, p->grains, x->leaves, run->stop);
        lk_mpi_give(x, LK_TURN_BOXES, part, w->step);
        for (uint32_t k = joined; k < here; k++) lk_mpi_give(x, LK_TURN_SUMS, k, w->step);
    }
    lap(w, member, last ? LK_LAP_MOVING : LK_LAP_EARLY);
    return here;
}

// Waits for a part of a turn, as `turn` does for a whole one.
static bool await(const work *w, uint32_t member, lk_team *team, lk_turn which, uint32_t part) {
    lk_run *run = w->run;
    if (member == 0) (void)lk_mpi_await(&run->exchange, which, part, &run->lost);
    lk_team_barrier(team);
    lap(w, member, LK_LAP_TURNS);
    return run->lost.status == LK_OK;
}

// Workers of several hosts: parts are exchanged while the rest is computed, then what is left.
static void workers_step_body(void *context, uint32_t member, lk_team *team) {
    const work *w = context;
    lk_run *run = w->run;
    lk_exchange *x = &run->exchange;
    const uint32_t parts = x->parts.count;
    uint32_t joined = 0;
    lk_walk walk;
    lk_step_start(&run->world, member, w->step, &walk);
    if (member == 0) run->boxes_here = 0;
    for (uint32_t k = 0; k < parts; k++) {
        walk_to(w, member, &walk, k);
        joined = exchange_part(w, member, team, k, joined);
    }
    for (uint32_t k = joined; k < parts; k++) {
        if (!await(w, member, team, LK_TURN_BOXES, k)) return;
        lk_exchange_join(x, &run->world, member, k);
        lk_team_barrier(team);
        if (member == 0) lk_mpi_give(x, LK_TURN_SUMS, k, w->step);
        lap(w, member, LK_LAP_MOVING);
    }
    for (uint32_t k = 0; k < parts; k++) {
        if (!await(w, member, team, LK_TURN_SUMS, k)) return;
        lk_exchange_apply(x, &run->world, member, w->step, k);
        lap(w, member, LK_LAP_UPDATING);
    }
}

static void step_body(void *context, uint32_t member, lk_team *team) {
    const work *w = context;
    lk_step_compute(&w->run->world, member, w->step);
    lap(w, member, LK_LAP_COMPUTING);
    lk_team_barrier(team);
    lap(w, member, LK_LAP_WAITING);
    lk_step_update(&w->run->world, member, w->step);
    lap(w, member, LK_LAP_UPDATING);
}

static lk_step_result finish_step(lk_run *run, uint64_t step) {
    if (!run->workers.joined) return lk_step_finish(&run->world, step);
    lk_world_check(&run->world);
    return lk_exchange_finish(&run->exchange, &run->world, lk_step_grains(&run->program, step),
                              lk_step_examples(&run->config.spec, step));
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
    work w = {run, step};
    if (lk_run_is_direct(run)) return direct_step(run, step);
    if (run->cuda && run->workers.joined) return staged_step(run, step);
    if (run->cuda) {
        (void)run->cuda->begin(&run->gpus, step, &run->lost);
        return (lk_step_result){.step = step, .pending = true};
    }
    lk_laps_start(&run->laps);
    lk_team_run(&run->team,
                !run->workers.joined ? step_body
                : run->layout.shared ? shared_step_body
                                     : workers_step_body,
                &w);
    lk_lap_ends(&run->laps, LK_LAP_WAITING);
    if (run->lost.status != LK_OK) return (lk_step_result){0};
    lk_step_result result = finish_step(run, step);
    result.step = step;
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
    lk_program_initialize(&run->program, run->core.device);
    if (run->cuda) run->cuda->upload(&run->gpus);
}

static void evaluate_body(void *context, uint32_t member, lk_team *team) {
    const work *w = context;
    lk_evaluate_compute(&w->run->world, member, &w->run->test_source, w->run->test.count);
    if (!w->run->workers.joined) return;
    lk_team_barrier(team);
    if (member == 0) {
        uint32_t grains = lk_grains_of(&w->run->program, w->run->test.count);
        lk_exchange_write_note(&w->run->exchange, &w->run->world, grains, grains, w->run->stop);
    }
    (void)turn(w, member, team, LK_TURN_NOTES);
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
    work w = {run, steps_done};
    if (run->cuda && run->workers.joined) return evaluate_share(run, steps_done);
    if (run->cuda) {
        lk_step_result result = {0};
        (void)run->cuda->evaluate(&run->gpus, &run->test_source, run->test.count,
                                  run->world.on_logits, run->world.on_logits_context, &result,
                                  &run->lost);
        return result;
    }
    lk_team_run(&run->team, evaluate_body, &w);
    if (run->lost.status != LK_OK) return (lk_step_result){0};
    if (run->workers.joined) return finish_evaluation(run);
    return lk_evaluate_finish(&run->world, run->test.count);
}
