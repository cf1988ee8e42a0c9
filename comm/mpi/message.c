// message.c - between workers that share no memory: persistent requests, made once and started
// every round. Knows no deadline: where MPI says that a connection broke, nothing is sent any more,
// and lost.c judges.
#include <limits.h>

#include "comm/mpi/private.h"

// Each with remote worker `at`, in the order of lk_mpi.remote.
static lk_report *remote_reports[2];
static MPI_Status ignored[LK_MPI_WORLD_MAX];
static MPI_Request receives[LK_MPI_KINDS][LK_MPI_WORLD_MAX];
// What is sent is of a program; what is received has room for that of any.
static MPI_Request sends[LK_OBJECTIVES_MAX][LK_MPI_KINDS][LK_MPI_WORLD_MAX];

uint64_t lk_mpi_inbox_bytes(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t rank) {
    const lk_exchange_most own = lk_exchange_largest(p, world, rank);
    uint64_t floats = 0, reports = 0;
    for (uint32_t w = 0; lk_mpi.started && w < world; w++) {
        if (w == rank || lk_mpi_in_window(w)) continue;
        const lk_exchange_most theirs = lk_exchange_largest(p, world, w);
        for (uint32_t k = 0; k < own.buckets; k++) {
            floats +=
                lk_exchange_slots(p, &workers[w]) * own.slice_floats[k] + theirs.slice_floats[k];
        }
        reports += 2;
    }
    return lk_round_up(reports * sizeof(lk_report), 64) + floats * sizeof(float);
}

// What holds nothing in any program is not sent.
static void request_send(uint32_t program, int kind, uint32_t at, const void *out, uint64_t count,
                         bool some, MPI_Datatype type) {
    const int to = some ? (int)lk_mpi.remote[at] : MPI_PROC_NULL;
    LK_MPI_CALL(MPI_Send_init, out, (int)count, type, to, kind, lk_mpi.all,
                &sends[program][kind][at]);
}

static void request_receive(int kind, uint32_t at, const void *in, uint64_t count,
                            MPI_Datatype type) {
    const int from = count ? (int)lk_mpi.remote[at] : MPI_PROC_NULL;
    LK_MPI_CALL(MPI_Recv_init, (void *)in, (int)count, type, from, kind, lk_mpi.all,
                &receives[kind][at]);
}

// Boxes and sums of a bucket of the program at hand, to remote worker `at`. Theirs come to `in`.
static void send_part(lk_exchange *x, const lk_exchange_most *mine, const lk_exchange_most *other,
                      uint32_t bucket, uint32_t at, const float *in, uint64_t box_in) {
    const uint32_t w = lk_mpi.remote[at], place = bucket * x->world + w, k = x->program->objective;
    lk_partition own = lk_bucket_partition(&x->buckets.bucket[bucket], x->world, x->rank);
    lk_partition theirs = lk_bucket_partition(&x->buckets.bucket[bucket], x->world, w);
    const float *sum = x->sum_out + lk_exchange_sum_floats(&x->buckets, x->world, x->rank, bucket);
    x->box[place] = in;
    x->sum[place] = in + box_in;
    request_send(k, LK_MPI_BOX + (int)bucket, at, x->boxes_out + x->slots * theirs.begin,
                 x->slots * (theirs.end - theirs.begin), other->slice_floats[bucket] && x->slots,
                 MPI_FLOAT);
    request_send(k, LK_MPI_SUM + (int)bucket, at, sum, own.end - own.begin,
                 mine->slice_floats[bucket] > 0, MPI_FLOAT);
}

// What is exchanged with remote worker `at` comes to `in`, which has room for the largest program.
static float *request_parts(lk_exchange *x, uint32_t at, float *in) {
    const lk_program *first = x->program;
    const uint32_t w = lk_mpi.remote[at];
    const lk_exchange_most mine = lk_exchange_largest(first, x->world, x->rank);
    const lk_exchange_most other = lk_exchange_largest(first, x->world, w);
    const uint64_t their_slots = lk_exchange_slots(first, &x->workers[w]);
    for (uint32_t bucket = 0; bucket < mine.buckets; bucket++) {
        const uint64_t box_in = their_slots * mine.slice_floats[bucket];
        for (uint32_t k = 0; k < lk_exchange_programs(first); k++) {
            lk_exchange_use(x, lk_exchange_program(first, k));
            if (bucket < x->buckets.count) send_part(x, &mine, &other, bucket, at, in, box_in);
        }
        lk_exchange_use(x, first);
        request_receive(LK_MPI_BOX + (int)bucket, at, in, box_in, MPI_FLOAT);
        request_receive(LK_MPI_SUM + (int)bucket, at, in + box_in, other.slice_floats[bucket],
                        MPI_FLOAT);
        in += box_in + other.slice_floats[bucket];
    }
    return in;
}

lk_status lk_mpi_make_requests(lk_exchange *x, void *inbox, lk_error *error) {
    const lk_program *p = x->program;
    for (uint32_t w = 0; w < x->world; w++) {
        if (w != x->rank && !lk_mpi_in_window(w)) lk_mpi.remote[lk_mpi.remote_count++] = w;
    }
    remote_reports[0] = inbox;
    remote_reports[1] = remote_reports[0] + lk_mpi.remote_count;
    float *at = (float *)(void *)((uint8_t *)inbox +
                                  lk_round_up(2 * lk_mpi.remote_count * sizeof(lk_report), 64));
    for (uint32_t i = 0; i < lk_mpi.remote_count; i++) {
        uint32_t w = lk_mpi.remote[i];
        const uint64_t most = lk_exchange_largest(p, x->world, w).node_floats;
        uint64_t in = lk_exchange_slots(p, &x->workers[w]) * most, out = x->slots * most;
        if (lk_exchange_programs(p) == 1) {
            in = lk_exchange_box_floats(p, x->workers, x->world, w, x->rank);
            out = lk_exchange_box_floats(p, x->workers, x->world, x->rank, w);
        }
        if (LK_MAX(in, out) > INT_MAX) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "a message of %llu floats between ranks %u and %u, wanted below 2^31; "
                           "use more workers",
                           (unsigned long long)LK_MAX(in, out), x->rank, w);
        }
        for (int n = 0; n < 2; n++) {
            const lk_report *own = lk_mpi_report_here(x->rank, (uint32_t)n);
            for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
                request_send(k, LK_MPI_REPORT + n, i, own, sizeof(lk_report), true, MPI_BYTE);
            }
            request_receive(LK_MPI_REPORT + n, i, &remote_reports[n][i], sizeof(lk_report),
                            MPI_BYTE);
        }
        at = request_parts(x, i, at);
    }
    return LK_OK;
}

// MPI may notice here, too, that a connection broke.
static void start_requests(MPI_Request *requests) {
    if (lk_mpi.remote_count == 0 || lk_mpi.broken) return;
    lk_mpi.broken = LK_MPI_CALL(MPI_Startall, (int)lk_mpi.remote_count, requests) != MPI_SUCCESS;
}

void lk_mpi_start_receives(int kind) { start_requests(receives[kind]); }

void lk_mpi_start_sends(const lk_mpi_gift *g) {
    for (uint32_t k = 0; k < g->count; k++) start_requests(sends[g->program][g->kinds[k]]);
}

bool lk_mpi_messages_done(const lk_mpi_gift *g) {
    int done = !lk_mpi.broken, failed = 0, n = (int)lk_mpi.remote_count;
    for (uint32_t k = 0; k < g->count && done && !failed; k++) {
        failed = LK_MPI_CALL(MPI_Testall, n, receives[g->kinds[k]], &done, ignored);
        if (!done || failed) continue;
        failed = LK_MPI_CALL(MPI_Testall, n, sends[g->program][g->kinds[k]], &done, ignored);
    }
    lk_mpi.broken = lk_mpi.broken || failed;
    return done && !failed;
}

bool lk_mpi_message_is_here(uint32_t at, const lk_mpi_gift *g) {
    int there = 1;
    for (uint32_t k = 0; k < g->count && there; k++) {
        LK_MPI_CALL(MPI_Request_get_status, receives[g->kinds[k]][at], &there, MPI_STATUS_IGNORE);
    }
    return there;
}

const lk_report *lk_mpi_report_of(uint32_t at, uint32_t parity) {
    return &remote_reports[parity][at];
}
