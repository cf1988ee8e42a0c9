// train.c - the core trainer: a run that was embedded, trained on any target. Freestanding.
//
// Knows no operating system, heap or thread: replicas, if there are several, take turns. What the
// target is, and what its console is, only the platform file beside this one knows.
#include "apps/baremetal/embedded.h"
#include "apps/run/order.h"
#include "comm/step/driver.h"
#include "comm/step/hash.h"
#include "io/decimal.h"

typedef unsigned long long ull;

// Static, since a stack is small on such targets and a target trains one run.
static struct {
    lk_arena arena;
    lk_core_regions regions;
    lk_group group;
    lk_driver driver;
    lk_source source;
    lk_error error;
    char line[LK_ERROR_TEXT_BYTES + 32];
} board;

static bool has_scale(const lk_program *p) { return LK_HAS_MIXED && p->loss_scale != LK_NONE; }

// --- console -------------------------------------------------------------------------------------

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    __builtin_va_list args;
    __builtin_va_start(args, format);
    size_t length = lk_vformat(board.line, sizeof board.line - 1, format, args);
    __builtin_va_end(args);
    length = LK_MIN(length, sizeof board.line - 2);
    board.line[length] = '\n';
    lk_board_write(board.line, length + 1);
}

static void on_panic(const char *file, int line, const char *what) {
    say("lockstep: internal error at %s:%d: %s; please report it", file, line, what);
    lk_board_end(LK_INTERNAL);
}

static void say_loss(const lk_step_result *r, uint64_t step) {
    char loss[LK_DECIMAL_BYTES];
    lk_decimal(r->means[LK_METRIC_LOSS], loss);
    say("loss = %s, step = %llu", loss, (ull)step);
}

static void say_scale(const lk_program *p) {
    const lk_scale_state *state = lk_scale_of(p, board.regions.device);
    char scale[LK_DECIMAL_BYTES];
    lk_decimal(lk_scale_value(&p->spec->model.loss_scale, state), scale);
    say("loss_scale %s, skipped %llu, replayed %llu", scale,
        (ull)lk_steps_skipped(p, board.regions.device, p->objective), (ull)lk_scale_replays(state));
}

static void say_what(const lk_embedded *run, const lk_kernels *kernels) {
    const lk_run_spec *s = &run->spec;
    char hash[LK_SHA256_HEX_BYTES];
    lk_hex(s->data_hash, LK_SHA256_BYTES, hash);
    say("lockstep %s  %s  1 worker x %u replicas (in turn), kernels %s", LK_VERSION, run->name,
        run->program->layout.replicas, kernels->name);
    say("data %s: %llu examples", hash, (ull)s->example_count);
    say("global batch %u = %u grains of %u; %llu steps an epoch, the last with %u examples",
        s->global_batch, lk_grain_count(s), s->grain, (ull)lk_steps_per_epoch(s),
        lk_step_examples(s, lk_steps_per_epoch(s) - 1));
    say("arena %llu bytes, static; %llu parameters", (ull)board.arena.used,
        (ull)run->program->param_floats);
    say("run_identity %s", run->run_identity);
}

// --- the source ----------------------------------------------------------------------------------

static void order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                  uint64_t *index) {
    lk_order_many(&((const lk_embedded *)context)->spec, NULL, epoch, position, count, index);
}

static const uint8_t *image(void *context, uint64_t index) {
    const lk_embedded *run = context;
    return run->images + index * lk_model_input_bytes(&run->spec.model);
}

static uint32_t label(void *context, uint64_t index) {
    const lk_embedded *run = context;
    const uint32_t row = lk_model_label_row(&run->spec.model);
    if (row > 1) {
        return lk_idx_in_row(run->labels + index / row * run->label_bytes, (uint32_t)(index % row),
                             run->label_type);
    }
    return lk_idx_label(run->labels, index, run->label_type);
}

// --- start ---------------------------------------------------------------------------------------

// Were the examples brought here as they were embedded? What else decides the bits was compiled
// with this program, which its source asks to be of the version that wrote it. The identity is not
// computed again: that would need the names of all layers, and so all layers.
static lk_status check_transport(const lk_embedded *run, lk_error *error) {
    const lk_run_spec *s = &run->spec;
    uint8_t found[LK_SHA256_BYTES];
    lk_sha256 hash;
    lk_sha256_start(&hash);
    lk_sha256_add(&hash, run->images, (size_t)(s->example_count * lk_model_input_bytes(&s->model)));
    lk_sha256_add(&hash, run->labels, (size_t)(s->example_count * run->label_bytes));
    lk_sha256_finish(&hash, found);
    if (__builtin_memcmp(found, s->data_hash, LK_SHA256_BYTES) != 0)
        return lk_fail(error, LK_BAD_DATA,
                       "the embedded examples do not have the data hash that was embedded with "
                       "them; load the image again");
    return LK_OK;
}

static const lk_lanes *lanes_of(const lk_program *p) {
    if (lk_program_norm(p) != LK_NORM_NONE) return &lk_lanes_normed;
    return has_scale(p) ? &lk_lanes_scaled : &lk_lanes_steps;
}

// The regions are measured, compared with what was planned on the host, and taken.
static lk_status place(const lk_embedded *run, const lk_kernels *kernels, lk_error *error) {
    lk_arena *a = &board.arena;
    const lk_program *p = run->program;
    lk_arena_open(a, NULL, 0);
    lk_core_take(a, p, &board.regions);
    if (a->used != run->arena_bytes)
        return lk_fail(error, LK_UNAVAILABLE,
                       "arena: found %llu bytes, wanted %llu: embed it again",
                       (ull)run->arena_bytes, (ull)a->used);
    lk_arena_open(a, run->arena, run->arena_bytes);
    lk_core_take(a, p, &board.regions);
    lk_arena_seal(a);
    board.source = (lk_source){(void *)(uintptr_t)run, order, image, label, false, NULL, false};
    lk_group_make(&board.group, p, kernels, &board.source, board.regions.device,
                  board.regions.replicas, board.regions.replica_bytes, board.regions.group_tables);
    (void)lk_program_initialize(p, board.regions.device);  // lockstep embed refuses bad values
    board.driver = (lk_driver){.lanes = lanes_of(p),
                               .decide = has_scale(p) ? lk_step_decide : NULL,
                               .decide_context = &board.group,
                               .transport = &lk_in_turn,
                               .groups = &board.group,
                               .programs = 1,
                               .lost = &board.error};
    return LK_OK;
}

// --- the loop ------------------------------------------------------------------------------------

// Again and again, while its loss scale is too large and falls.
static lk_step_result try_step(uint64_t step) {
    lk_step_result result;
    do {
        lk_driver_start(&board.driver, 0, step);
        lk_driver_run_in_turn(&board.driver);
        result = lk_driver_finish(&board.driver);
    } while (LK_HAS_MIXED && result.verdict == LK_VERDICT_REPLAY);
    if (LK_HAS_MIXED && result.verdict == LK_VERDICT_SKIP) result.bad_tensor = NULL;
    return result;
}

static lk_status one_step(const lk_embedded *run, uint64_t step, lk_error *error) {
    const lk_step_result result = try_step(step);
    if (result.bad_tensor && has_scale(run->program))
        return lk_fail(error, LK_NOT_FINITE,
                       "step %llu: %s is not finite: %s; try a smaller learning_rate, or precision "
                       "mixed_bfloat16 or float32",
                       (ull)step + 1, result.bad_tensor,
                       run->spec.model.loss_scale.replays
                           ? "no smaller loss scale helps, or is allowed"
                           : "loss_scale.skips_max steps were skipped one after another");
    if (result.bad_tensor)
        return lk_fail(error, LK_NOT_FINITE,
                       "step %llu: %s is not finite: the run diverged; try a smaller learning_rate",
                       (ull)step + 1, result.bad_tensor);
    bool last = step + 1 == run->steps;
    if ((step + 1) % run->log_every_steps == 0 || step == 0 || last) say_loss(&result, step);
    return LK_OK;
}

static lk_status train(const lk_embedded *run, const lk_kernels *kernels, lk_error *error) {
    char hex[LK_SHA256_HEX_BYTES];
    LK_CHECK(check_transport(run, error));
    LK_CHECK(place(run, kernels, error));
    say_what(run, kernels);
    for (uint64_t step = 0; step < run->steps; step++) LK_CHECK(one_step(run, step, error));
    say("trained %llu steps", (ull)run->steps);
    if (has_scale(run->program)) say_scale(run->program);
    say("run_identity %s", run->run_identity);
    lk_digest(run->program, board.regions.device, hex);
    say("digest %s", hex);
    lk_state_hash(run->program, board.regions.device, run->steps, hex);
    say("state_hash %s", hex);
    return LK_OK;
}

lk_status lk_board_train(const lk_embedded *run, const lk_kernels *kernels) {
    board.error.status = LK_OK;
    lk_set_panic_handler(on_panic);
    lk_status status = train(run, kernels, &board.error);
    if (status != LK_OK) say("lockstep: %s", board.error.text);
    return status;
}
