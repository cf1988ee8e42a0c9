// sequence_test.c - ops over sequences: an LSTM and a GRU against the golden vectors of Keras and
// against finite differences in double; every variant's kernels against the reference, bit for bit,
// also those of dense layers over the steps; what is not finite; what is refused.
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/graph/program.h"
#include "ops/variant.h"
#include "tests/ops/guarded.h"
#include "tests/ops/kernel_calls.h"
#include "tests/ops/layers.h"

static uint64_t draws = 1;

static uint32_t draw(void) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(draws >> 33);
}
static uint32_t draw_from(uint32_t low, uint32_t high) { return low + draw() % (high - low + 1); }
static float draw_value(void) { return (float)(int32_t)(draw() - 0x40000000u) * 0x1p-30f; }

static void near(const char *what, uint64_t at, double want, double got, double tolerance) {
    if (fabs(want - got) <= tolerance * (1.0 + fabs(want))) return;
    fail_msg("%s[%llu]: wanted %.9g, got %.9g", what, (unsigned long long)at, want, got);
}

// --- a layer as its ops --------------------------------------------------------------------------

// Floats whose last one is the last that may be read.
static float *block(uint64_t floats) {
    return guarded_take(LK_MAX(floats, 1u) * sizeof(float), 0xff);
}

static float *operand(uint64_t floats) {
    float *p = block(floats);
    for (uint64_t i = 0; i < floats; i++) p[i] = draw() % 5 ? draw_value() : 0.0f;
    return p;
}

enum { X, KERNEL, BIAS, RECURRENT, STATE_BIAS, DY, OPERANDS };
enum { Z, Y, KEPT, BEFORE, DZ, DX, DKERNEL, DBIAS, DRECURRENT, DSTATE_BIAS, DSUMS, RESULTS };
static const char *const result_names[] = {"z",          "y",           "kept",    "before",
                                           "dz",         "dx",          "dkernel", "dbias",
                                           "drecurrent", "dstate_bias", "dsums"};

// What an LSTM has not has no floats.
typedef struct layer_kind {
    const char *name;
    const lk_op_type *forward, *backward;
    uint32_t gates, columns;
    bool sums;  // they have a bias and a gradient of their own
} layer_kind;
static const layer_kind lstm = {"lstm", &lk_op_lstm, &lk_op_lstm_backward, 4, 5, false};
static const layer_kind gru = {"gru", &lk_op_gru, &lk_op_gru_backward, 3, 4, true};

typedef struct cell {
    const layer_kind *kind;
    uint32_t examples, steps, inputs, units, grain;
    bool sequences, finite;
    float *in[OPERANDS];
    float *out[RESULTS];
    uint32_t bad, forward;  // what kernels said, all of them and up to y
} cell;

static uint64_t operand_floats(const cell *c, int which) {
    const uint64_t gates = (uint64_t)c->kind->gates * c->units;
    const uint64_t all[] = {(uint64_t)c->examples * c->steps * c->inputs,
                            c->inputs * gates,
                            gates,
                            c->units * gates,
                            c->kind->sums ? gates : 0,
                            (uint64_t)c->examples * (c->sequences ? c->steps : 1) * c->units};
    return all[which];
}

static uint64_t result_floats(const cell *c, int which) {
    const uint64_t rows = (uint64_t)c->examples * c->steps;
    const uint64_t gates = (uint64_t)c->kind->gates * c->units;
    const uint64_t all[] = {rows * gates,
                            operand_floats(c, DY),
                            rows * c->kind->columns * c->units,
                            rows * c->units,
                            rows * gates,
                            operand_floats(c, X),
                            c->inputs * gates,
                            gates,
                            c->units * gates,
                            operand_floats(c, STATE_BIAS),
                            c->kind->sums ? rows * gates : 0};
    return all[which];
}

static void call(cell *c, const lk_kernels *k, const lk_op_type *type, lk_op *op, lk_lane *l) {
    op->type = type;
    const uint64_t floats = type->scratch_floats ? type->scratch_floats(op, c->examples) : 0;
    l->at[LK_SCRATCH] = block(floats);
    l->train = true;
    c->bad |= lk_kernel_of(k, type)(l, op);
    guarded_give(l->at[LK_SCRATCH]);
}

// The node of a gradient of parameters: the views count rows, as those of a walk do.
static void sum(cell *c, const lk_kernels *k, const lk_op_type *type, lk_op *op, const float *x,
                uint64_t columns, const float *dy, int which, float *out) {
    lk_grain_view views[64];
    lk_lane l = {.grains = views, .grain = c->grain};
    for (uint32_t m = 0; m < c->examples; m += c->grain) {
        const uint64_t row = (uint64_t)m * c->steps;
        views[l.grain_count++] =
            (lk_grain_view){.x = x + row * columns,
                            .dy = dy + row * c->kind->gates * c->units,
                            .examples = LK_MIN(c->grain, c->examples - m) * c->steps};
    }
    l.sums[which] = out;
    call(c, k, type, op, &l);
}

// All ops of the layer, forward and backward.
static void run(cell *c, const lk_kernels *k) {
    const uint32_t gates = c->kind->gates * c->units;
    const lk_dense of_x = {.k_count = c->inputs, .n_count = gates, .use_bias = true};
    const lk_dense state = {.k_count = c->units, .n_count = gates, .use_bias = c->kind->sums};
    const float *sums = c->kind->sums ? c->out[DSUMS] : c->out[DZ];
    float *bias = c->kind->sums ? c->in[STATE_BIAS] : NULL;
    lk_op in = {.sequence = {of_x, c->steps, false}};
    lk_op op = {.sequence = {state, c->steps, c->sequences}};
    c->bad = 0;
    lk_lane first = {.examples = c->examples, .param = {c->in[KERNEL], c->in[BIAS]}};
    first.at[LK_X] = c->in[X], first.at[LK_Y] = c->out[Z];
    call(c, k, &lk_op_sequence_dense, &in, &first);
    lk_lane l = {.examples = c->examples, .param = {c->in[RECURRENT], bias}};
    l.at[LK_X] = c->out[Z], l.at[LK_Y] = c->out[Y], l.at[LK_AUX] = c->out[KEPT];
    l.at[LK_X2] = c->out[BEFORE];
    call(c, k, c->kind->forward, &op, &l);
    c->forward = c->bad;
    lk_lane back = {.examples = c->examples, .param = {c->in[RECURRENT], bias}};
    back.at[LK_AUX] = c->out[KEPT], back.at[LK_DY] = c->in[DY], back.at[LK_DX] = c->out[DZ];
    if (c->kind->sums) back.at[LK_X2] = c->out[BEFORE], back.at[LK_DX2] = c->out[DSUMS];
    call(c, k, c->kind->backward, &op, &back);
    lk_lane input = {.examples = c->examples, .param = {c->in[KERNEL], c->in[BIAS]}};
    input.at[LK_DY] = c->out[DZ], input.at[LK_DX] = c->out[DX];
    call(c, k, &lk_op_sequence_dense_input_gradient, &in, &input);
    sum(c, k, &lk_op_sequence_dense_weight_gradient, &in, c->in[X], c->inputs, c->out[DZ], 0,
        c->out[DKERNEL]);
    sum(c, k, &lk_op_sequence_dense_bias_gradient, &in, c->in[X], c->inputs, c->out[DZ], 1,
        c->out[DBIAS]);
    sum(c, k, &lk_op_recurrent_weight_gradient, &op, c->out[BEFORE], c->units, sums, 0,
        c->out[DRECURRENT]);
    if (!c->kind->sums) return;
    sum(c, k, &lk_op_recurrent_bias_gradient, &op, c->out[BEFORE], c->units, sums, 1,
        c->out[DSTATE_BIAS]);
}

static cell cell_of(const layer_kind *kind, uint32_t examples, uint32_t steps, uint32_t inputs,
                    uint32_t units, bool sequences) {
    cell c = {.kind = kind,
              .examples = examples,
              .steps = steps,
              .inputs = inputs,
              .units = units,
              .sequences = sequences,
              .grain = examples};
    for (int i = 0; i < OPERANDS; i++) c.in[i] = operand(operand_floats(&c, i));
    for (int i = 0; i < RESULTS; i++) c.out[i] = block(result_floats(&c, i));
    return c;
}

static void give_back(cell *c) {
    for (int i = 0; i < OPERANDS; i++) guarded_give(c->in[i]);
    for (int i = 0; i < RESULTS; i++) guarded_give(c->out[i]);
}

// --- golden vectors ------------------------------------------------------------------------------

// Keras 3 in float64: units 3, 2 examples of 4 steps of 2 values; gates i f c o.
static const float lstm_x[] = {
    -0.297f, 0.881f,  -0.351f, -0.792f, -0.266f, -1.38f,  0.119f, 2.44f,
    1.145f,  -1.109f, -0.873f, -0.405f, 1.004f,  -0.821f, -0.69f, 0.885f,
};
static const float lstm_kernel[] = {
    0.432f,  -0.187f, -0.559f, -0.775f, -0.349f, -1.115f, 0.375f,  -0.315f,
    0.241f,  0.934f,  0.586f,  -0.576f, 0.435f,  0.579f,  -0.373f, -0.477f,
    -0.055f, -0.801f, 0.735f,  -1.203f, -0.553f, -0.135f, -0.114f, 0.083f,
};
static const float lstm_recurrent[] = {
    0.136f,  -0.107f, 0.568f,  -1.07f,  -0.0f,   -0.357f, 0.066f,  0.11f,   -0.456f,
    -0.32f,  0.396f,  0.175f,  -0.34f,  1.02f,   1.155f,  -0.731f, 0.151f,  1.254f,
    0.392f,  0.111f,  -0.104f, -0.271f, -0.106f, -0.275f, 0.372f,  -0.199f, -0.221f,
    -0.601f, -0.025f, -0.447f, -0.09f,  0.521f,  0.183f,  0.252f,  0.178f,  0.03f,
};
static const float lstm_bias[] = {
    -0.064f, -0.154f, 0.38f,   -0.542f, 0.67f,   0.017f,
    -0.374f, -0.245f, -0.338f, 0.08f,   -0.359f, 0.571f,
};
static const float lstm_dy[] = {
    -0.782f, -2.273f, -0.731f, -2.009f, -0.04f, 1.059f,  0.648f,  -1.338f,
    -0.762f, 1.779f,  0.319f,  0.004f,  1.056f, 2.453f,  1.297f,  0.139f,
    0.355f,  0.617f,  -0.613f, -1.059f, 0.052f, -0.947f, -0.061f, 0.096f,
};
static const double lstm_y[] = {
    0.037013827554,  -0.161173562584, -0.261043240684, -0.105649218363, -0.056884989838,
    -0.2024071388,   -0.201425411267, 0.057708662423,  0.00718910284,   0.253147936904,
    -0.205728797745, -0.200074333309, -0.237599205667, 0.10002939264,   0.119916794864,
    -0.149561452309, 0.09970940286,   0.052998142356,  -0.282906319651, 0.191878890864,
    0.113105027643,  -0.045742323909, -0.071770223115, -0.199264411314,
};
static const double lstm_dx[] = {
    -0.066165859165, 0.006933788215,  0.255188501176,  -0.031579206008,
    -0.139735796461, 0.136237870391,  0.302031553092,  0.092477168766,
    -0.07797991235,  -0.310452311746, 0.101527286001,  -0.075755945853,
    -0.023579193269, 0.001734094209,  -0.047060353969, -0.142454655076,
};
static const double lstm_dkernel[] = {
    -0.041513462444, 0.122979621834,  0.155581204076,  0.027858306029,  -0.059248269501,
    -0.014914904305, 0.237375930122,  0.239405654646,  0.194525151192,  -0.01304163884,
    -0.071059931917, 0.104876797698,  0.262893070361,  0.201088301217,  -0.059049168951,
    -0.072639624571, -0.000775345403, -0.015554050754, -0.223192759387, -0.072409363642,
    -0.348226707546, 0.592983168178,  0.163158250343,  -0.008563120579,
};
static const double lstm_drecurrent[] = {
    -0.027378152895, 0.026983559216,  0.009406374751,  -0.011228007084, 0.009754301658,
    -0.008257823662, 0.060805671134,  0.051523351362,  -0.046409111759, -0.051599616273,
    0.025244916958,  -0.003000741653, 0.002175381893,  0.002980573781,  -0.001134598264,
    0.013746330668,  -0.013338376254, 0.00478461708,   -0.038802372303, -0.012893829427,
    0.023495252021,  0.009491454107,  -0.008099668189, 0.010332098429,  -0.006699490032,
    0.022703051643,  0.003703506732,  0.014879906611,  -0.017296166272, 0.00397070336,
    -0.016891669885, 0.00537796827,   0.047740704571,  -0.008674869135, 0.005402332284,
    0.017301503676,
};
static const double lstm_dbias[] = {
    0.134772015321,  0.083181964677, 0.093007946987,  0.03098784048,
    -0.006323327266, 0.021679341866, -0.589437661733, -0.362458003782,
    0.566265481973,  0.292046941482, 0.174229669564,  0.078026342662,
};

// Keras 3 in float64: units 3, 2 examples of 4 steps of 2 values; gates z r h, reset_after.
static const float gru_x[] = {
    2.341f,  -0.851f, -0.122f, -0.164f, 0.437f,  1.047f,  -0.49f, -0.821f,
    -1.641f, -0.926f, 0.536f,  0.046f,  -1.015f, -0.373f, 0.031f, 0.504f,
};
static const float gru_kernel[] = {
    -0.297f, -0.125f, -0.909f, -0.576f, 0.809f,  -1.094f, -0.169f, 0.11f,   -0.187f,
    -0.404f, -0.031f, -0.002f, -0.041f, -0.939f, -0.074f, -0.428f, -0.274f, 0.113f,
};
static const float gru_recurrent[] = {
    0.32f,  0.448f,  -0.248f, 0.462f,  0.587f,  0.568f,  0.695f,  -0.073f, -0.087f,
    0.413f, -0.683f, 0.105f,  -0.265f, -0.184f, -0.871f, -0.445f, -0.01f,  0.444f,
    0.495f, -0.04f,  -0.095f, -0.415f, 0.201f,  -0.124f, 0.303f,  0.876f,  -0.016f,
};
static const float gru_bias[] = {
    -0.749f, -0.43f, -0.729f, -0.599f, 0.653f, 0.113f, -0.76f, 0.327f, 0.63f,
};
static const float gru_state_bias[] = {
    -0.18f, -0.338f, -0.169f, 0.142f, 0.32f, 0.591f, 0.606f, 0.593f, 0.681f,
};
static const float gru_dy[] = {
    0.661f,  -1.531f, -0.131f, 0.314f, -0.383f, 0.911f,  -0.36f,  -0.926f,
    1.444f,  0.666f,  0.219f,  0.927f, 1.063f,  0.341f,  -2.458f, -0.676f,
    -0.457f, -0.984f, 0.199f,  1.192f, -0.485f, -1.135f, 2.028f,  -0.451f,
};
static const double gru_y[] = {
    -0.474543196296, 0.652500218534,  0.181953540753, -0.540679759398, 0.693506768278,
    0.592025709345,  -0.772613528973, 0.600685535473, 0.713235777499,  -0.530133716928,
    0.833128100867,  0.780148434902,  0.148005813725, 0.408376750885,  0.31932195173,
    -0.358001809077, 0.690636521256,  0.644432581946, -0.340488843622, 0.74357147914,
    0.767158021878,  -0.585135827232, 0.737607996693, 0.794873304443,
};
static const double gru_dx[] = {
    -0.217644535398, -0.136935485637, -0.050888336237, 0.057451217589,
    -0.387506954076, 0.341440013063,  -0.067368771272, -0.108060602835,
    -0.498303113978, -0.181330893563, 0.192211920589,  0.175053290967,
    0.188602482032,  -0.237227684784, 0.418474876895,  -0.250267364891,
};
static const double gru_dkernel[] = {
    0.2490655969,    0.761720227728,  -0.899622770391, -0.015525218464, -0.2430671524,
    0.036351032302,  0.21941376478,   -1.537803777143, 0.600045646898,  -0.026030346882,
    -0.200240024253, -0.527784911147, -0.077433405621, -0.104920235292, 0.079810400841,
    -1.080546944968, -0.226333861898, 0.474104763818,
};
static const double gru_drecurrent[] = {
    0.070524655885,  0.020198809264,  0.124943418547,  0.000150358445,  -0.041783978339,
    -0.130269065206, -0.06041570245,  -0.068724157878, -0.227029853304, -0.165303684263,
    -0.019765474081, -0.119527006296, -0.031749858931, 0.151270473356,  0.104446436418,
    -0.043589835466, 0.256647192399,  0.156291284545,  -0.168823438778, -0.021349090431,
    -0.049153286973, -0.028645209901, 0.184873256439,  0.072649225735,  -0.045155670518,
    0.35443894295,   0.104332449494,
};
static const double gru_dbias[] = {
    -0.250992368465, 0.212962054544, 0.394835675932, 0.014702622703, 0.210327636361,
    0.135775743858,  0.424068070304, 0.367259806122, 0.499037629897,
};
static const double gru_dstate_bias[] = {
    -0.250992368465, 0.212962054544, 0.394835675932, 0.014702622703, 0.210327636361,
    0.135775743858,  0.177009379537, 0.131303342868, 0.033186819453,
};

static void compare(const char *what, const double *want, const float *got, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) near(what, i, want[i], (double)got[i], 2e-6);
}

static void check_golden(const layer_kind *kind, const float *const given[OPERANDS],
                         const double *const wanted[RESULTS]) {
    cell c = cell_of(kind, 2, 4, 2, 3, true);
    for (int i = 0; i < OPERANDS; i++) {
        if (given[i]) memcpy(c.in[i], given[i], operand_floats(&c, i) * sizeof(float));
    }
    run(&c, &lk_kernels_reference);
    assert_int_equal(c.bad, 0);
    for (int i = 0; i < RESULTS; i++) {
        if (wanted[i]) compare(result_names[i], wanted[i], c.out[i], result_floats(&c, i));
    }
    // The last state alone: the same number.
    cell last = cell_of(kind, 2, 4, 2, 3, false);
    for (int i = 0; i < DY; i++) {
        if (given[i]) memcpy(last.in[i], given[i], operand_floats(&c, i) * sizeof(float));
    }
    run(&last, &lk_kernels_reference);
    for (uint32_t m = 0; m < 2; m++)
        assert_memory_equal(last.out[Y] + 3 * m, c.out[Y] + (4 * m + 3) * 3, 3 * sizeof(float));
    give_back(&last), give_back(&c);
}

static void layers_are_those_of_keras(void **state) {
    static const float *const of_lstm[OPERANDS] = {[X] = lstm_x,
                                                   [KERNEL] = lstm_kernel,
                                                   [BIAS] = lstm_bias,
                                                   [RECURRENT] = lstm_recurrent,
                                                   [DY] = lstm_dy};
    static const double *const lstm_wanted[RESULTS] = {[Y] = lstm_y,
                                                       [DX] = lstm_dx,
                                                       [DKERNEL] = lstm_dkernel,
                                                       [DBIAS] = lstm_dbias,
                                                       [DRECURRENT] = lstm_drecurrent};
    static const float *const of_gru[OPERANDS] = {[X] = gru_x,
                                                  [KERNEL] = gru_kernel,
                                                  [BIAS] = gru_bias,
                                                  [RECURRENT] = gru_recurrent,
                                                  [STATE_BIAS] = gru_state_bias,
                                                  [DY] = gru_dy};
    static const double *const gru_wanted[RESULTS] = {[Y] = gru_y,
                                                      [DX] = gru_dx,
                                                      [DKERNEL] = gru_dkernel,
                                                      [DBIAS] = gru_dbias,
                                                      [DRECURRENT] = gru_drecurrent,
                                                      [DSTATE_BIAS] = gru_dstate_bias};
    (void)state;
    check_golden(&lstm, of_lstm, lstm_wanted);
    check_golden(&gru, of_gru, gru_wanted);
}

// --- finite differences --------------------------------------------------------------------------

enum { WIDE = 4096 };

static double squash(double x) { return 1.0 / (1.0 + exp(-x)); }

typedef struct widened {
    double in[OPERANDS][WIDE];
} widened;

// Of unit j at time t: what its input is to each gate, and what the state h before it is.
static void gates_of(const cell *c, const widened *w, uint32_t row, const double *h, uint32_t j,
                     double *x, double *s) {
    const uint32_t columns = c->kind->gates * c->units;
    for (uint32_t g = 0; g < c->kind->gates; g++) {
        const uint32_t n = g * c->units + j;
        x[g] = w->in[BIAS][n];
        s[g] = c->kind->sums ? w->in[STATE_BIAS][n] : 0.0;
        for (uint32_t i = 0; i < c->inputs; i++)
            x[g] += w->in[X][row * c->inputs + i] * w->in[KERNEL][i * columns + n];
        for (uint32_t i = 0; i < c->units; i++) s[g] += h[i] * w->in[RECURRENT][i * columns + n];
    }
}

static double next_of_lstm(const double *x, const double *s, double *memory) {
    *memory = squash(x[1] + s[1]) * *memory + squash(x[0] + s[0]) * tanh(x[2] + s[2]);
    return squash(x[3] + s[3]) * tanh(*memory);
}

static double next_of_gru(const double *x, const double *s, double before) {
    const double z = squash(x[0] + s[0]), n = tanh(x[2] + squash(x[1] + s[1]) * s[2]);
    return z * before + (1.0 - z) * n;
}

// sum of dy * y, all in double.
static double loss_of(const cell *c, const widened *w) {
    const uint32_t u = c->units;
    double loss = 0.0;
    for (uint32_t m = 0; m < c->examples; m++) {
        double h[64] = {0}, memory[64] = {0}, next[64], x[4], s[4];
        for (uint32_t t = 0; t < c->steps; t++) {
            for (uint32_t j = 0; j < u; j++) {
                gates_of(c, w, m * c->steps + t, h, j, x, s);
                next[j] =
                    c->kind == &gru ? next_of_gru(x, s, h[j]) : next_of_lstm(x, s, &memory[j]);
            }
            memcpy(h, next, u * sizeof *h);
            for (uint32_t j = 0; j < u; j++) {
                if (c->sequences)
                    loss += h[j] * w->in[DY][(m * c->steps + t) * u + j];
                else if (t + 1 == c->steps)
                    loss += h[j] * w->in[DY][m * u + j];
            }
        }
    }
    return loss;
}

static void check_differences(const layer_kind *kind, uint32_t examples, uint32_t steps,
                              uint32_t inputs, uint32_t units, bool sequences) {
    static widened w;
    static const int of[] = {DX, DKERNEL, DBIAS, DRECURRENT, DSTATE_BIAS};
    cell c = cell_of(kind, examples, steps, inputs, units, sequences);
    run(&c, &lk_kernels_reference);
    assert_int_equal(c.bad, 0);
    for (int i = 0; i < OPERANDS; i++) {
        assert_true(operand_floats(&c, i) <= WIDE && units <= 64);
        for (uint64_t e = 0; e < operand_floats(&c, i); e++) w.in[i][e] = (double)c.in[i][e];
    }
    for (int i = 0; i < DY; i++) {
        for (uint64_t e = 0; e < operand_floats(&c, i); e++) {
            const double before = w.in[i][e], by = 1e-5;
            w.in[i][e] = before + by;
            double slope = loss_of(&c, &w);
            w.in[i][e] = before - by;
            slope -= loss_of(&c, &w);
            w.in[i][e] = before;
            near(result_names[of[i]], e, slope / (2 * by), (double)c.out[of[i]][e], 5e-6);
        }
    }
    give_back(&c);
}

static void gradients_are_slopes(void **state) {
    static const layer_kind *const kinds[] = {&lstm, &gru};
    (void)state;
    for (uint32_t i = 0; i < LK_COUNT(kinds); i++) {
        check_differences(kinds[i], 3, 5, 4, 6, true);
        check_differences(kinds[i], 3, 5, 4, 6, false);
        check_differences(kinds[i], 2, 1, 3, 2, true);  // one step: nothing recurs
        check_differences(kinds[i], 1, 9, 1, 1, false);
    }
}

// --- variants ------------------------------------------------------------------------------------

static void check_variants(const layer_kind *kind, uint32_t examples, uint32_t steps,
                           uint32_t inputs, uint32_t units, bool sequences, uint32_t grain) {
    const lk_kernels *k;
    cell c = cell_of(kind, examples, steps, inputs, units, sequences), got = c;
    c.grain = got.grain = grain;
    for (int i = 0; i < RESULTS; i++) got.out[i] = block(result_floats(&c, i));
    run(&c, &lk_kernels_reference);
    for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
        if (lk_kernels_missing(n, &k) || k == &lk_kernels_reference) continue;
        for (int i = 0; i < RESULTS; i++)
            memset(got.out[i], 0x5a, result_floats(&c, i) * sizeof(float));
        run(&got, k);
        assert_int_equal(got.bad, c.bad);
        for (int i = 0; i < RESULTS && !c.bad; i++) {
            if (memcmp(c.out[i], got.out[i], result_floats(&c, i) * sizeof(float)) == 0) continue;
            fail_msg("%s: %s: %s of %u examples of %u steps, %u values, %u units%s, grain %u",
                     k->name, kind->name, result_names[i], examples, steps, inputs, units,
                     sequences ? ", all" : "", grain);
        }
    }
    for (int i = 0; i < RESULTS; i++) guarded_give(got.out[i]);
    give_back(&c);
}

static void variants_have_the_same_bits(void **state) {
    static const layer_kind *const kinds[] = {&lstm, &gru};
    (void)state;
    draws = 7;
    for (uint32_t n = 0; n < LK_COUNT(kinds); n++) {
        for (uint32_t i = 0; i < 12; i++) {
            check_variants(kinds[n], draw_from(1, 20), draw_from(1, 6), draw_from(1, 40),
                           draw_from(1, 40), i % 2, 1u << draw() % 5);
        }
        check_variants(kinds[n], 16, 40, 3, 5, true, 16);  // a grain of 640 rows: two slices
        check_variants(kinds[n], 11, 300, 3, 5, true, 4);  // grains of three slices
        check_variants(kinds[n], 2, 2, 2, 530, false, 1);  // a state of two slices
        check_variants(kinds[n], 70, 2, 17, 16, true, 8);  // more than a block of examples
    }
}

// What is not finite is said, by every variant: a gate, a cell, a gradient.
static void check_overflows(const layer_kind *of) {
    const lk_kernels *k;
    for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
        if (lk_kernels_missing(n, &k)) continue;
        for (int kind = 0; kind < 5; kind++) {
            cell c = cell_of(of, 3, 3, 2, 5, true);
            for (int i = 0; i < OPERANDS; i++) {
                for (uint64_t e = 0; e < operand_floats(&c, i); e++) c.in[i][e] = 0.25f;
            }
            if (kind == 1) c.in[RECURRENT][7] = INFINITY;  // a gate of a step after the first
            if (kind == 2) c.in[DY][4] = INFINITY;         // dh of the first step
            if (kind == 3) c.in[DY][44] = INFINITY;        // .. and of the last
            if (kind == 4)
                c.in[RECURRENT][13] = INFINITY;  // the candidate of a step after the first
            const bool forward = kind == 1 || kind == 4;
            run(&c, k);
            if (c.forward != forward) fail_msg("%s: %s: kind %d: y", k->name, of->name, kind);
            if (c.bad != (kind > 0))
                fail_msg("%s: %s: kind %d: said %u", k->name, of->name, kind, c.bad);
            give_back(&c);
        }
    }
}

static void overflows_are_said(void **state) {
    (void)state;
    check_overflows(&lstm);
    check_overflows(&gru);
}

// --- programs ------------------------------------------------------------------------------------

static const lk_layout alone = {.replicas = 1, .replicas_all = 1, .fuse = true};

static lk_status build(const lk_layer *layers, uint32_t count, uint32_t grain, lk_program *p,
                       void **memory, lk_error *error) {
    static lk_run_spec spec;
    spec = (lk_run_spec){
        .model =
            {.in_h = 6, .in_w = 4, .in_c = 2, .classes = 3, .layer_count = count, .layers = layers},
        .optimizer = {.type = &lk_optimizer_sgd, .rate = {.type = &lk_rate_constant}},
        .seed = 1,
        .global_batch = grain,
        .grain = grain,
        .example_count = grain};
    const lk_plan_options options = {.overlay = true};
    *memory = aligned_alloc(64, lk_round_up(lk_program_bytes(&spec.model), 64));
    error->status = LK_OK;
    return lk_program_build(&spec, &alone, &options, *memory, p, error);
}

static void check_names(const lk_program *p, uint32_t count, const char *const *names) {
    assert_int_equal(p->param_count, count);
    for (uint32_t i = 0; i < count; i++)
        assert_string_equal(p->tensors[p->params[i].tensor].name, names[i]);
}

#define LSTM(n, u, all)                                                                       \
    {                                                                                         \
        .type = &lk_layer_lstm, .name = n, .units = u, .use_bias = true, .forget_bias = true, \
        .return_sequences = all, .initializer = &lk_initializer_glorot_uniform                \
    }
#define GRU(n, u, all, after)                                                                 \
    {                                                                                         \
        .type = &lk_layer_gru, .name = n, .units = u, .use_bias = true, .reset_after = after, \
        .return_sequences = all, .initializer = &lk_initializer_glorot_uniform                \
    }
#define OVER(n, u)                                                        \
    {                                                                     \
        .type = &lk_layer_dense, .name = n, .units = u, .use_bias = true, \
        .initializer = &lk_initializer_glorot_uniform                     \
    }
#define ROWS(t, f)                                                                             \
    {                                                                                          \
        .type = &lk_layer_reshape, .name = "rows", .target_shape = {.count = 2, .at = {t, f} } \
    }

static void programs_of_sequences(void **state) {
    const lk_layer layers[] = {ROWS(6, 8), OVER("in", 5), RELU("r"), LSTM("a", 4, true),
                               LSTM("b", 3, false)};
    static const char *const names[] = {
        "in/kernel",          "in/bias",  "a/kernel", "a/bias",
        "a/recurrent_kernel", "b/kernel", "b/bias",   "b/recurrent_kernel"};
    lk_program p;
    lk_error error;
    void *memory;
    (void)state;
    assert_int_equal(build(layers, LK_COUNT(layers), 4, &p, &memory, &error), LK_OK);
    check_names(&p, LK_COUNT(names), names);
    assert_int_equal(lk_program_output_floats(&p), 3);
    assert_int_equal(p.params[4].count, 4 * 16);
    assert_true(p.ops[1].relu);  // of the layer behind it, in one kernel
    for (uint32_t i = 0; i < p.op_count; i++) {
        const bool over = p.ops[i].type->sequence;
        assert_int_equal(lk_op_steps(&p.ops[i]), over ? 6 : 1);
    }
    // Biases of the forget gates start at one.
    uint8_t *device = aligned_alloc(64, lk_round_up(p.regions[LK_REGION_DEVICE].bytes, 64));
    lk_program_initialize(&p, device);
    const float *bias = (float *)(void *)(device + p.tensors[p.params[3].tensor].offset);
    for (uint32_t i = 0; i < 16; i++) assert_true(bias[i] == (i / 4 == 1 ? 1.0f : 0.0f));
    free(device), free(memory);
}

// A GRU has biases of its own for what its recurrent kernel gives, and gradients of those sums.
static void programs_of_a_gru(void **state) {
    const lk_layer layers[] = {ROWS(6, 8), GRU("a", 4, true, true), GRU("b", 3, false, true)};
    static const char *const names[] = {
        "a/kernel", "a/bias", "a/recurrent_kernel", "a/recurrent_bias",
        "b/kernel", "b/bias", "b/recurrent_kernel", "b/recurrent_bias"};
    lk_program p;
    lk_error error;
    void *memory;
    (void)state;
    assert_int_equal(build(layers, LK_COUNT(layers), 4, &p, &memory, &error), LK_OK);
    check_names(&p, LK_COUNT(names), names);
    assert_int_equal(p.params[2].count, 4 * 12);
    assert_int_equal(p.params[7].count, 9);
    uint32_t seen = 0;
    for (uint32_t i = p.forward_end; i < p.op_count; i++) {
        const lk_op *op = &p.ops[i];
        if (op->type != &lk_op_gru_backward) continue;
        const uint32_t sums = op->tensor[LK_DX2];
        assert_int_not_equal(sums, op->tensor[LK_DX]);
        assert_string_equal(p.tensors[sums].name,
                            seen ? "a/gru/gradient of sums" : "b/gru/gradient of sums");
        for (uint32_t n = i + 1; n < i + 3; n++) {
            assert_true(p.ops[n].type->recurrent);
            assert_int_equal(p.ops[n].tensor[LK_DY], sums);
            assert_int_equal(p.ops[n].tensor[LK_X], op->tensor[LK_X2]);
        }
        seen++;
    }
    assert_int_equal(seen, 2);
    free(memory);
}

#define AS_ONE(n, k) {.type = &lk_layer_time_reduction, .name = n, .factor = k}

// Frames that become one are no op where the factor divides them, and zeros behind them otherwise.
static void programs_of_fewer_frames(void **state) {
    const lk_layer even[] = {ROWS(6, 8), AS_ONE("two", 2), LSTM("a", 4, true), AS_ONE("all", 3),
                             OVER("b", 3), FLATTEN};
    const lk_layer odd[] = {ROWS(6, 8), AS_ONE("four", 4), LSTM("a", 4, true), FLATTEN,
                            OVER("b", 3)};
    lk_program p;
    lk_error error;
    void *memory;
    (void)state;
    assert_int_equal(build(even, LK_COUNT(even), 4, &p, &memory, &error), LK_OK);
    assert_int_equal(p.params[0].count, 2 * 8 * 16);
    assert_int_equal(p.params[3].count, 3 * 4 * 3);
    for (uint32_t i = 0; i < p.op_count; i++)
        assert_ptr_not_equal(p.ops[i].type, &lk_op_zero_padding2d);
    free(memory);
    assert_int_equal(build(odd, LK_COUNT(odd), 4, &p, &memory, &error), LK_OK);
    assert_ptr_equal(p.ops[1].type, &lk_op_zero_padding2d);
    assert_int_equal(p.ops[1].pool.out_h, 8);
    assert_int_equal(p.ops[1].pool.pad_top, 0);
    assert_int_equal(p.params[0].count, 4 * 8 * 16);
    assert_int_equal(p.params[3].count, 2 * 4 * 3);
    free(memory);
}

static void what_is_refused(void **state) {
    const lk_layer image[] = {LSTM("a", 3, false)};
    const lk_layer flat[] = {FLATTEN, LSTM("a", 3, false)};
    const lk_layer over[] = {OVER("in", 3), FLATTEN};
    const lk_layer rows[] = {ROWS(48, 1), LSTM("a", 3, false)};
    const lk_layer gated[] = {FLATTEN, GRU("a", 3, false, true)};
    const lk_layer before[] = {ROWS(6, 8), GRU("a", 3, false, false)};
    lk_program p;
    lk_error error;
    void *memory;
    (void)state;
    assert_int_equal(build(image, 1, 4, &p, &memory, &error), LK_BAD_CONFIG);
    assert_string_equal(error.text,
                        "layer a: lstm wants a sequence (time, features) but gets 6 x 4 x "
                        "2; put a reshape layer with a target_shape of [time, features] "
                        "before it");
    free(memory);
    assert_int_equal(build(flat, 2, 4, &p, &memory, &error), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "gets 1 x 1 x 48 (flat); put a reshape layer"));
    free(memory);
    assert_int_equal(build(gated, 2, 4, &p, &memory, &error), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "layer a: gru wants a sequence (time, features) but gets"));
    free(memory);
    const lk_layer fewer[] = {AS_ONE("t", 2)}, many[] = {ROWS(6, 8), AS_ONE("t", 7)};
    assert_int_equal(build(fewer, 1, 4, &p, &memory, &error), LK_BAD_CONFIG);
    assert_string_equal(error.text,
                        "layer t: time_reduction wants a sequence (time, features) but gets 6 x 4 "
                        "x 2; put a reshape layer with a target_shape of [time, features] before "
                        "it");
    free(memory);
    assert_int_equal(build(many, 2, 4, &p, &memory, &error), LK_BAD_CONFIG);
    assert_string_equal(error.text,
                        "layer t: found a factor of 7, wanted 1 to the 6 times of its input");
    free(memory);
    assert_int_equal(build(before, 2, 4, &p, &memory, &error), LK_BAD_CONFIG);
    assert_string_equal(error.text,
                        "layer a: found reset_after false, which no kernel computes; wanted true, "
                        "as Keras has it unless told otherwise and PyTorch always");
    free(memory);
    assert_int_equal(build(over, 2, 4, &p, &memory, &error), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "dense wants a flat input but gets images of 6 x 4 x 2"));
    free(memory);
    assert_int_equal(build(rows, 2, 128, &p, &memory, &error), LK_BAD_CONFIG);
    assert_string_equal(error.text,
                        "layer a: a grain of 128 examples of 48 times has 6144 rows, "
                        "wanted at most 4096; use a smaller grain");
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_those_of_keras),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(variants_have_the_same_bits),
        cmocka_unit_test(overflows_are_said),
        cmocka_unit_test(programs_of_sequences),
        cmocka_unit_test(programs_of_a_gru),
        cmocka_unit_test(programs_of_fewer_frames),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
