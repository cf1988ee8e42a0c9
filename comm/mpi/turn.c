// turn.c - turns: what a worker gives at once, and the waiting until all have given theirs, in
// the window of a host and by messages. Calls no MPI: how bytes travel is window.c's and
// message.c's business, and who is to blame for a long waiting lost.c's.
#define _GNU_SOURCE
#include <sched.h>

#include "comm/threads/clock.h"
#include "comm/mpi/private.h"
#include "comm/threads/team.h"

enum { LOOK_MS = 50 };

static uint32_t notes_turn, spins_before_sleep;
// So many parts of a turn there were when a part was given: so many the others must have given.
static uint32_t wanted[LK_MPI_TURNS][LK_PARTS_MAX];

// Notes go with the boxes of the last part.
static lk_mpi_gift gift_of(const lk_exchange *x, lk_turn turn, uint32_t part) {
    lk_mpi_gift g = {.turn = turn, .wanted = wanted[turn][part]};
    g.notes = turn == LK_TURN_BOXES ? part + 1 == x->parts.count : turn != LK_TURN_SUMS;
    if (g.notes) g.kinds[g.count++] = LK_MPI_NOTE + (int)(notes_turn & 1);
    if (turn == LK_TURN_BOXES) g.kinds[g.count++] = LK_MPI_BOX + (int)part;
    if (turn == LK_TURN_SUMS) g.kinds[g.count++] = LK_MPI_SUM + (int)part;
    return g;
}

bool lk_mpi_has_given(uint32_t w, const lk_mpi_gift *g) {
    if (!lk_mpi_has_come(w, g)) return false;
    for (uint32_t i = 0; i < lk_mpi.far_count; i++) {
        if (lk_mpi.far[i] == w && !lk_mpi_message_is_here(i, g)) return false;
    }
    return true;
}

static lk_status wait_for_all(const lk_mpi_gift *g, lk_error *error) {
    double looked = 0;
    uint32_t near = 0;
    bool waits = false, far_done = lk_mpi.far_count == 0;
    lk_patience patience;
    for (uint32_t spins = 0;; spins++) {
        while (near < lk_mpi.world && lk_mpi_has_come(near, g)) near++;
        far_done = far_done || lk_mpi_messages_done(g);
        if (near == lk_mpi.world && far_done) return LK_OK;
        if (spins < spins_before_sleep) {
            lk_relax();
            continue;
        }
        if (!waits) lk_patience_start(&patience);
        waits = true;
        if (far_done) {
            lk_mpi_sleep_on(near, g);
        } else {
            sched_yield();
        }
        double spent = lk_patience_spent(&patience);
        if (spent - looked < 1e-3 * LOOK_MS) continue;
        looked = spent;
        LK_CHECK(lk_mpi_judge_silence(spent, g, error));
    }
}

void lk_mpi_give(lk_exchange *x, lk_turn turn, uint32_t part, uint64_t step) {
    lk_mpi.step = step;
    // Receives for what comes after this, before anybody can be that far.
    if (turn == LK_TURN_SUMS) lk_mpi_start_receives(LK_MPI_BOX + (int)part);
    if (turn == LK_TURN_BOXES) lk_mpi_start_receives(LK_MPI_SUM + (int)part);
    lk_mpi_arrive(turn);
    wanted[turn][part] = lk_mpi_given(turn);
    const lk_mpi_gift g = gift_of(x, turn, part);
    if (g.notes && turn != LK_TURN_LAST) {
        lk_mpi_start_receives(LK_MPI_NOTE + (int)(~notes_turn & 1));
    }
    lk_mpi_start_sends(&g);
}

bool lk_mpi_look(const lk_exchange *x, lk_turn turn, uint32_t part) {
    const lk_mpi_gift g = gift_of(x, turn, part);
    uint32_t near = 0;
    while (near < lk_mpi.world && lk_mpi_has_come(near, &g)) near++;
    return (lk_mpi.far_count == 0 || lk_mpi_messages_done(&g)) && near == lk_mpi.world;
}

lk_status lk_mpi_await(lk_exchange *x, lk_turn turn, uint32_t part, lk_error *error) {
    const lk_mpi_gift g = gift_of(x, turn, part);
    uint32_t parity = notes_turn & 1;
    LK_CHECK(wait_for_all(&g, error));
    if (!g.notes) return LK_OK;
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_note *near = lk_mpi_near_note(w, parity);
        if (near) x->note[w] = near;
    }
    for (uint32_t i = 0; i < lk_mpi.far_count; i++) {
        x->note[lk_mpi.far[i]] = lk_mpi_far_note(i, parity);
    }
    // Whoever was asked to stop, the leader saves then.
    lk_mpi.leader_writes = x->note[0]->writes_checkpoint;
    for (uint32_t w = 0; w < x->world; w++) lk_mpi.leader_writes |= x->note[w]->stop != 0;
    notes_turn++;
    x->note_given = lk_mpi_near_note(x->rank, parity);
    x->note_out = lk_mpi_near_note(x->rank, parity ^ 1);
    return LK_OK;
}

lk_status lk_mpi_turn(lk_exchange *x, lk_turn turn, uint64_t step, lk_error *error) {
    uint32_t parts = turn == LK_TURN_BOXES || turn == LK_TURN_SUMS ? x->parts.count : 1;
    for (uint32_t k = 0; k < parts; k++) lk_mpi_give(x, turn, k, step);
    for (uint32_t k = 0; k < parts; k++) LK_CHECK(lk_mpi_await(x, turn, k, error));
    return LK_OK;
}

// That it has, is heard a little later than that it has gone.
bool lk_mpi_leader_has_come(const lk_exchange *x) {
    const lk_mpi_gift g = gift_of(x, LK_TURN_LAST, 0);
    double begin = lk_seconds();
    bool come = lk_mpi_has_given(0, &g);
    while (!come && lk_seconds() - begin < 1e-3 * LK_MPI_LAST_WORD_MS) {
        sched_yield();
        come = lk_mpi_has_given(0, &g);
    }
    return come;
}

lk_status lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error) {
    const lk_program *p = x->program;
    uint32_t lanes = 0;
    for (uint32_t w = 0; w < x->world; w++) {
        if (lk_mpi_is_here(w)) lanes += x->workers[w].gpus ? 1 : x->workers[w].replicas;
        const float *boxes = (const float *)(void *)lk_mpi_window_of(w);
        if (!boxes || !lk_exchange_boxes(p)) continue;
        uint64_t slots = lk_exchange_slots(p, &x->workers[w]);
        for (uint32_t k = 0; k < x->parts.count; k++) {
            uint32_t place = k * x->world + w;
            lk_slice own = lk_part_slice(&x->parts.part[k], x->world, x->rank);
            x->box[place] = boxes + slots * own.begin;
            x->sum[place] =
                boxes + slots * p->loss_offset + lk_exchange_sum_floats(&x->parts, x->world, w, k);
        }
    }
    spins_before_sleep = lanes <= lk_mpi.cores ? LK_SPINS_ALONE : LK_SPINS_SHARED;
    x->boxes_out = (float *)(void *)lk_mpi_window_of(x->rank);
    x->sum_out = x->boxes_out + x->slots * p->loss_offset;
    x->note_out = lk_mpi_near_note(x->rank, 0);
    LK_CHECK(lk_mpi_settle(lk_mpi_make_requests(x, inbox, error), error));
    lk_mpi_watch();
    lk_mpi_start_receives(LK_MPI_NOTE);
    for (uint32_t k = 0; k < x->parts.count; k++) lk_mpi_start_receives(LK_MPI_BOX + (int)k);
    lk_mpi_wait_for("the first exchange");
    static const lk_turn all[] = {LK_TURN_BOXES, LK_TURN_SUMS, LK_TURN_NOTES};
    for (uint32_t i = 0; i < 4 * LK_COUNT(all); i++) {
        LK_CHECK(lk_mpi_turn(x, all[i % LK_COUNT(all)], 0, error));
    }
    lk_mpi.connected = true;
    return LK_OK;
}
