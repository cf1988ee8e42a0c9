// nccl_mail.h - how the stand-in for NCCL (nccl.cpp) reaches ranks in other processes of this
// machine: a piece of shared memory with a mailbox for each pair of ranks. Knows no stream.
//
// As between ranks of one process, nothing is buffered: the sender puts a piece into the mailbox
// once the receiver waits for it, and has sent a message once the receiver has taken the last
// piece. A process that ends, however it ends, is gone for all others at once: it holds a lock on a
// byte of the memory's file for each of its ranks, and the kernel takes that away from it.
#ifndef LOCKSTEP_HOST_NCCL_MAIL_H
#define LOCKSTEP_HOST_NCCL_MAIL_H

#include <stddef.h>
#include <stdint.h>

enum { LK_MAIL_RANKS = 16 };

struct lk_mail_world;  // of shared memory

struct lk_mail {
    lk_mail_world *world;  // NULL: all ranks are in this process
    int file;
    bool here[LK_MAIL_RANKS];  // ranks of this process
};

// One end of a message, on its way.
struct lk_mail_end {
    int from, to;  // ranks
    void *at;
    uint64_t bytes, moved;
    uint32_t type;
    bool begun, done;
};

// A world, and its name: it ends with the last process that has it open. 0 where it cannot be.
uint64_t lk_mail_make(void);

// Opens the world of this name for `ranks` ranks. False where it cannot be reached, or has no room
// for them.
bool lk_mail_open(lk_mail *mail, uint64_t name, int ranks);

// A rank of this process, on this device, is there. Then waits until all are; false where two are
// on one device.
void lk_mail_enter(lk_mail *mail, int rank, int device);
bool lk_mail_wait(lk_mail *mail, int ranks);

// Of another process: has it ended, or given up?
bool lk_mail_is_gone(const lk_mail *mail, int rank);
void lk_mail_leave(lk_mail *mail, int rank);  // gives up

// Moves at most one piece, by `copy`; whether something was done. Ends the program where the two
// ends of a message differ.
typedef void lk_mail_copy(void *to, const void *from, size_t bytes);
bool lk_mail_send(lk_mail *mail, lk_mail_end *end, lk_mail_copy *copy);
bool lk_mail_receive(lk_mail *mail, lk_mail_end *end, lk_mail_copy *copy);

#endif
