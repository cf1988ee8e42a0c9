// nccl.h - bytes from GPU to GPU over NCCL. Host only; optional at build time (LOCKSTEP_NCCL),
// needs no NCCL header. Knows GPUs, ranks and buffers; what lies in them is nobody's business here.
//
// NCCL only sends and receives: no sum of its own is ever used, so it can change no bit. Its
// library is loaded where several GPUs work together, and nowhere else. One communicator of
// the world for each GPU of this process; all pairs are connected, and NCCL has taken its memory,
// before lk_nccl_start returns.
#ifndef LOCKSTEP_COMM_CUDA_NCCL_H
#define LOCKSTEP_COMM_CUDA_NCCL_H

#include "arena/base.h"

struct ncclComm;
struct CUstream_st;

enum { LK_NCCL_ID_BYTES = 128, LK_NCCL_GPUS_MAX = 16 };

// GPUs [first, first + count) of the world are this process's.
typedef struct lk_nccl {
    uint32_t world, first, count;
    struct ncclComm *comms[LK_NCCL_GPUS_MAX];
    int code;          // 0, or the first ncclResult_t that was not good
    char version[16];  // of the library that was loaded
    uint32_t bad;      // the GPU, of the world, that was told so
    bool in_group;
} lk_nccl;

// Loads the library, its settings pinned, once. LK_UNAVAILABLE in a build without NCCL, or where
// the library is not there.
lk_status lk_nccl_load(lk_nccl *n, lk_error *error);

// A name for the world to be, made by one process for all.
lk_status lk_nccl_name(lk_nccl *n, uint8_t id[LK_NCCL_ID_BYTES], lk_error *error);

// GPU first + i of the world is device `devices[i]` of this process. All processes at once.
lk_status lk_nccl_start(lk_nccl *n, const uint8_t id[LK_NCCL_ID_BYTES], uint32_t world,
                        uint32_t first, uint32_t count, const uint32_t *devices, lk_error *error);

// Between begin and end, for local GPU `gpu` on a stream of its own. Sends to a peer are received
// there in their order. After a failure nothing more is done (lk_nccl_check).
void lk_nccl_begin(lk_nccl *n);
void lk_nccl_send(lk_nccl *n, uint32_t gpu, const void *from, uint64_t bytes, uint32_t to,
                  struct CUstream_st *stream);
void lk_nccl_receive(lk_nccl *n, uint32_t gpu, void *to, uint64_t bytes, uint32_t from,
                     struct CUstream_st *stream);
void lk_nccl_end(lk_nccl *n);

// Is all well, here and with the others? Never waits. Otherwise LK_RETRY; *what says why.
bool lk_nccl_is_well(lk_nccl *n, const char **what);

// Gives up what is under way, so that no GPU waits any more. The orderly end is lk_nccl_close.
void lk_nccl_abort(lk_nccl *n);
void lk_nccl_close(lk_nccl *n);

#endif
