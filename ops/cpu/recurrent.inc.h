// recurrent.inc.h - the kernels of recurrent layers: for each step one product of a dense layer's
// kernel, over all examples at once, and the gates in loops that compilers vectorise. Included by
// table.inc.h, compiled once per variant.

// Rows of `count` floats, `from` apart there and beside each other here.
static void gather_rows(uint32_t rows, uint64_t count, const float *from, uint64_t stride,
                        float *to) {
    for (uint32_t m = 0; m < rows; m++) memcpy(to + m * count, from + m * stride, count * 4);
}

// An lstm has 4 gates and keeps 5 columns of a time, a gru 3 and 4.
typedef struct recurrent_run {
    const lk_dense *dense;
    uint32_t examples, units, steps;
    bool every;
    lk_dtype dtype;  // what h, dz and ds are rounded to
    float *states;   // (examples, units) h of the step before; backward: dh
    float *sums;     // (examples, gates, units)
    float *carried;  // backward: (examples, units)
    float *scratch;  // of the product
} recurrent_run;

// Of one example's time t. sums: NULL at t = 0 of a layer that adds no bias to them. before: h of
// the time before.
typedef uint32_t recurrent_forward_row(const recurrent_run *r, uint32_t t, const float *z,
                                       const float *sums, const float *before, float *kept,
                                       float *h);
// dh: from its users and the time after it, but for what is carried. dz and ds may be the same.
typedef uint32_t recurrent_backward_row(const recurrent_run *r, uint32_t t, const float *kept,
                                        const float *before, const float *dh, float *carried,
                                        float *dz, float *ds);

static recurrent_run recurrent_run_of(const lk_lane *l, const lk_op *op, bool backward) {
    const lk_dense *d = &op->sequence.dense;
    recurrent_run r = {.dense = d,
                       .examples = l->examples,
                       .units = d->k_count,
                       .steps = op->sequence.steps,
                       .every = op->sequence.every,
                       .dtype = (lk_dtype)op->dtype,
                       .states = l->at[LK_SCRATCH]};
    r.sums = r.states + lk_round_up((uint64_t)r.examples * r.units, 16);
    r.scratch = r.sums + lk_round_up((uint64_t)r.examples * d->n_count, 16);
    if (!backward) return r;
    r.carried = r.scratch;
    r.scratch += lk_round_up((uint64_t)r.examples * r.units, 16);
    return r;
}

// What a state of zeros gives: the biases.
static void recurrent_first_sums(const recurrent_run *r, const float *bias) {
    const uint32_t count = r->dense->n_count;
    for (uint32_t m = 0; m < r->examples; m++) {
        float *restrict sums = r->sums + (uint64_t)m * count;
        for (uint32_t n = 0; n < count; n++) sums[n] = (bias ? bias[n] : 0.0f) + 0.0f;
    }
}

// first: a row's sums are wanted at t = 0 too.
static uint32_t recurrent_forward(lk_lane *l, const lk_op *op, uint32_t columns, bool first,
                                  recurrent_forward_row *row_of) {
    const recurrent_run r = recurrent_run_of(l, op, false);
    const uint64_t units = r.units, gates = r.dense->n_count, steps = r.steps;
    float *before = l->at[LK_X2], *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t t = 0; t < r.steps; t++) {
        if (t > 0) {
            bad |= TABLE_BEST(dense_forward)(r.dense, r.examples, r.states, l->param[0],
                                             l->param[1], r.sums, r.scratch);
        } else if (first) {
            recurrent_first_sums(&r, l->param[1]);
        }
        for (uint32_t m = 0; m < r.examples; m++) {
            const uint64_t row = m * steps + t;
            const float *z = (const float *)l->at[LK_X] + row * gates;
            const float *sums = t > 0 || first ? r.sums + m * gates : NULL;
            float *kept = (float *)l->at[LK_AUX] + row * columns * units;
            float *h = r.states + m * units;
            if (t == 0)
                memset(before + row * units, 0, units * sizeof *h);
            else
                memcpy(before + row * units, h, units * sizeof *h);
            bad |= row_of(&r, t, z, sums, before + row * units, kept, h);
            if (r.dtype != LK_F32) bad |= round_floats(r.dtype, units, h, h);
            if (r.every)
                memcpy(y + row * units, h, units * sizeof *h);
            else if (t + 1 == r.steps)
                memcpy(y + m * units, h, units * sizeof *h);
        }
    }
    return bad;
}

// dh[i] = dy[i] + sums[i], either of which may be missing.
static uint32_t recurrent_add(uint32_t units, const float *dy, bool sums, float *restrict dh) {
    uint32_t bad = 0;
    if (!sums && !dy) memset(dh, 0, units * sizeof *dh);
    if (!sums && dy) memcpy(dh, dy, units * sizeof *dh);
    for (uint32_t j = 0; sums && j < units; j++) dh[j] = (dy ? dy[j] : 0.0f) + dh[j];
    for (uint32_t j = 0; j < units; j++) bad |= !(dh[j] - dh[j] == 0.0f);
    return bad;
}

static uint32_t recurrent_backward(lk_lane *l, const lk_op *op, uint32_t columns,
                                   recurrent_backward_row *row_of) {
    const recurrent_run r = recurrent_run_of(l, op, true);
    const uint64_t units = r.units, gates = r.dense->n_count, steps = r.steps;
    const float *dy = l->at[LK_DY], *before = l->at[LK_X2];
    float *dz = l->at[LK_DX], *ds = l->at[LK_DX2] ? l->at[LK_DX2] : dz;
    uint32_t bad = 0;
    for (uint32_t t = r.steps; t-- > 0;) {
        const bool end = t + 1 == r.steps;
        if (!end) {
            gather_rows(r.examples, gates, ds + (t + 1) * gates, steps * gates, r.sums);
            bad |= TABLE_BEST(dense_input_gradient)(r.dense, r.examples, l->param[0], r.sums, NULL,
                                                    r.states, r.scratch);
        }
        for (uint32_t m = 0; m < r.examples; m++) {
            const uint64_t row = m * steps + t;
            const float *kept = (const float *)l->at[LK_AUX] + row * columns * units;
            const float *given = NULL, *last = before ? before + row * units : NULL;
            float *dh = r.states + m * units, *dz_row = dz + row * gates,
                  *ds_row = ds + row * gates;
            if (r.every)
                given = dy + row * units;
            else if (end)
                given = dy + m * units;
            bad |= recurrent_add(r.units, given, !end, dh);
            bad |= row_of(&r, t, kept, last, dh, r.carried + m * units, dz_row, ds_row);
            if (r.dtype == LK_F32) continue;
            bad |= round_floats(r.dtype, gates, dz_row, dz_row);
            if (ds != dz) bad |= round_floats(r.dtype, gates, ds_row, ds_row);
        }
    }
    return bad;
}

// a[i] = squash(z[i] + sums[i]); sums NULL: of z.
#define RECURRENT_SQUASH(name, function)                                           \
    static uint32_t squash_##name(uint32_t count, const float *restrict z,         \
                                  const float *restrict sums, float *restrict a) { \
        uint32_t bad = 0;                                                          \
        for (uint32_t i = 0; i < count; i++) a[i] = sums ? z[i] + sums[i] : z[i];  \
        for (uint32_t i = 0; i < count; i++) bad |= !(a[i] - a[i] == 0.0f);        \
        for (uint32_t i = 0; i < count; i++) a[i] = function(a[i]);                \
        return bad;                                                                \
    }
RECURRENT_SQUASH(sigmoid, lk_sigmoidf)
RECURRENT_SQUASH(tanh, lk_tanhf)

// --- lstm ----------------------------------------------------------------------------------------

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

static uint32_t lstm_forward_row(const recurrent_run *r, uint32_t t, const float *z,
                                 const float *sums, const float *before, float *kept, float *h) {
    const uint32_t units = r->units;
    const float *last = t ? kept - units : NULL;
    (void)before;
    uint32_t bad = squash_sigmoid(2 * units, z, sums, kept);
    const uint32_t n = LK_LSTM_CANDIDATE * units, o = LK_LSTM_OUTPUT * units;
    bad |= squash_tanh(units, z + n, sums ? sums + n : NULL, kept + n);
    bad |= squash_sigmoid(units, z + o, sums ? sums + o : NULL, kept + o);
    return bad | lstm_cells(units, last, kept, h);
}

static uint32_t call_lstm(lk_lane *l, const lk_op *op) {
    return recurrent_forward(l, op, LK_LSTM_COLUMNS, false, lstm_forward_row);
}

static uint32_t lstm_backward_row(const recurrent_run *r, uint32_t t, const float *restrict kept,
                                  const float *before, const float *restrict dh,
                                  float *restrict carried, float *restrict dz, float *ds) {
    const uint32_t units = r->units;
    const float *i = kept + LK_LSTM_INPUT * units, *f = kept + LK_LSTM_FORGET * units;
    const float *n = kept + LK_LSTM_CANDIDATE * units, *o = kept + LK_LSTM_OUTPUT * units;
    const float *c = kept + LK_LSTM_CELL * units, *last = t ? kept - units : NULL;
    float *di = dz + LK_LSTM_INPUT * units, *df = dz + LK_LSTM_FORGET * units;
    float *dn = dz + LK_LSTM_CANDIDATE * units, *go = dz + LK_LSTM_OUTPUT * units;
    const bool end = t + 1 == r->steps;
    uint32_t bad = 0;
    (void)before, (void)ds;
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
    return recurrent_backward(l, op, LK_LSTM_COLUMNS, lstm_backward_row);
}

// --- gru -----------------------------------------------------------------------------------------

static uint32_t gru_forward_row(const recurrent_run *r, uint32_t t, const float *restrict z,
                                const float *restrict sums, const float *restrict before,
                                float *restrict kept, float *restrict h) {
    const uint32_t units = r->units;
    const float *update = kept + LK_GRU_UPDATE * units, *reset = kept + LK_GRU_RESET * units;
    const float *x = z + LK_GRU_CANDIDATE * units;
    float *n = kept + LK_GRU_CANDIDATE * units, *q = kept + LK_GRU_INNER * units;
    uint32_t bad = squash_sigmoid(2 * units, z, sums, kept);
    (void)t;
    memcpy(q, sums + LK_GRU_CANDIDATE * units, units * sizeof *q);
    for (uint32_t j = 0; j < units; j++) n[j] = lk_fmaf(reset[j], q[j], x[j]);
    for (uint32_t j = 0; j < units; j++) bad |= !(n[j] - n[j] == 0.0f);
    for (uint32_t j = 0; j < units; j++) n[j] = lk_tanhf(n[j]);
    for (uint32_t j = 0; j < units; j++) {
        h[j] = lk_fmaf(update[j], before[j], (1.0f - update[j]) * n[j]);
    }
    return bad;
}

static uint32_t call_gru(lk_lane *l, const lk_op *op) {
    return recurrent_forward(l, op, LK_GRU_COLUMNS, true, gru_forward_row);
}

static uint32_t gru_backward_row(const recurrent_run *r, uint32_t t, const float *restrict kept,
                                 const float *restrict before, const float *restrict dh,
                                 float *restrict carried, float *restrict dz, float *restrict ds) {
    const uint32_t units = r->units;
    const float *z = kept + LK_GRU_UPDATE * units, *reset = kept + LK_GRU_RESET * units;
    const float *n = kept + LK_GRU_CANDIDATE * units, *q = kept + LK_GRU_INNER * units;
    float *d_update = dz + LK_GRU_UPDATE * units, *d_reset = dz + LK_GRU_RESET * units;
    float *d_candidate = dz + LK_GRU_CANDIDATE * units, *inner = ds + LK_GRU_CANDIDATE * units;
    const bool end = t + 1 == r->steps;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) {
        const float all = end ? dh[j] : dh[j] + carried[j];
        const float dn = all * (1.0f - z[j]) * lk_fmaf(-n[j], n[j], 1.0f);
        d_update[j] = all * ((before[j] - n[j]) * (z[j] * (1.0f - z[j])));
        d_reset[j] = dn * q[j] * (reset[j] * (1.0f - reset[j]));
        d_candidate[j] = dn;
        inner[j] = dn * reset[j];
        carried[j] = all * z[j];
        bad |= !(all - all == 0.0f) | !(d_reset[j] - d_reset[j] == 0.0f);
    }
    memcpy(ds, dz, 2 * units * sizeof *ds);
    return bad;
}

static uint32_t call_gru_backward(lk_lane *l, const lk_op *op) {
    return recurrent_backward(l, op, LK_GRU_COLUMNS, gru_backward_row);
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
