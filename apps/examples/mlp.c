// mlp.c - a small network on the caller's own arrays: which of four bytes is the largest?
//     cc mlp.c $(pkg-config --cflags --libs lockstep)
#include <lockstep/lockstep.h>
#include <stdio.h>

enum { COUNT = 600, SIZE = 4 };

int main(void) {
    static uint8_t inputs[COUNT][SIZE], labels[COUNT];
    for (unsigned i = 0, random = 1; i < COUNT; i++) {
        for (unsigned k = 0; k < SIZE; k++) {
            random = random * 1664525u + 1013904223u;
            inputs[i][k] = (uint8_t)(random >> 24);
            if (inputs[i][k] > inputs[i][labels[i]]) labels[i] = (uint8_t)k;
        }
    }
    const lockstep_examples train = {.inputs = inputs, .labels = labels, .count = 500,
                                     .height = 1, .width = SIZE, .channels = 1};
    lockstep_config *config = lockstep_config_new("mlp");
    lockstep_config_examples(config, LOCKSTEP_TRAIN, &train);
    lockstep_config_input(config, 1, SIZE, 1, SIZE);
    lockstep_config_layer(config, "flatten");
    lockstep_config_layer(config, "dense");
    lockstep_layer_integer(config, "units", 16);
    lockstep_layer_text(config, "activation", "relu");
    lockstep_config_layer(config, "dense");
    lockstep_layer_integer(config, "units", SIZE);
    lockstep_config_text(config, "optimizer.type", "momentum");
    lockstep_config_number(config, "optimizer.learning_rate", 0.1);
    lockstep_config_integer(config, "global_batch", 50);
    lockstep_error error;
    lockstep_run *run = lockstep_open(config, NULL, &error);
    lockstep_config_free(config);
    lockstep_result result = {0};
    while (run && result.step < 400 && lockstep_step(run, &result, &error) == LOCKSTEP_OK) continue;
    float outputs[COUNT - 500][SIZE];
    unsigned right = 0;
    if (run) lockstep_predict(run, inputs[500], COUNT - 500, &outputs[0][0], &error);
    lockstep_close(run);
    if (error.status != LOCKSTEP_OK) return fprintf(stderr, "mlp: %s\n", error.text), 1;
    for (unsigned i = 0; i < COUNT - 500; i++) {
        unsigned best = 0;
        for (unsigned k = 1; k < SIZE; k++) best = outputs[i][k] > outputs[i][best] ? k : best;
        right += best == labels[500 + i];
    }
    printf("%u steps, loss %.4f; of %u new examples %u are right\n", (unsigned)result.step,
           (double)result.loss, COUNT - 500, right);
    return right < 90;
}
