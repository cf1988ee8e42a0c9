// none.c - what mpi.h says in a build without MPI: there is one worker alone, and whoever is
// one of several is told what to install. Built instead of the files that comm/mpi/private.h lists.
#include "comm/mpi/mpi.h"

static lk_status no_mpi(lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE,
                   "this is one of several workers, but this build has no MPI; install "
                   "libmpich-dev and configure with -DLOCKSTEP_MPI=ON, or run it alone");
}

lk_status lk_mpi_built(lk_error *error) { return no_mpi(error); }

lk_status lk_mpi_start(uint32_t world, uint32_t rank, const lk_mpi_options *options,
                       lk_error *error) {
    (void)world, (void)rank, (void)options;
    return no_mpi(error);
}

// Nobody comes here: lk_mpi_start has refused.
void lk_mpi_host(uint32_t *workers, uint32_t *before) { *workers = 1, *before = 0; }
bool lk_mpi_is_here(uint32_t rank) { return rank == 0; }
bool lk_mpi_shares(void) { return false; }
const char *lk_mpi_version(void) { return ""; }
const char *lk_mpi_transport(void) { return ""; }
const char *lk_mpi_listens(void) { return ""; }
uint64_t lk_mpi_external_bytes(void) { return 0; }

lk_status lk_mpi_settle(lk_status mine, lk_error *error) {
    return mine == LK_OK ? no_mpi(error) : mine;
}

lk_status lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers,
                      lk_error *error) {
    (void)worker, (void)workers;
    return lk_mpi_settle(mine, error);
}

lk_status lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error) {
    (void)items, (void)count;
    return no_mpi(error);
}

void lk_mpi_wait_for(const char *what) { (void)what; }
void lk_mpi_broadcast(void *bytes, uint64_t count) { (void)bytes, (void)count; }
void lk_mpi_broadcast_from(uint32_t rank, void *bytes, uint64_t count) {
    (void)rank, (void)bytes, (void)count;
}
void lk_mpi_gather(const void *mine, uint64_t bytes, void *all) {
    (void)mine, (void)bytes, (void)all;
}

uint64_t lk_mpi_inbox_bytes(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t rank) {
    (void)p, (void)workers, (void)world, (void)rank;
    return 0;
}

lk_status lk_mpi_window(uint64_t payload, uint8_t **mine, lk_error *error) {
    (void)payload, (void)mine;
    return no_mpi(error);
}

uint8_t *lk_mpi_window_of(uint32_t rank) {
    (void)rank;
    return NULL;
}

lk_status lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error) {
    (void)x, (void)inbox;
    return no_mpi(error);
}

void lk_mpi_seal(void) {}

double lk_mpi_last_given(lk_round round) {
    (void)round;
    return 0;
}

void lk_mpi_give(lk_exchange *x, lk_round round, uint32_t bucket, uint64_t step) {
    (void)x, (void)round, (void)bucket, (void)step;
}

bool lk_mpi_look(const lk_exchange *x, lk_round round, uint32_t bucket) {
    (void)x, (void)round, (void)bucket;
    return false;
}

lk_status lk_mpi_await(lk_exchange *x, lk_round round, uint32_t bucket, lk_error *error) {
    (void)x, (void)round, (void)bucket;
    return no_mpi(error);
}

lk_status lk_mpi_round(lk_exchange *x, lk_round round, uint64_t step, lk_error *error) {
    (void)x, (void)round, (void)step;
    return no_mpi(error);
}

lk_status lk_mpi_look_for_dead(uint64_t step, lk_error *error) {
    (void)step, (void)error;
    return LK_OK;
}

void lk_mpi_allow(double seconds) { (void)seconds; }

void lk_mpi_break_off(lk_status status) { (void)status; }
void lk_mpi_end_soon(lk_status status) { (void)status; }

lk_status lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error) {
    (void)x, (void)error;
    return status;
}
