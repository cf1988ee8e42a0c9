// flop.c - the sum of flop.h over the ops of a program, as their descriptors count them.
#include "apps/run/flop.h"

lk_step_flop lk_op_flop_of(const lk_op *op, uint64_t examples) {
    if (!op->type->flop) return (lk_step_flop){0, 0};
    const lk_flop one = op->type->flop(op);
    const double times = (double)examples * lk_op_uses(op);
    return (lk_step_flop){(double)one.framework * times, (double)one.routed * times};
}

static lk_step_flop flop_of_program(const lk_program *p) {
    lk_step_flop sum = {0, 0};
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_step_flop one = lk_op_flop_of(&p->ops[i], p->spec->global_batch);
        sum.framework += one.framework;
        sum.routed += one.routed;
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
