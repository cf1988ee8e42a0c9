// library_test.c - lockstep.h as another program uses it: every function, what it refuses, and that
// its bits are those of the program. Includes nothing else of Lockstep.
//     test_library PROGRAM WORK_DIR [KERNELS]
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include <cmocka.h>

enum { COUNT = 96, TESTS = 40, SIDE = 6, CLASSES = 3, BYTES = SIDE * SIDE };

static const char *program, *work, *kernels;  // kernels: NULL, or those of all runs
static uint8_t inputs[COUNT + TESTS][BYTES], labels[COUNT + TESTS];
static cpu_set_t processors;  // where this process may run

// --- helpers -------------------------------------------------------------------------------------

static void make_data(void) {
    uint32_t random = 7;
    for (uint32_t i = 0; i < COUNT + TESTS; i++) {
        labels[i] = (uint8_t)(i % CLASSES);
        for (uint32_t k = 0; k < BYTES; k++) {
            random = random * 1664525u + 1013904223u;
            inputs[i][k] = (uint8_t)((random >> 26) + (k % CLASSES == labels[i] ? 150 : 0));
        }
    }
}

static lockstep_examples examples_of(uint32_t first, uint32_t count) {
    return (lockstep_examples){
        inputs[first], labels + first, count, SIDE, SIDE, 1, LOCKSTEP_U8, NULL};
}

static void set_model(lockstep_config *c) {
    lockstep_config_input(c, SIDE, SIDE, 1, CLASSES);
    lockstep_config_layer(c, "conv2d");
    lockstep_layer_integer(c, "filters", 4);
    lockstep_layer_json(c, "kernel_size", "[3, 3]");
    lockstep_layer_text(c, "activation", "relu");
    lockstep_layer_flag(c, "use_bias", true);
    lockstep_config_layer(c, "leaky_relu");
    lockstep_layer_number(c, "negative_slope", 0.25);
    lockstep_config_layer(c, "flatten");
    lockstep_config_layer(c, "dense");
    lockstep_layer_integer(c, "units", CLASSES);
    lockstep_config_text(c, "optimizer.type", "momentum");
    lockstep_config_number(c, "optimizer.learning_rate", 0.02);
    lockstep_config_integer(c, "global_batch", 16);
    lockstep_config_integer(c, "grain", 4);
    lockstep_config_integer(c, "epochs", 3);
}

static lockstep_config *built(void) {
    const lockstep_examples train = examples_of(0, COUNT), test = examples_of(COUNT, TESTS);
    lockstep_config *c = lockstep_config_new("built");
    assert_non_null(c);
    lockstep_config_examples(c, LOCKSTEP_TRAIN, &train);
    lockstep_config_examples(c, LOCKSTEP_TEST, &test);
    set_model(c);
    return c;
}

static lockstep_run *opened(lockstep_config *c, uint32_t replicas) {
    const lockstep_options options = {.replicas = replicas, .kernels = kernels};
    lockstep_error error;
    lockstep_run *run = lockstep_open(c, &options, &error);
    lockstep_config_free(c);
    if (!run) print_error("%s\n", error.text);
    assert_non_null(run);
    assert_int_equal(error.status, LOCKSTEP_OK);
    assert_string_equal(error.text, "");
    return run;
}

static void train(lockstep_run *run, uint64_t steps) {
    lockstep_error error;
    lockstep_result result;
    const uint64_t end = lockstep_steps_done(run) + steps;
    while (lockstep_steps_done(run) < end) {
        const lockstep_status status = lockstep_step(run, &result, &error);
        if (status != LOCKSTEP_OK) print_error("%s\n", error.text);
        assert_int_equal(status, LOCKSTEP_OK);
        assert_int_equal(result.step, lockstep_steps_done(run));
        assert_true(result.examples > 0 && isfinite(result.loss));
    }
}

typedef struct hashes {
    char digest[LOCKSTEP_HASH_BYTES], state[LOCKSTEP_HASH_BYTES], identity[LOCKSTEP_HASH_BYTES];
} hashes;

static hashes hashes_of(lockstep_run *run) {
    hashes h;
    assert_int_equal(lockstep_digest(run, h.digest, NULL), LOCKSTEP_OK);
    assert_int_equal(lockstep_state_hash(run, h.state, NULL), LOCKSTEP_OK);
    assert_int_equal(lockstep_run_identity(run, h.identity, NULL), LOCKSTEP_OK);
    return h;
}

static void assert_same(hashes a, hashes b) {
    assert_string_equal(a.identity, b.identity);
    assert_string_equal(a.digest, b.digest);
    assert_string_equal(a.state, b.state);
}

static const char *path_of(const char *name) {
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", work, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

// One line, and the status that is wanted.
static void assert_refused(lockstep_status found, lockstep_status wanted,
                           const lockstep_error *error, const char *part) {
    if (found != wanted || !strstr(error->text, part)) {
        print_error("found %d \"%s\", wanted %d and \"%s\"\n", (int)found, error->text, (int)wanted,
                    part);
    }
    assert_int_equal(found, wanted);
    assert_int_equal(error->status, wanted);
    assert_non_null(strstr(error->text, part));
    assert_null(strchr(error->text, '\n'));
}

// --- the program's bits --------------------------------------------------------------------------

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static void write_idx(const char *name, const uint8_t *bytes, uint32_t count, uint32_t side) {
    uint8_t file[16 + COUNT * BYTES] = {0, 0, 8, side ? 3 : 1};
    const uint32_t header = side ? 16 : 8;
    put_u32(file + 4, count);
    put_u32(file + 8, side);
    put_u32(file + 12, side);
    memcpy(file + header, bytes, (size_t)count * (side ? side * side : 1));
    write_file(path_of(name), file, header + (size_t)count * (side ? side * side : 1));
}

static void write_data(void) {
    write_idx("train-images-idx3-ubyte", inputs[0], COUNT, SIDE);
    write_idx("train-labels-idx1-ubyte", labels, COUNT, 0);
    write_idx("t10k-images-idx3-ubyte", inputs[COUNT], TESTS, SIDE);
    write_idx("t10k-labels-idx1-ubyte", labels + COUNT, TESTS, 0);
}

static const char document[] =
    "{\"name\": \"document\", \"global_batch\": 16, \"grain\": 4, \"epochs\": 3,\n"
    " \"log_every_steps\": 5, \"evaluate_every_steps\": 7,\n"
    " \"checkpoint\": {\"every_steps\": 6, \"every_seconds\": 0},\n"
    " \"model\": {\"input\": [6, 6, 1], \"classes\": 3, \"layers\": [\n"
    "  {\"type\": \"conv2d\", \"filters\": 4, \"kernel_size\": 3, \"activation\": \"relu\"},\n"
    "  {\"type\": \"leaky_relu\", \"negative_slope\": 0.25}, {\"type\": \"flatten\"},\n"
    "  {\"type\": \"dense\", \"units\": 3}]},\n"
    " \"optimizer\": {\"type\": \"momentum\", \"learning_rate\": 0.02}}\n";

// What `lockstep train` says of the same configuration, read from its last lines.
static hashes of_program(void) {
    char command[2048], line[512];
    hashes h = {"", "", ""};
    write_file(path_of("document.json"), document, sizeof document - 1);
    snprintf(command, sizeof command,
             "'%s' train '%s/document.json' --data '%s' --run-dir '%s/of_program' --fresh --quiet",
             program, work, work, work);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    while (fgets(line, sizeof line, pipe)) {
        (void)sscanf(line, "run_identity %64s", h.identity);
        (void)sscanf(line, "digest %64s", h.digest);
        (void)sscanf(line, "state_hash %64s", h.state);
    }
    assert_int_equal(pclose(pipe), 0);
    return h;
}

static lockstep_config *parsed(void) {
    lockstep_error error;
    lockstep_config *c = lockstep_config_parse(document, sizeof document - 1, &error);
    if (!c) print_error("%s\n", error.text);
    assert_non_null(c);
    lockstep_config_text(c, "data.directory", work);
    return c;
}

// A document, a file, a model built in C on arrays; by one replica and three: one result.
static void test_bits_of_the_program(void **state) {
    (void)state;
    const hashes wanted = of_program();
    lockstep_run *run = opened(parsed(), 3);
    assert_int_equal(lockstep_steps_configured(run, NULL), 18);
    train(run, 18);
    assert_same(hashes_of(run), wanted);
    lockstep_close(run);
    run = opened(built(), 1);
    train(run, 18);
    assert_same(hashes_of(run), wanted);
    lockstep_close(run);
    lockstep_error error;
    lockstep_config *c = lockstep_config_load(path_of("document.json"), &error);
    assert_non_null(c);
    lockstep_config_text(c, "data.directory", work);
    run = opened(c, 0);
    train(run, 18);
    assert_same(hashes_of(run), wanted);
    lockstep_close(run);
}

typedef struct told {
    uint32_t lines, warnings, steps, evaluations, checkpoints, ends;
    lockstep_run *stops;  // at step 8
    lockstep_result last;
} told;

static void on_event(void *context, const lockstep_event *e) {
    told *t = context;
    t->lines += e->kind == LOCKSTEP_EVENT_LINE;
    t->warnings += e->kind == LOCKSTEP_EVENT_WARNING;
    t->steps += e->kind == LOCKSTEP_EVENT_STEP;
    t->evaluations += e->kind == LOCKSTEP_EVENT_EVALUATION;
    t->checkpoints += e->kind == LOCKSTEP_EVENT_CHECKPOINT;
    t->ends += e->kind == LOCKSTEP_EVENT_END;
    if (e->kind == LOCKSTEP_EVENT_CHECKPOINT) assert_int_equal(strlen(e->text), 64);
    if (e->kind != LOCKSTEP_EVENT_LINE) assert_true(e->steps == 18 && e->step <= 18);
    if (e->kind == LOCKSTEP_EVENT_END) t->last = e->result;
    if (t->stops && e->kind == LOCKSTEP_EVENT_EVALUATION) lockstep_stop(t->stops);
}

// The same logs, too, stopped and resumed on the way.
static void test_train(void **state) {
    (void)state;
    char command[2048];
    told t = {0};
    lockstep_error error;
    const hashes wanted = of_program();
    lockstep_training training = {path_of("trained"), LOCKSTEP_ENTRY_FRESH, on_event, &t};
    lockstep_run *run = opened(parsed(), 2);
    t.stops = run;
    assert_int_equal(lockstep_train(run, &training, &error), LOCKSTEP_STOPPED);
    assert_int_equal(lockstep_steps_done(run), 7);
    assert_true(t.evaluations == 1 && t.checkpoints == 2 && t.ends == 0);
    assert_refused(lockstep_train(run, &training, &error), LOCKSTEP_BAD_USAGE, &error, "started");
    lockstep_close(run);
    t = (told){0};
    run = opened(parsed(), 1);
    training.entry = LOCKSTEP_ENTRY_NEW;
    assert_int_equal(lockstep_train(run, &training, &error), LOCKSTEP_BAD_USAGE);
    lockstep_close(run);
    run = opened(parsed(), 1);
    training.entry = LOCKSTEP_ENTRY_RESUME;
    assert_int_equal(lockstep_plan(run, NULL, &error), LOCKSTEP_OK);
    const lockstep_status status = lockstep_train(run, &training, &error);
    if (status != LOCKSTEP_OK) print_error("%s\n", error.text);
    assert_int_equal(status, LOCKSTEP_OK);
    assert_true(t.lines > 0 && t.steps > 0 && t.evaluations == 2 && t.checkpoints == 2);
    assert_int_equal(t.ends, 1);
    assert_int_equal(t.last.examples, TESTS);
    assert_same(hashes_of(run), wanted);
    lockstep_result result;
    assert_int_equal(lockstep_evaluate(run, &result, &error), LOCKSTEP_OK);
    assert_true(result.correct == t.last.correct && result.loss == t.last.loss);
    assert_int_equal(result.metric_count, 2);
    assert_string_equal(result.metrics[0].name, "loss");
    assert_true(result.metrics[0].value == (double)result.loss);
    assert_string_equal(result.metrics[1].name, "accuracy");
    assert_true(result.metrics[1].value == (double)result.correct / result.examples);
    assert_true(t.last.metric_count == 2 && result.metrics[1].value == t.last.metrics[1].value);
    lockstep_close(run);
    snprintf(command, sizeof command,
             "cd '%s' && cmp trained/metrics.jsonl of_program/metrics.jsonl && "
             "cmp trained/hashes.jsonl of_program/hashes.jsonl",
             work);
    assert_int_equal(system(command), 0);
}

// --- plan, results, checkpoints ------------------------------------------------------------------

static void test_plan(void **state) {
    (void)state;
    lockstep_memory plan;
    lockstep_error error;
    lockstep_run *run = opened(built(), 2);
    assert_int_equal(lockstep_plan(run, &plan, &error), LOCKSTEP_OK);
    assert_int_equal(plan.parameters, 4 * 9 + 4 + 4 * 4 * 4 * 3 + 3);
    assert_true(plan.replicas == 2 && plan.global_batch == 16 && plan.grain == 4);
    assert_true(plan.output_count == CLASSES && plan.input_bytes == BYTES);
    assert_true(plan.bytes > plan.parameter_bytes + 2 * plan.replica_bytes);
    const size_t length = lockstep_plan_json(run, NULL, 0, &error);
    assert_true(length > 100);
    char *text = malloc(length + 1);
    assert_int_equal(lockstep_plan_json(run, text, length + 1, &error), length);
    assert_int_equal(strlen(text), length);
    assert_non_null(strstr(text, "\"arena_bytes\""));
    assert_true((strstr(text, "\"gpus\"") != NULL) == (kernels != NULL));
    free(text);
    train(run, 1);
    assert_true(lockstep_plan_json(run, NULL, 0, &error) > 100);  // once it has started, too
    lockstep_close(run);
    // Too much is refused before it is taken.
    const lockstep_options small = {.max_memory = 4096};
    lockstep_config *c = built();
    run = lockstep_open(c, &small, &error);
    lockstep_config_free(c);
    assert_non_null(run);
    assert_refused(lockstep_start(run, &error), LOCKSTEP_UNAVAILABLE, &error, "4096");
    assert_refused(lockstep_step(run, NULL, &error), LOCKSTEP_UNAVAILABLE, &error, "4096");
    lockstep_close(run);
}

// Predictions agree with the evaluation, whatever their number and the number of replicas.
static void test_evaluate_and_predict(void **state) {
    (void)state;
    static float all[TESTS][CLASSES], one[CLASSES];
    lockstep_result result;
    lockstep_error error;
    lockstep_run *run = opened(built(), 3);
    train(run, 60);
    const hashes before = hashes_of(run);
    assert_int_equal(lockstep_evaluate(run, &result, &error), LOCKSTEP_OK);
    assert_int_equal(result.examples, TESTS);
    assert_true(result.correct > TESTS * 3 / 4);
    assert_int_equal(lockstep_predict(run, inputs[COUNT], TESTS, all[0], &error), LOCKSTEP_OK);
    uint32_t right = 0;
    for (uint32_t i = 0; i < TESTS; i++) {
        uint32_t best = 0;
        for (uint32_t k = 1; k < CLASSES; k++) best = all[i][k] > all[i][best] ? k : best;
        right += best == labels[COUNT + i];
        assert_int_equal(lockstep_predict(run, inputs[COUNT + i], 1, one, &error), LOCKSTEP_OK);
        assert_memory_equal(one, all[i], sizeof one);
    }
    assert_int_equal(right, result.correct);
    assert_int_equal(lockstep_predict(run, NULL, 0, NULL, &error), LOCKSTEP_OK);
    assert_same(hashes_of(run), before);
    train(run, 1);  // and training goes on as if nothing had been
    const hashes after = hashes_of(run);
    lockstep_close(run);
    run = opened(built(), 1);
    train(run, 61);
    assert_same(hashes_of(run), after);
    lockstep_close(run);
}

static void test_save_and_load(void **state) {
    (void)state;
    lockstep_error error;
    lockstep_run *run = opened(built(), 2);
    train(run, 5);
    assert_int_equal(lockstep_save(run, path_of("saved"), &error), LOCKSTEP_OK);
    train(run, 5);
    assert_int_equal(lockstep_save(run, path_of("saved"), &error), LOCKSTEP_OK);
    const hashes at_ten = hashes_of(run);
    train(run, 3);
    const hashes wanted = hashes_of(run);
    // Back, in the same run; then on, in another.
    assert_int_equal(lockstep_load(run, path_of("saved/step-0000000005.safetensors"), &error),
                     LOCKSTEP_OK);
    assert_int_equal(lockstep_steps_done(run), 5);
    train(run, 5);
    assert_same(hashes_of(run), at_ten);
    lockstep_close(run);
    run = opened(built(), 1);
    assert_int_equal(lockstep_load(run, path_of("saved"), &error), LOCKSTEP_OK);
    assert_same(hashes_of(run), at_ten);
    train(run, 3);
    assert_same(hashes_of(run), wanted);
    lockstep_close(run);
}

static void test_prediction_only(void **state) {
    (void)state;
    static float wanted[TESTS][CLASSES], found[TESTS][CLASSES];
    lockstep_error error;
    lockstep_run *run = opened(built(), 2);
    train(run, 20);
    assert_int_equal(lockstep_predict(run, inputs[COUNT], TESTS, wanted[0], &error), LOCKSTEP_OK);
    assert_int_equal(lockstep_save(run, path_of("weights"), &error), LOCKSTEP_OK);
    lockstep_close(run);
    const lockstep_options options = {.prediction_only = true, .replicas = 1, .kernels = kernels};
    lockstep_config *c = lockstep_config_new("other");
    set_model(c);
    lockstep_config_text(c, "data.directory", path_of("not-there"));  // not looked at
    run = lockstep_open(c, &options, &error);
    lockstep_config_free(c);
    assert_non_null(run);
    assert_int_equal(lockstep_load(run, path_of("weights"), &error), LOCKSTEP_OK);
    char command[2048];
    snprintf(command, sizeof command, "'%s' checkpoint export '%s' --output '%s' >/dev/null",
             program, path_of("weights/step-0000000020.safetensors"), path_of("export"));
    assert_int_equal(system(command), 0);
    assert_int_equal(lockstep_load(run, path_of("export"), &error), LOCKSTEP_OK);
    assert_int_equal(lockstep_predict(run, inputs[COUNT], TESTS, found[0], &error), LOCKSTEP_OK);
    assert_memory_equal(found, wanted, sizeof found);
    // Another model's weights are refused before anything is changed: it goes on predicting.
    c = built();
    lockstep_config_json(c, "model.layers", "[{\"type\": \"flatten\"}]");
    lockstep_config_layer(c, "dense");
    lockstep_layer_integer(c, "units", CLASSES);
    lockstep_run *smaller = opened(c, 1);
    assert_int_equal(lockstep_save(smaller, path_of("smaller"), &error), LOCKSTEP_OK);
    lockstep_close(smaller);
    assert_refused(lockstep_load(run, path_of("smaller"), &error), LOCKSTEP_BAD_DATA, &error,
                   "another model");
    assert_int_equal(lockstep_predict(run, inputs[COUNT], TESTS, found[0], &error), LOCKSTEP_OK);
    assert_memory_equal(found, wanted, sizeof found);
    assert_refused(lockstep_step(run, NULL, &error), LOCKSTEP_BAD_USAGE, &error, "training data");
    assert_refused(lockstep_save(run, work, &error), LOCKSTEP_BAD_USAGE, &error, "training data");
    assert_refused(lockstep_train(run, NULL, &error), LOCKSTEP_BAD_USAGE, &error, "started");
    assert_refused(lockstep_evaluate(run, NULL, &error), LOCKSTEP_BAD_CONFIG, &error, "test set");
    lockstep_close(run);
}

// --- what is refused -----------------------------------------------------------------------------

static void refuse_open(lockstep_config *c, lockstep_status wanted, const char *part) {
    lockstep_error error;
    lockstep_run *run = lockstep_open(c, NULL, &error);
    lockstep_config_free(c);
    if (run) {  // what only the data show is found at the start
        const lockstep_status status = lockstep_start(run, &error);
        assert_refused(status, wanted, &error, part);
        assert_refused(lockstep_step(run, NULL, &error), wanted, &error, part);
        lockstep_close(run);
        return;
    }
    assert_refused(error.status, wanted, &error, part);
}

static void test_refused_documents(void **state) {
    (void)state;
    lockstep_error error;
    assert_null(lockstep_config_parse("{", 1, &error));
    assert_refused(error.status, LOCKSTEP_BAD_CONFIG, &error, "the configuration");
    assert_null(lockstep_config_parse("[1]", 3, &error));
    assert_refused(error.status, LOCKSTEP_BAD_CONFIG, &error, "object");
    assert_null(lockstep_config_parse(NULL, 0, &error));
    assert_refused(error.status, LOCKSTEP_BAD_USAGE, &error, "no text");
    assert_null(lockstep_config_load("/no/such/file.json", &error));
    assert_refused(error.status, LOCKSTEP_NO_INPUT, &error, "/no/such/file.json");
    assert_null(lockstep_config_load("", &error));
    assert_refused(error.status, LOCKSTEP_BAD_USAGE, &error, "wanted");
    assert_null(lockstep_open(NULL, NULL, &error));
    assert_refused(error.status, LOCKSTEP_BAD_USAGE, &error, "NULL");
    lockstep_config *c = built();
    lockstep_config_integer(c, "global_batsh", 3);
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "global_batch");
    c = built();
    lockstep_config_layer(c, "dens");
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "dense");
    c = built();
    lockstep_layer_text(c, "units", "many");
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "built: model.layers[3].units");
    c = built();
    lockstep_config_number(c, "optimizer.learning_rate", NAN);
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "optimizer.learning_rate");
    c = built();
    lockstep_config_integer(c, "seed.of", 1);
    lockstep_config_integer(c, "seed.of.all", 1);
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "\"of\" is no object");
    c = built();
    lockstep_config_json(c, "data", "{\"set\": ");
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "data");
    enum { DEEP = 130 };
    char deep[2 * DEEP + 1];
    for (int i = 0; i < DEEP; i++) memcpy(deep + 2 * i, "a.", 2);
    memcpy(deep + sizeof deep - 2, "b", 2);
    c = built();
    lockstep_config_integer(c, deep, 1);
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "more than 128 keys in one another");
    memset(deep, '[', DEEP);
    memset(deep + DEEP, ']', DEEP);
    deep[2 * DEEP] = '\0';
    c = built();
    lockstep_config_json(c, "name", deep);
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "name");
    c = built();
    lockstep_config_text(c, "", "x");
    refuse_open(c, LOCKSTEP_BAD_USAGE, "wanted a key");
    c = built();
    lockstep_config_text(c, "name", "\xff");
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "name");
    c = lockstep_config_new(NULL);
    lockstep_layer_integer(c, "units", 3);
    refuse_open(c, LOCKSTEP_BAD_USAGE, "lockstep_config_layer");
    c = built();  // another document in the layers' place
    lockstep_config_json(c, "model.layers", "[]");
    lockstep_layer_integer(c, "units", 3);
    refuse_open(c, LOCKSTEP_BAD_USAGE, "lockstep_config_layer");
    c = built();
    lockstep_config_json(c, "model", "{\"layers\": [{\"type\": \"dense\"}, 7]}");
    lockstep_layer_integer(c, "units", 3);
    refuse_open(c, LOCKSTEP_BAD_USAGE, "lockstep_config_layer");
    c = lockstep_config_new("no-data");
    set_model(c);
    refuse_open(c, LOCKSTEP_BAD_CONFIG, "training set");
}

static void refuse_started(lockstep_config *c, const char *part) {
    lockstep_error error;
    lockstep_run *run = opened(c, 1);
    assert_refused(lockstep_start(run, &error), LOCKSTEP_BAD_DATA, &error, part);
    lockstep_close(run);
}

static void refuse_examples(lockstep_examples e, lockstep_status wanted, const char *part) {
    lockstep_config *c = built();
    lockstep_config_examples(c, LOCKSTEP_TRAIN, &e);
    refuse_open(c, wanted, part);
}

// Only the first of them, as data.train_examples says.
static void test_fewer_examples(void **state) {
    (void)state;
    lockstep_config *c = built();
    lockstep_config_integer(c, "data.train_examples", 32);
    lockstep_run *run = opened(c, 1);
    assert_int_equal(lockstep_steps_configured(run, NULL), 6);
    lockstep_close(run);
}

static void test_refused_examples(void **state) {
    (void)state;
    lockstep_examples e = examples_of(0, COUNT);
    e.count = 0;
    refuse_examples(e, LOCKSTEP_BAD_DATA, "examples in memory");
    e = examples_of(0, COUNT);
    e.labels = NULL;
    refuse_examples(e, LOCKSTEP_BAD_DATA, "no address");
    e = examples_of(0, COUNT);
    e.height = e.width = e.channels = UINT32_MAX;
    refuse_examples(e, LOCKSTEP_BAD_DATA, "examples in memory");
    e = examples_of(0, COUNT);
    e.width = 3;
    refuse_examples(e, LOCKSTEP_BAD_CONFIG, "6 x 3 x 1");
    static uint8_t wrong[COUNT];
    memcpy(wrong, labels, sizeof wrong);
    wrong[77] = CLASSES;
    e = examples_of(0, COUNT);
    e.labels = wrong;
    refuse_examples(e, LOCKSTEP_BAD_DATA, "labels in memory");
    static const uint16_t wide[COUNT] = {[77] = CLASSES};
    e.wide_labels = wide;
    refuse_examples(e, LOCKSTEP_BAD_USAGE, "labels and wide_labels");
    e.labels = NULL;
    refuse_examples(e, LOCKSTEP_BAD_DATA, "labels in memory: byte 154: label 77: found 3");
}

// The same labels in two bytes train to the same weights; of another data set, as its hash says.
static void test_wide_labels(void **state) {
    (void)state;
    static uint16_t wide[COUNT + TESTS];
    lockstep_error error;
    for (uint32_t i = 0; i < COUNT + TESTS; i++) wide[i] = labels[i];
    lockstep_examples of[2] = {examples_of(0, COUNT), examples_of(COUNT, TESTS)};
    hashes h[2];
    uint32_t correct[2];
    for (uint32_t w = 0; w < 2; w++) {
        lockstep_config *c = built();
        for (uint32_t s = 0; s < 2; s++) {
            if (w) of[s].labels = NULL, of[s].wide_labels = wide + (s ? COUNT : 0);
            lockstep_config_examples(c, s ? LOCKSTEP_TEST : LOCKSTEP_TRAIN, &of[s]);
        }
        lockstep_run *run = opened(c, 1 + w);
        train(run, 12);
        h[w] = hashes_of(run);
        lockstep_result result;
        assert_int_equal(lockstep_evaluate(run, &result, &error), LOCKSTEP_OK);
        correct[w] = result.correct;
        lockstep_close(run);
    }
    assert_string_equal(h[0].digest, h[1].digest);
    assert_string_not_equal(h[0].identity, h[1].identity);
    assert_int_equal(correct[0], correct[1]);
}

static void test_refused_calls(void **state) {
    (void)state;
    lockstep_error error;
    float outputs[CLASSES];
    char hex[LOCKSTEP_HASH_BYTES];
    assert_refused(lockstep_step(NULL, NULL, &error), LOCKSTEP_BAD_USAGE, &error, "NULL");
    assert_refused(lockstep_digest(NULL, hex, &error), LOCKSTEP_BAD_USAGE, &error, "NULL");
    assert_refused(lockstep_train(NULL, NULL, &error), LOCKSTEP_BAD_USAGE, &error, "NULL");
    assert_int_equal(lockstep_plan_json(NULL, NULL, 0, &error), 0);
    lockstep_close(NULL);
    lockstep_stop(NULL);
    lockstep_config_free(NULL);
    lockstep_config_integer(NULL, "seed", 1);
    lockstep_config_layer(NULL, "dense");
    lockstep_layer_integer(NULL, "units", 1);
    lockstep_run *run = opened(built(), 1);
    train(run, 2);
    assert_refused(lockstep_predict(run, NULL, 1, outputs, &error), LOCKSTEP_BAD_USAGE, &error,
                   "inputs");
    assert_refused(lockstep_predict(run, inputs[0], 1, NULL, &error), LOCKSTEP_BAD_USAGE, &error,
                   "outputs");
    assert_refused(lockstep_save(run, "", &error), LOCKSTEP_BAD_USAGE, &error, "directory");
    assert_refused(lockstep_save(run, path_of("no/parent"), &error), LOCKSTEP_IO_ERROR, &error,
                   "no/parent");
    assert_refused(lockstep_load(run, NULL, &error), LOCKSTEP_BAD_USAGE, &error, "path");
    assert_refused(lockstep_load(run, path_of("nowhere"), &error), LOCKSTEP_NO_INPUT, &error,
                   "nowhere");
    // None of it has harmed the run.
    train(run, 1);
    const hashes h = hashes_of(run);
    lockstep_close(run);
    run = opened(built(), 1);
    train(run, 3);
    assert_same(hashes_of(run), h);
    lockstep_close(run);
    assert_string_equal(lockstep_status_text(LOCKSTEP_OK), "done");
    assert_true(strlen(lockstep_status_text(LOCKSTEP_BAD_USAGE)) > 3);
    assert_true(strlen(lockstep_version()) >= 5);
}

// Another run's checkpoint, and one with a byte changed: refused, and the run is what it was.
static void test_refused_checkpoints(void **state) {
    (void)state;
    static uint8_t bytes[1 << 20];
    lockstep_error error;
    lockstep_config *c = built();
    lockstep_config_integer(c, "seed", 2);
    lockstep_run *run = opened(c, 1);
    train(run, 4);
    assert_int_equal(lockstep_save(run, path_of("foreign"), &error), LOCKSTEP_OK);
    lockstep_close(run);
    run = opened(built(), 1);
    train(run, 4);
    assert_int_equal(lockstep_save(run, path_of("damaged"), &error), LOCKSTEP_OK);
    const hashes before = hashes_of(run);
    assert_refused(lockstep_load(run, path_of("foreign"), &error), LOCKSTEP_BAD_CONFIG, &error,
                   "run identity");
    const char *path = path_of("damaged/step-0000000004.safetensors");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    bytes[count - 5] ^= 1;
    write_file(path, bytes, count);
    assert_refused(lockstep_load(run, path, &error), LOCKSTEP_BAD_DATA, &error, "damaged");
    assert_refused(lockstep_load(run, path_of("damaged"), &error), LOCKSTEP_BAD_DATA, &error, "");
    write_file(path, "nothing", 7);
    assert_refused(lockstep_load(run, path, &error), LOCKSTEP_BAD_DATA, &error, "damaged");
    assert_same(hashes_of(run), before);
    train(run, 1);
    lockstep_close(run);
}

// A run that diverges is over, and says so again; the process goes on.
static void test_diverged(void **state) {
    (void)state;
    lockstep_error error, again;
    lockstep_status status = LOCKSTEP_OK;
    lockstep_config *c = built();
    lockstep_config_number(c, "optimizer.learning_rate", 1e30);
    lockstep_run *run = opened(c, 2);
    for (int i = 0; i < 50 && status == LOCKSTEP_OK; i++) status = lockstep_step(run, NULL, &error);
    char step[40];
    snprintf(step, sizeof step, "step %llu: ", (unsigned long long)lockstep_steps_done(run) + 1);
    assert_refused(status, LOCKSTEP_NOT_FINITE, &error, step);
    assert_refused(status, LOCKSTEP_NOT_FINITE, &error, "not finite");
    assert_refused(lockstep_step(run, NULL, &again), LOCKSTEP_NOT_FINITE, &again, error.text);
    assert_refused(lockstep_save(run, work, &again), LOCKSTEP_NOT_FINITE, &again, error.text);
    lockstep_close(run);
}

// One whose loss scale is too large says what ended it, and what helps.
static void test_skipped(void **state) {
    (void)state;
    lockstep_error error;
    lockstep_status status = LOCKSTEP_OK;
    lockstep_config *c = built();
    lockstep_config_text(c, "precision", "mixed_float16");
    lockstep_config_text(c, "loss_scale.type", "static");
    lockstep_config_number(c, "loss_scale.initial", 0x1p30);
    lockstep_config_integer(c, "loss_scale.skips_max", 2);
    lockstep_run *run = opened(c, 2);
    for (int i = 0; i < 2 && status == LOCKSTEP_OK; i++) status = lockstep_step(run, NULL, &error);
    assert_refused(status, LOCKSTEP_NOT_FINITE, &error, "at loss scale 1073741824");
    assert_refused(status, LOCKSTEP_NOT_FINITE, &error, "try a smaller loss_scale.initial");
    lockstep_close(run);
}

// Floats with the values that LOAD makes of the bytes, and predictions of them. Then one of them is
// none any more: LOAD sees it, or the look at the caller's memory.
static void test_floats(void **state) {
    (void)state;
    static float floats[COUNT + TESTS][BYTES];
    float outputs[2][TESTS][CLASSES];
    lockstep_error error;
    lockstep_examples e[2] = {examples_of(0, COUNT), examples_of(COUNT, TESTS)};
    hashes h[2];
    lockstep_run *run = NULL;
    for (uint32_t i = 0; i < COUNT + TESTS; i++) {
        for (uint32_t k = 0; k < BYTES; k++) floats[i][k] = (float)inputs[i][k] * 0x1.010102p-8f;
    }
    for (uint32_t as_floats = 0; as_floats < 2; as_floats++) {
        lockstep_config *c = built();
        for (uint32_t set = 0; set < 2 && as_floats; set++) {
            e[set].inputs = floats[set ? COUNT : 0];
            e[set].values = LOCKSTEP_F32;
            lockstep_config_examples(c, set ? LOCKSTEP_TEST : LOCKSTEP_TRAIN, &e[set]);
            lockstep_config_text(c, "model.input_type", "f32");
        }
        if (run) lockstep_close(run);
        run = opened(c, 2);
        train(run, 9);
        h[as_floats] = hashes_of(run);
        lockstep_memory plan;
        assert_int_equal(lockstep_plan(run, &plan, &error), LOCKSTEP_OK);
        assert_true(plan.input_bytes == (as_floats ? sizeof floats[0] : BYTES));
        assert_int_equal(lockstep_predict(run, e[1].inputs, TESTS, outputs[as_floats][0], &error),
                         LOCKSTEP_OK);
    }
    assert_string_equal(h[0].digest, h[1].digest);
    assert_string_equal(h[0].state, h[1].state);
    assert_string_not_equal(h[0].identity, h[1].identity);
    assert_memory_equal(outputs[0], outputs[1], sizeof outputs[0]);
    lockstep_status status = LOCKSTEP_OK;
    floats[5][5] = NAN;
    for (int i = 0; i < COUNT && status == LOCKSTEP_OK; i++) {
        status = lockstep_step(run, NULL, &error);
    }
    // On a processor LOAD says so; for a GPU who sends it the examples, or the first layer.
    const bool gpu = kernels && strcmp(kernels, "cuda") == 0;
    assert_true(status == LOCKSTEP_NOT_FINITE || (gpu && status == LOCKSTEP_BAD_DATA));
    if (!gpu && !strstr(error.text, "input")) fail_msg("%s", error.text);
    lockstep_close(run);
    lockstep_config *c = built();
    lockstep_config_text(c, "model.input_type", "f32");
    lockstep_config_examples(c, LOCKSTEP_TRAIN, &e[0]);
    refuse_started(c, "example 5: value 5: found NaN");
}

// Examples that the caller changes while the run goes on.
static void test_changed_examples(void **state) {
    (void)state;
    static uint8_t mine[COUNT][BYTES];
    lockstep_error error;
    lockstep_status status = LOCKSTEP_OK;
    memcpy(mine, inputs, sizeof mine);
    lockstep_examples e = examples_of(0, COUNT);
    e.inputs = mine[0];
    lockstep_config *c = built();
    lockstep_config_examples(c, LOCKSTEP_TRAIN, &e);
    lockstep_run *run = opened(c, 1);
    train(run, 3);
    mine[5][5] ^= 1;
    for (int i = 0; i < 100000 && status == LOCKSTEP_OK; i++) {
        status = lockstep_step(run, NULL, &error);
    }
    assert_refused(status, LOCKSTEP_BAD_DATA, &error, "inputs in memory");
    lockstep_close(run);
}

// --- several runs --------------------------------------------------------------------------------

static void *train_alone(void *context) {
    hashes *h = context;
    lockstep_run *run = opened(built(), 2);
    train(run, 30);
    *h = hashes_of(run);
    lockstep_close(run);
    return NULL;
}

// One after the other, in turns, and in threads; the caller's processors stay his. GPUs are for one
// run at a time.
static void test_several_runs(void **state) {
    (void)state;
    cpu_set_t after;
    hashes wanted, other, first, second;
    pthread_t threads[2];
    train_alone(&wanted);
    train_alone(&other);
    assert_same(other, wanted);
    if (kernels) return;
    lockstep_run *a = opened(built(), 2), *b = opened(built(), 1);
    for (int i = 0; i < 30; i++) {
        train(a, 1);
        train(b, 1);
    }
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&processors, &after));
    assert_same(hashes_of(a), wanted);
    lockstep_close(a);
    assert_same(hashes_of(b), wanted);
    lockstep_close(b);
    assert_int_equal(pthread_create(&threads[0], NULL, train_alone, &first), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, train_alone, &second), 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_same(first, wanted);
    assert_same(second, wanted);
}

int main(int argc, char **argv) {
    char command[1024];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_the_program),
        cmocka_unit_test(test_train),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_evaluate_and_predict),
        cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_prediction_only),
        cmocka_unit_test(test_refused_documents),
        cmocka_unit_test(test_refused_examples),
        cmocka_unit_test(test_wide_labels),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_refused_checkpoints),
        cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_changed_examples),
        cmocka_unit_test(test_several_runs),
        cmocka_unit_test(test_fewer_examples),
    };
    if (argc < 3 || argc > 4) return 2;
    kernels = argv[3];
    if (sched_getaffinity(0, sizeof processors, &processors) != 0) return 2;
    program = argv[1];
    work = argv[2];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir -p '%s'", work, work);
    if (system(command) != 0) return 2;
    setenv("XDG_CACHE_HOME", work, 1);
    make_data();
    write_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
