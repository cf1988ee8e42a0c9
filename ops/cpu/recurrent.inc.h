// recurrent.inc.h - the kernels of recurrent layers: for each step one product of a dense layer's
// kernel, over all examples at once, and the gates in loops that compilers vectorise. Included by
// table.inc.h, compiled once per variant.

// Rows of `count` floats, `from` apart there and beside each other here.
static void gather_rows(uint32_t rows, uint64_t count, const float *from, uint64_t stride,
                        float *to) {
    for (uint32_t m = 0; m < rows; m++) memcpy(to + m * count, from + m * stride, count * 4);
}

typedef struct lstm_run {
    const lk_dense *dense;
    uint32_t examples, units, steps;
    bool every;
    float *states;   // (examples, units) h of the step before; backward: dh
    float *sums;     // (examples, 4, units)
    float *carried;  // backward: (examples, units)
    float *scratch;  // of the product
} lstm_run;

static lstm_run lstm_run_of(const lk_lane *l, const lk_op *op, bool backward) {
    const lk_dense *d = &op->sequence.dense;
    lstm_run r = {.dense = d,
                  .examples = l->examples,
                  .units = d->k_count,
                  .steps = op->sequence.steps,
                  .every = op->sequence.every,
                  .states = l->at[LK_SCRATCH]};
    r.sums = r.states + lk_round_up((uint64_t)r.examples * r.units, 16);
    r.scratch = r.sums + lk_round_up((uint64_t)r.examples * d->n_count, 16);
    if (!backward) return r;
    r.carried = r.scratch;
    r.scratch += lk_round_up((uint64_t)r.examples * r.units, 16);
    return r;
}

// a[i] = squash(z[i] + sums[i]); sums NULL: of z.
#define LSTM_SQUASH(name, function)                                               \
    static uint32_t lstm_##name(uint32_t count, const float *restrict z,          \
                                const float *restrict sums, float *restrict a) {  \
        uint32_t bad = 0;                                                         \
        for (uint32_t i = 0; i < count; i++) a[i] = sums ? z[i] + sums[i] : z[i]; \
        for (uint32_t i = 0; i < count; i++) bad |= !(a[i] - a[i] == 0.0f);       \
        for (uint32_t i = 0; i < count; i++) a[i] = function(a[i]);               \
        return bad;                                                               \
    }
LSTM_SQUASH(sigmoid, lk_sigmoidf)
LSTM_SQUASH(tanh, lk_tanhf)

// c[i] = fma(f[i], last[i], i[i] * n[i]), h[i] = o[i] * tanh(c[i]); last NULL: zeros.
static uint32_t lstm_cells(uint32_t units, const float *restrict last, float *restrict kept,
                           float *restrict h) {
    const float *restrict i = kept + LK_LSTM_INPUT * units, *restrict f =
                                                                kept + LK_LSTM_FORGET * units;
    const float *restrict n = kept + LK_LSTM_CANDIDATE * units, *restrict o =
                                                                    kept + LK_LSTM_OUTPUT * units;
    float *restrict c = kept + LK_LSTM_CELL * units;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) c[j] = lk_fmaf(f[j], last ? last[j] : 0.0f, i[j] * n[j]);
    for (uint32_t j = 0; j < units; j++) bad |= !(c[j] - c[j] == 0.0f);
    for (uint32_t j = 0; j < units; j++) h[j] = o[j] * lk_tanhf(c[j]);
    return bad;
}

static uint32_t lstm_forward_row(const lstm_run *r, uint32_t t, const float *z, const float *sums,
                                 float *kept, float *h) {
    const uint32_t units = r->units;
    const float *last = t ? kept - units : NULL;
    uint32_t bad = lstm_sigmoid(2 * units, z, sums, kept);
    const uint32_t n = LK_LSTM_CANDIDATE * units, o = LK_LSTM_OUTPUT * units;
    bad |= lstm_tanh(units, z + n, sums ? sums + n : NULL, kept + n);
    bad |= lstm_sigmoid(units, z + o, sums ? sums + o : NULL, kept + o);
    return bad | lstm_cells(units, last, kept, h);
}

static uint32_t call_lstm(lk_lane *l, const lk_op *op) {
    const lstm_run r = lstm_run_of(l, op, false);
    const uint64_t units = r.units, gates = LK_LSTM_GATES * units, steps = r.steps;
    float *before = l->at[LK_X2], *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t t = 0; t < r.steps; t++) {
        if (t > 0) {
            bad |= TABLE_BEST(dense_forward)(r.dense, r.examples, r.states, l->param[0], NULL,
                                             r.sums, r.scratch);
        }
        for (uint32_t m = 0; m < r.examples; m++) {
            const uint64_t row = m * steps + t;
            const float *z = (const float *)l->at[LK_X] + row * gates;
            float *kept = (float *)l->at[LK_AUX] + row * LK_LSTM_COLUMNS * units;
            float *h = r.states + m * units;
            if (t == 0)
                memset(before + row * units, 0, units * sizeof *h);
            else
                memcpy(before + row * units, h, units * sizeof *h);
            bad |= lstm_forward_row(&r, t, z, t ? r.sums + m * gates : NULL, kept, h);
            if (r.every)
                memcpy(y + row * units, h, units * sizeof *h);
            else if (t + 1 == r.steps)
                memcpy(y + m * units, h, units * sizeof *h);
        }
    }
    return bad;
}

// dh[i] = dy[i] + sums[i], either of which may be missing.
static uint32_t lstm_add(uint32_t units, const float *dy, bool sums, float *restrict dh) {
    uint32_t bad = 0;
    if (!sums && !dy) memset(dh, 0, units * sizeof *dh);
    if (!sums && dy) memcpy(dh, dy, units * sizeof *dh);
    for (uint32_t j = 0; sums && j < units; j++) dh[j] = (dy ? dy[j] : 0.0f) + dh[j];
    for (uint32_t j = 0; j < units; j++) bad |= !(dh[j] - dh[j] == 0.0f);
    return bad;
}

static uint32_t lstm_backward_row(const lstm_run *r, uint32_t t, const float *restrict kept,
                                  const float *restrict dh, float *restrict carried,
                                  float *restrict dz) {
    const uint32_t units = r->units;
    const float *i = kept + LK_LSTM_INPUT * units, *f = kept + LK_LSTM_FORGET * units;
    const float *n = kept + LK_LSTM_CANDIDATE * units, *o = kept + LK_LSTM_OUTPUT * units;
    const float *c = kept + LK_LSTM_CELL * units, *last = t ? kept - units : NULL;
    float *di = dz + LK_LSTM_INPUT * units, *df = dz + LK_LSTM_FORGET * units;
    float *dn = dz + LK_LSTM_CANDIDATE * units, *go = dz + LK_LSTM_OUTPUT * units;
    const bool end = t + 1 == r->steps;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) di[j] = lk_tanhf(c[j]);
    for (uint32_t j = 0; j < units; j++) {
        const float s = di[j], slope = lk_fmaf(-s, s, 1.0f), through = dh[j] * o[j];
        const float dc = end ? through * slope : lk_fmaf(through, slope, carried[j]);
        go[j] = dh[j] * s * (o[j] * (1.0f - o[j]));
        di[j] = dc * n[j] * (i[j] * (1.0f - i[j]));
        df[j] = dc * (last ? last[j] : 0.0f) * (f[j] * (1.0f - f[j]));
        dn[j] = dc * i[j] * lk_fmaf(-n[j], n[j], 1.0f);
        carried[j] = dc * f[j];
        bad |= !(dc - dc == 0.0f) | !(df[j] - df[j] == 0.0f);
    }
    return bad;
}

static uint32_t call_lstm_backward(lk_lane *l, const lk_op *op) {
    const lstm_run r = lstm_run_of(l, op, true);
    const uint64_t units = r.units, gates = LK_LSTM_GATES * units, steps = r.steps;
    const float *dy = l->at[LK_DY];
    float *dz = l->at[LK_DX];
    uint32_t bad = 0;
    for (uint32_t t = r.steps; t-- > 0;) {
        const bool end = t + 1 == r.steps;
        if (!end) {
            gather_rows(r.examples, gates, dz + (t + 1) * gates, steps * gates, r.sums);
            bad |= TABLE_BEST(dense_input_gradient)(r.dense, r.examples, l->param[0], r.sums, NULL,
                                                    r.states, r.scratch);
        }
        for (uint32_t m = 0; m < r.examples; m++) {
            const uint64_t row = m * steps + t;
            const float *kept = (const float *)l->at[LK_AUX] + row * LK_LSTM_COLUMNS * units;
            const float *given = NULL;
            float *dh = r.states + m * units;
            if (r.every)
                given = dy + row * units;
            else if (end)
                given = dy + m * units;
            bad |= lstm_add(r.units, given, !end, dh);
            bad |= lstm_backward_row(&r, t, kept, dh, r.carried + m * units, dz + row * gates);
        }
    }
    return bad;
}

// --- dense layers over the steps of a sequence ---------------------------------------------------

static uint32_t call_sequence_dense(lk_lane *l, const lk_op *op) {
    return TABLE_BEST(dense_forward)(&op->dense, l->examples * op->sequence.steps, l->at[LK_X],
                                     l->param[0], l->param[1], l->at[LK_Y], l->at[LK_SCRATCH]);
}

static uint32_t call_sequence_dense_input_gradient(lk_lane *l, const lk_op *op) {
    return TABLE_BEST(dense_input_gradient)(&op->dense, l->examples * op->sequence.steps,
                                            l->param[0], l->at[LK_DY], l->at[LK_MASK], l->at[LK_DX],
                                            l->at[LK_SCRATCH]);
}
