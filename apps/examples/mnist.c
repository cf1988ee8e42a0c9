// mnist.c - trains what a configuration says, step by step, and prints how it goes:
//     mnist CONFIG [EPOCHS]      a JSON file, such as share/lockstep/configs/mnist-cnn.json
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const lockstep_error *error) {
    fprintf(stderr, "mnist: %s\n", error->text);
    return (int)error->status;
}

int main(int argc, char **argv) {
    lockstep_error error;
    lockstep_memory plan;
    lockstep_result result, test;
    char digest[LOCKSTEP_HASH_BYTES];
    if (argc < 2) return fprintf(stderr, "usage: mnist CONFIG [EPOCHS]\n"), LOCKSTEP_BAD_USAGE;
    lockstep_config *config = lockstep_config_load(argv[1], &error);
    if (!config) return fail(&error);
    if (argc > 2) lockstep_config_integer(config, "epochs", atoi(argv[2]));
    lockstep_run *run = lockstep_open(config, NULL, &error);
    lockstep_config_free(config);
    if (!run || lockstep_plan(run, &plan, &error) != LOCKSTEP_OK) return fail(&error);
    printf("%llu parameters, %u replicas, %llu bytes\n", (unsigned long long)plan.parameters,
           plan.replicas, (unsigned long long)plan.bytes);
    const uint64_t steps = lockstep_steps_configured(run, &error);
    for (uint64_t i = 0; i < steps && error.status == LOCKSTEP_OK; i++) {
        if (lockstep_step(run, &result, &error) != LOCKSTEP_OK) break;
        if (result.step % 100 && result.step != steps) continue;
        printf("step %llu of %llu  loss %.4f  accuracy %.1f%%\n", (unsigned long long)result.step,
               (unsigned long long)steps, (double)result.loss,
               100.0 * result.correct / result.examples);
    }
    if (error.status == LOCKSTEP_OK && lockstep_evaluate(run, &test, &error) == LOCKSTEP_OK) {
        printf("test: loss %.4f, %u of %u right\n", (double)test.loss, test.correct, test.examples);
    }
    if (error.status == LOCKSTEP_OK && lockstep_digest(run, digest, &error) == LOCKSTEP_OK) {
        printf("digest %s\n", digest);
    }
    lockstep_close(run);
    return error.status == LOCKSTEP_OK ? 0 : fail(&error);
}
