// exchange.h - what GPUs that share a batch send each other, and when: the partitions and boxes of
// comm/step/exchange.h, in pieces, so that those of a finished layer travel under the backward of
// the earlier ones. Knows no transport and no address; the schedule is the same wherever it is
// asked for, and its hash is part of what workers agree on.
//
// The node vector is cut into buckets of whole parameters, in the order in which their gradients
// are finished. A bucket is exchanged once the op `after_op` of the last microbatch is done:
//
//     NODES    of every whole node of GPU a: what lies in bucket and partition b, to GPU b
//     join     by the owner of the partition, in tree order
//     SUMS     what is finished in bucket and partition, to everybody
//
// and with the last bucket's sums the NOTES: what cannot be told by sums.
#ifndef LOCKSTEP_COMM_CUDA_EXCHANGE_H
#define LOCKSTEP_COMM_CUDA_EXCHANGE_H

#include "comm/step/exchange.h"

enum { LK_CUDA_PEERS_MAX = 64, LK_CUDA_BUCKETS_MAX = 32 };

// Fewer floats than these do not travel alone, where nobody says.
enum { LK_CUDA_BUCKET_FLOATS = 64 * 1024 };

typedef lk_bucket lk_cuda_bucket;

typedef struct lk_cuda_exchange {
    const lk_program *program;          // in use
    uint64_t bucket_floats;
    uint32_t peers;                     // GPUs of the world
    lk_worker list[LK_CUDA_PEERS_MAX];  // each with its replicas
    uint32_t bucket_count;
    lk_cuda_bucket buckets[LK_CUDA_BUCKETS_MAX];
} lk_cuda_exchange;

// The replicas of `whole`, which has `gpus` of them, that work on GPU `gpu`.
lk_worker lk_cuda_share(const lk_worker *whole, uint32_t gpus, uint32_t gpu);

// The part of the node vector that a GPU owns: its partition (comm/step/exchange.h), and the last
// GPU has the loss besides.
lk_partition lk_cuda_partition(const lk_cuda_exchange *x, uint32_t peer);
lk_partition lk_cuda_partition_of(const lk_program *program, uint32_t peers, uint32_t peer);

// After program, peers and list are set: the buckets, each of at least `bucket_floats`. And those
// of another program.
void lk_cuda_exchange_plan(lk_cuda_exchange *x, uint64_t bucket_floats);
void lk_cuda_exchange_use(lk_cuda_exchange *x, const lk_program *program);

typedef enum lk_cuda_message_kind {
    LK_CUDA_NODES,
    LK_CUDA_SUMS,
    LK_CUDA_REPORTS
} lk_cuda_message_kind;

// Floats [begin, end) of the node vector from one GPU to another; of its `block`th whole node, of
// its sums, or its report.
typedef struct lk_cuda_message {
    lk_cuda_message_kind kind;
    uint32_t bucket, from, to, block;
    uint64_t begin, end;
} lk_cuda_message;

// Calls on_message for each message of one kind in one bucket, in the order that all workers have;
// `leaves` is how many grains the step has.
typedef void (*lk_cuda_on_message)(void *context, const lk_cuda_message *message);
void lk_cuda_messages(const lk_cuda_exchange *x, lk_cuda_message_kind kind, uint32_t bucket,
                      uint32_t leaves, lk_cuda_on_message on_message, void *context);

// Of a full step of each objective and of the last of an epoch: whoever has the same sends and
// receives the same.
void lk_cuda_schedule_hash(const lk_cuda_exchange *x, uint8_t bytes[LK_SHA256_BYTES]);

// Bytes that all GPUs send in a full step of the program in use.
uint64_t lk_cuda_exchange_bytes(const lk_cuda_exchange *x);

#endif
