// staged.c - nodes, sums and reports of staged.h.
#include "comm/cuda/staged.h"

#include <string.h>

void lk_cuda_staged_held(const lk_cuda_group *g, uint32_t leaves, lk_cuda_staged_nodes *out) {
    const lk_program *p = g->exchange.program;
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_cuda_step *c = &g->gpu[i];
        lk_exchange_blocks(p, &c->share, p->grains, leaves, &out->blocks[i]);
        out->list[i] = (lk_holding){&out->blocks[i], c->host.blocks, p->node_floats};
    }
}

// The worker's blocks of `grains` grains, of which `leaves` are there; the metrics' sums of each
// lie `offset` floats into a holder's node.
static void write_sums(const lk_cuda_group *g, const lk_exchange *x,
                         const lk_cuda_staged_nodes *h, uint32_t grains, uint32_t leaves,
                         uint64_t offset, lk_report *report) {
    float scratch[LK_TREE_LEVELS_MAX + 1];
    lk_exchange_blocks(x->program, &x->workers[x->rank], grains, leaves, &report->blocks);
    for (uint32_t b = 0; b < report->blocks.count; b++) {
        for (uint32_t i = 0; i < lk_program_metrics(x->program)->sum_count; i++) {
            report->sums[b][i] = *lk_reduce_node(&lk_kernels_reference, h->list, g->count, leaves,
                                               report->blocks.nodes[b], offset + i, 1, scratch);
        }
    }
}

void lk_cuda_staged_report(const lk_cuda_group *g, lk_exchange *x, uint64_t step, uint32_t stop) {
    const lk_program *p = x->program;
    const uint32_t leaves = lk_step_grains(p, step);
    lk_report *report = x->report_out;
    lk_cuda_staged_nodes h;
    lk_cuda_staged_held(g, leaves, &h);
    *report = (lk_report){.stop = stop,
                      .writes_checkpoint = x->writes_checkpoint,
                      .bad_op = LK_NONE,
                      .bad_param = LK_NONE};
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_gpu_report *own = &g->gpu[i].host.reports[0];
        lk_metric_add_counts(report->counts, own->counts);
        report->bad_op = LK_MIN(report->bad_op, own->bad_op);
    }
    write_sums(g, x, &h, p->grains, leaves, p->loss_offset, report);
    lk_assert(report->blocks.count <= x->slots);
}

// --- APPLY -------------------------------------------------------------------------------------

void lk_cuda_staged_sums(const lk_cuda_group *g, const lk_exchange *x, uint64_t step) {
    const lk_program *p = x->program;
    const uint32_t leaves = lk_step_grains(p, step);
    float *sums = g->gpu[0].host.sums, scratch[LK_TREE_LEVELS_MAX + 1];
    lk_gpu_report all = {.bad_op = LK_NONE};
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_partition partition = lk_partition_of(p, x->world, w);
        memcpy(sums + partition.begin, x->sum[w], (partition.end - partition.begin) * sizeof *sums);
        x->holdings[w] =
            (lk_holding){&x->report[w]->blocks, x->report[w]->sums[0], LK_METRIC_SUMS_MAX};
        lk_metric_add_counts(all.counts, x->report[w]->counts);
        all.bad_op = LK_MIN(all.bad_op, x->report[w]->bad_op);
    }
    for (uint32_t i = 0; i < lk_program_metrics(p)->sum_count; i++) {
        sums[p->loss_offset + i] =
            *lk_reduce(&lk_kernels_reference, x->holdings, x->world, leaves, i, 1, scratch);
    }
    for (uint32_t i = 0; i < g->count; i++) g->gpu[i].host.reports[1] = all;
}

// --- evaluation --------------------------------------------------------------------------------

void lk_cuda_staged_evaluated(const lk_cuda_group *g, lk_exchange *x, uint64_t count,
                              uint32_t stop) {
    const uint32_t grains = lk_grains_of(x->program, count);
    lk_report *report = x->report_out;
    lk_cuda_staged_nodes h;
    *report = (lk_report){.stop = stop,
                      .writes_checkpoint = x->writes_checkpoint,
                      .bad_op = LK_NONE,
                      .bad_param = LK_NONE};
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_cuda_state *state = g->gpu[i].host.state;
        h.list[i] =
            (lk_holding){&g->evaluations[i].nodes, g->evaluations[i].sums[0], LK_METRIC_SUMS_MAX};
        lk_metric_add_counts(report->counts, state->counts);
        report->bad_op = LK_MIN(report->bad_op, state->bad_op);
    }
    write_sums(g, x, &h, grains, grains, 0, report);
}
