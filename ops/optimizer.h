// optimizer.h - optimizers as descriptors: which slots they keep, how an update changes a
// parameter, what they are called. Freestanding. To add one: its functions and descriptor in
// ops/optimizer.c, a line of the list, its formula in ARITHMETIC.md.
#ifndef LOCKSTEP_OPS_OPTIMIZER_H
#define LOCKSTEP_OPS_OPTIMIZER_H

#include "ops/rate.h"

enum { LK_OPTIMIZER_SLOTS_MAX = 4 };

// Every optimizer: the end of its number's name, and of its descriptor's.
#define LK_OPTIMIZER_LIST(X)          \
    X(SGD, sgd)                       \
    X(MOMENTUM, momentum)             \
    X(MOMENTUM_KERAS, momentum_keras) \
    X(RMSPROP_TF1, rmsprop_tf1)       \
    X(RMSPROP_KERAS, rmsprop_keras)   \
    X(ADAM_TF1, adam_tf1)             \
    X(ADAM_KERAS, adam_keras)         \
    X(ADAM_TORCH, adam_torch)         \
    X(ADAMW_TORCH, adamw_torch)       \
    X(LARS_TF, lars_tf)               \
    X(LAMB_KERAS, lamb_keras)

typedef enum lk_optimizer_number {
#define LK_OPTIMIZER_NUMBER(NUMBER, name) LK_OPTIMIZER_##NUMBER,
    LK_OPTIMIZER_LIST(LK_OPTIMIZER_NUMBER)
#undef LK_OPTIMIZER_NUMBER
        LK_OPTIMIZER_COUNT
} lk_optimizer_number;

typedef struct lk_optimizer_type lk_optimizer_type;

// What an optimizer keeps beside each element of a parameter. Its tensor is PARAMETER/name.
typedef struct lk_slot {
    const char *name;
    float initial;
} lk_slot;

// One optimizer with its numbers; those that a type does not have are 0.
typedef struct lk_optimizer {
    const lk_optimizer_type *type;
    float learning_rate;
    float momentum;
    bool nesterov;
    bool centered, amsgrad;
    float rho, epsilon, beta_1, beta_2;
    float weight_decay;
    float clipvalue;                  // 0: gradients are not cut
    float clipnorm, global_clipnorm;  // 0: nor to a norm, of a parameter, of all that are trained
    float eta;
    float weight_average;  // what averages of weights keep of themselves; 0: there are none
    lk_rate rate;
} lk_optimizer;

// What changes from step to step, computed once a step in strict fp32 and read by pointer.
//
// s counts steps and always advances: the order of examples, random numbers and logs go by it. t
// counts the updates of the objective that were applied before this one: learning rates and bias
// corrections go by it. A step that is not skipped is an update, so t of the one objective is s as
// long as nothing skips.
typedef struct lk_step_scalars {
    LK_WIDE uint64_t s, t;
    float learning_rate;  // of this step
    float inverse_n;      // 1 / float(examples of the step)
    // What an optimizer makes of them, 0 where it has no such thing:
    float step_size;  // adam: the learning rate with the bias corrections that are factors of it
    float root;       // adam: factor of sqrt(v)
    float decay;      // weight decay beside the gradient: w loses so much of itself
    float l2;         // .. and as a part of it
    // Twice the l2 of a kernel, which is this parameter: so much of w is added to the mean gradient
    // before it is cut. Set for each parameter, not once a step.
    float regularizer;
    float average;    // what averages keep of themselves in this step: of the first update nothing
    uint32_t examples;  // of the step
} lk_step_scalars;

// One update of `count` elements: g = (sum[i] + 0.0f) * inverse_n, where the parameter has a
// regularizer fma(regularizer, w, g), cut to clipvalue, then the optimizer's formula; w and slots
// in place. Returns 1 where g before the cut, a slot or w is not finite.
typedef uint32_t (*lk_apply)(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                             const float *sum, float *w,
                             float *const slots[LK_OPTIMIZER_SLOTS_MAX]);

// What an update wants to know of the whole gradient before it changes anything. Where it is more
// than nothing G is stored, and REDUCE and APPLY are two (comm/step/norms.h).
typedef enum lk_norm {
    LK_NORM_NONE,
    LK_NORM_GRADIENT,  // of g: where clipnorm or global_clipnorm asks
    LK_NORM_LARS,      // of w and of g with its decay
    LK_NORM_LAMB,      // of w after its decay and of the update
    LK_NORM_SPECTRAL,  // no norm: products of G and w, for kernels of spectral_normalization
    LK_NORMS
} lk_norm;

// The sums of squares of an update of `count` elements, which changes nothing: slice j of
// LK_SLICE_TERMS elements, the last one shorter, has out[2 * j] and, where there are two norms,
// out[2 * j + 1], each a chain from +0. Of LK_NORM_SPECTRAL out[2 * j] is that of sum[i] * w[i].
typedef void (*lk_squares)(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                           const float *sum, const float *w,
                           float *const slots[LK_OPTIMIZER_SLOTS_MAX], float *out);

struct lk_optimizer_type {
    lk_optimizer_number number;
    lk_apply reference;
    lk_norm norm;  // its own, which no configuration chooses
    // Each may be NULL where there is nothing to say.
    // Its slots, in the order in which `apply` gets them; returns how many. Names differ.
    uint32_t (*list_slots)(const lk_optimizer *o, lk_slot out[LK_OPTIMIZER_SLOTS_MAX]);
    void (*set_scalars)(const lk_optimizer *o, lk_step_scalars *scalars);  // what is its own
    lk_status (*check)(const lk_optimizer *o, lk_error *error);
};

#define LK_OPTIMIZER_DECLARE(NUMBER, name) extern const lk_optimizer_type lk_optimizer_##name;
LK_OPTIMIZER_LIST(LK_OPTIMIZER_DECLARE)
#undef LK_OPTIMIZER_DECLARE

// How a configuration writes it, for those who read, print or hash configurations.
typedef struct lk_optimizer_words {
    const lk_optimizer_type *type;
    const char *name;
    const lk_setting *keys;  // by name, ascending
    uint32_t key_count;
    const char *meaning;
} lk_optimizer_words;

// Entry `number` of the list, NULL past its end; the words of a type.
const lk_optimizer_words *lk_optimizer_words_at(uint32_t number);
const lk_optimizer_words *lk_optimizer_words_of(const lk_optimizer_type *type);

// Does it keep averages of weights beside them (ops/graph/average.h)?
static inline bool lk_optimizer_averages(const lk_optimizer *o) { return o->weight_average > 0.0f; }

// Its slots; returns how many. Averages are the last one.
static inline uint32_t lk_optimizer_slots(const lk_optimizer *o,
                                          lk_slot out[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t count = o->type->list_slots ? o->type->list_slots(o, out) : 0;
    if (lk_optimizer_averages(o)) out[count++] = (lk_slot){"average", 0.0f};
    return count;
}

static inline uint32_t lk_optimizer_slot_count(const lk_optimizer *o) {
    lk_slot slots[LK_OPTIMIZER_SLOTS_MAX];
    return lk_optimizer_slots(o, slots);
}

// The norms that an optimizer asks for, and their reference.
static inline lk_norm lk_optimizer_norm(const lk_optimizer *o) {
    const bool clips = o->clipnorm > 0.0f || o->global_clipnorm > 0.0f;
    return o->type->norm ? o->type->norm : clips ? LK_NORM_GRADIENT : LK_NORM_NONE;
}
extern const lk_squares lk_squares_reference[LK_NORMS];

// The scalars of a parameter whose sums of squares are these, from those of the step. `all`: the
// sum over all parameters that are trained, of gradients. Returns 1 where a norm is not finite.
uint32_t lk_optimizer_fit(const lk_optimizer *o, const float squares[2], float all,
                          lk_step_scalars *scalars);

// The scalars of step s, the optimizer's update number t (from 0).
lk_step_scalars lk_optimizer_scalars(const lk_optimizer *o, uint64_t s, uint64_t t,
                                     float inverse_n);

#endif
