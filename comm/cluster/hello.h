// hello.h - how a worker proves to the chief that it is a member of the run, and the chief to the
// worker that it is the chief: one line from each side after the chief's question. Host only.
//
//   chief    lockstep 1 QUESTION
//   worker   join RANK WORLD pmi|life PROCESS HOST_ID CLUSTER ANSWER NAME PROOF
//   chief    welcome PROOF            or: refused WHY
//
// QUESTION and ANSWER are 32 random bytes; a PROOF is a keyed BLAKE2b (libsodium) over all that has
// been said, so that it holds for one connection only. Binary values are in hexadecimal. Without a
// key both sides use one of zeros: then it proves nothing, but still that both speak of the same
// cluster. What is said after the welcome is neither signed nor encrypted.
#ifndef LOCKSTEP_COMM_CLUSTER_HELLO_H
#define LOCKSTEP_COMM_CLUSTER_HELLO_H

#include "comm/cluster/cluster.h"

enum {
    LK_HELLO_BYTES = 32,        // a key, a question, an answer, a proof
    LK_HELLO_LINE_BYTES = 640,  // the longest line of the two sides, with its end
    LK_HELLO_HOST_ID_BYTES = 16,
    LK_HELLO_NAME_BYTES = 64,
    LK_HELLO_KEY_BYTES_MIN = 16,  // of a key's file
};

typedef struct lk_key {
    uint8_t bytes[LK_HELLO_BYTES];
    bool given;  // not that of zeros
} lk_key;

// The two connections that a worker makes.
typedef enum lk_hello_kind { LK_HELLO_PMI, LK_HELLO_LIFE } lk_hello_kind;

typedef struct lk_hello {
    uint32_t rank, world;
    lk_hello_kind kind;
    uint64_t process;
    uint8_t host_id[LK_HELLO_HOST_ID_BYTES];  // equal where memory can be shared
    uint8_t cluster[LK_SHA256_BYTES];         // lk_cluster_hash
    uint8_t answer[LK_HELLO_BYTES];
    uint8_t proof[LK_HELLO_BYTES];
    char name[LK_HELLO_NAME_BYTES];  // of the host
} lk_hello;

// The key in a file that others may not read; of whatever bytes, without the line ends behind it.
lk_status lk_key_load(lk_key *key, const char *path, lk_error *error);

// Fills in what is known of this process: kind, answer and proof are still to come.
void lk_hello_self(lk_hello *hello, const lk_cluster *cluster);

void lk_random(uint8_t out[LK_HELLO_BYTES]);

// The chief's question as a line, and back.
void lk_hello_ask(const uint8_t question[LK_HELLO_BYTES], char line[LK_HELLO_LINE_BYTES]);
bool lk_hello_asked(const char *line, uint8_t question[LK_HELLO_BYTES]);

// The worker's line, with a proof that it writes into `hello`, too.
void lk_hello_write(lk_hello *hello, const lk_key *key, const uint8_t question[LK_HELLO_BYTES],
                    char line[LK_HELLO_LINE_BYTES]);
// False where the line is none of these, or its proof is not made with this key.
bool lk_hello_read(lk_hello *hello, const lk_key *key, const uint8_t question[LK_HELLO_BYTES],
                   const char *line);

// The chief's line, and whether it was the chief's.
void lk_hello_welcome(const lk_hello *hello, const lk_key *key, char line[LK_HELLO_LINE_BYTES]);
bool lk_hello_welcomed(const lk_hello *hello, const lk_key *key, const char *line);

#endif
