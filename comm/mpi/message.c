// message.c - between workers that share no memory: persistent requests, made once and started
// every round. Knows no deadline: where MPI says that a connection broke, nothing is sent any more,
// and lost.c judges.
#include <limits.h>

#include "comm/mpi/private.h"

// Each with remote worker `at`, in the order of lk_mpi.remote.
static lk_report *remote_reports[2];
static MPI_Status ignored[LK_MPI_WORLD_MAX];
static MPI_Request receives[LK_MPI_KINDS][LK_MPI_WORLD_MAX];
static MPI_Request sends[LK_MPI_KINDS][LK_MPI_WORLD_MAX];

uint64_t lk_mpi_inbox_bytes(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t rank) {
    const lk_buckets buckets = lk_exchange_buckets(p);
    uint64_t floats = 0, reports = 0;
    for (uint32_t w = 0; lk_mpi.started && w < world; w++) {
        if (w == rank || lk_mpi_in_window(w)) continue;
        floats += lk_exchange_box_floats(p, workers, world, w, rank) +
                  lk_exchange_sum_floats(&buckets, world, w, buckets.count);
        reports += 2;
    }
    return lk_round_up(reports * sizeof(lk_report), 64) + floats * sizeof(float);
}

// What holds nothing is not sent.
static void request(int kind, uint32_t at, const void *out, const void *in, uint64_t out_count,
                    uint64_t in_count, MPI_Datatype type) {
    int to = out_count ? (int)lk_mpi.remote[at] : MPI_PROC_NULL;
    int from = in_count ? (int)lk_mpi.remote[at] : MPI_PROC_NULL;
    lk_mpi_calls.MPI_Send_init(out, (int)out_count, type, to, kind, lk_mpi.all, &sends[kind][at]);
    lk_mpi_calls.MPI_Recv_init((void *)in, (int)in_count, type, from, kind, lk_mpi.all,
                               &receives[kind][at]);
}

// Boxes and sums of a bucket, with remote worker `at`; they come to `in`. Returns where it ends.
static float *request_bucket(lk_exchange *x, uint32_t bucket, uint32_t at, float *in) {
    const uint32_t w = lk_mpi.remote[at], place = bucket * x->world + w;
    lk_partition own = lk_bucket_partition(&x->buckets.bucket[bucket], x->world, x->rank);
    lk_partition theirs = lk_bucket_partition(&x->buckets.bucket[bucket], x->world, w);
    uint64_t own_floats = own.end - own.begin, their_floats = theirs.end - theirs.begin;
    uint64_t box_in = lk_exchange_slots(x->program, &x->workers[w]) * own_floats;
    const float *sum = x->sum_out + lk_exchange_sum_floats(&x->buckets, x->world, x->rank, bucket);
    x->box[place] = in;
    x->sum[place] = in + box_in;
    request(LK_MPI_BOX + (int)bucket, at, x->boxes_out + x->slots * theirs.begin, in,
            x->slots * their_floats, box_in, MPI_FLOAT);
    request(LK_MPI_SUM + (int)bucket, at, sum, in + box_in, own_floats, their_floats, MPI_FLOAT);
    return in + box_in + their_floats;
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
        uint64_t in = lk_exchange_box_floats(p, x->workers, x->world, w, x->rank);
        uint64_t out = lk_exchange_box_floats(p, x->workers, x->world, x->rank, w);
        if (LK_MAX(in, out) > INT_MAX) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "a message of %llu floats between ranks %u and %u, wanted below 2^31; "
                           "use more workers",
                           (unsigned long long)LK_MAX(in, out), x->rank, w);
        }
        for (int n = 0; n < 2; n++) {
            const lk_report *own = lk_mpi_report_here(x->rank, (uint32_t)n);
            request(LK_MPI_REPORT + n, i, own, &remote_reports[n][i], sizeof(lk_report),
                    sizeof(lk_report), MPI_BYTE);
        }
        for (uint32_t k = 0; k < x->buckets.count; k++) at = request_bucket(x, k, i, at);
    }
    return LK_OK;
}

// MPI may notice here, too, that a connection broke.
static void start_requests(MPI_Request *requests) {
    if (lk_mpi.remote_count == 0 || lk_mpi.broken) return;
    lk_mpi.broken = lk_mpi_calls.MPI_Startall((int)lk_mpi.remote_count, requests) != MPI_SUCCESS;
}

void lk_mpi_start_receives(int kind) { start_requests(receives[kind]); }

void lk_mpi_start_sends(const lk_mpi_gift *g) {
    for (uint32_t k = 0; k < g->count; k++) start_requests(sends[g->kinds[k]]);
}

bool lk_mpi_messages_done(const lk_mpi_gift *g) {
    int done = !lk_mpi.broken, failed = 0, n = (int)lk_mpi.remote_count;
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

const lk_report *lk_mpi_report_of(uint32_t at, uint32_t parity) {
    return &remote_reports[parity][at];
}
