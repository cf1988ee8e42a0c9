// library.c - a program of somebody else's that trains through lockstep.h, for noalloc.c, which
// counts what is allocated between the seal and the end of its run.
//     library steps|train RUN_DIR
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 640, TESTS = 100, BYTES = 25, CLASSES = 5, STEPS = 1000 };

static uint8_t inputs[COUNT + TESTS][BYTES], labels[COUNT + TESTS];
static float outputs[TESTS][CLASSES];

static lockstep_config *make_config(void) {
    const lockstep_examples train = {inputs[0], labels, COUNT, 5, 5, 1, LOCKSTEP_U8, NULL};
    const lockstep_examples test = {inputs[COUNT], labels + COUNT, TESTS, 5, 5, 1, LOCKSTEP_U8,
                                    NULL};
    for (unsigned i = 0, random = 3; i < COUNT + TESTS; i++) {
        labels[i] = (uint8_t)(i % CLASSES);
        for (unsigned k = 0; k < BYTES; k++) {
            random = random * 1664525u + 1013904223u;
            inputs[i][k] = (uint8_t)((random >> 26) + (k % CLASSES == labels[i] ? 99 : 0));
        }
    }
    lockstep_config *c = lockstep_config_new("library");
    lockstep_config_examples(c, LOCKSTEP_TRAIN, &train);
    lockstep_config_examples(c, LOCKSTEP_TEST, &test);
    lockstep_config_input(c, 5, 5, 1, CLASSES);
    lockstep_config_layer(c, "flatten");
    lockstep_config_layer(c, "dense");
    lockstep_layer_integer(c, "units", CLASSES);
    lockstep_config_text(c, "optimizer.type", "momentum");
    lockstep_config_number(c, "optimizer.learning_rate", 0.01);
    lockstep_config_integer(c, "global_batch", 64);
    lockstep_config_integer(c, "grain", 16);
    lockstep_config_integer(c, "steps", STEPS);
    lockstep_config_integer(c, "evaluate_every_steps", 100);
    lockstep_config_integer(c, "checkpoint.every_steps", 90);
    return c;
}

static lockstep_status by_steps(lockstep_run *run, const char *directory, lockstep_error *error) {
    char digest[LOCKSTEP_HASH_BYTES];
    lockstep_result result = {0};
    lockstep_status status = LOCKSTEP_OK;
    while (status == LOCKSTEP_OK && result.step < STEPS) {
        status = lockstep_step(run, &result, error);
        if (status == LOCKSTEP_OK && result.step % 100 == 0) {
            status = lockstep_evaluate(run, NULL, error);
        }
        if (status == LOCKSTEP_OK && result.step % 90 == 0) {
            status = lockstep_save(run, directory, error);
        }
        if (status == LOCKSTEP_OK && result.step % 70 == 0) {
            status = lockstep_predict(run, inputs[COUNT], TESTS, outputs[0], error);
        }
        if (status == LOCKSTEP_OK && result.step % 110 == 0) {
            status = lockstep_state_hash(run, digest, error);
        }
        // A mistake is told without the heap, too.
        if (result.step == 500 && lockstep_save(run, "", error) != LOCKSTEP_BAD_USAGE) {
            status = LOCKSTEP_INTERNAL;
        }
    }
    return status;
}

int main(int argc, char **argv) {
    lockstep_error error;
    lockstep_status status = LOCKSTEP_BAD_USAGE;
    char digest[LOCKSTEP_HASH_BYTES] = "";
    const lockstep_options options = {.replicas = 2};
    lockstep_config *config = make_config();
    lockstep_run *run = lockstep_open(config, &options, &error);
    lockstep_config_free(config);
    if (run && argc == 3 && strcmp(argv[1], "steps") == 0) {
        status = by_steps(run, argv[2], &error);
    } else if (run && argc == 3) {
        const lockstep_training training = {.run_dir = argv[2], .entry = LOCKSTEP_ENTRY_FRESH};
        status = lockstep_train(run, &training, &error);
    }
    if (status == LOCKSTEP_OK) status = lockstep_digest(run, digest, &error);
    if (status != LOCKSTEP_OK) fprintf(stderr, "library: %d: %s\n", (int)status, error.text);
    lockstep_close(run);
    printf("digest %s\n", digest);
    fflush(stdout);
    _exit((int)status);
}
