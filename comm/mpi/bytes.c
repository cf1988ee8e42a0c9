// bytes.c - what a worker's part of the window takes (window.c). Known in every build:
// lockstep plan says it where there is no MPI, too.
#include "arena/arena.h"
#include "comm/mpi/mpi.h"

// A page more than is used: where a worker is alone on its host, MPI's memory begins anywhere.
uint64_t lk_mpi_window_bytes(uint64_t bytes) {
    return LK_PAGE_BYTES + lk_round_up(bytes, LK_PAGE_BYTES) + LK_PAGE_BYTES;
}
