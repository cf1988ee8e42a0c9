// apply.inc.h - the updates of all optimizers, a vector at a time, as ops/optimizer.c has them.
// Included by misc.inc.h.

// What an update is made of. The settings are copies: what is stored are floats, after which the
// compiler would read every float behind a pointer anew.
typedef struct apply_call {
    lk_optimizer o;
    lk_step_scalars s;
    const float *sum;
    float *w;
    float *slots[LK_OPTIMIZER_SLOTS_MAX];
} apply_call;

// An optimizer's formula for the elements i .. i + some - 1, at most a vector of them; returns what
// v_note has of them, from v_zero() on: a sum over all vectors would wait for each vector's notes.
// plain: without regularizer, cut, decay, L2 and amsgrad.
typedef vf (*apply_vector)(const apply_call *c, uint64_t i, uint32_t some, const bool plain);

V_INLINE uint32_t apply_all(const apply_vector one, const apply_call *c, uint64_t count,
                            const bool plain) {
    vf bad = v_zero();
    uint64_t i = 0;
    for (; i + V_LANES <= count; i += V_LANES) bad = v_add(one(c, i, V_LANES, plain), bad);
    if (i < count) bad = v_add(one(c, i, (uint32_t)(count - i), plain), bad);
    return v_noted(bad);
}

V_INLINE uint32_t apply_by(const apply_vector one, const lk_optimizer *o,
                           const lk_step_scalars *s, uint64_t count, const float *sum, float *w,
                           float *const *slots) {
    apply_call c = {.o = *o, .s = *s, .sum = sum, .w = w};
    for (int i = 0; i < LK_OPTIMIZER_SLOTS_MAX; i++) c.slots[i] = slots[i];
    const bool more = o->clipvalue > 0.0f || o->amsgrad || s->regularizer != 0.0f ||
                      s->decay != 0.0f || s->l2 != 0.0f;
    return more ? apply_all(one, &c, count, false) : apply_all(one, &c, count, true);
}

// A vector of mean gradients, with those of the regularizer of w, cut.
static inline vf mean_gradient(const lk_optimizer *o, const lk_step_scalars *s, const float *sum,
                               const float *w, uint32_t some, const bool plain, vf *bad) {
    vf g = v_mul(v_add(v_load_first(sum, some), v_zero()), v_set1(s->inverse_n));
    if (!plain && s->regularizer != 0.0f) {
        g = v_fma(v_set1(s->regularizer), v_load_first(w, some), g);
    }
    *bad = v_note(*bad, g);
    if (!plain && o->clipvalue > 0.0f) {
        const vf most = v_set1(o->clipvalue), least = v_set1(-o->clipvalue);
        g = v_select(v_gt(g, most), most, g);
        g = v_select(v_gt(least, g), least, g);
    }
    return g;
}

V_INLINE vf gradient_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain,
                            vf *bad) {
    return mean_gradient(&c->o, &c->s, c->sum + i, c->w + i, some, plain, bad);
}

static inline vf load_decayed(const lk_step_scalars *s, const float *w, uint32_t some,
                              const bool plain) {
    const vf value = v_load_first(w, some);
    return !plain && s->decay != 0.0f ? v_fma(v_set1(-s->decay), value, value) : value;
}

static inline vf note_and_store(vf bad, float *to, uint32_t some, vf value) {
    v_store_first(to, some, value);
    return v_note(bad, value);
}

V_INLINE vf sgd_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain) {
    float *w = c->w + i;
    vf bad = v_zero();
    const vf g = gradient_vector(c, i, some, plain, &bad);
    const vf next = v_fma(v_set1(-c->s.learning_rate), g, v_load_first(w, some));
    return note_and_store(bad, w, some, next);
}

V_INLINE vf momentum_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain) {
    const vf momentum = v_set1(c->o.momentum), rate = v_set1(-c->s.learning_rate);
    float *w = c->w + i, *slot = c->slots[0] + i;
    vf bad = v_zero();
    const vf g = gradient_vector(c, i, some, plain, &bad);
    const vf a = v_fma(momentum, v_load_first(slot, some), g);
    bad = note_and_store(bad, slot, some, a);
    const vf step = c->o.nesterov ? v_fma(momentum, a, g) : a;
    return note_and_store(bad, w, some, v_fma(rate, step, v_load_first(w, some)));
}

V_INLINE vf keras_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain) {
    const vf momentum = v_set1(c->o.momentum), rate = v_set1(-c->s.learning_rate);
    float *w = c->w + i, *slot = c->slots[0] + i;
    vf bad = v_zero();
    const vf step = v_mul(rate, gradient_vector(c, i, some, plain, &bad));
    const vf m = v_fma(momentum, v_load_first(slot, some), step);
    bad = note_and_store(bad, slot, some, m);
    const vf next =
        v_add(load_decayed(&c->s, w, some, plain), c->o.nesterov ? v_fma(momentum, m, step) : m);
    return note_and_store(bad, w, some, next);
}

// mean + share * (what - mean)
static inline vf moved(vf mean, vf share, vf what) { return v_fma(share, v_sub(what, mean), mean); }

// .. where `what` is the square of g.
static inline vf moved_to_square(vf mean, vf share, vf g) {
    return v_fma(share, v_fma(g, g, v_sub(v_set1(-0.0f), mean)), mean);
}

V_INLINE vf rmsprop_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain) {
    const lk_optimizer *o = &c->o;
    const vf share = v_set1(1.0f - o->rho), rate = v_set1(c->s.learning_rate);
    float *ms = c->slots[0] + i, *w = c->w + i;
    vf bad = v_zero();
    const vf g = gradient_vector(c, i, some, plain, &bad);
    vf d = moved_to_square(v_load_first(ms, some), share, g);
    bad = note_and_store(bad, ms, some, d);
    if (o->centered) {
        float *mg = c->slots[1] + i;
        const vf mean = moved(v_load_first(mg, some), share, g);
        bad = note_and_store(bad, mg, some, mean);
        d = v_relu(v_fma(v_sub(v_set1(-0.0f), mean), mean, d));
    }
    vf step = v_div(v_mul(rate, g), v_sqrt(v_add(d, v_set1(o->epsilon))));
    bad = v_note(bad, step);
    if (o->momentum > 0.0f) {
        float *mom = c->slots[o->centered ? 2 : 1] + i;
        step = v_fma(v_set1(o->momentum), v_load_first(mom, some), step);
        bad = note_and_store(bad, mom, some, step);
    }
    return note_and_store(bad, w, some, v_sub(load_decayed(&c->s, w, some, plain), step));
}

V_INLINE vf adam_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain) {
    const lk_optimizer *o = &c->o;
    const lk_step_scalars *s = &c->s;
    float *m = c->slots[0] + i, *v = c->slots[1] + i, *w = c->w + i;
    vf bad = v_zero();
    vf g = gradient_vector(c, i, some, plain, &bad);
    if (!plain && s->l2 != 0.0f) g = v_fma(v_set1(s->l2), v_load_first(w, some), g);
    const vf mean = moved(v_load_first(m, some), v_set1(1.0f - o->beta_1), g);
    vf x = moved_to_square(v_load_first(v, some), v_set1(1.0f - o->beta_2), g);
    bad = note_and_store(bad, m, some, mean);
    bad = note_and_store(bad, v, some, x);
    if (!plain && o->amsgrad) {
        float *greatest = c->slots[2] + i;
        x = v_max(x, v_load_first(greatest, some));
        v_store_first(greatest, some, x);
    }
    const vf below = v_fma(v_set1(s->root), v_sqrt(x), v_set1(o->epsilon));
    const vf step = v_div(v_mul(mean, v_set1(s->step_size)), below);
    return note_and_store(bad, w, some, v_sub(load_decayed(s, w, some, plain), step));
}

V_INLINE vf lars_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain) {
    float *w = c->w + i, *slot = c->slots[0] + i;
    const vf momentum = v_set1(c->o.momentum), before = v_load_first(w, some);
    vf bad = v_zero();
    vf g = gradient_vector(c, i, some, plain, &bad);
    if (!plain && c->s.l2 != 0.0f) g = v_fma(v_set1(c->s.l2), before, g);
    const vf step = v_mul(v_set1(c->s.learning_rate), g);
    const vf v = v_fma(momentum, v_load_first(slot, some), step);
    bad = note_and_store(bad, slot, some, v);
    const vf next = v_sub(before, c->o.nesterov ? v_fma(momentum, v, step) : v);
    return note_and_store(bad, w, some, next);
}

// The update of lamb, and the means that it makes.
static inline vf lamb_update(const lk_optimizer *o, const lk_step_scalars *s, vf g, vf *m, vf *v) {
    *m = moved(*m, v_set1(1.0f - o->beta_1), g);
    *v = moved_to_square(*v, v_set1(1.0f - o->beta_2), g);
    const vf below = v_fma(v_set1(s->root), v_sqrt(*v), v_set1(o->epsilon));
    return v_div(v_mul(*m, v_set1(s->step_size)), below);
}

V_INLINE vf lamb_vector(const apply_call *c, uint64_t i, uint32_t some, const bool plain) {
    float *w = c->w + i;
    vf m = v_load_first(c->slots[0] + i, some), v = v_load_first(c->slots[1] + i, some);
    vf bad = v_zero();
    const vf g = gradient_vector(c, i, some, plain, &bad);
    const vf step = lamb_update(&c->o, &c->s, g, &m, &v);
    bad = note_and_store(bad, c->slots[0] + i, some, m);
    bad = note_and_store(bad, c->slots[1] + i, some, v);
    const vf rate = v_set1(-c->s.learning_rate);
    return note_and_store(bad, w, some, v_fma(rate, step, load_decayed(&c->s, w, some, plain)));
}

#define APPLY(NAME, ONE)                                                                  \
    static uint32_t NAME(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count, \
                         const float *sum, float *w,                                      \
                         float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {                    \
        return apply_by(ONE, o, s, count, sum, w, slots);                                 \
    }
APPLY(apply_sgd, sgd_vector)
APPLY(apply_momentum, momentum_vector)
APPLY(apply_momentum_keras, keras_vector)
APPLY(apply_rmsprop, rmsprop_vector)
APPLY(apply_adam, adam_vector)
APPLY(apply_lars, lars_vector)
APPLY(apply_lamb, lamb_vector)
#undef APPLY

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
    const vf g = mean_gradient(o, s, sum + i, w + i, some, false, &ignored);
    out[0] = g;
    if (norm == LK_NORM_LARS) {
        out[0] = v_load_first(w + i, some);
        out[1] = s->l2 != 0.0f ? v_fma(v_set1(s->l2), out[0], g) : g;
    } else if (norm == LK_NORM_LAMB) {
        vf m = v_load_first(slots[0] + i, some), v = v_load_first(slots[1] + i, some);
        out[0] = load_decayed(s, w + i, some, false);
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
