// nccl_mail.cpp - mailboxes in shared memory, as nccl_mail.h says.
#include "nccl_mail.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "block.h"

static const uint64_t piece_bytes = 32 * 1024;

// From one rank to another. The three counts go round in this order: pieces that the receiver has
// asked for, that the sender has put in, that the receiver has taken out.
struct mailbox {
    uint64_t bytes;  // of the message that is waited for,
    uint32_t type;   // and its type
    uint32_t asked, given, taken;
    alignas(64) uint8_t piece[piece_bytes];
};

struct lk_mail_world {
    uint32_t entered;  // ranks
    uint32_t left[LK_MAIL_RANKS];
    int32_t device[LK_MAIL_RANKS];
    mailbox boxes[LK_MAIL_RANKS][LK_MAIL_RANKS];  // from, to
};

static uint32_t seen(const uint32_t *count) { return __atomic_load_n(count, __ATOMIC_ACQUIRE); }
static void tell(uint32_t *count, uint32_t n) { __atomic_store_n(count, n, __ATOMIC_RELEASE); }

// No file has a name that could stay behind: others find it as an open one of this process.
uint64_t lk_mail_make(void) {
    const int file = memfd_create("nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(lk_mail_world)) != 0) return 0;
    return static_cast<uint64_t>(getpid()) << 32 | static_cast<uint32_t>(file);
}

bool lk_mail_open(lk_mail *mail, uint64_t name, int ranks) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/fd/%u", static_cast<unsigned>(name >> 32),
             static_cast<unsigned>(name));
    mail->file = ranks > LK_MAIL_RANKS ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (mail->file < 0) return false;
    void *map =
        mmap(NULL, sizeof(lk_mail_world), PROT_READ | PROT_WRITE, MAP_SHARED, mail->file, 0);
    if (map == MAP_FAILED) return close(mail->file), false;
    mail->world = static_cast<lk_mail_world *>(map);
    return true;
}

static struct flock life_of(int rank) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
}

void lk_mail_enter(lk_mail *mail, int rank, int device) {
    struct flock life = life_of(rank);
    if (fcntl(mail->file, F_SETLK, &life) != 0) lk_host_die("NCCL rank %d is there twice", rank);
    mail->here[rank] = true;
    mail->world->device[rank] = device;
    __atomic_add_fetch(&mail->world->entered, 1, __ATOMIC_ACQ_REL);
}

bool lk_mail_wait(lk_mail *mail, int ranks) {
    const struct timespec moment = {0, 1000000};
    while (seen(&mail->world->entered) < static_cast<uint32_t>(ranks)) nanosleep(&moment, NULL);
    for (int a = 0; a < ranks; a++) {
        for (int b = 0; b < a; b++) {
            if (mail->world->device[a] == mail->world->device[b]) return false;
        }
    }
    return true;
}

bool lk_mail_is_gone(const lk_mail *mail, int rank) {
    struct flock life = life_of(rank);
    if (mail->here[rank]) return false;
    if (seen(&mail->world->left[rank])) return true;
    return fcntl(mail->file, F_GETLK, &life) == 0 && life.l_type == F_UNLCK;
}

void lk_mail_leave(lk_mail *mail, int rank) { tell(&mail->world->left[rank], 1); }

// --- messages ------------------------------------------------------------------------------------

static uint64_t piece_of(const lk_mail_end *end) {
    const uint64_t left = end->bytes - end->moved;
    return left < piece_bytes ? left : piece_bytes;
}

bool lk_mail_send(lk_mail *mail, lk_mail_end *end, lk_mail_copy *copy) {
    mailbox *box = &mail->world->boxes[end->from][end->to];
    if (seen(&box->taken) != box->given) return false;
    if (end->begun && end->moved == end->bytes) return end->done = true;
    if (seen(&box->asked) == box->given) return false;
    if (!end->begun && (box->bytes != end->bytes || box->type != end->type)) {
        lk_host_die("NCCL ranks %d and %d: a message of %llu bytes meets one of %llu", end->from,
                    end->to, (unsigned long long)end->bytes, (unsigned long long)box->bytes);
    }
    const uint64_t bytes = piece_of(end);
    copy(box->piece, static_cast<uint8_t *>(end->at) + end->moved, bytes);
    end->begun = true;
    end->moved += bytes;
    tell(&box->given, box->given + 1);
    return true;
}

bool lk_mail_receive(lk_mail *mail, lk_mail_end *end, lk_mail_copy *copy) {
    mailbox *box = &mail->world->boxes[end->from][end->to];
    if (!end->begun) {
        box->bytes = end->bytes;
        box->type = end->type;
        end->begun = true;
        tell(&box->asked, box->taken + 1);
        return true;
    }
    if (seen(&box->given) == box->taken) return false;
    const uint64_t bytes = piece_of(end);
    copy(static_cast<uint8_t *>(end->at) + end->moved, box->piece, bytes);
    end->moved += bytes;
    end->done = end->moved == end->bytes;
    // Taken before the next is asked for: the sender looks at both.
    tell(&box->taken, box->taken + 1);
    if (!end->done) tell(&box->asked, box->taken + 1);
    return true;
}
