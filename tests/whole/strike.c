// strike.c - linked with the whole program, loses this worker at a chosen place of a run. The
// program knows nothing of it: its calls are wrapped by the linker (tests/whole/CMakeLists.txt).
//
//   STRIKE=HOW@PLACE:STEP    HOW: kill, stop (SIGSTOP), exit (with code 0, as if all were well), or
//                            wait (some seconds, as a slow disk does: no loss at all)
//   STRIKE=HOW@PLACE:STEP+N    within a phase of STEP while it is computed again for the Nth time
//   STRIKE_RANK=R              only the worker that RANK calls so
//   STRIKE_ONCE=FILE           only who makes this file: not again when all are started again
//
// Places in start-up:                start, meet, window, agree, connect
// within a phase of step STEP:       load, forward, backward, reduce, apply
// all is written, nobody is told:    boxes, sums
// the first at STEP or later:        evaluation; and while a checkpoint is saved, before it does
//                                    what it is called by: create, write, sync, rename, directory
// while the hot state of STEP finished steps is written, before it, in its middle, and after it:
//                                    keep, copy, kept
// after the last step:               end
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "apps/run/hot.h"
#include "apps/run/run.h"
#include "arena/arena.h"
#include "comm/threads/clock.h"

enum { WAIT_SECONDS = 4 };

static char how[64];  // "" where nothing is wished
static const char *place;
static uint64_t wanted, wanted_again;
static atomic_bool struck;
static _Atomic uint64_t step, again;  // that is being computed, and how often it was before
static atomic_bool training, evaluating, reducing;

static void read_wish(void) {
    const char *wish = getenv("STRIKE"), *victim = getenv("STRIKE_RANK"), *rank = getenv("RANK");
    if (!wish || place) return;
    if (victim && rank && strcmp(victim, rank) != 0) return;
    lk_assert(strlen(wish) < sizeof how);
    memcpy(how, wish, strlen(wish) + 1);
    char *at = strchr(how, '@'), *colon = strchr(how, ':');
    lk_assert(at && colon);
    *at = *colon = '\0';
    place = at + 1;
    wanted = strtoull(colon + 1, &colon, 10);
    wanted_again = strtoull(colon, NULL, 10);
}

// Once, by whichever thread comes first: a process that was stopped may be told to go on.
static void pass(const char *name, bool now) {
    if (!how[0] || !now || strcmp(place, name) != 0 || atomic_exchange(&struck, true)) return;
    const char *once = getenv("STRIKE_ONCE");
    if (once && open(once, O_CREAT | O_EXCL | O_WRONLY, 0600) < 0) return;
    if (strcmp(how, "exit") == 0) exit(0);
    if (strcmp(how, "wait") == 0) {
        // The program's own clock wakes a sleeper.
        const double end = lk_seconds() + WAIT_SECONDS;
        while (lk_seconds() < end) (void)usleep(10000);
        return;
    }
    kill(getpid(), strcmp(how, "stop") == 0 ? SIGSTOP : SIGKILL);
}

static bool in_step(void) {
    return atomic_load(&training) && atomic_load(&step) == wanted &&
           atomic_load(&again) == wanted_again;
}

// --- start-up and end --------------------------------------------------------------------------

lk_status __real_lk_mpi_start(uint32_t group, uint32_t rank, const lk_mpi_options *options,
                              lk_error *error);
lk_status __wrap_lk_mpi_start(uint32_t group, uint32_t rank, const lk_mpi_options *options,
                              lk_error *error);
lk_status __wrap_lk_mpi_start(uint32_t group, uint32_t rank, const lk_mpi_options *options,
                              lk_error *error) {
    read_wish();
    pass("start", true);
    return __real_lk_mpi_start(group, rank, options, error);
}

lk_status __real_lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers,
                             lk_error *error);
lk_status __wrap_lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers,
                             lk_error *error);
lk_status __wrap_lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers,
                             lk_error *error) {
    pass("meet", true);
    return __real_lk_mpi_meet(mine, worker, workers, error);
}

lk_status __real_lk_mpi_window(uint64_t bytes, uint8_t **mine, lk_error *error);
lk_status __wrap_lk_mpi_window(uint64_t bytes, uint8_t **mine, lk_error *error);
lk_status __wrap_lk_mpi_window(uint64_t bytes, uint8_t **mine, lk_error *error) {
    pass("window", true);
    return __real_lk_mpi_window(bytes, mine, error);
}

lk_status __real_lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error);
lk_status __wrap_lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error);
lk_status __wrap_lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error) {
    pass("agree", true);
    return __real_lk_mpi_agree(items, count, error);
}

lk_status __real_lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error);
lk_status __wrap_lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error);
lk_status __wrap_lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error) {
    pass("connect", true);
    return __real_lk_mpi_connect(x, inbox, error);
}

lk_status __real_lk_mpi_round(lk_exchange *x, lk_round round, uint64_t at, lk_error *error);
lk_status __wrap_lk_mpi_round(lk_exchange *x, lk_round round, uint64_t at, lk_error *error);
lk_status __wrap_lk_mpi_round(lk_exchange *x, lk_round round, uint64_t at, lk_error *error) {
    pass("boxes", in_step() && round == LK_ROUND_BOXES);
    pass("sums", in_step() && round == LK_ROUND_SUMS);
    return __real_lk_mpi_round(x, round, at, error);
}

void __real_lk_mpi_give(lk_exchange *x, lk_round round, uint32_t bucket, uint64_t at);
void __wrap_lk_mpi_give(lk_exchange *x, lk_round round, uint32_t bucket, uint64_t at);
void __wrap_lk_mpi_give(lk_exchange *x, lk_round round, uint32_t bucket, uint64_t at) {
    pass("boxes", in_step() && round == LK_ROUND_BOXES);
    pass("sums", in_step() && round == LK_ROUND_SUMS);
    __real_lk_mpi_give(x, round, bucket, at);
}

lk_status __real_lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error);
lk_status __wrap_lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error);
lk_status __wrap_lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error) {
    pass("end", true);
    return __real_lk_mpi_finish(x, status, error);
}

// --- phases ------------------------------------------------------------------------------------

static lk_kernels real_kernels, kernels;
static lk_source real_source, source;

static const uint8_t *image(void *context, uint64_t index) {
    pass("load", in_step());
    return real_source.image(context, index);
}

static uint32_t dense_forward(lk_lane *lane, const lk_op *op) {
    pass("forward", in_step());
    pass("evaluation", atomic_load(&evaluating) && atomic_load(&step) + 1 >= wanted);
    return lk_kernel_of(&real_kernels, op->type)(lane, op);
}

static uint32_t dense_input_gradient(lk_lane *lane, const lk_op *op) {
    pass("backward", in_step());
    return lk_kernel_of(&real_kernels, op->type)(lane, op);
}

static void add(uint64_t count, const float *a, const float *b, float *out) {
    real_kernels.add(count, a, b, out);
    pass("reduce", atomic_load(&reducing) && in_step());
}

// Struck when some of the parameters are new.
static uint32_t apply(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                      const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = lk_apply_of(&real_kernels, o)(o, scalars, count, sum, w, slots);
    pass("apply", in_step());
    return bad;
}

void __real_lk_group_make(lk_group *group, const lk_program *program, const lk_kernels *own,
                          const lk_source *data, uint8_t *device, uint8_t *replica_regions,
                          uint64_t replica_stride, void *memory);
void __wrap_lk_group_make(lk_group *group, const lk_program *program, const lk_kernels *own,
                          const lk_source *data, uint8_t *device, uint8_t *replica_regions,
                          uint64_t replica_stride, void *memory);
void __wrap_lk_group_make(lk_group *group, const lk_program *program, const lk_kernels *own,
                          const lk_source *data, uint8_t *device, uint8_t *replica_regions,
                          uint64_t replica_stride, void *memory) {
    read_wish();  // a process alone starts no MPI
    kernels = real_kernels = *own;
    source = real_source = *data;
    kernels.kernel[LK_OP_DENSE] = dense_forward;
    kernels.kernel[LK_OP_DENSE_INPUT_GRADIENT] = dense_input_gradient;
    kernels.add = add;
    for (uint32_t i = 0; i < LK_OPTIMIZER_COUNT; i++) kernels.apply[i] = apply;
    source.image = image;
    __real_lk_group_make(group, program, &kernels, &source, device, replica_regions, replica_stride,
                         memory);
}

lk_step_result __real_lk_run_step(lk_run *run, uint64_t at);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t at);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t at) {
    atomic_store(&step, at);
    atomic_store(&again, 0);
    atomic_store(&training, true);
    lk_step_result result = __real_lk_run_step(run, at);
    atomic_store(&training, false);
    atomic_store(&reducing, false);
    return result;
}

lk_step_result __real_lk_run_evaluate(lk_run *run, uint64_t steps_done);
lk_step_result __wrap_lk_run_evaluate(lk_run *run, uint64_t steps_done);
lk_step_result __wrap_lk_run_evaluate(lk_run *run, uint64_t steps_done) {
    atomic_store(&evaluating, true);
    lk_step_result result = __real_lk_run_evaluate(run, steps_done);
    atomic_store(&evaluating, false);
    return result;
}

// In BACKWARD nodes are added, too; from here on it is REDUCE.
void __real_lk_step_update(lk_group *group, uint32_t replica, uint64_t at);
void __wrap_lk_step_update(lk_group *group, uint32_t replica, uint64_t at);
void __wrap_lk_step_update(lk_group *group, uint32_t replica, uint64_t at) {
    atomic_store(&reducing, true);
    __real_lk_step_update(group, replica, at);
}

// All wait for each other before any goes on to compute the step again.
void __real_lk_step_follow(lk_group *group, uint32_t replica, lk_verdict verdict);
void __wrap_lk_step_follow(lk_group *group, uint32_t replica, lk_verdict verdict);
void __wrap_lk_step_follow(lk_group *group, uint32_t replica, lk_verdict verdict) {
    __real_lk_step_follow(group, replica, verdict);
    if (replica == 0 && verdict == LK_VERDICT_REPLAY) atomic_fetch_add(&again, 1);
}

void __real_lk_exchange_join(lk_exchange *x, const lk_adder *by, uint32_t bucket);
void __wrap_lk_exchange_join(lk_exchange *x, const lk_adder *by, uint32_t bucket);
void __wrap_lk_exchange_join(lk_exchange *x, const lk_adder *by, uint32_t bucket) {
    atomic_store(&reducing, true);
    __real_lk_exchange_join(x, by, bucket);
}

// --- checkpoints -------------------------------------------------------------------------------

static lk_file_ops real_ops;

static int open_file(void *context, const char *path, lk_open_mode mode) {
    pass("create", mode == LK_OPEN_CREATE);
    return real_ops.open(context, path, mode);
}

// Half of it is written; whoever goes on afterwards, goes on from there.
static int64_t write_half(void *context, int file, const void *data, size_t bytes) {
    if (atomic_load(&struck) || strcmp(place, "write") != 0) {
        return real_ops.write(context, file, data, bytes);
    }
    int64_t done = real_ops.write(context, file, data, bytes / 2);
    pass("write", true);
    return done;
}

static int sync_file(void *context, int file) {
    pass("sync", true);
    return real_ops.sync(context, file);
}

static int rename_file(void *context, const char *from, const char *to) {
    pass("rename", true);
    return real_ops.rename(context, from, to);
}

static int sync_directory(void *context, const char *path) {
    pass("directory", true);
    return real_ops.sync_directory(context, path);
}

lk_status __real_lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job,
                                    lk_error *error);
lk_status __wrap_lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job,
                                    lk_error *error);
lk_status __wrap_lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job,
                                    lk_error *error) {
    if (!how[0] || job->step < wanted) return __real_lk_checkpoint_save(ops, job, error);
    lk_file_ops struck_ops = real_ops = *ops;
    struck_ops.open = open_file;
    struck_ops.write = write_half;
    struck_ops.sync = sync_file;
    struck_ops.rename = rename_file;
    struck_ops.sync_directory = sync_directory;
    return __real_lk_checkpoint_save(&struck_ops, job, error);
}

// --- hot state ---------------------------------------------------------------------------------

void __real_lk_hot_keep(lk_hot_state *hot, const lk_safetensors_tensor *tensors, size_t count,
                        uint64_t at, uint64_t word);
void __wrap_lk_hot_keep(lk_hot_state *hot, const lk_safetensors_tensor *tensors, size_t count,
                        uint64_t at, uint64_t word);

static void on_hole(int signal_number) {
    (void)signal_number;
    pass("copy", true);
    _exit(LK_INTERNAL);
}

// In the middle of a copy: its last tensor lies where nobody may read.
static void strike_copy(lk_hot_state *hot, const lk_safetensors_tensor *tensors, size_t count,
                        uint64_t at, uint64_t word) {
    lk_safetensors_tensor torn[64];
    lk_assert(count > 0 && count <= LK_COUNT(torn));
    memcpy(torn, tensors, count * sizeof *torn);
    torn[count - 1].data =
        mmap(NULL, hot->copy_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, on_hole);
    __real_lk_hot_keep(hot, torn, count, at, word);
}

void __wrap_lk_hot_keep(lk_hot_state *hot, const lk_safetensors_tensor *tensors, size_t count,
                        uint64_t at, uint64_t word) {
    const char *once = getenv("STRIKE_ONCE");
    const bool now = how[0] && at >= wanted && !(once && access(once, F_OK) == 0);
    pass("keep", now);
    if (now && strcmp(place, "copy") == 0) strike_copy(hot, tensors, count, at, word);
    __real_lk_hot_keep(hot, tensors, count, at, word);
    pass("kept", now);
}
