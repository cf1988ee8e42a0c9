// flop.c - the sum of flop.h over the ops of a program, as their descriptors count them.
#include "apps/run/flop.h"

static lk_step_flop flop_of_program(const lk_program *p) {
    lk_step_flop sum = {0, 0};
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!p->ops[i].type->flop) continue;
        lk_flop one = p->ops[i].type->flop(&p->ops[i]);
        const double times = (double)p->spec->global_batch * lk_op_uses(&p->ops[i]);
        sum.framework += (double)one.framework * times;
        sum.routed += (double)one.routed * times;
    }
    return sum;
}

lk_step_flop lk_step_flop_of(const lk_program *p) {
    const lk_graph *g = p->spec->model.graph;
    lk_step_flop sum = {0, 0};
    double steps = 0;
    if (!g) return flop_of_program(p);
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        const lk_step_flop one = flop_of_program(&p->all[g->schedule[i].objective]);
        sum.framework += one.framework * g->schedule[i].steps;
        sum.routed += one.routed * g->schedule[i].steps;
        steps += g->schedule[i].steps;
    }
    return (lk_step_flop){sum.framework / steps, sum.routed / steps};
}
