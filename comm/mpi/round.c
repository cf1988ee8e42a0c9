// round.c - rounds: what a worker gives at once, and the waiting until all have given theirs, in
// the window of a host and by messages. Calls no MPI: how bytes travel is window.c's and
// message.c's business, and who is to blame for a long waiting lost.c's.
#define _GNU_SOURCE
#include <sched.h>

#include "comm/threads/clock.h"
#include "comm/mpi/private.h"
#include "comm/threads/team.h"

enum { LOOK_MS = 50 };

static uint32_t report_round, spins_before_sleep;
// (round, bucket): how many buckets of that round this worker had given once it gave this one. The
// round goes on when the others have given as many.
static uint32_t wanted[LK_MPI_ROUNDS][LK_BUCKETS_MAX];

// Reports go with the boxes of the last bucket.
static lk_mpi_gift gift_of(const lk_exchange *x, lk_round round, uint32_t bucket) {
    lk_mpi_gift g = {
        .round = round, .wanted = wanted[round][bucket], .program = x->program->objective};
    g.reports = round == LK_ROUND_BOXES ? bucket + 1 == x->buckets.count
                                         : round != LK_ROUND_SUMS && round != LK_ROUND_NORMS;
    if (g.reports) g.kinds[g.count++] = LK_MPI_REPORT + (int)(report_round & 1);
    if (round == LK_ROUND_BOXES) g.kinds[g.count++] = LK_MPI_BOX + (int)bucket;
    if (round == LK_ROUND_SUMS) g.kinds[g.count++] = LK_MPI_SUM + (int)bucket;
    return g;
}

bool lk_mpi_has_given(uint32_t w, const lk_mpi_gift *g) {
    if (!lk_mpi_has_come(w, g)) return false;
    for (uint32_t i = 0; i < lk_mpi.remote_count; i++) {
        if (lk_mpi.remote[i] == w && !lk_mpi_message_is_here(i, g)) return false;
    }
    return true;
}

static lk_status wait_for_all(const lk_mpi_gift *g, lk_error *error) {
    double looked = 0;
    uint32_t here = 0;
    bool waits = false, messages_done = lk_mpi.remote_count == 0;
    lk_patience patience;
    for (uint32_t spins = 0;; spins++) {
        while (here < lk_mpi.world && lk_mpi_has_come(here, g)) here++;
        messages_done = messages_done || lk_mpi_messages_done(g);
        if (here == lk_mpi.world && messages_done) return LK_OK;
        if (spins < spins_before_sleep) {
            lk_relax();
            continue;
        }
        if (!waits) lk_patience_start(&patience);
        waits = true;
        if (messages_done) {
            lk_mpi_sleep_on(here, g);
        } else {
            sched_yield();
        }
        double spent = lk_patience_spent(&patience);
        if (spent - looked < 1e-3 * LOOK_MS) continue;
        looked = spent;
        LK_CHECK(lk_mpi_judge_silence(spent, g, error));
    }
}

void lk_mpi_give(lk_exchange *x, lk_round round, uint32_t bucket, uint64_t step) {
    lk_mpi.step = step;
    // Receives for what comes after this, before anybody can be that far.
    if (round == LK_ROUND_SUMS) lk_mpi_start_receives(LK_MPI_BOX + (int)bucket);
    if (round == LK_ROUND_BOXES) lk_mpi_start_receives(LK_MPI_SUM + (int)bucket);
    lk_mpi_arrive(round);
    wanted[round][bucket] = lk_mpi_given(round);
    const lk_mpi_gift g = gift_of(x, round, bucket);
    if (g.reports && round != LK_ROUND_LAST) {
        lk_mpi_start_receives(LK_MPI_REPORT + (int)(~report_round & 1));
    }
    lk_mpi_start_sends(&g);
}

bool lk_mpi_look(const lk_exchange *x, lk_round round, uint32_t bucket) {
    const lk_mpi_gift g = gift_of(x, round, bucket);
    uint32_t here = 0;
    while (here < lk_mpi.world && lk_mpi_has_come(here, &g)) here++;
    return (lk_mpi.remote_count == 0 || lk_mpi_messages_done(&g)) && here == lk_mpi.world;
}

lk_status lk_mpi_await(lk_exchange *x, lk_round round, uint32_t bucket, lk_error *error) {
    const lk_mpi_gift g = gift_of(x, round, bucket);
    uint32_t parity = report_round & 1;
    LK_CHECK(wait_for_all(&g, error));
    if (!g.reports) return LK_OK;
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_report *report = lk_mpi_report_here(w, parity);
        if (report) x->report[w] = report;
    }
    for (uint32_t i = 0; i < lk_mpi.remote_count; i++) {
        x->report[lk_mpi.remote[i]] = lk_mpi_report_of(i, parity);
    }
    // Whoever was asked to stop, the leader saves then.
    lk_mpi.leader_writes = x->report[0]->writes_checkpoint;
    for (uint32_t w = 0; w < x->world; w++) lk_mpi.leader_writes |= x->report[w]->stop != 0;
    report_round++;
    x->report_given = lk_mpi_report_here(x->rank, parity);
    x->report_out = lk_mpi_report_here(x->rank, parity ^ 1);
    return LK_OK;
}

lk_status lk_mpi_round(lk_exchange *x, lk_round round, uint64_t step, lk_error *error) {
    uint32_t buckets = round == LK_ROUND_BOXES || round == LK_ROUND_SUMS ? x->buckets.count : 1;
    for (uint32_t k = 0; k < buckets; k++) lk_mpi_give(x, round, k, step);
    for (uint32_t k = 0; k < buckets; k++) LK_CHECK(lk_mpi_await(x, round, k, error));
    return LK_OK;
}

// That it has, is heard a little later than that it has gone.
bool lk_mpi_leader_has_come(const lk_exchange *x) {
    const lk_mpi_gift g = gift_of(x, LK_ROUND_LAST, 0);
    double begin = lk_seconds();
    bool come = lk_mpi_has_given(0, &g);
    while (!come && lk_seconds() - begin < 1e-3 * LK_MPI_LAST_WORD_MS) {
        sched_yield();
        come = lk_mpi_has_given(0, &g);
    }
    return come;
}

// Where in the window of worker w the program at hand has what is for this worker.
static void find_near(lk_exchange *x, uint32_t w) {
    const lk_program *p = x->program;
    const float *boxes = (const float *)(void *)lk_mpi_window_of(w);
    if (!boxes || !lk_exchange_boxes(p)) return;
    const uint64_t slots = lk_exchange_slots(p, &x->workers[w]);
    const float *sums = boxes + slots * lk_exchange_largest(p, x->world, w).node_floats;
    for (uint32_t k = 0; k < x->buckets.count; k++) {
        const uint32_t place = k * x->world + w;
        lk_partition own = lk_bucket_partition(&x->buckets.bucket[k], x->world, x->rank);
        x->box[place] = boxes + slots * own.begin;
        x->sum[place] = sums + lk_exchange_sum_floats(&x->buckets, x->world, w, k);
    }
}

lk_status lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error) {
    const lk_program *p = x->program;
    const uint32_t programs = lk_exchange_programs(p);
    uint32_t lanes = 0;
    for (uint32_t w = 0; w < x->world; w++) {
        if (lk_mpi_is_here(w)) lanes += x->workers[w].gpus ? 1 : x->workers[w].replicas;
        for (uint32_t k = programs; k-- > 0;) {
            lk_exchange_use(x, lk_exchange_program(p, k));
            find_near(x, w);
        }
    }
    spins_before_sleep = lanes <= lk_mpi.cores ? LK_SPINS_ALONE : LK_SPINS_SHARED;
    x->boxes_out = (float *)(void *)lk_mpi_window_of(x->rank);
    x->sum_out = x->boxes_out + x->sums_at;
    x->report_out = lk_mpi_report_here(x->rank, 0);
    LK_CHECK(lk_mpi_settle(lk_mpi_make_requests(x, inbox, error), error));
    lk_mpi_watch();
    lk_mpi_start_receives(LK_MPI_REPORT);
    const uint32_t buckets = lk_exchange_largest(p, x->world, x->rank).buckets;
    for (uint32_t k = 0; k < buckets; k++) lk_mpi_start_receives(LK_MPI_BOX + (int)k);
    lk_mpi_wait_for("the first exchange");
    static const lk_round all[] = {LK_ROUND_BOXES, LK_ROUND_SUMS, LK_ROUND_REPORTS};
    for (uint32_t i = 0; i < 4 * LK_COUNT(all) * programs; i++) {
        lk_exchange_use(x, lk_exchange_program(p, i / (4 * LK_COUNT(all))));
        LK_CHECK(lk_mpi_round(x, all[i % LK_COUNT(all)], 0, error));
    }
    lk_exchange_use(x, p);
    lk_mpi.connected = true;
    return LK_OK;
}
