// optimizer.c - optimizers, one after another: formula, reference, descriptor. Freestanding.
//
// g is the mean gradient, cut to clipvalue; lr is the learning rate of the step, mu, rho, b1, b2,
// epsilon the floats of the configuration. The formulas are those of the framework that the name
// says, in fma form; where a framework has several forms, so has the list.
#include "ops/optimizer.h"

#include "ops/geometry.h"
#include "ops/math.h"
#include "ops/powers.h"

static uint32_t not_finite(float x) { return !(x - x == 0.0f); }

// The mean gradient, with that of the regularizer, cut. What is not finite is seen before that.
// (Boards know no regularizer: `lockstep embed` refuses it.)
static float mean_gradient(const lk_optimizer *o, const lk_step_scalars *s, float sum, float w,
                           uint32_t *bad) {
    float g = (sum + 0.0f) * s->inverse_n;
#ifdef LK_SHORT_FORM_ALONE
    (void)w;
#else
    if (s->regularizer != 0.0f) g = lk_fmaf(s->regularizer, w, g);
#endif
    *bad |= not_finite(g);
    if (o->clipvalue > 0.0f) {
        g = g > o->clipvalue ? o->clipvalue : g;
        g = g < -o->clipvalue ? -o->clipvalue : g;
    }
    return g;
}

// w after its decay, where it has any.
static float decayed(const lk_step_scalars *s, float w) {
    return s->decay != 0.0f ? lk_fmaf(-s->decay, w, w) : w;
}

// --- keys, each said once; those of a type are ascending -----------------------------------------

#define KEY(FIELD, HIGH, BELOW, CONSTANT, MEANING)                                         \
    {                                                                                      \
        .name = #FIELD, .kind = LK_SETTING_FLOAT, .offset = offsetof(lk_optimizer, FIELD), \
        .high = HIGH, .below = BELOW, .float_constant = CONSTANT, .meaning = MEANING       \
    }
#define TRUTH(FIELD, MEANING)                                                             \
    {                                                                                     \
        .name = #FIELD, .kind = LK_SETTING_BOOL, .offset = offsetof(lk_optimizer, FIELD), \
        .constant = false, .meaning = MEANING                                             \
    }
#define ANY 0x1.fffffep+127f
#define CLIPVALUE \
    KEY(clipvalue, ANY, 0.0f, 0.0f, "cuts mean gradients to this size; 0: it does not")
#define CLIPNORM                                                         \
    KEY(clipnorm, ANY, 0.0f, 0.0f,                                       \
        "shortens a parameter's gradient to this norm; 0: it does not"), \
        CLIPVALUE
#define GLOBAL                            \
    KEY(global_clipnorm, ANY, 0.0f, 0.0f, \
        "shortens the gradient of all parameters to this norm; 0: it does not")
#define LEARNING_RATE                                                               \
    {.name = "learning_rate",                                                       \
     .kind = LK_SETTING_FLOAT,                                                      \
     .offset = offsetof(lk_optimizer, learning_rate),                               \
     .required = true,                                                              \
     .low = 0.0f,                                                                   \
     .high = ANY,                                                                   \
     .meaning = "what a gradient is multiplied with"},                              \
    {                                                                               \
        .name = "learning_rate_schedule", .kind = LK_SETTING_RATE, .field = "rate", \
        .offset = offsetof(lk_optimizer, rate), .chosen = "constant",               \
        .meaning = "how it changes: a type and the keys of that type"               \
    }
#define MOMENTUM(CONSTANT) \
    KEY(momentum, 1.0f, 1.0f, CONSTANT, "what is kept of the slot in each step")
#define NESTEROV TRUTH(nesterov, "looks one step of the slot ahead")
#define RHO      KEY(rho, 1.0f, 1.0f, 0.9f, "what is kept of the mean of squares in each step")
#define EPSILON(CONSTANT, MEANING)                                                              \
    {                                                                                           \
        .name = "epsilon", .kind = LK_SETTING_FLOAT, .offset = offsetof(lk_optimizer, epsilon), \
        .low = 0x1p-126f, .high = ANY, .float_constant = CONSTANT, .meaning = MEANING           \
    }
#define BETAS                                                                            \
    KEY(beta_1, 1.0f, 1.0f, 0.9f, "what is kept of the mean of gradients in each step"), \
        KEY(beta_2, 1.0f, 1.0f, 0.999f, "what is kept of the mean of squares in each step")
#define AMSGRAD                  TRUTH(amsgrad, "divides by the greatest mean of squares so far")
#define CENTERED                 TRUTH(centered, "divides by the deviation")
#define AVERAGE                                                                                 \
    KEY(weight_average, 1.0f, 1.0f, 0.0f,                                                       \
        "what averages of weights keep of themselves in each step; evaluation takes them; 0: none")
#define DECAY(CONSTANT, MEANING) AVERAGE, KEY(weight_decay, ANY, 0.0f, CONSTANT, MEANING)
#define BESIDE                   "w loses learning_rate times so much of itself before each update"

#define WORDS(NAME, MEANING)                                                                  \
    static const lk_optimizer_words words_##NAME = {&lk_optimizer_##NAME, #NAME, NAME##_keys, \
                                                    LK_COUNT(NAME##_keys), MEANING}

// A key that a configuration refuses by its table, for who builds a run in C.
static lk_status check_share(const char *name, float value, lk_error *error) {
    if (value >= 0.0f && value < 1.0f) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "optimizer.%s: found a number outside 0 <= %s < 1", name,
                   name);
}

// Weight decay beside the gradient, as Keras and AdamW have it.
static void set_decay(const lk_optimizer *o, lk_step_scalars *s) {
    s->decay = o->weight_decay * s->learning_rate;
}

// --- sgd                  w = fma(-lr, g, w)
static uint32_t apply_sgd(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                          const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    (void)slots;
    for (uint64_t i = 0; i < count; i++) {
        const float g = mean_gradient(o, s, sum[i], w[i], &bad);
        w[i] = lk_fmaf(-s->learning_rate, g, w[i]);
        bad |= not_finite(w[i]);
    }
    return bad;
}

const lk_optimizer_type lk_optimizer_sgd = {.number = LK_OPTIMIZER_SGD, .reference = apply_sgd};
static const lk_setting sgd_keys[] = {CLIPNORM, GLOBAL, LEARNING_RATE, AVERAGE};
WORDS(sgd, "gradient descent");

// --- momentum             a = fma(mu, a, g);                      w = fma(-lr, a, w)
//     momentum, nesterov   a = fma(mu, a, g);  u = fma(mu, a, g);  w = fma(-lr, u, w)
// (TF writes the last as w -= g*lr + a*mu*lr.) The slot a starts at +0 and is stored as it is.
static uint32_t apply_momentum(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                               const float *sum, float *w,
                               float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float g = mean_gradient(o, s, sum[i], w[i], &bad);
        const float a = lk_fmaf(o->momentum, slots[0][i], g);
        const float update = o->nesterov ? lk_fmaf(o->momentum, a, g) : a;
        slots[0][i] = a;
        w[i] = lk_fmaf(-s->learning_rate, update, w[i]);
        bad |= not_finite(a) | not_finite(w[i]);
    }
    return bad;
}

static uint32_t list_momentum_slots(const lk_optimizer *o, lk_slot out[LK_OPTIMIZER_SLOTS_MAX]) {
    (void)o;
    out[0] = (lk_slot){.name = "momentum"};
    return 1;
}

static lk_status check_momentum(const lk_optimizer *o, lk_error *error) {
    return check_share("momentum", o->momentum, error);
}

const lk_optimizer_type lk_optimizer_momentum = {.number = LK_OPTIMIZER_MOMENTUM,
                                                 .reference = apply_momentum,
                                                 .list_slots = list_momentum_slots,
                                                 .check = check_momentum};
static const lk_setting momentum_keys[] = {CLIPNORM,       GLOBAL,   LEARNING_RATE,
                                           MOMENTUM(0.9f), NESTEROV, AVERAGE};
WORDS(momentum, "TensorFlow 1's, with its Nesterov form; PyTorch's SGD with momentum");

// --- momentum_keras             m = fma(mu, m, -(lr * g));  w = w + m
//     momentum_keras, nesterov   the same m;                 w = w + fma(mu, m, -(lr * g))
// The learning rate is in the slot m, so that it differs from `momentum` where the rate changes.
static uint32_t apply_momentum_keras(const lk_optimizer *o, const lk_step_scalars *s,
                                     uint64_t count, const float *sum, float *w,
                                     float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float g = mean_gradient(o, s, sum[i], w[i], &bad), step = s->learning_rate * g;
        const float m = lk_fmaf(o->momentum, slots[0][i], -step);
        const float update = o->nesterov ? lk_fmaf(o->momentum, m, -step) : m;
        slots[0][i] = m;
        w[i] = decayed(s, w[i]) + update;
        bad |= not_finite(m) | not_finite(w[i]);
    }
    return bad;
}

const lk_optimizer_type lk_optimizer_momentum_keras = {.number = LK_OPTIMIZER_MOMENTUM_KERAS,
                                                       .reference = apply_momentum_keras,
                                                       .list_slots = list_momentum_slots,
                                                       .set_scalars = set_decay,
                                                       .check = check_momentum};
static const lk_setting momentum_keras_keys[] = {CLIPNORM,       GLOBAL,   LEARNING_RATE,
                                                 MOMENTUM(0.9f), NESTEROV, DECAY(0.0f, BESIDE)};
WORDS(momentum_keras, "Keras' SGD with momentum: the learning rate is in the slot");

// --- rmsprop_tf1, rmsprop_keras
//                 ms = fma(1 - rho, fma(g, g, -ms), ms)      (TF1: ms starts at 1; Keras: at +0)
//     centered    mg = fma(1 - rho, g - mg, mg);  d = fma(-mg, mg, ms), +0 where that is not above
//     0 else        d = ms
//                 u = (lr * g) / sqrt(d + epsilon)
//     momentum    mom = fma(mu, mom, u);  w = w - mom;        without it: w = w - u
static uint32_t apply_rmsprop(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                              const float *sum, float *w,
                              float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    float *const ms = slots[0], *const mg = slots[1], *const mom = slots[o->centered ? 2 : 1];
    const float rest = 1.0f - o->rho;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float g = mean_gradient(o, s, sum[i], w[i], &bad);
        ms[i] = lk_fmaf(rest, lk_fmaf(g, g, -ms[i]), ms[i]);
        float d = ms[i];
        if (o->centered) {
            mg[i] = lk_fmaf(rest, g - mg[i], mg[i]);
            d = lk_fmaf(-mg[i], mg[i], ms[i]);
            d = d > 0.0f ? d : 0.0f;
            bad |= not_finite(mg[i]);
        }
        float update = (s->learning_rate * g) / lk_sqrtf(d + o->epsilon);
        if (o->momentum > 0.0f) update = mom[i] = lk_fmaf(o->momentum, mom[i], update);
        w[i] = decayed(s, w[i]) - update;
        bad |= not_finite(ms[i]) | not_finite(update) | not_finite(w[i]);
    }
    return bad;
}

static uint32_t list_rmsprop_slots(const lk_optimizer *o, lk_slot out[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t count = 0;
    out[count++] = (lk_slot){"mean_square", o->type == &lk_optimizer_rmsprop_tf1 ? 1.0f : 0.0f};
    if (o->centered) out[count++] = (lk_slot){.name = "mean_gradient"};
    if (o->momentum > 0.0f) out[count++] = (lk_slot){.name = "momentum"};
    return count;
}

static lk_status check_epsilon(const lk_optimizer *o, lk_error *error) {
    if (o->epsilon >= 0x1p-126f && o->epsilon - o->epsilon == 0.0f) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "optimizer.epsilon: found a number below 2^-126, or none, wanted one above it");
}

static lk_status check_rmsprop(const lk_optimizer *o, lk_error *error) {
    LK_CHECK(check_share("momentum", o->momentum, error));
    LK_CHECK(check_share("rho", o->rho, error));
    return check_epsilon(o, error);
}

const lk_optimizer_type lk_optimizer_rmsprop_tf1 = {.number = LK_OPTIMIZER_RMSPROP_TF1,
                                                    .reference = apply_rmsprop,
                                                    .list_slots = list_rmsprop_slots,
                                                    .check = check_rmsprop};
const lk_optimizer_type lk_optimizer_rmsprop_keras = {.number = LK_OPTIMIZER_RMSPROP_KERAS,
                                                      .reference = apply_rmsprop,
                                                      .list_slots = list_rmsprop_slots,
                                                      .set_scalars = set_decay,
                                                      .check = check_rmsprop};
static const lk_setting rmsprop_tf1_keys[] = {
    CENTERED, CLIPNORM,      EPSILON(1e-10f, "is added to the mean of squares, inside the root"),
    GLOBAL,   LEARNING_RATE, MOMENTUM(0.0f),
    RHO,      AVERAGE};
static const lk_setting rmsprop_keras_keys[] = {
    CENTERED,
    CLIPNORM,
    EPSILON(1e-7f, "is added to the mean of squares, inside the root"),
    GLOBAL,
    LEARNING_RATE,
    MOMENTUM(0.0f),
    RHO,
    DECAY(0.0f, BESIDE)};
WORDS(rmsprop_tf1, "TensorFlow 1's: the mean of squares starts at 1");
WORDS(rmsprop_keras, "Keras': the mean of squares starts at 0");

// --- adam_tf1, adam_keras, adam_torch, adamw_torch, with t + 1 updates when this one is done
//                 p1 = b1^(t + 1);  p2 = b2^(t + 1)
//     tf1, keras  step = (lr * sqrt(1 - p2)) / (1 - p1);  root = 1
//     torch       step = lr / (1 - p1);                   root = 1 / sqrt(1 - p2)
//     l2 (adam_torch with weight_decay)                   g = fma(weight_decay, w, g)
//                 m = fma(1 - b1, g - m, m);  v = fma(1 - b2, fma(g, g, -v), v);  x = v
//     amsgrad     x = the greater of v and the slot that keeps it
//                 w = w - (m * step) / fma(root, sqrt(x), epsilon)
static uint32_t apply_adam(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                           const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    float *const m = slots[0], *const v = slots[1], *const greatest = slots[2];
    const float rest_1 = 1.0f - o->beta_1, rest_2 = 1.0f - o->beta_2;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = mean_gradient(o, s, sum[i], w[i], &bad);
        if (s->l2 != 0.0f) g = lk_fmaf(s->l2, w[i], g);
        m[i] = lk_fmaf(rest_1, g - m[i], m[i]);
        v[i] = lk_fmaf(rest_2, lk_fmaf(g, g, -v[i]), v[i]);
        float x = v[i];
        if (o->amsgrad) x = greatest[i] = x > greatest[i] ? x : greatest[i];
        w[i] = decayed(s, w[i]) - (m[i] * s->step_size) / lk_fmaf(s->root, lk_sqrtf(x), o->epsilon);
        bad |= not_finite(m[i]) | not_finite(v[i]) | not_finite(w[i]);
    }
    return bad;
}

static uint32_t list_adam_slots(const lk_optimizer *o, lk_slot out[LK_OPTIMIZER_SLOTS_MAX]) {
    out[0] = (lk_slot){.name = "m"};
    out[1] = (lk_slot){.name = "v"};
    if (o->amsgrad) out[2] = (lk_slot){.name = "v_max"};
    return o->amsgrad ? 3 : 2;
}

static void set_adam(const lk_optimizer *o, lk_step_scalars *s) {
    const float p1 = lk_power(o->beta_1, s->t + 1), p2 = lk_power(o->beta_2, s->t + 1);
    s->step_size = (s->learning_rate * lk_sqrtf(1.0f - p2)) / (1.0f - p1);
    s->root = 1.0f;
    set_decay(o, s);
}

static void set_adamw_torch(const lk_optimizer *o, lk_step_scalars *s) {
    const float p1 = lk_power(o->beta_1, s->t + 1), p2 = lk_power(o->beta_2, s->t + 1);
    s->step_size = s->learning_rate / (1.0f - p1);
    s->root = 1.0f / lk_sqrtf(1.0f - p2);
    set_decay(o, s);
}

static void set_adam_torch(const lk_optimizer *o, lk_step_scalars *s) {
    set_adamw_torch(o, s);
    s->decay = 0.0f;
    s->l2 = o->weight_decay;
}

static lk_status check_adam(const lk_optimizer *o, lk_error *error) {
    LK_CHECK(check_share("beta_1", o->beta_1, error));
    LK_CHECK(check_share("beta_2", o->beta_2, error));
    return check_epsilon(o, error);
}

#define ADAM(NUMBER, NAME, SCALARS)                                                 \
    const lk_optimizer_type lk_optimizer_##NAME = {.number = LK_OPTIMIZER_##NUMBER, \
                                                   .reference = apply_adam,         \
                                                   .list_slots = list_adam_slots,   \
                                                   .set_scalars = SCALARS,          \
                                                   .check = check_adam}
#define OUTSIDE "is added to the root before anything is divided by it"
ADAM(ADAM_TF1, adam_tf1, set_adam);
ADAM(ADAM_KERAS, adam_keras, set_adam);
ADAM(ADAM_TORCH, adam_torch, set_adam_torch);
ADAM(ADAMW_TORCH, adamw_torch, set_adamw_torch);
static const lk_setting adam_tf1_keys[] = {BETAS,  CLIPNORM,      EPSILON(1e-8f, OUTSIDE),
                                           GLOBAL, LEARNING_RATE, AVERAGE};
static const lk_setting adam_keras_keys[] = {
    AMSGRAD, BETAS, CLIPNORM, EPSILON(1e-7f, OUTSIDE), GLOBAL, LEARNING_RATE, DECAY(0.0f, BESIDE)};
static const lk_setting adam_torch_keys[] = {
    AMSGRAD,
    BETAS,
    CLIPNORM,
    EPSILON(1e-8f, "is added to the root after its bias is corrected"),
    GLOBAL,
    LEARNING_RATE,
    DECAY(0.0f, "so much of w is added to its gradient (L2)")};
static const lk_setting adamw_torch_keys[] = {
    AMSGRAD,
    BETAS,
    CLIPNORM,
    EPSILON(1e-8f, "is added to the root after its bias is corrected"),
    GLOBAL,
    LEARNING_RATE,
    DECAY(0.01f, BESIDE)};
WORDS(adam_tf1, "TensorFlow 1's: its epsilon is the paper's epsilon hat");
WORDS(adam_keras, "Keras': epsilon as in TensorFlow 1; with weight_decay its AdamW");
WORDS(adam_torch, "PyTorch's: epsilon after the bias corrections");
WORDS(adamw_torch, "PyTorch's AdamW: adam_torch with the decay beside the gradient");

// --- lars_tf        g = fma(weight_decay, w, g)
//                     r = (eta * |w|) / |g| where both are above 0, else 1;  rate = lr * r
//                     v = fma(mu, v, rate * g);  w = w - v
//     nesterov        the same v;                w = w - fma(mu, v, rate * g)
// The norms are of the whole parameter; `learning_rate` comes as `rate` (lk_optimizer_fit).
static uint32_t apply_lars(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                           const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = mean_gradient(o, s, sum[i], w[i], &bad);
        if (s->l2 != 0.0f) g = lk_fmaf(s->l2, w[i], g);
        const float step = s->learning_rate * g;
        const float v = lk_fmaf(o->momentum, slots[0][i], step);
        slots[0][i] = v;
        w[i] = w[i] - (o->nesterov ? lk_fmaf(o->momentum, v, step) : v);
        bad |= not_finite(v) | not_finite(w[i]);
    }
    return bad;
}

static void set_lars(const lk_optimizer *o, lk_step_scalars *s) { s->l2 = o->weight_decay; }

const lk_optimizer_type lk_optimizer_lars_tf = {.number = LK_OPTIMIZER_LARS_TF,
                                                .reference = apply_lars,
                                                .norm = LK_NORM_LARS,
                                                .list_slots = list_momentum_slots,
                                                .set_scalars = set_lars,
                                                .check = check_momentum};
static const lk_setting lars_tf_keys[] = {
    CLIPVALUE,
    KEY(eta, ANY, 0.0f, 0.001f, "the length of an update as a share of the parameter's"),
    LEARNING_RATE,
    MOMENTUM(0.9f),
    NESTEROV,
    DECAY(0.0f, "so much of w is added to its gradient (L2)")};
WORDS(lars_tf, "LARS as TensorFlow's models have it: the rate of a parameter follows its norms");

// --- lamb_keras     m, v as of adam;  step = 1 / (1 - p1);  root = 1 / sqrt(1 - p2)
//                    u = (m * step) / fma(root, sqrt(v), epsilon)
//                    r = |w| / |u| where both are above 0, else 1;  rate = lr * r
//                    w = fma(-rate, u, w)
// w is that after its decay, in the norm too.
static float lamb_update(const lk_optimizer *o, const lk_step_scalars *s, float g, float *m,
                         float *v) {
    *m = lk_fmaf(1.0f - o->beta_1, g - *m, *m);
    *v = lk_fmaf(1.0f - o->beta_2, lk_fmaf(g, g, -*v), *v);
    return (*m * s->step_size) / lk_fmaf(s->root, lk_sqrtf(*v), o->epsilon);
}

static uint32_t apply_lamb(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                           const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float g = mean_gradient(o, s, sum[i], w[i], &bad);
        const float u = lamb_update(o, s, g, &slots[0][i], &slots[1][i]);
        w[i] = lk_fmaf(-s->learning_rate, u, decayed(s, w[i]));
        bad |= not_finite(slots[0][i]) | not_finite(slots[1][i]) | not_finite(w[i]);
    }
    return bad;
}

static void set_lamb(const lk_optimizer *o, lk_step_scalars *s) {
    set_adamw_torch(o, s);
    s->step_size = 1.0f / (1.0f - lk_power(o->beta_1, s->t + 1));
}

const lk_optimizer_type lk_optimizer_lamb_keras = {.number = LK_OPTIMIZER_LAMB_KERAS,
                                                   .reference = apply_lamb,
                                                   .norm = LK_NORM_LAMB,
                                                   .list_slots = list_adam_slots,
                                                   .set_scalars = set_lamb,
                                                   .check = check_adam};
static const lk_setting lamb_keras_keys[] = {
    BETAS, CLIPVALUE, EPSILON(1e-7f, "is added to the root after its bias is corrected"),
    LEARNING_RATE, DECAY(0.0f, BESIDE)};
WORDS(lamb_keras, "LAMB as Keras has it: Adam whose rate of a parameter follows its norms");

// --- norms ---------------------------------------------------------------------------------------

// What is squared of element i: of each norm of its kind.
static void terms_of(lk_norm norm, const lk_optimizer *o, const lk_step_scalars *s, float sum,
                     float w, float *const *slots, uint64_t i, float out[2]) {
    uint32_t ignored = 0;
    const float g = mean_gradient(o, s, sum, w, &ignored);
    out[0] = norm == LK_NORM_GRADIENT ? g : norm == LK_NORM_LARS ? w : decayed(s, w);
    out[1] = 0.0f;
    if (norm == LK_NORM_LARS) out[1] = s->l2 != 0.0f ? lk_fmaf(s->l2, w, g) : g;
    if (norm != LK_NORM_LAMB) return;
    float m = slots[0][i], v = slots[1][i];
    out[1] = lamb_update(o, s, g, &m, &v);
}

static void squares(lk_norm norm, const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                    const float *sum, const float *w, float *const *slots, float *out) {
    for (uint64_t first = 0; first < count; first += LK_SLICE_TERMS, out += 2) {
        const uint64_t end = LK_MIN(first + LK_SLICE_TERMS, count);
        out[0] = out[1] = 0.0f;
        for (uint64_t i = first; i < end; i++) {
            float term[2];
            terms_of(norm, o, s, sum[i], w[i], slots, i, term);
            for (uint32_t k = 0; k < 2; k++) out[k] = lk_fmaf(term[k], term[k], out[k]);
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

static void products(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                     const float *sum, const float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX],
                     float *out) {
    (void)o, (void)s, (void)slots;
    for (uint64_t first = 0; first < count; first += LK_SLICE_TERMS, out += 2) {
        const uint64_t end = LK_MIN(first + LK_SLICE_TERMS, count);
        out[0] = out[1] = 0.0f;
        for (uint64_t i = first; i < end; i++) out[0] = lk_fmaf(sum[i], w[i], out[0]);
    }
}

const lk_squares lk_squares_reference[LK_NORMS] = {
    [LK_NORM_GRADIENT] = squares_of_gradient,
    [LK_NORM_LARS] = squares_of_lars,
    [LK_NORM_LAMB] = squares_of_lamb,
    [LK_NORM_SPECTRAL] = products,
};

uint32_t lk_optimizer_fit(const lk_optimizer *o, const float squares_of[2], float all,
                          lk_step_scalars *s) {
    const float sum = o->global_clipnorm > 0.0f ? all : squares_of[0];
    const float first = lk_sqrtf(sum), second = lk_sqrtf(squares_of[1]);
    const lk_norm norm = lk_optimizer_norm(o);
    if (norm == LK_NORM_GRADIENT) {
        const float most = o->global_clipnorm > 0.0f ? o->global_clipnorm : o->clipnorm;
        const float share = most / (first > most ? first : most);
        s->inverse_n = s->inverse_n * share;
        s->regularizer = s->regularizer * share;
    } else if (first > 0.0f && second > 0.0f) {
        const float length = norm == LK_NORM_LARS ? o->eta * first : first;
        s->learning_rate = s->learning_rate * (length / second);
    }
    return not_finite(first) | not_finite(second) | not_finite(s->learning_rate);
}

// --- step scalars --------------------------------------------------------------------------------

lk_step_scalars lk_optimizer_scalars(const lk_optimizer *o, uint64_t s, uint64_t t,
                                     float inverse_n) {
    lk_step_scalars scalars = {.s = s,
                               .t = t,
                               .learning_rate = lk_rate_at(&o->rate, o->learning_rate, t),
                               .inverse_n = inverse_n,
                               .average = t > 0 ? o->weight_average : 0.0f};
    if (o->type->set_scalars) o->type->set_scalars(o, &scalars);
    return scalars;
}

// --- the list ------------------------------------------------------------------------------------

const lk_optimizer_words *lk_optimizer_words_at(uint32_t number) {
    static const lk_optimizer_words *const all[] = {
#define LK_OPTIMIZER_ENTRY(NUMBER, name) &words_##name,
        LK_OPTIMIZER_LIST(LK_OPTIMIZER_ENTRY)
#undef LK_OPTIMIZER_ENTRY
    };
    return number < LK_COUNT(all) ? all[number] : NULL;
}

const lk_optimizer_words *lk_optimizer_words_of(const lk_optimizer_type *type) {
    const lk_optimizer_words *words;
    for (uint32_t i = 0; (words = lk_optimizer_words_at(i)) != NULL; i++) {
        if (words->type == type) return words;
    }
    lk_panic(__FILE__, __LINE__, "an optimizer that is not in the list");
}
