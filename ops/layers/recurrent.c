// recurrent.c - layers with a state that goes from time to time of a sequence: formulas, the
// reference, gradients. Freestanding. ARITHMETIC.md 3, 5 and 6.
//
//   lstm   Keras' order of gates, i f c o. z is the sequence_dense of x (dense.c), u the recurrent
//          kernel (units, 4 * units); of each example, for t from 0 on, of each unit j:
//
//     a[g] = z[t][g][j] + sum over k, ascending, of h[t-1][k] * u[k][g][j]       t = 0: a[g] = z
//     i = sigmoid(a[i])   f = sigmoid(a[f])   n = tanh(a[c])   o = sigmoid(a[o])
//     c[t] = fma(f, c[t-1], i * n)      h[t] = o * tanh(c[t])        c[-1] and h[-1] are +0
//
//     from the last t down, with dy[t] the gradient of h[t] (+0 where no user takes h[t]):
//     dh = dy[t] + sum over (g, j), ascending, of u[k][g][j] * dz[t+1][g][j]     last t: dh = dy
//     s  = tanh(c[t])
//     dc = fma(dh * o, fma(-s, s, 1), dc[t+1] * f[t+1])               last t: (dh * o) * fma(..)
//     dz[i] = (dc * n) * (i * (1 - i))        dz[f] = (dc * c[t-1]) * (f * (1 - f))
//     dz[c] = (dc * i) * fma(-n, n, 1)        dz[o] = (dh * s) * (o * (1 - o))
//
// h[t-1] of every time is kept beside the gates: the gradient of u is the sum over (example, time)
// of h[t-1][k] * dz[t][n], as that of a dense layer whose examples are the times.
#include "ops/cpu/tiles.h"
#include "ops/graph/build.h"
#include "ops/layers/sums.h"
#include "ops/math.h"

// --- the reference -------------------------------------------------------------------------------

// One example's rows; of a time `t` those of its number.
typedef struct example {
    uint32_t units, steps;
    const float *u;  // (units, 4 * units)
    float *kept;     // (steps, 5, units) i f n o c
    float *before;   // (steps, units) h[t-1]
    float *y;        // of a forward op; dy of a backward one, of every time or the last
    float *dz;       // (steps, 4, units)
    float *carried;  // (units) dc[t+1] * f[t+1]
    const float *z;  // (steps, 4, units)
    bool every;
} example;

static example example_of(const lk_lane *l, const lk_op *op, uint32_t m) {
    const uint32_t units = op->sequence.dense.k_count;
    const uint64_t row = (uint64_t)m * op->sequence.steps;
    const uint64_t y_row = op->sequence.every ? row : m;
    float *y = l->at[LK_Y] ? l->at[LK_Y] : l->at[LK_DY];
    return (example){
        .units = units,
        .steps = op->sequence.steps,
        .u = l->param[0],
        .kept = (float *)l->at[LK_AUX] + row * LK_LSTM_COLUMNS * units,
        .before = l->at[LK_X2] ? (float *)l->at[LK_X2] + row * units : NULL,
        .y = y + y_row * units,
        .dz = l->at[LK_DX] ? (float *)l->at[LK_DX] + row * LK_LSTM_GATES * units : NULL,
        .carried = l->at[LK_SCRATCH],
        .z = l->at[LK_X] ? (float *)l->at[LK_X] + row * LK_LSTM_GATES * units : NULL,
        .every = op->sequence.every};
}

static float gate_sum(const example *e, uint32_t t, uint32_t gate, uint32_t j) {
    const uint32_t column = gate * e->units + j, columns = LK_LSTM_GATES * e->units;
    const float z = e->z[(uint64_t)t * columns + column];
    slice_sum s;
    if (t == 0) return z;
    slice_start(&s, 0.0f);
    for (uint32_t k = 0; k < e->units; k++) {
        slice_term(&s, e->before[(uint64_t)t * e->units + k], e->u[(uint64_t)k * columns + column]);
    }
    return z + slice_finish(&s);
}

static uint32_t forward_step(const example *e, uint32_t t) {
    const uint32_t units = e->units;
    float *kept = e->kept + (uint64_t)t * LK_LSTM_COLUMNS * units;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) {
        float a[LK_LSTM_GATES];
        for (uint32_t g = 0; g < LK_LSTM_GATES; g++) {
            a[g] = gate_sum(e, t, g, j);
            bad |= lk_not_finite(a[g]);
        }
        const float i = lk_sigmoidf(a[LK_LSTM_INPUT]), f = lk_sigmoidf(a[LK_LSTM_FORGET]);
        const float n = lk_tanhf(a[LK_LSTM_CANDIDATE]), o = lk_sigmoidf(a[LK_LSTM_OUTPUT]);
        const float last = t ? kept[(int64_t)j - units] : 0.0f;  // c of the time before
        const float c = lk_fmaf(f, last, i * n), h = o * lk_tanhf(c);
        bad |= lk_not_finite(c);
        kept[LK_LSTM_INPUT * units + j] = i;
        kept[LK_LSTM_FORGET * units + j] = f;
        kept[LK_LSTM_CANDIDATE * units + j] = n;
        kept[LK_LSTM_OUTPUT * units + j] = o;
        kept[LK_LSTM_CELL * units + j] = c;
        if (t + 1 < e->steps) e->before[((uint64_t)t + 1) * units + j] = h;
        if (e->every)
            e->y[(uint64_t)t * units + j] = h;
        else if (t + 1 == e->steps)
            e->y[j] = h;
    }
    return bad;
}

static uint32_t lstm_forward(lk_lane *l, const lk_op *op) {
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const example e = example_of(l, op, m);
        __builtin_memset(e.before, 0, e.units * sizeof(float));
        for (uint32_t t = 0; t < e.steps; t++) bad |= forward_step(&e, t);
    }
    return bad;
}

// The gradient of h[t].
static float state_gradient(const example *e, uint32_t t, uint32_t k) {
    const uint32_t columns = LK_LSTM_GATES * e->units;
    float dy = 0.0f;
    slice_sum s;
    if (e->every)
        dy = e->y[(uint64_t)t * e->units + k];
    else if (t + 1 == e->steps)
        dy = e->y[k];
    if (t + 1 == e->steps) return dy;
    slice_start(&s, 0.0f);
    for (uint32_t n = 0; n < columns; n++) {
        slice_term(&s, e->u[(uint64_t)k * columns + n], e->dz[((uint64_t)t + 1) * columns + n]);
    }
    return dy + slice_finish(&s);
}

static uint32_t backward_step(const example *e, uint32_t t) {
    const uint32_t units = e->units;
    const float *kept = e->kept + (uint64_t)t * LK_LSTM_COLUMNS * units;
    float *dz = e->dz + (uint64_t)t * LK_LSTM_GATES * units;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) {
        const float i = kept[LK_LSTM_INPUT * units + j], f = kept[LK_LSTM_FORGET * units + j];
        const float n = kept[LK_LSTM_CANDIDATE * units + j], o = kept[LK_LSTM_OUTPUT * units + j];
        const float last = t ? kept[(int64_t)j - units] : 0.0f;
        const float s = lk_tanhf(kept[LK_LSTM_CELL * units + j]);
        const float dh = state_gradient(e, t, j), slope = lk_fmaf(-s, s, 1.0f);
        const float dc = t + 1 == e->steps ? dh * o * slope : lk_fmaf(dh * o, slope, e->carried[j]);
        bad |= lk_not_finite(dh) | lk_not_finite(dc);
        dz[LK_LSTM_INPUT * units + j] = dc * n * (i * (1.0f - i));
        dz[LK_LSTM_FORGET * units + j] = dc * last * (f * (1.0f - f));
        dz[LK_LSTM_CANDIDATE * units + j] = dc * i * lk_fmaf(-n, n, 1.0f);
        dz[LK_LSTM_OUTPUT * units + j] = dh * s * (o * (1.0f - o));
        bad |= lk_not_finite(dz[LK_LSTM_FORGET * units + j]);  // the others are smaller than dc, dh
        e->carried[j] = dc * f;
    }
    return bad;
}

static uint32_t lstm_backward(lk_lane *l, const lk_op *op) {
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const example e = example_of(l, op, m);
        for (uint32_t t = e.steps; t-- > 0;) bad |= backward_step(&e, t);
    }
    return bad;
}

// --- shapes, parameters --------------------------------------------------------------------------

static lk_status build_lstm(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    const lk_dense input = {
        .k_count = in.c, .n_count = LK_LSTM_GATES * l->units, .use_bias = l->use_bias};
    const lk_shape every = {in.h, 1, l->units, false}, last = {1, 1, l->units, true};
    if (in.flat || in.w != 1) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: lstm wants a sequence (time, features) but gets %u x %u x %u%s; "
                       "put a reshape layer with a target_shape of [time, features] before it",
                       l->name, in.h, in.w, in.c, in.flat ? " (flat)" : "");
    }
    LK_CHECK(lk_build_sequence_dense(b, l, &input));
    lk_op *z = &b->program->ops[b->output.op];
    z->floats = (uint64_t)in.h * input.n_count;
    if (z->floats > INT32_MAX) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: the gates of %u units over %u times are more than 2^31 values "
                       "an example",
                       l->name, l->units, in.h);
    }
    lk_op *op = lk_build_op(b, &lk_op_lstm, b->output, l->return_sequences ? every : last);
    op->sequence = (lk_sequence){.dense = {.k_count = l->units, .n_count = input.n_count},
                                 .steps = in.h,
                                 .every = l->return_sequences};
    return LK_OK;
}

static lk_status declare_lstm(lk_builder *b, lk_op *op) {
    const lk_dense *d = &op->sequence.dense;
    const uint64_t steps = op->sequence.steps;
    const lk_param_shape kernel = {.suffix = "recurrent_kernel",
                                   .rank = 2,
                                   .size = {d->k_count, d->n_count},
                                   .fan_in = d->k_count,
                                   .fan_out = d->n_count,
                                   .initializer = &lk_initializer_orthogonal};
    LK_CHECK(lk_build_param(b, op, 0, &kernel));
    LK_CHECK(lk_build_rows(b, op, "/kept", LK_CLASS_ACTIVATION, LK_F32,
                           steps * LK_LSTM_COLUMNS * d->k_count, &op->tensor[LK_AUX]));
    return lk_build_rows(b, op, "/before", LK_CLASS_ACTIVATION, LK_F32, steps * d->k_count,
                         &op->tensor[LK_X2]);
}

static lk_status differentiate_lstm(lk_builder *b, uint32_t of) {
    LK_CHECK(lk_build_input_gradient(b, &lk_op_lstm_backward, of, 0, false));
    lk_build_param_gradient(b, &lk_op_lstm_weight_gradient, of, 0, 1);
    return LK_OK;
}

// --- descriptors ---------------------------------------------------------------------------------

// States and sums of one time, gathered from all examples; a dense layer's scratch for the product.
static uint64_t forward_scratch(const lk_op *op, uint32_t m_count) {
    const lk_dense *d = &op->sequence.dense;
    return lk_round_up((uint64_t)m_count * d->k_count, 16) +
           lk_round_up((uint64_t)m_count * d->n_count, 16) + lk_dense_forward_scratch(op, m_count);
}

// The same of gradients; and what is carried.
static uint64_t backward_scratch(const lk_op *op, uint32_t m_count) {
    const lk_dense *d = &op->sequence.dense;
    return 2 * lk_round_up((uint64_t)m_count * d->k_count, 16) +
           lk_round_up((uint64_t)m_count * d->n_count, 16) +
           lk_dense_input_gradient_scratch(op, m_count);
}

// The products of a time but the first.
static lk_flop flop(const lk_op *op) {
    const lk_dense *d = &op->sequence.dense;
    const uint64_t all = 2ull * d->k_count * d->n_count * (op->sequence.steps - 1);
    return (lk_flop){all, all};
}

const lk_op_type lk_op_lstm = {.name = "lstm",
                               .suffix = "/lstm",
                               .number = LK_OP_LSTM,
                               .sequence = true,
                               .scope = LK_SCOPE_EXAMPLES,
                               .reference = lstm_forward,
                               .scratch_floats = LK_RULE(forward_scratch),
                               .flop = LK_RULE(flop),
                               .declare = LK_RULE(declare_lstm),
                               .differentiate = LK_RULE(differentiate_lstm)};
const lk_op_type lk_op_lstm_backward = {.name = "lstm_backward",
                                        .number = LK_OP_LSTM_BACKWARD,
                                        .sequence = true,
                                        .scope = LK_SCOPE_EXAMPLES,
                                        .reference = lstm_backward,
                                        .scratch_floats = LK_RULE(backward_scratch),
                                        .flop = LK_RULE(flop)};

const lk_layer_type lk_layer_lstm = {
    .inputs = 1, .ops_max = 7, .tensors_max = 12, .params_max = 3, .build = build_lstm};

// --- words ---------------------------------------------------------------------------------------

static const lk_setting lstm_keys[] = {
    {.name = "kernel_initializer",
     .kind = LK_SETTING_INITIALIZER,
     .offset = offsetof(lk_layer, initializer),
     .field = "initializer",
     .meaning = "initial values of the kernel; those of the recurrent one are orthogonal"},
    {.name = "return_sequences",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, return_sequences),
     .meaning = "gives the state after every time, not only after the last"},
    {.name = "unit_forget_bias",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, forget_bias),
     .field = "forget_bias",
     .constant = true,
     .meaning = "biases of the forget gate start at one"},
    {.name = "units",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, units),
     .field = "units",
     .required = true,
     .most = 1 << 20,
     .meaning = "values of the state"},
    {.name = "use_bias",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, use_bias),
     .constant = true,
     .meaning = "adds a number to each gate"},
};

const lk_layer_words lk_layer_words_lstm = {
    .type = &lk_layer_lstm,
    .name = "lstm",
    .keys = lstm_keys,
    .key_count = LK_COUNT(lstm_keys),
    .meaning = "long short-term memory: a state that goes from time to time of a sequence"};
