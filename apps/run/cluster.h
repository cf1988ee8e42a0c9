// cluster.h - where a cluster's description comes from: a file, TF_CONFIG, torchrun's variables, an
// MPI launcher's, in that order. Host only, start-up only. What it means is
// comm/cluster/cluster.h's.
//
//   --cluster FILE   a document like TF_CONFIG's; without "task" a launcher's rank is taken
//   TF_CONFIG        the same document as text (semantics of TensorFlow's multi-worker strategies)
//   torchrun         RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (the port after it where torchrun's
//                    agent takes that one for itself: TORCHELASTIC_USE_AGENT_STORE=True)
//   MPICH            PMI_RANK, PMI_SIZE: Hydra's mpiexec, and srun --mpi=pmi2
//   Open MPI         OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
//   Slurm            SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, in a step (SLURM_STEP_ID)
//
// The first that says something is taken; any other that does must agree. Slurm's variables are
// passed over where a launcher that srun starts once a node (torchrun, Hydra, Open MPI) has started
// this process: they then number the launcher's own processes.
//
//   {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "evaluator": ["d:2222"]},
//    "task": {"type": "worker", "index": 0},
//    "replicas": {"chief": 1, "worker": [2, 4]}}
//
// "replicas" is ours: a number for all, or as here; what is not said each worker decides itself.
#ifndef LOCKSTEP_APPS_RUN_CLUSTER_H
#define LOCKSTEP_APPS_RUN_CLUSTER_H

#include "comm/cluster/cluster.h"

enum { LK_CLUSTER_TEXT_BYTES_MAX = 512 << 10, LK_CLUSTER_PORT_DEFAULT = 29400 };

// Where to look; a test answers for the variables, which stay until lk_cluster_read returns.
typedef struct lk_cluster_input {
    const char *file;                                          // --cluster, or NULL
    const char *(*variable)(void *context, const char *name);  // NULL: getenv
    void *context;
} lk_cluster_input;

// What each source did. (LK_CLUSTER_SOURCES)
typedef enum lk_cluster_told {
    LK_TOLD_NOTHING,      // it says nothing
    LK_TOLD_TAKEN,        // its description is the one in force
    LK_TOLD_SAME,         // it says the same
    LK_TOLD_RANK,         // the document in force does not say who this is, and this one does
    LK_TOLD_PASSED_OVER,  // Slurm, under another launcher
} lk_cluster_told;

typedef struct lk_cluster_report {
    lk_cluster_told told[LK_CLUSTER_SOURCES];
    char unused[160];  // "rpc_layer, environment": TensorFlow's keys that mean nothing here
} lk_cluster_report;

// LK_BAD_CONFIG with variable or file, byte, key, what was found and wanted; LK_NO_INPUT for a file
// that cannot be read. `report` may be NULL. Not for two threads at once.
lk_status lk_cluster_read(const lk_cluster_input *given, lk_cluster *out, lk_cluster_report *report,
                          lk_error *error);

// --replicas (0: not given) against what the description says of this process.
lk_status lk_cluster_check_replicas(const lk_cluster *cluster, uint32_t given, lk_error *error);

#endif
