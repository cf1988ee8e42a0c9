// setting.h - a key of a configuration, as data: its name, kind, default and bounds, and the field
// that it fills. Freestanding. Layers and optimizers have tables of them, from which configurations
// are read, printed and hashed.
#ifndef LOCKSTEP_OPS_SETTING_H
#define LOCKSTEP_OPS_SETTING_H

#include "arena/base.h"

typedef enum lk_setting_kind {
    LK_SETTING_U32,          // uint32_t, from 1 up
    LK_SETTING_PAIR,         // a number, or [rows, columns]: two uint32_t after each other
    LK_SETTING_BOOL,         // bool
    LK_SETTING_FLOAT,        // float
    LK_SETTING_PADDING,      // lk_padding: "valid", "same"
    LK_SETTING_ACTIVATION,   // const lk_layer_type *: "linear" is NULL
    LK_SETTING_INITIALIZER,  // const lk_initializer *
} lk_setting_kind;

// The default is a constant, frozen for ever: a value equal to it is left out of the run identity,
// so that a new key changes no identity of before. Or it is the value of another key.
typedef struct lk_setting {
    const char *name;
    lk_setting_kind kind;
    uint32_t offset;    // of the field in lk_layer or lk_optimizer
    const char *field;  // its name in C, of a pair without _h and _w; NULL: the key's
    bool required;
    uint32_t most;         // of LK_SETTING_U32 and LK_SETTING_PAIR
    float low, high;       // of LK_SETTING_FLOAT, both allowed
    float below;           // ... and not this one nor more; 0: no such bound
    uint32_t constant;     // default of U32, PAIR, BOOL and PADDING
    float float_constant;  // default of FLOAT; INITIALIZER: glorot_uniform; ACTIVATION: linear
    const char *fallback;  // not NULL: the key before it whose value is the default
    const char *meaning;
} lk_setting;

#endif
