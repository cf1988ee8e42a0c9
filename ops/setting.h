// setting.h - a key of a configuration, as data: its name, kind, default and bounds, and the field
// that it fills. Freestanding. Layers and optimizers have tables of them, and so has the rest of a
// configuration (apps/run/config_keys.h): configurations are read, printed, hashed and described by
// them.
#ifndef LOCKSTEP_OPS_SETTING_H
#define LOCKSTEP_OPS_SETTING_H

#include "arena/base.h"

typedef enum lk_setting_kind {
    LK_SETTING_U32,          // uint32_t
    LK_SETTING_PAIR,         // a number, or [rows, columns]: two uint32_t after each other
    LK_SETTING_BOOL,         // bool
    LK_SETTING_FLOAT,        // float
    LK_SETTING_PADDING,      // lk_padding: "valid", "same"
    LK_SETTING_ACTIVATION,   // const lk_layer_type *: "linear" is NULL
    LK_SETTING_INITIALIZER,  // const lk_initializer *
    LK_SETTING_U64,          // uint64_t
    LK_SETTING_STEPS,        // lk_steps_list: an array of numbers of steps
    LK_SETTING_FLOATS,       // lk_floats_list: an array of numbers
    LK_SETTING_RATE,         // lk_rate (ops/rate.h): a rate schedule, a type and its keys
    LK_SETTING_SHAPE,        // lk_sizes: [height, width, channels], [time, features] or [values]
    LK_SETTING_SIDES,        // uint32_t[4], top, bottom, left, right: a number, [rows, columns] or
                             // [[top, bottom], [left, right]]; each from 0
    LK_SETTING_L2,           // float: {"l2": number}, from 0 to `high`; 0 where it is not said
    LK_SETTING_WEIGHTS,      // lk_weights_list: an array of a number for each class, or an object
                             // of some by the class's number
    // Of the rest of a configuration; a layer or an optimizer has none of these.
    LK_SETTING_CHOICE,  // uint32_t: which of `choices`
    LK_SETTING_TEXT,    // char[most]
} lk_setting_kind;

enum { LK_SETTING_LIST_MAX = 16 };

typedef struct lk_steps_list {
    LK_WIDE uint32_t count;
    LK_WIDE uint64_t at[LK_SETTING_LIST_MAX];
} lk_steps_list;

typedef struct lk_floats_list {
    uint32_t count;
    float at[LK_SETTING_LIST_MAX];
} lk_floats_list;

// Numbers of classes, from 0 on; those behind them are 1. Whoever read them lets them go.
typedef struct lk_weights_list {
    LK_WIDE const float *at;  // (count); NULL: all are 1
    uint32_t count;
    bool all;  // a number is said for each class, so that there must be as many
} lk_weights_list;

static inline float lk_weight_of(const lk_weights_list *list, uint32_t number) {
    return number < list->count ? list->at[number] : 1.0f;
}

typedef struct lk_sizes {
    uint32_t count;  // 1 to 3
    uint32_t at[3];
} lk_sizes;

// The default is a constant, frozen for ever: a value equal to it is left out of the run identity,
// so that a new key changes no identity of before. Or it is the value of another key.
typedef struct lk_setting {
    const char *name;
    lk_setting_kind kind;
    uint32_t offset;    // of the field in lk_layer, lk_optimizer or what else has the table
    const char *field;  // its name in C, of a pair without _h and _w; NULL: the key's
    bool required;
    uint32_t least;        // of U32 and U64; 0 stands for 1 ..
    bool zero;             // .. but with this for 0
    uint64_t most;         // of U32, U64, PAIR, STEPS, SHAPE and SIDES; bytes of TEXT, with its end
    float low, high;       // of FLOAT and FLOATS, both allowed
    float below;           // ... and not this one nor more; 0: no such bound
    uint64_t constant;     // default of U32, U64, PAIR, SIDES, BOOL, PADDING and CHOICE
    float float_constant;  // default of FLOAT; INITIALIZER: glorot_uniform; ACTIVATION: linear
    const char *text;      // default of TEXT; NULL: empty
    const char *fallback;  // not NULL: the key before it whose value is the default
    // Not NULL: nothing that could be written is the default; this says how it is found, and the
    // field then holds `constant`.
    const char *chosen;
    const char *word;            // of U64: may stand for a number, and is `constant`
    const char *const *choices;  // of CHOICE
    uint32_t choice_count;
    const char *meaning;
} lk_setting;

#endif
