// agree.c - what all workers say to each other in start-up: may they go on, are they the same
// run, and bytes for everybody. Blocking calls, bounded by the alarm of lost.c; none of them is
// made after lk_mpi_seal.
#include <string.h>

#include "comm/mpi/private.h"

typedef struct verdict {
    uint32_t item;  // the first that differs from the leader's, or LK_NONE
    char value[LK_MPI_ITEM_BYTES];
} verdict;

static bool over;  // they have settled on an end
static uint32_t statuses[LK_MPI_WORLD_MAX];
static verdict verdicts[LK_MPI_WORLD_MAX];

// `statuses` says how everybody fares.
static lk_status settled(lk_status mine, lk_error *error) {
    uint32_t first = 0;
    while (first < lk_mpi.world && statuses[first] == LK_OK) first++;
    if (first == lk_mpi.world) return LK_OK;
    lk_status theirs = (lk_status)statuses[first];
    over = true;
    // Of several with the same trouble one line is enough.
    if (mine == LK_OK || (mine == theirs && first != lk_mpi.rank)) {
        error->status = LK_OK;
        return theirs;
    }
    return mine;
}

lk_status lk_mpi_settle(lk_status mine, lk_error *error) {
    if (over) return mine;
    lk_mpi_wait_for("the other workers to be ready");
    uint32_t status = mine;
    lk_mpi_need(LK_MPI_CALL(MPI_Allgather, &status, 1, MPI_UINT32_T, statuses, 1, MPI_UINT32_T,
                            lk_mpi.all));
    return settled(mine, error);
}

lk_status lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers,
                      lk_error *error) {
    LK_CHECK(lk_mpi_settle(mine, error));
    lk_mpi_need(LK_MPI_CALL(MPI_Allgather, worker, sizeof *worker, MPI_BYTE, workers,
                            sizeof *worker, MPI_BYTE, lk_mpi.all));
    for (uint32_t w = 0, before = 0; w < lk_mpi.world; before += workers[w++].replicas) {
        workers[w].before = before;
    }
    return LK_OK;
}

lk_status lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error) {
    enum { ITEMS_MAX = 16 };
    static char leaders[ITEMS_MAX][LK_MPI_ITEM_BYTES];
    lk_assert(count <= ITEMS_MAX);
    lk_mpi_wait_for("the other workers to agree");
    for (uint32_t i = 0; i < count; i++) memcpy(leaders[i], items[i].value, sizeof leaders[i]);
    lk_mpi_need(LK_MPI_CALL(MPI_Bcast, leaders, sizeof leaders, MPI_BYTE, 0, lk_mpi.all));
    verdict mine = {.item = LK_NONE};
    for (uint32_t i = count; i-- > 0;) {
        if (memcmp(leaders[i], items[i].value, sizeof leaders[i]) == 0) continue;
        mine.item = i;
        memcpy(mine.value, items[i].value, sizeof mine.value);
    }
    lk_mpi_need(LK_MPI_CALL(MPI_Allgather, &mine, sizeof mine, MPI_BYTE, verdicts, sizeof mine,
                            MPI_BYTE, lk_mpi.all));
    for (uint32_t w = 1; w < lk_mpi.world; w++) {
        const verdict *v = &verdicts[w];
        if (v->item == LK_NONE) continue;
        if (lk_mpi.rank != 0) return LK_RANKS_DISAGREE;  // the leader says it
        return lk_fail(error, LK_RANKS_DISAGREE,
                       "rank 0 on %s and rank %u on %s do not run the same: %s is %s on the one "
                       "and %s on the other; give all workers the same program, configuration and "
                       "data",
                       lk_mpi.peers[0].name, w, lk_mpi.peers[w].name, items[v->item].name,
                       items[v->item].value, v->value);
    }
    return LK_OK;
}

void lk_mpi_broadcast(void *bytes, uint64_t count) { lk_mpi_broadcast_from(0, bytes, count); }

void lk_mpi_broadcast_from(uint32_t rank, void *bytes, uint64_t count) {
    uint8_t *at = bytes;
    for (uint64_t left = count; left > 0;) {
        int now = (int)LK_MIN(left, (uint64_t)1 << 30);
        lk_mpi_need(LK_MPI_CALL(MPI_Bcast, at, now, MPI_BYTE, (int)rank, lk_mpi.all));
        at += now;
        left -= (uint64_t)now;
    }
}

void lk_mpi_gather(const void *mine, uint64_t bytes, void *all) {
    lk_mpi_need(LK_MPI_CALL(MPI_Allgather, mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
                            lk_mpi.all));
}
