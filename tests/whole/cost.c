// cost.c - linked with the whole program, counts the processor's time that a run spends on
// everything but its work: logs, event files, pictures, histograms, traces, progress, metrics for
// an agent. The program knows nothing of it: its calls are wrapped by the linker (CMakeLists.txt).
//
//   lockstep_cost train CONFIG --replicas 1 ..
//
// Time of the thread, which waiting and other processes' turns are not in: on a loaded machine both
// sides of the quotient grow alike.
//
//   work       steps, evaluations, copies of the state for a checkpoint or the hot state, samples
//              of the data: what a run without a log does, too
//   telling    all else between the begin of the first step and the end of the run's loop; and in a
//              step the clock that a trace reads, and handlers of the progress
//
// What the counting itself costs is taken off. At its end it writes a line to standard error:
// microseconds of a step's work, of what is told for each step, and their quotient. COST_BREAK=1: a
// twentieth of each step is spent on a log.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "apps/cli/service.h"
#include "apps/run/hot.h"
#include "apps/run/journal.h"
#include "apps/run/run.h"
#include "apps/run/save.h"
#include "comm/threads/clock.h"
#include "io/text.h"

static double began, working, of_steps, in_handlers, last_step;
static uint64_t steps, reads_in_steps;
static int depth;  // of calls that are work
static bool in_step;

static uint64_t own_reads;  // of this clock, which is a dear one: a system call

static double cpu(void) {
    struct timespec now;
    own_reads++;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double enter(void) {
    depth++;
    return cpu();
}

static double leave(double from) {
    const double spent = cpu() - from;
    if (--depth == 0) working += spent;
    return spent;
}

double __real_lk_seconds(void);
double __wrap_lk_seconds(void);
double __wrap_lk_seconds(void) {
    reads_in_steps += in_step;
    return __real_lk_seconds();
}

// Of one call of a clock: the program's, as a trace's records have it, or our own.
static double read_cost(double (*clock_of)(void)) {
    enum { READS = 20000 };
    const double from = cpu();
    volatile double sum = 0;
    for (int i = 0; i < READS; i++) sum = sum + clock_of();
    return (cpu() - from) / READS;
}

lk_step_result __real_lk_run_step(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t step) {
    const double from = enter();
    if (steps == 0) began = from;
    in_step = true;
    lk_step_result result = __real_lk_run_step(run, step);
    in_step = false;
    last_step = leave(from);
    of_steps += last_step;
    steps++;
    return result;
}

lk_step_result __real_lk_run_evaluate(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_evaluate(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_evaluate(lk_run *run, uint64_t step) {
    const double from = enter();
    lk_step_result result = __real_lk_run_evaluate(run, step);
    leave(from);
    return result;
}

lk_status __real_lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job,
                                    lk_error *error);
lk_status __wrap_lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job,
                                    lk_error *error);
lk_status __wrap_lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job,
                                    lk_error *error) {
    const double from = enter();
    lk_status status = __real_lk_checkpoint_save(ops, job, error);
    leave(from);
    return status;
}

lk_status __real_lk_checkpoint_scrub(const lk_file_ops *ops, lk_checkpoint_job *job,
                                     lk_error *error);
lk_status __wrap_lk_checkpoint_scrub(const lk_file_ops *ops, lk_checkpoint_job *job,
                                     lk_error *error);
lk_status __wrap_lk_checkpoint_scrub(const lk_file_ops *ops, lk_checkpoint_job *job,
                                     lk_error *error) {
    const double from = enter();
    lk_status status = __real_lk_checkpoint_scrub(ops, job, error);
    leave(from);
    return status;
}

lk_status __real_lk_saver_look(lk_saver *saver, uint64_t steps_done, lk_error *error);
lk_status __wrap_lk_saver_look(lk_saver *saver, uint64_t steps_done, lk_error *error);
lk_status __wrap_lk_saver_look(lk_saver *saver, uint64_t steps_done, lk_error *error) {
    const double from = enter();
    lk_status status = __real_lk_saver_look(saver, steps_done, error);
    leave(from);
    return status;
}

lk_status __real_lk_hot_keep_step(lk_hot *hot, uint64_t step, uint64_t word, lk_error *error);
lk_status __wrap_lk_hot_keep_step(lk_hot *hot, uint64_t step, uint64_t word, lk_error *error);
lk_status __wrap_lk_hot_keep_step(lk_hot *hot, uint64_t step, uint64_t word, lk_error *error) {
    const double from = enter();
    lk_status status = __real_lk_hot_keep_step(hot, step, word, error);
    leave(from);
    return status;
}

lk_status __real_lk_run_check_data(lk_run *run, lk_error *error);
lk_status __wrap_lk_run_check_data(lk_run *run, lk_error *error);
lk_status __wrap_lk_run_check_data(lk_run *run, lk_error *error) {
    const double from = enter();
    lk_status status = __real_lk_run_check_data(run, error);
    leave(from);
    return status;
}

lk_status __real_lk_run_scrub(lk_run *run, lk_error *error);
lk_status __wrap_lk_run_scrub(lk_run *run, lk_error *error);
lk_status __wrap_lk_run_scrub(lk_run *run, lk_error *error) {
    const double from = enter();
    lk_status status = __real_lk_run_scrub(run, error);
    leave(from);
    return status;
}

// --- what a handler does while a step is computed ------------------------------------------------

void __real_lk_service_tick(const lk_service_view *view, bool last);
void __wrap_lk_service_tick(const lk_service_view *view, bool last);
void __wrap_lk_service_tick(const lk_service_view *view, bool last) {
    const double from = cpu();
    __real_lk_service_tick(view, last);
    if (depth) in_handlers += cpu() - from;
}

bool __real_lk_text_line_now(lk_text_out *out, const char *text);
bool __wrap_lk_text_line_now(lk_text_out *out, const char *text);
bool __wrap_lk_text_line_now(lk_text_out *out, const char *text) {
    const double from = cpu();
    const bool done = __real_lk_text_line_now(out, text);
    if (depth) in_handlers += cpu() - from;
    return done;
}

// --- the end -------------------------------------------------------------------------------------

lk_status __real_lk_journal_metrics(lk_journal *journal, const char *kind, uint64_t done,
                                    lk_named_result named, lk_error *error);
lk_status __wrap_lk_journal_metrics(lk_journal *journal, const char *kind, uint64_t done,
                                    lk_named_result named, lk_error *error);
lk_status __wrap_lk_journal_metrics(lk_journal *journal, const char *kind, uint64_t done,
                                    lk_named_result named, lk_error *error) {
    const double from = __real_lk_seconds();
    if (getenv("COST_BREAK")) {
        while (__real_lk_seconds() - from < last_step * 5) continue;  // it comes every 100th step
    }
    return __real_lk_journal_metrics(journal, kind, done, named, error);
}

// The last thing that a run's loop does.
lk_status __real_lk_journal_phases(lk_journal *journal, uint64_t done, lk_error *error);
lk_status __wrap_lk_journal_phases(lk_journal *journal, uint64_t done, lk_error *error);
lk_status __wrap_lk_journal_phases(lk_journal *journal, uint64_t done, lk_error *error) {
    lk_status status = __real_lk_journal_phases(journal, done, error);
    const double all = cpu() - began, count = (double)LK_MAX(steps, 1);
    const double own = (double)own_reads * read_cost(cpu);
    const double clock = (double)reads_in_steps * read_cost(__real_lk_seconds);
    const double telling = all - working + in_handlers + clock - own;
    (void)fprintf(stderr, "cost: %llu steps, work %.3f us, telling %.3f us, share %.6f\n",
                  (unsigned long long)steps, 1e6 * of_steps / count, 1e6 * telling / count,
                  telling / of_steps);
    return status;
}
