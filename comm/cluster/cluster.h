// cluster.h - who takes part: the workers of a run in rank order, and which one this process is.
//
// Core: freestanding, no heap. Knows ranks, tasks and addresses as text; where a description comes
// from (a file, TF_CONFIG, a launcher's variables) and how it is written is run/cluster.h's, and
// how ranks reach each other is the transport's.
//
//   rank     0          1          2            world = chiefs + workers
//   task     chief:0    worker:0   worker:1     with a chief: worker i has rank i + 1
//   task     worker:0   worker:1   worker:2     without: worker i has rank i, and worker 0 leads
//
// An evaluator stands beside the ranks: it takes part in no exchange, and leads itself.
#ifndef LOCKSTEP_COMM_CLUSTER_CLUSTER_H
#define LOCKSTEP_COMM_CLUSTER_CLUSTER_H

#include "arena/base.h"
#include "arena/sha256.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LK_CLUSTER_WORLD_MAX = 1024,
    LK_ADDRESS_BYTES = 264,  // a host of 255 characters or [an IPv6 address], a colon, five digits
    LK_CLUSTER_ORIGIN_BYTES = 200,
    LK_TASK_BYTES = 24,
    LK_CLUSTER_LEADER = 0,   // the rank that leads, always
};

// Where a description was found, the one that goes first in front.
//        name                    as it is called in messages
#define LK_CLUSTER_SOURCE_LIST(X)                     \
    X(LK_CLUSTER_FILE,      "--cluster")              \
    X(LK_CLUSTER_TF_CONFIG, "TF_CONFIG")              \
    X(LK_CLUSTER_TORCHRUN,  "torchrun")               \
    X(LK_CLUSTER_MPICH,     "MPICH")                  \
    X(LK_CLUSTER_OPEN_MPI,  "Open MPI")               \
    X(LK_CLUSTER_SLURM,     "Slurm")                  \
    X(LK_CLUSTER_NONE,      "none")

typedef enum lk_cluster_source {
#define LK_CLUSTER_SOURCE_ENUM(name, text) name,
    LK_CLUSTER_SOURCE_LIST(LK_CLUSTER_SOURCE_ENUM)
#undef LK_CLUSTER_SOURCE_ENUM
    LK_CLUSTER_SOURCES
} lk_cluster_source;

const char *lk_cluster_source_name(lk_cluster_source source);

typedef struct lk_cluster {
    lk_cluster_source source;  // LK_CLUSTER_NONE: nobody said anything, one process on its own
    char origin[LK_CLUSTER_ORIGIN_BYTES];  // "TF_CONFIG", "--cluster nodes.json", "torchrun (RANK,
                                           // WORLD_SIZE, MASTER_ADDR)"
    uint32_t world;            // workers that train, the chief among them; an evaluator is not. 1
                               // without a description, 0 where only an evaluator is described
    uint32_t rank;             // of this process; for an evaluator: 0, and of no meaning
    bool evaluator;            // this process is the evaluator
    bool has_chief;            // rank 0 is called chief:0, not worker:0
    bool has_evaluator;        // the description lists an evaluator, at evaluator_address
    char address[LK_CLUSTER_WORLD_MAX][LK_ADDRESS_BYTES];  // "host:port", lower case, zeros behind;
                                                           // "" where nobody said it
    char evaluator_address[LK_ADDRESS_BYTES];
    uint32_t replicas[LK_CLUSTER_WORLD_MAX];               // of each rank; 0 where nobody said it
} lk_cluster;

// One process that knows of no other.
void lk_cluster_single(lk_cluster *cluster);

// True for the process that writes: the leader of the ranks, or an evaluator of its own files.
bool lk_cluster_leads(const lk_cluster *cluster);

// "chief:0", "worker:2": the task of a rank.
void lk_cluster_task(const lk_cluster *cluster, uint32_t rank, char out[LK_TASK_BYTES]);

// What an address has that it must not have ("no port"), or NULL. Good: letters, digits, dots,
// hyphens and underscores, or an IPv6 address in brackets; then a colon and a port, 1 to 65535.
const char *lk_address_wrong(const char *text, size_t length);

// LK_BAD_CONFIG, naming both, where two descriptions differ in what both of them say: evaluator or
// not, rank, world, the addresses that both know.
lk_status lk_cluster_agree(const lk_cluster *a, const lk_cluster *b, lk_error *error);

// The workers as each of them must see them: world, tasks, addresses, replicas; not who one is, and
// not the evaluator, who may be listed or not. Ranks compare it before the first step.
void lk_cluster_hash(const lk_cluster *cluster, uint8_t hash[LK_SHA256_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
