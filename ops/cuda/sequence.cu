// sequence.cu - layers whose state goes from time to time (ops/layers/recurrent.c): for each time
// one matrix of sums (sums.h) over the state before it, whose thread goes on to the gates. So a
// time is one launch, and a second where its sums have parts. Formulas and orders: ARITHMETIC.md 3.
#include "ops/cuda/sums_launches.h"
#include "ops/cuda/table.h"
#include "ops/layers/rounded.h"
#include "ops/math.h"

// Of all examples; rows as ops/layers/recurrent.c has them.
struct recurrent {
    uint32_t units, steps, examples, gates;
    lk_cuda_divisor by_units;
    bool every;
    const float *u, *bias;  // (units, gates, units), (gates, units) or NULL
    const float *z;         // (examples, steps, gates, units)
    float *kept, *before;   // (examples, steps, columns, units), (examples, steps, units)
    float *y;               // backward: dy
    float *dz, *inner;      // backward: gradients of z, and of the sums over the state
    float *carried;         // (examples, units)
    uint8_t dtype;          // what h, dz and inner are rounded to
};

// Where unit j of time t of example m lies in a tensor that has `columns` values of each unit.
static inline __device__ uint64_t at_of(const recurrent &r, uint32_t m, uint32_t t,
                                        uint32_t columns, uint32_t j) {
    return ((uint64_t)m * r.steps + t) * columns * r.units + j;
}

static inline __device__ void keep_state(const recurrent &r, uint32_t m, uint32_t t, uint32_t j,
                                         float h) {
    if (t == 0) r.before[at_of(r, m, 0, 1, j)] = 0.0f;
    if (t + 1 < r.steps) r.before[at_of(r, m, t + 1, 1, j)] = h;
    if (r.every)
        r.y[at_of(r, m, t, 1, j)] = h;
    else if (t + 1 == r.steps)
        r.y[(uint64_t)m * r.units + j] = h;
}

// The gradient of h[t], of whose later time `sum` is.
static inline __device__ float state_gradient(const recurrent &r, uint32_t m, uint32_t t,
                                              uint32_t j, float sum) {
    const bool last = t + 1 == r.steps;
    float dy = 0.0f;
    if (r.every)
        dy = r.y[at_of(r, m, t, 1, j)];
    else if (last)
        dy = r.y[(uint64_t)m * r.units + j];
    return last ? dy : dy + (sum + 0.0f);
}

// --- the gates -----------------------------------------------------------------------------------

// What is not finite of a unit: the walk hears of it once a thread.
struct lstm_gates {
    static constexpr uint32_t gates = LK_LSTM_GATES, columns = LK_LSTM_COLUMNS;

    // c of the time before.
    static __device__ float cell_before(const recurrent &r, uint32_t m, uint32_t t, uint32_t j) {
        if (t == 0) return 0.0f;
        return r.kept[at_of(r, m, t - 1, columns, j) + LK_LSTM_CELL * r.units];
    }

    // What gate g takes, of which z is the input and v the sum over the state.
    static __device__ float gate(const recurrent &r, uint32_t t, const float *z, uint32_t g,
                                 const float *v, bool *bad) {
        const float input = z[(uint64_t)g * r.units];
        const float both = t > 0 ? input + (v[g] + 0.0f) : input;
        *bad |= lk_cuda_not_finite(both);
        return both;
    }

    // v: sums over the state, of each gate; not read at t = 0.
    static __device__ bool forward(const recurrent &r, uint32_t m, uint32_t t, uint32_t j,
                                   const float *v) {
        const float *z = r.z + at_of(r, m, t, gates, j);
        float *kept = r.kept + at_of(r, m, t, columns, j);
        bool bad = false;
        const float f = lk_sigmoidf(gate(r, t, z, LK_LSTM_FORGET, v, &bad));
        kept[LK_LSTM_FORGET * r.units] = f;
        const float i = lk_sigmoidf(gate(r, t, z, LK_LSTM_INPUT, v, &bad));
        kept[LK_LSTM_INPUT * r.units] = i;
        const float n = lk_tanhf(gate(r, t, z, LK_LSTM_CANDIDATE, v, &bad));
        kept[LK_LSTM_CANDIDATE * r.units] = n;
        const float o = lk_sigmoidf(gate(r, t, z, LK_LSTM_OUTPUT, v, &bad));
        kept[LK_LSTM_OUTPUT * r.units] = o;
        const float c = lk_fmaf(f, cell_before(r, m, t, j), i * n);
        kept[LK_LSTM_CELL * r.units] = c;
        keep_state(r, m, t, j, lk_rounded(r.dtype, o * lk_tanhf(c)));
        return bad || lk_cuda_not_finite(c);
    }

    static __device__ bool backward(const recurrent &r, uint32_t m, uint32_t t, uint32_t k,
                                    float sum) {
        const float *kept = r.kept + at_of(r, m, t, columns, k);
        float *dz = r.dz + at_of(r, m, t, gates, k);
        float *carried = r.carried + (uint64_t)m * r.units + k;
        const float i = kept[LK_LSTM_INPUT * r.units], f = kept[LK_LSTM_FORGET * r.units];
        const float n = kept[LK_LSTM_CANDIDATE * r.units], o = kept[LK_LSTM_OUTPUT * r.units];
        const float last = cell_before(r, m, t, k);
        const float s = lk_tanhf(kept[LK_LSTM_CELL * r.units]), slope = lk_fmaf(-s, s, 1.0f);
        const float dh = state_gradient(r, m, t, k, sum);
        const float dc = t + 1 == r.steps ? dh * o * slope : lk_fmaf(dh * o, slope, *carried);
        const float forget = dc * last * (f * (1.0f - f));
        dz[LK_LSTM_INPUT * r.units] = lk_rounded(r.dtype, dc * n * (i * (1.0f - i)));
        dz[LK_LSTM_FORGET * r.units] = lk_rounded(r.dtype, forget);
        dz[LK_LSTM_CANDIDATE * r.units] = lk_rounded(r.dtype, dc * i * lk_fmaf(-n, n, 1.0f));
        dz[LK_LSTM_OUTPUT * r.units] = lk_rounded(r.dtype, dh * s * (o * (1.0f - o)));
        *carried = dc * f;
        return lk_cuda_not_finite(dh) || lk_cuda_not_finite(dc) || lk_cuda_not_finite(forget);
    }
};

struct gru_gates {
    static constexpr uint32_t gates = LK_GRU_GATES, columns = LK_GRU_COLUMNS;

    static __device__ bool forward(const recurrent &r, uint32_t m, uint32_t t, uint32_t j,
                                   const float *v) {
        const float *x = r.z + at_of(r, m, t, gates, j);
        float *kept = r.kept + at_of(r, m, t, columns, j);
        const float update = x[LK_GRU_UPDATE * r.units] + (v[LK_GRU_UPDATE] + 0.0f);
        const float reset = x[LK_GRU_RESET * r.units] + (v[LK_GRU_RESET] + 0.0f);
        const float z = lk_sigmoidf(update), g = lk_sigmoidf(reset);
        const float q = v[LK_GRU_CANDIDATE] + 0.0f;
        const float candidate = lk_fmaf(g, q, x[LK_GRU_CANDIDATE * r.units]);
        const float n = lk_tanhf(candidate);
        const float last = t > 0 ? r.before[at_of(r, m, t, 1, j)] : 0.0f;
        kept[LK_GRU_UPDATE * r.units] = z;
        kept[LK_GRU_RESET * r.units] = g;
        kept[LK_GRU_CANDIDATE * r.units] = n;
        kept[LK_GRU_INNER * r.units] = q;
        keep_state(r, m, t, j, lk_rounded(r.dtype, lk_fmaf(z, last, (1.0f - z) * n)));
        return lk_cuda_not_finite(update) || lk_cuda_not_finite(reset) ||
               lk_cuda_not_finite(candidate);
    }

    static __device__ bool backward(const recurrent &r, uint32_t m, uint32_t t, uint32_t k,
                                    float sum) {
        const float *kept = r.kept + at_of(r, m, t, columns, k);
        float *dx = r.dz + at_of(r, m, t, gates, k), *ds = r.inner + at_of(r, m, t, gates, k);
        float *carried = r.carried + (uint64_t)m * r.units + k;
        const float z = kept[LK_GRU_UPDATE * r.units], g = kept[LK_GRU_RESET * r.units];
        const float n = kept[LK_GRU_CANDIDATE * r.units], q = kept[LK_GRU_INNER * r.units];
        const float last = r.before[at_of(r, m, t, 1, k)];
        float dh = state_gradient(r, m, t, k, sum);
        if (t + 1 < r.steps) dh = dh + *carried;
        const float candidate = dh * (1.0f - z) * lk_fmaf(-n, n, 1.0f);
        const float update = dh * ((last - n) * (z * (1.0f - z)));
        const float reset = candidate * q * (g * (1.0f - g));
        dx[LK_GRU_UPDATE * r.units] = ds[LK_GRU_UPDATE * r.units] = lk_rounded(r.dtype, update);
        dx[LK_GRU_RESET * r.units] = ds[LK_GRU_RESET * r.units] = lk_rounded(r.dtype, reset);
        dx[LK_GRU_CANDIDATE * r.units] = lk_rounded(r.dtype, candidate);
        ds[LK_GRU_CANDIDATE * r.units] = lk_rounded(r.dtype, candidate * g);
        *carried = dh * z;
        return lk_cuda_not_finite(dh) || lk_cuda_not_finite(reset);
    }
};

// --- a time as a job -----------------------------------------------------------------------------

// Sums over h[t-1]: four rows are a unit's gates, one thread's, and columns are examples. A gru's
// fourth row is empty.
template <typename Gates>
struct recurrent_forward_job {
    static constexpr lk_cuda_body body = LK_CUDA_BODY_NONE, join = LK_CUDA_BODY_NONE;
    void touches(const lk_cuda_terms &, lk_cuda_spans *) const {}
    static constexpr int group = 4;
    static constexpr bool by_phase = false;
    static constexpr bool a_is_value = false, a_terms_first = false, b_terms_first = true;
    typedef uint32_t row;  // of u: the gate's column
    uint32_t rows, columns, terms, t;
    recurrent r;

    __device__ row row_of(uint32_t i) const { return i % group * r.units + i / group; }
    __device__ bool a(row at, uint32_t u, const float **from) const {
        const uint32_t width = Gates::gates * r.units;
        if (at >= width) return false;
        return *from = r.u + (uint64_t)u * width + at, true;
    }
    __device__ float a_instead(row) const { return 0.0f; }
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return false; }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        return *from = r.before + at_of(r, j, t, 1, u), true;
    }
    __device__ float start(uint32_t i, uint32_t j) const {
        return (void)j, r.bias && i % group < Gates::gates ? r.bias[row_of(i)] : 0.0f;
    }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        return Gates::forward(r, j, t, i / group, v);
    }
    // Output n of a time without terms.
    __device__ bool first(uint32_t n) const {
        const uint32_t j = lk_cuda_quotient(n, r.by_units), i = (n - j * r.units) * group;
        const float v[group] = {start(i, j), start(i + 1, j), start(i + 2, j), start(i + 3, j)};
        return store(i, j, v);
    }
};

// Sums over the gradients of time t + 1: rows are examples, columns units.
template <typename Gates>
struct recurrent_backward_job {
    static constexpr lk_cuda_body body = LK_CUDA_BODY_NONE, join = LK_CUDA_BODY_NONE;
    void touches(const lk_cuda_terms &, lk_cuda_spans *) const {}
    static constexpr int group = 1;
    static constexpr bool by_phase = false;
    static constexpr bool a_is_value = false, a_terms_first = true, b_terms_first = true;
    typedef uint64_t row;
    uint32_t rows, columns, terms, t;
    recurrent r;

    __device__ row row_of(uint32_t i) const { return at_of(r, i, t + 1, Gates::gates, 0); }
    __device__ bool a(row at, uint32_t u, const float **from) const {
        return *from = r.inner + at + u, true;
    }
    __device__ float a_instead(row) const { return 0.0f; }
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return false; }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        return *from = r.u + (uint64_t)j * terms + u, true;
    }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, (void)j, 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        return Gates::backward(r, i, t, j, v[0]);
    }
    __device__ bool first(uint32_t n) const {
        const uint32_t i = lk_cuda_quotient(n, r.by_units);
        const float nothing = 0.0f;
        return store(i, n - i * r.units, &nothing);
    }
};

// The time that no other comes before.
template <typename Job>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    first_time(lk_cuda_state *state, uint32_t op, Job job, uint32_t count) {
    lk_cuda_begin();
    bool bad = false;
    LK_CUDA_EACH(n, count) bad |= job.first((uint32_t)n);
    lk_cuda_report(state, op, bad);
}

// --- launches ------------------------------------------------------------------------------------

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

static uint64_t carried_floats(const lk_sequence *q, uint64_t examples) {
    return lk_round_up(examples * q->dense.k_count, 16);
}

static recurrent recurrent_of(const lk_lane *l, const lk_op *op) {
    const lk_sequence *q = &op->sequence;
    const uint32_t units = q->dense.k_count;
    float *y = floats_of(l, l->at[LK_Y] ? LK_Y : LK_DY), *dz = floats_of(l, LK_DX);
    return {units,
            q->steps,
            l->examples,
            q->dense.n_count / units,
            lk_cuda_divide_by(units),
            q->every,
            l->param[0],
            l->param[1],
            floats_of(l, LK_X),
            floats_of(l, LK_AUX),
            floats_of(l, LK_X2),
            y,
            dz,
            l->at[LK_DX2] ? floats_of(l, LK_DX2) : dz,
            stream_of(l)->scratch,
            op->dtype};
}

// A unit of an example: what a gate reads and writes.
template <typename Job>
static void launch_first(lk_cuda_stream *s, const Job &job) {
    const uint32_t count = lk_cuda_rows_of(s, (uint64_t)job.r.examples * job.r.units);
    const uint64_t floats = 2ull * job.r.gates + 6;
    lk_cuda_launch(s, first_time<Job>, lk_cuda_blocks(count, 1, count * floats * sizeof(float)),
                   LK_CUDA_THREADS, 0, s->state, s->op, job, count);
}

template <typename Gates>
static uint32_t launch_forward(const lk_lane *l, const lk_op *op) {
    const recurrent r = recurrent_of(l, op);
    recurrent_forward_job<Gates> job = {4 * r.units, r.examples, r.units, 0, r};
    launch_first(stream_of(l), job);
    for (job.t = 1; job.t < r.steps; job.t++) lk_cuda_run(stream_of(l), job, r.units, 1, 1);
    return 0;
}

template <typename Gates>
static uint32_t launch_backward(const lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l), after = *s;
    const recurrent r = recurrent_of(l, op);
    recurrent_backward_job<Gates> job = {r.examples, r.units, r.gates * r.units, r.steps - 1, r};
    after.scratch += carried_floats(&op->sequence, r.examples);
    launch_first(&after, job);
    while (job.t-- > 0) lk_cuda_run(&after, job, job.terms, 1, 1);
    s->error = after.error;
    return 0;
}

uint32_t lk_cuda_lstm(lk_lane *l, const lk_op *op) { return launch_forward<lstm_gates>(l, op); }
uint32_t lk_cuda_gru(lk_lane *l, const lk_op *op) { return launch_forward<gru_gates>(l, op); }
uint32_t lk_cuda_lstm_backward(lk_lane *l, const lk_op *op) {
    return launch_backward<lstm_gates>(l, op);
}
uint32_t lk_cuda_gru_backward(lk_lane *l, const lk_op *op) {
    return launch_backward<gru_gates>(l, op);
}

uint64_t lk_cuda_recurrent_scratch_floats(const lk_sequence *q, uint32_t examples) {
    const uint32_t units = q->dense.k_count, width = q->dense.n_count;
    uint64_t most = 0;
    for (uint32_t m = examples; m > 0; m--) {
        const uint64_t back = lk_cuda_scratch_of(m, units, width, 1, 1, false);
        most = LK_MAX(most, lk_cuda_scratch_of(4 * (uint64_t)units, m, units, 1, 1, true));
        most = LK_MAX(most, carried_floats(q, m) + back);
    }
    return most;
}

int lk_cuda_prepare_sequence(void) {
    int error = lk_cuda_prepare_job<recurrent_forward_job<lstm_gates>>();
    if (!error) error = lk_cuda_prepare_job<recurrent_forward_job<gru_gates>>();
    if (!error) error = lk_cuda_prepare_job<recurrent_backward_job<lstm_gates>>();
    if (!error) error = lk_cuda_prepare_job<recurrent_backward_job<gru_gates>>();
    if (error) return error;
    return lk_cuda_prepare_kernels(first_time<recurrent_forward_job<lstm_gates>>,
                                   first_time<recurrent_forward_job<gru_gates>>,
                                   first_time<recurrent_backward_job<lstm_gates>>,
                                   first_time<recurrent_backward_job<gru_gates>>);
}
