// apply.inc.h - the updates of all optimizers, a vector at a time, as ops/optimizer.c has them.
// Included by misc.inc.h.

// The settings as copies: what is stored are floats, after which the compiler would read every
// float behind a pointer anew.
#define KEEP_SETTINGS(o, s)                     \
    const lk_optimizer kept_optimizer = *(o);   \
    const lk_step_scalars kept_scalars = *(s);  \
    (o) = &kept_optimizer, (s) = &kept_scalars

// The mean gradients of a vector of sums, with those of the regularizer of w, cut.
static inline vf mean_gradient(const lk_optimizer *o, const lk_step_scalars *s, const float *sum,
                               const float *w, uint32_t rest, vf *bad) {
    const vf most = v_set1(o->clipvalue), least = v_set1(-o->clipvalue);
    vf g = v_mul(v_add(v_load_first(sum, rest), v_zero()), v_set1(s->inverse_n));
    if (s->regularizer != 0.0f) g = v_fma(v_set1(s->regularizer), v_load_first(w, rest), g);
    *bad = v_note(*bad, g);
    if (o->clipvalue > 0.0f) {
        g = v_select(v_gt(g, most), most, g);
        g = v_select(v_gt(least, g), least, g);
    }
    return g;
}

static inline vf load_decayed(const lk_step_scalars *s, const float *w, uint32_t rest) {
    const vf value = v_load_first(w, rest);
    return s->decay != 0.0f ? v_fma(v_set1(-s->decay), value, value) : value;
}

static inline vf note_and_store(vf bad, float *to, uint32_t rest, vf value) {
    v_store_first(to, rest, value);
    return v_note(bad, value);
}

static uint32_t apply_sgd(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                          const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    KEEP_SETTINGS(o, s);
    const vf rate = v_set1(-s->learning_rate);
    vf bad = v_zero();
    (void)slots;
    EACH_VECTOR(count) {
        vf g = mean_gradient(o, s, sum + i, w + i, (uint32_t)rest, &bad);
        vf next = v_fma(rate, g, v_load_first(w + i, (uint32_t)rest));
        bad = note_and_store(bad, w + i, (uint32_t)rest, next);
    }
    return v_noted(bad);
}

static uint32_t apply_momentum(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                               const float *sum, float *w,
                               float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    KEEP_SETTINGS(o, s);
    const vf momentum = v_set1(o->momentum), rate = v_set1(-s->learning_rate);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        vf g = mean_gradient(o, s, sum + i, w + i, (uint32_t)rest, &bad);
        vf a = v_fma(momentum, v_load_first(slots[0] + i, (uint32_t)rest), g);
        bad = note_and_store(bad, slots[0] + i, (uint32_t)rest, a);
        vf next = v_fma(rate, o->nesterov ? v_fma(momentum, a, g) : a,
                        v_load_first(w + i, (uint32_t)rest));
        bad = note_and_store(bad, w + i, (uint32_t)rest, next);
    }
    return v_noted(bad);
}

static uint32_t apply_momentum_keras(const lk_optimizer *o, const lk_step_scalars *s,
                                     uint64_t count, const float *sum, float *w,
                                     float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    KEEP_SETTINGS(o, s);
    const vf momentum = v_set1(o->momentum), rate = v_set1(-s->learning_rate);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        vf step = v_mul(rate, mean_gradient(o, s, sum + i, w + i, (uint32_t)rest, &bad));
        vf m = v_fma(momentum, v_load_first(slots[0] + i, (uint32_t)rest), step);
        bad = note_and_store(bad, slots[0] + i, (uint32_t)rest, m);
        vf next = v_add(load_decayed(s, w + i, (uint32_t)rest),
                        o->nesterov ? v_fma(momentum, m, step) : m);
        bad = note_and_store(bad, w + i, (uint32_t)rest, next);
    }
    return v_noted(bad);
}

// mean + share * (what - mean)
static inline vf moved(vf mean, vf share, vf what) { return v_fma(share, v_sub(what, mean), mean); }

// .. where `what` is the square of g.
static inline vf moved_to_square(vf mean, vf share, vf g) {
    return v_fma(share, v_fma(g, g, v_sub(v_set1(-0.0f), mean)), mean);
}

static uint32_t apply_rmsprop(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                              const float *sum, float *w,
                              float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    KEEP_SETTINGS(o, s);
    float *const ms = slots[0], *const mg = slots[1], *const mom = slots[o->centered ? 2 : 1];
    const vf share = v_set1(1.0f - o->rho), momentum = v_set1(o->momentum);
    const vf rate = v_set1(s->learning_rate), epsilon = v_set1(o->epsilon);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        vf g = mean_gradient(o, s, sum + i, w + i, some, &bad);
        vf d = moved_to_square(v_load_first(ms + i, some), share, g);
        bad = note_and_store(bad, ms + i, some, d);
        if (o->centered) {
            vf mean = moved(v_load_first(mg + i, some), share, g);
            bad = note_and_store(bad, mg + i, some, mean);
            d = v_relu(v_fma(v_sub(v_set1(-0.0f), mean), mean, d));
        }
        vf update = v_div(v_mul(rate, g), v_sqrt(v_add(d, epsilon)));
        bad = v_note(bad, update);
        if (o->momentum > 0.0f) {
            update = v_fma(momentum, v_load_first(mom + i, some), update);
            bad = note_and_store(bad, mom + i, some, update);
        }
        vf next = v_sub(load_decayed(s, w + i, some), update);
        bad = note_and_store(bad, w + i, some, next);
    }
    return v_noted(bad);
}

static uint32_t apply_adam(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                           const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    KEEP_SETTINGS(o, s);
    float *const m = slots[0], *const v = slots[1], *const greatest = slots[2];
    const vf share_1 = v_set1(1.0f - o->beta_1), share_2 = v_set1(1.0f - o->beta_2);
    const vf step = v_set1(s->step_size), root = v_set1(s->root), epsilon = v_set1(o->epsilon);
    const vf l2 = v_set1(s->l2);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        vf g = mean_gradient(o, s, sum + i, w + i, some, &bad);
        if (s->l2 != 0.0f) g = v_fma(l2, v_load_first(w + i, some), g);
        vf mean = moved(v_load_first(m + i, some), share_1, g);
        vf x = moved_to_square(v_load_first(v + i, some), share_2, g);
        bad = note_and_store(bad, m + i, some, mean);
        bad = note_and_store(bad, v + i, some, x);
        if (o->amsgrad) {
            x = v_max(x, v_load_first(greatest + i, some));
            v_store_first(greatest + i, some, x);
        }
        vf update = v_div(v_mul(mean, step), v_fma(root, v_sqrt(x), epsilon));
        vf next = v_sub(load_decayed(s, w + i, some), update);
        bad = note_and_store(bad, w + i, some, next);
    }
    return v_noted(bad);
}

static uint32_t apply_lars(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                           const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    KEEP_SETTINGS(o, s);
    const vf momentum = v_set1(o->momentum), rate = v_set1(s->learning_rate), l2 = v_set1(s->l2);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        const vf before = v_load_first(w + i, some);
        vf g = mean_gradient(o, s, sum + i, w + i, some, &bad);
        if (s->l2 != 0.0f) g = v_fma(l2, before, g);
        const vf step = v_mul(rate, g);
        const vf v = v_fma(momentum, v_load_first(slots[0] + i, some), step);
        bad = note_and_store(bad, slots[0] + i, some, v);
        const vf next = v_sub(before, o->nesterov ? v_fma(momentum, v, step) : v);
        bad = note_and_store(bad, w + i, some, next);
    }
    return v_noted(bad);
}

// The update of lamb, and the means that it makes.
static inline vf lamb_update(const lk_optimizer *o, const lk_step_scalars *s, vf g, vf *m, vf *v) {
    *m = moved(*m, v_set1(1.0f - o->beta_1), g);
    *v = moved_to_square(*v, v_set1(1.0f - o->beta_2), g);
    const vf below = v_fma(v_set1(s->root), v_sqrt(*v), v_set1(o->epsilon));
    return v_div(v_mul(*m, v_set1(s->step_size)), below);
}

static uint32_t apply_lamb(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                           const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    KEEP_SETTINGS(o, s);
    const vf rate = v_set1(-s->learning_rate);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        vf m = v_load_first(slots[0] + i, some), v = v_load_first(slots[1] + i, some);
        const vf g = mean_gradient(o, s, sum + i, w + i, some, &bad);
        const vf u = lamb_update(o, s, g, &m, &v);
        bad = note_and_store(bad, slots[0] + i, some, m);
        bad = note_and_store(bad, slots[1] + i, some, v);
        bad = note_and_store(bad, w + i, some, v_fma(rate, u, load_decayed(s, w + i, some)));
    }
    return v_noted(bad);
}

static uint32_t average(uint64_t count, float keep, const float *w, float *at) {
    const vf kept = v_set1(keep), share = v_set1(1.0f - keep);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        const vf of_w = v_mul(share, v_load_first(w + i, some));
        bad = note_and_store(bad, at + i, some, v_fma(kept, v_load_first(at + i, some), of_w));
    }
    return v_noted(bad);
}

static void turn(uint64_t count, float share, float factor, const float *n, float *g) {
    const vf less = v_set1(-share), by = v_set1(factor);
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        const vf turned = v_fma(less, v_load_first(n + i, some), v_load_first(g + i, some));
        v_store_first(g + i, some, v_mul(turned, by));
    }
}

// --- sums of squares -----------------------------------------------------------------------------
//
// A lane of a vector has a slice, so that V_LANES chains run beside one another: terms are computed
// along the slices, V_LANES of each, and turned round.

typedef struct square_terms {
    float of[2][V_LANES][V_LANES];  // [norm][term][slice]
} square_terms;

static inline void terms_of(lk_norm norm, const lk_optimizer *o, const lk_step_scalars *s,
                            const float *sum, const float *w, float *const *slots, uint64_t i,
                            uint32_t some, vf out[2]) {
    vf ignored = v_zero();
    const vf g = mean_gradient(o, s, sum + i, w + i, some, &ignored);
    out[0] = g;
    if (norm == LK_NORM_LARS) {
        out[0] = v_load_first(w + i, some);
        out[1] = s->l2 != 0.0f ? v_fma(v_set1(s->l2), out[0], g) : g;
    } else if (norm == LK_NORM_LAMB) {
        vf m = v_load_first(slots[0] + i, some), v = v_load_first(slots[1] + i, some);
        out[0] = load_decayed(s, w + i, some);
        out[1] = lamb_update(o, s, g, &m, &v);
    } else if (norm == LK_NORM_SPECTRAL) {
        out[0] = v_load_first(sum + i, some);
        out[1] = v_load_first(w + i, some);
    }
}

// Elements [i, i + V_LANES) of slice `slice` of those that run together.
static inline void turn_terms(square_terms *t, uint32_t norms, uint32_t slice, const vf terms[2]) {
    for (uint32_t k = 0; k < norms; k++) {
        float row[V_LANES];
        v_store(row, terms[k]);
        for (uint32_t e = 0; e < V_LANES; e++) t->of[k][e][slice] = row[e];
    }
}

// Elements that are not there are zeros, which add nothing.
static inline void squares(lk_norm norm, const lk_optimizer *o, const lk_step_scalars *s,
                           uint64_t count, const float *sum, const float *w, float *const *slots,
                           float *out) {
    const uint32_t norms = norm == LK_NORM_GRADIENT ? 1 : 2;
    const uint32_t chains = norm == LK_NORM_SPECTRAL ? 1 : norms;
    const uint64_t slices = (count + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    for (uint64_t first = 0; first < slices; first += V_LANES) {
        const uint32_t together = (uint32_t)LK_MIN(slices - first, (uint64_t)V_LANES);
        square_terms t = {{{{0.0f}}}};
        vf chain[2] = {v_zero(), v_zero()};
        for (uint32_t at = 0; at < LK_SLICE_TERMS; at += V_LANES) {
            for (uint32_t slice = 0; slice < together; slice++) {
                const uint64_t i = (first + slice) * LK_SLICE_TERMS + at;
                vf terms[2] = {v_zero(), v_zero()};
                const uint32_t some =
                    i < count ? (uint32_t)LK_MIN(count - i, (uint64_t)V_LANES) : 0;
                if (some > 0) terms_of(norm, o, s, sum, w, slots, i, some, terms);
                turn_terms(&t, norms, slice, terms);
            }
            for (uint32_t k = 0; k < chains; k++) {
                for (uint32_t e = 0; e < V_LANES; e++) {
                    const vf term = v_load(t.of[k][e]);
                    const vf other = norm == LK_NORM_SPECTRAL ? v_load(t.of[1][e]) : term;
                    chain[k] = v_fma(term, other, chain[k]);
                }
            }
        }
        for (uint32_t slice = 0; slice < together; slice++) {
            float sums[2][V_LANES];
            for (uint32_t k = 0; k < 2; k++) v_store(sums[k], chain[k]);
            for (uint32_t k = 0; k < 2; k++) out[2 * (first + slice) + k] = sums[k][slice];
        }
    }
}

#define SQUARES(NORM, NAME)                                                                        \
    static void NAME(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,              \
                     const float *sum, const float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX], \
                     float *out) {                                                                 \
        squares(NORM, o, s, count, sum, w, slots, out);                                            \
    }
SQUARES(LK_NORM_GRADIENT, squares_of_gradient)
SQUARES(LK_NORM_LARS, squares_of_lars)
SQUARES(LK_NORM_LAMB, squares_of_lamb)
SQUARES(LK_NORM_SPECTRAL, products)
#undef SQUARES
