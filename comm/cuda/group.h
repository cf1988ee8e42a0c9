// group.h - the GPUs of a worker: whole steps on one or several, as one. Host only; needs no
// CUDA header.
//
// Every GPU has its own memory, parameters, replicas and graphs (comm/cuda/step.h). With several,
// each step exchanges whole tree nodes and finished sums between them (comm/cuda/exchange.h) over
// NCCL (comm/cuda/nccl.h), on a second stream that is recorded into the same graph: nothing of it
// is decided, allocated or connected after start-up. All GPUs apply the same sums, so all hold the
// same parameters, and any of them can say the result.
//
// A worker of several has two ways to the others. Directly, where all of them have GPUs: the GPUs
// of all workers are peers of one exchange, and the step remains one graph. Or staged, whatever the
// others compute with: then the step is two graphs, and in between its whole nodes and the sums lie
// in the host's pinned memory, where this worker does what every worker does
// (comm/step/exchange.h).
//
// Intended usage, all through lk_cuda (see there):
//   plan, take_host        measure; as often as wanted; no GPU is needed
//   open                   finds the GPUs that were asked for
//   start                  their memory
//   connect                connections, graphs, their trial; of several workers by all at the same
//                          point
//   upload                 parameters and slots of the mirror
//   drive                  a driver for their steps (comm/step/driver.h, comm/cuda/lanes.h)
//   settle                 the result of the steps begun
//   download               before anybody reads the mirror
//   end
#ifndef LOCKSTEP_COMM_CUDA_GROUP_H
#define LOCKSTEP_COMM_CUDA_GROUP_H

#include "comm/cuda/step.h"
#include "comm/cuda/nccl.h"
#include "comm/step/driver.h"

enum { LK_CUDA_GPUS_MAX = LK_NCCL_GPUS_MAX };

// How the nodes and sums of a worker's GPUs travel.
typedef enum lk_cuda_way {
    LK_CUDA_DIRECT,  // from GPU to GPU over NCCL; not at all where there is one
    LK_CUDA_STAGED,  // through the host
} lk_cuda_way;

// How the replicas of a worker lie on its GPUs, and who else there is. Never changes a bit.
typedef struct lk_cuda_choice {
    uint32_t gpus;       // of this process, 1 or more
    uint32_t first_gpu;  // number of the first of them
    lk_cuda_persistence persistent;
    bool dependent;          // launches, where the GPU knows them: ops/cuda/kernels.h
    uint64_t bucket_floats;  // lk_cuda_exchange_plan
    uint32_t seconds_max;    // of a wait for another GPU
    lk_cuda_way way;
    uint32_t world, rank;       // workers, and the number of this one
    const lk_worker *workers;   // (world); NULL: it is alone
    const lk_kernels *kernels;  // of the host, which joins what is staged
} lk_cuda_choice;

typedef struct lk_cuda_group {
    lk_cuda_choice choice;
    uint32_t count;  // GPUs
    lk_cuda_step gpu[LK_CUDA_GPUS_MAX];
    lk_cuda_exchange exchange;
    lk_nccl nccl;
    uint64_t nccl_bytes;  // that NCCL took on the first GPU, part of its external_bytes
    lk_cuda_evaluation evaluations[LK_CUDA_GPUS_MAX];
    uint8_t *mirror;        // pinned, once for all
    bool touched, started;  // `start` was called; `connect` has come to its end
    bool hangs;             // a GPU does not answer: nobody may wait for it any more
    bool lost;              // others are not heard any more: nothing may wait for them
} lk_cuda_group;

// Bytes that a staged step moves between this worker's GPUs and the host.
static inline uint64_t lk_cuda_staged_bytes(const lk_cuda_group *g) {
    uint64_t nodes = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        nodes += lk_exchange_slots(g->exchange.program, &g->gpu[i].share) + 1;
    }
    return nodes * g->exchange.program->node_floats * sizeof(float);
}

static inline void *lk_cuda_made(const lk_cuda_group *g) { return g->gpu[0].host.made; }

// The calls, in a table: a program may be linked without them (apps/run/devices.c).
typedef struct lk_cuda_calls {
    // lk_layout.device_scratch of a program: the most that any of its ops needs.
    lk_device_scratch (*scratch)(const lk_program *program);

    // The table whose kernels compute a run. A reference is no kernel of a device: a program with
    // an op that the table lacks is refused.
    const lk_kernels *(*kernels)(const lk_run_spec *spec);

    // Takes the regions of the devices' arenas and of the host's part, or measures them. `program`
    // is planned for a device, with at least as many replicas as GPUs. gpu[i].arena.used is what
    // GPU i must have.
    void (*plan)(lk_cuda_group *g, const lk_program *program, const lk_cuda_choice *choice,
                 const lk_cuda_needs *needs);
    void (*take_host)(lk_cuda_group *g, lk_arena *arena);

    // arena/cuda_memory.h: how many GPUs are there? Is there GPU `number`?
    uint32_t (*visible)(void);
    lk_status (*open)(lk_cuda_device *device, uint32_t number, lk_error *error);

    // The version of NCCL. LK_UNAVAILABLE where there is none.
    lk_status (*nccl)(char version[16], lk_error *error);

    // After plan, and take_host with memory behind the arena. `mirror` is the host's device region,
    // aligned to a page. LK_UNAVAILABLE where there is no GPU, no room or no way between them.
    // `end` in any case. Where there are other workers, they are connected (comm/mpi/mpi.h) before
    // the GPUs.
    lk_status (*start)(lk_cuda_group *g, const lk_source *source, uint8_t *mirror, lk_error *error);
    lk_status (*connect)(lk_cuda_group *g, lk_error *error);
    void (*end)(lk_cuda_group *g);

    // The mirror's parameters and slots for the devices, before the next step or evaluation; and
    // back: waits for the steps begun.
    void (*upload)(lk_cuda_group *g);
    lk_status (*download)(lk_cuda_group *g, lk_error *error);

    // The program of the objective whose step or evaluation comes next.
    void (*use)(lk_cuda_group *g, const lk_program *program);

    // Rows of a value of the program in use, by the first GPU: those that it is made of lie at
    // lk_cuda_made, where they are found. *bad_op: which op's were not finite, or LK_NONE.
    lk_status (*make)(lk_cuda_group *g, const lk_cuda_making *making, uint32_t *bad_op,
                      lk_error *error);

    // Sets who computes, and over which transport: a step of the driver hands itself to the devices
    // and, where it is not staged, does not wait for them.
    void (*drive)(lk_cuda_group *g, lk_driver *d);

    // Waits for the steps begun; the result of the last, or of the first that was not finite.
    lk_status (*settle)(lk_cuda_group *g, lk_step_result *result, lk_error *error);
} lk_cuda_calls;
extern const lk_cuda_calls lk_cuda;

#endif
