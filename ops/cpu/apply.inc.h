// apply.inc.h - the updates of all optimizers, a vector at a time, as ops/optimizer.c has them.
// Included by misc.inc.h.

// The mean gradients of a vector of sums, cut.
static inline vf mean_gradient(const lk_optimizer *o, const lk_step_scalars *s, const float *sum,
                               uint32_t rest, vf *bad) {
    const vf most = v_set1(o->clipvalue), least = v_set1(-o->clipvalue);
    vf g = v_mul(v_add(v_load_first(sum, rest), v_zero()), v_set1(s->inverse_n));
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
    const vf rate = v_set1(-s->learning_rate);
    vf bad = v_zero();
    (void)slots;
    EACH_VECTOR(count) {
        vf g = mean_gradient(o, s, sum + i, (uint32_t)rest, &bad);
        vf next = v_fma(rate, g, v_load_first(w + i, (uint32_t)rest));
        bad = note_and_store(bad, w + i, (uint32_t)rest, next);
    }
    return v_noted(bad);
}

static uint32_t apply_momentum(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                               const float *sum, float *w,
                               float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    const vf momentum = v_set1(o->momentum), rate = v_set1(-s->learning_rate);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        vf g = mean_gradient(o, s, sum + i, (uint32_t)rest, &bad);
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
    const vf momentum = v_set1(o->momentum), rate = v_set1(-s->learning_rate);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        vf step = v_mul(rate, mean_gradient(o, s, sum + i, (uint32_t)rest, &bad));
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
    float *const ms = slots[0], *const mg = slots[1], *const mom = slots[o->centered ? 2 : 1];
    const vf share = v_set1(1.0f - o->rho), momentum = v_set1(o->momentum);
    const vf rate = v_set1(s->learning_rate), epsilon = v_set1(o->epsilon);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        vf g = mean_gradient(o, s, sum + i, some, &bad);
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
    float *const m = slots[0], *const v = slots[1], *const greatest = slots[2];
    const vf share_1 = v_set1(1.0f - o->beta_1), share_2 = v_set1(1.0f - o->beta_2);
    const vf step = v_set1(s->step_size), root = v_set1(s->root), epsilon = v_set1(o->epsilon);
    const vf l2 = v_set1(s->l2);
    vf bad = v_zero();
    EACH_VECTOR(count) {
        const uint32_t some = (uint32_t)rest;
        vf g = mean_gradient(o, s, sum + i, some, &bad);
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
