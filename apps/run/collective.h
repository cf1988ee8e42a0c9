// collective.h - how bytes travel between replicas (--collective): what was asked for, and whether
// this build and this run can have it.
#ifndef LOCKSTEP_APPS_RUN_COLLECTIVE_H
#define LOCKSTEP_APPS_RUN_COLLECTIVE_H

#include "apps/run/run.h"

// --collective. The words from LK_COLLECTIVE_MPI on say how bytes travel between workers.
typedef enum lk_collective {
    LK_COLLECTIVE_AUTO,
    LK_COLLECTIVE_THREADS,
    LK_COLLECTIVE_NCCL,
    LK_COLLECTIVE_MPI,
    LK_COLLECTIVE_WINDOW,
    LK_COLLECTIVE_MESSAGES,
    LK_COLLECTIVE_RING,  // what TensorFlow's tutorial calls the transport of the host
} lk_collective;

const char *lk_collective_word(lk_collective asked);
lk_status lk_collective_parse(const char *text, lk_collective *out, lk_error *error);
// Sets what the choice means to MPI. LK_UNAVAILABLE or LK_BAD_USAGE where it cannot be.
lk_status lk_collective_choose(lk_collective asked, uint32_t world, lk_mpi_options *mpi,
                               lk_error *error);
// .. and once it is known on how many GPUs this process trains.
lk_status lk_collective_check_gpus(lk_collective asked, uint32_t world, uint32_t gpus,
                                   lk_error *error);
// Of several workers, once they have met: do their GPUs exchange by themselves? By all at the same
// point. LK_RANKS_DISAGREE where they were asked different things.
lk_status lk_collective_choose_way(lk_run *run, lk_collective asked, lk_error *error);
// .. or shall it be planned so?
lk_status lk_collective_imagine(lk_run *run, lk_collective asked, lk_error *error);

#endif
