// flop.c - the sum of flop.h over the ops of a program, as their descriptors count them.
#include "apps/run/flop.h"

lk_step_flop lk_step_flop_of(const lk_program *p) {
    lk_step_flop sum = {0, 0};
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!p->ops[i].type->flop) continue;
        lk_flop one = p->ops[i].type->flop(&p->ops[i]);
        sum.framework += (double)one.framework * p->spec->global_batch;
        sum.routed += (double)one.routed * p->spec->global_batch;
    }
    return sum;
}
