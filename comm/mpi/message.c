// message.c - between workers that share no memory: persistent requests, made once and started
// every turn. Knows no deadline: where MPI says that a connection broke, nothing is sent any more,
// and lost.c judges.
#include <limits.h>

#include "comm/mpi/private.h"

// Each with far worker `at`, in the order of lk_mpi.far.
static lk_note *far_notes[2];
static MPI_Status ignored[LK_MPI_WORLD_MAX];
static MPI_Request receives[LK_MPI_KINDS][LK_MPI_WORLD_MAX];
static MPI_Request sends[LK_MPI_KINDS][LK_MPI_WORLD_MAX];

uint64_t lk_mpi_inbox_bytes(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t rank) {
    const lk_parts parts = lk_exchange_parts(p);
    uint64_t floats = 0, notes = 0;
    for (uint32_t w = 0; lk_mpi.started && w < world; w++) {
        if (w == rank || lk_mpi_is_near(w)) continue;
        floats += lk_exchange_box_floats(p, workers, world, w, rank) +
                  lk_exchange_sum_floats(&parts, world, w, parts.count);
        notes += 2;
    }
    return lk_round_up(notes * sizeof(lk_note), 64) + floats * sizeof(float);
}

// What holds nothing is not sent.
static void request(int kind, uint32_t at, const void *out, const void *in, uint64_t out_count,
                    uint64_t in_count, MPI_Datatype type) {
    int to = out_count ? (int)lk_mpi.far[at] : MPI_PROC_NULL;
    int from = in_count ? (int)lk_mpi.far[at] : MPI_PROC_NULL;
    lk_mpi_calls.MPI_Send_init(out, (int)out_count, type, to, kind, lk_mpi.all, &sends[kind][at]);
    lk_mpi_calls.MPI_Recv_init((void *)in, (int)in_count, type, from, kind, lk_mpi.all,
                               &receives[kind][at]);
}

// Boxes and sums of a part, with far worker `at`; they come to `in`. Returns where it ends.
static float *request_part(lk_exchange *x, uint32_t part, uint32_t at, float *in) {
    const uint32_t w = lk_mpi.far[at], place = part * x->world + w;
    lk_slice own = lk_part_slice(&x->parts.part[part], x->world, x->rank);
    lk_slice theirs = lk_part_slice(&x->parts.part[part], x->world, w);
    uint64_t own_floats = own.end - own.begin, their_floats = theirs.end - theirs.begin;
    uint64_t box_in = lk_exchange_slots(x->program, &x->workers[w]) * own_floats;
    const float *sum = x->sum_out + lk_exchange_sum_floats(&x->parts, x->world, x->rank, part);
    x->box[place] = in;
    x->sum[place] = in + box_in;
    request(LK_MPI_BOX + (int)part, at, x->boxes_out + x->slots * theirs.begin, in,
            x->slots * their_floats, box_in, MPI_FLOAT);
    request(LK_MPI_SUM + (int)part, at, sum, in + box_in, own_floats, their_floats, MPI_FLOAT);
    return in + box_in + their_floats;
}

lk_status lk_mpi_make_requests(lk_exchange *x, void *inbox, lk_error *error) {
    const lk_program *p = x->program;
    for (uint32_t w = 0; w < x->world; w++) {
        if (w != x->rank && !lk_mpi_is_near(w)) lk_mpi.far[lk_mpi.far_count++] = w;
    }
    far_notes[0] = inbox;
    far_notes[1] = far_notes[0] + lk_mpi.far_count;
    float *at = (float *)(void *)((uint8_t *)inbox +
                                  lk_round_up(2 * lk_mpi.far_count * sizeof(lk_note), 64));
    for (uint32_t i = 0; i < lk_mpi.far_count; i++) {
        uint32_t w = lk_mpi.far[i];
        uint64_t in = lk_exchange_box_floats(p, x->workers, x->world, w, x->rank);
        uint64_t out = lk_exchange_box_floats(p, x->workers, x->world, x->rank, w);
        if (LK_MAX(in, out) > INT_MAX) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "a message of %llu floats between ranks %u and %u, wanted below 2^31; "
                           "use more workers",
                           (unsigned long long)LK_MAX(in, out), x->rank, w);
        }
        for (int n = 0; n < 2; n++) {
            const lk_note *own = lk_mpi_near_note(x->rank, (uint32_t)n);
            request(LK_MPI_NOTE + n, i, own, &far_notes[n][i], sizeof(lk_note), sizeof(lk_note),
                    MPI_BYTE);
        }
        for (uint32_t k = 0; k < x->parts.count; k++) at = request_part(x, k, i, at);
    }
    return LK_OK;
}

// MPI may notice here, too, that a connection broke.
static void start_requests(MPI_Request *requests) {
    if (lk_mpi.far_count == 0 || lk_mpi.broken) return;
    lk_mpi.broken = lk_mpi_calls.MPI_Startall((int)lk_mpi.far_count, requests) != MPI_SUCCESS;
}

void lk_mpi_start_receives(int kind) { start_requests(receives[kind]); }

void lk_mpi_start_sends(const lk_mpi_gift *g) {
    for (uint32_t k = 0; k < g->count; k++) start_requests(sends[g->kinds[k]]);
}

bool lk_mpi_messages_done(const lk_mpi_gift *g) {
    int done = !lk_mpi.broken, failed = 0, n = (int)lk_mpi.far_count;
    for (uint32_t k = 0; k < g->count && done && !failed; k++) {
        failed = lk_mpi_calls.MPI_Testall(n, receives[g->kinds[k]], &done, ignored);
        if (!done || failed) continue;
        failed = lk_mpi_calls.MPI_Testall(n, sends[g->kinds[k]], &done, ignored);
    }
    lk_mpi.broken = lk_mpi.broken || failed;
    return done && !failed;
}

bool lk_mpi_message_is_here(uint32_t at, const lk_mpi_gift *g) {
    int there = 1;
    for (uint32_t k = 0; k < g->count && there; k++) {
        lk_mpi_calls.MPI_Request_get_status(receives[g->kinds[k]][at], &there, MPI_STATUS_IGNORE);
    }
    return there;
}

const lk_note *lk_mpi_far_note(uint32_t at, uint32_t parity) { return &far_notes[parity][at]; }
