// hot_state.c - the file of hot_state.h: heads, checksums, and the order of stores that makes a
// torn copy one that is seen. Knows no run.
//
// A copy is a page with its head and then the tensors. The head's own checksum is its last word: it
// is set to zero before anything else of the copy changes, and written when all else is. A process
// that is killed has made all its earlier stores and none of its later ones, so the order of the
// program is the order of the file.
#define _GNU_SOURCE
#include "io/hot_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
// Its state lies on the stack, so its size must be this header's own.
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PAGE_BYTES = 4096, CHUNK_BYTES = 32 * 1024, OPENINGS = 8 };

static const char magic[8] = {'L', 'K', 'H', 'O', 'T', ' ', '1', '\n'};

typedef struct head {
    char magic[8];
    uint8_t identity[LK_SHA256_BYTES];
    uint64_t step, word;
    uint64_t tensor_bytes;
    uint64_t tensor_hash;
    _Atomic uint64_t check;  // of all above; 0: not whole
} head;

_Static_assert(sizeof(head) <= PAGE_BYTES, "a head is one page");

static head *head_of(const lk_hot_state *hot, uint32_t which) {
    return (head *)(void *)(hot->base + which * hot->copy_bytes);
}

static uint8_t *tensors_of(const lk_hot_state *hot, uint32_t which) {
    return hot->base + which * hot->copy_bytes + PAGE_BYTES;
}

// Never 0, which says that there is nothing.
static uint64_t check_of(const head *h) {
    uint64_t hash = XXH3_64bits(h, offsetof(head, check));
    return hash ? hash : 1;
}

static uint64_t bytes_of(const lk_safetensors_tensor *t) {
    uint64_t bytes = 0;
    bool fits = lk_safetensors_bytes(t->dtype, t->dim_count, t->dims, &bytes);
    lk_assert(fits);  // it lies in memory
    return bytes;
}

uint64_t lk_hot_tensor_bytes(const lk_safetensors_tensor *tensors, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += bytes_of(&tensors[i]);
    return bytes;
}

uint64_t lk_hot_file_bytes(uint64_t tensor_bytes) {
    return LK_HOT_COPIES * (PAGE_BYTES + lk_round_up(tensor_bytes, PAGE_BYTES));
}

lk_status lk_hot_path(char path[LK_PATH_BYTES], const char *directory, uint64_t key,
                      lk_error *error) {
    char name[64];
    lk_format(name, sizeof name, "lockstep-hot-%016llx", (unsigned long long)key);
    return lk_path_join(path, directory, "/", name, error);
}

// --- opening -----------------------------------------------------------------------------------

static lk_status refuse(const char *path, const char *why, lk_error *error) {
    return lk_fail(error, LK_BAD_DATA, "%s: %s, wanted this user's own file of mode 0600", path,
                   why);
}

static lk_status judge_file(const lk_hot_state *hot, struct stat *there, lk_error *error) {
    if (fstat(hot->file, there) != 0) {
        return lk_file_fail(error, LK_UNAVAILABLE, hot->path, "look at it", -errno);
    }
    if (!S_ISREG(there->st_mode)) return refuse(hot->path, "is no plain file", error);
    if (there->st_uid != geteuid()) return refuse(hot->path, "is another user's", error);
    if (there->st_mode & 077) return refuse(hot->path, "is open to others", error);
    if (there->st_nlink > 1) return refuse(hot->path, "has another name, too", error);
    return LK_OK;
}

// Of the file that has this name now: whoever held it before may have removed it meanwhile.
static lk_status open_and_hold(lk_hot_state *hot, bool create, struct stat *there,
                               lk_error *error) {
    const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    for (uint32_t n = 0; n < OPENINGS; n++) {
        struct stat named;
        hot->file = open(hot->path, flags);
        if (hot->file < 0 && errno == ENOENT && create) {
            hot->file = open(hot->path, flags | O_CREAT | O_EXCL, 0600);
        }
        if (hot->file < 0 && errno == EEXIST) continue;
        if (hot->file < 0 && errno == ELOOP) return refuse(hot->path, "is a link", error);
        if (hot->file < 0) {
            const lk_status status = errno == ENOENT && !create ? LK_NO_INPUT : LK_UNAVAILABLE;
            return lk_file_fail(error, status, hot->path, "open", -errno);
        }
        LK_CHECK(judge_file(hot, there, error));
        if (flock(hot->file, LOCK_EX | LOCK_NB) != 0) {
            return lk_fail(error, LK_UNAVAILABLE, "%s: another process holds it", hot->path);
        }
        const bool same = stat(hot->path, &named) == 0 && named.st_ino == there->st_ino;
        if (same) return LK_OK;
        close(hot->file);
        hot->file = -1;
    }
    return lk_fail(error, LK_UNAVAILABLE, "%s: it is made and removed again and again", hot->path);
}

// All pages are there from now on: what cannot be had is said here and not by a signal later.
static lk_status take_room(lk_hot_state *hot, uint64_t size, bool create, lk_error *error) {
    const uint64_t wanted = LK_HOT_COPIES * hot->copy_bytes;
    if (size != wanted && !create) {
        return lk_fail(error, LK_BAD_DATA, "%s: found %llu bytes, wanted %llu", hot->path,
                       (unsigned long long)size, (unsigned long long)wanted);
    }
    int failed = 0;
    if (size != wanted && (ftruncate(hot->file, 0) != 0 || wanted > INT64_MAX)) failed = errno;
    if (!failed) failed = posix_fallocate(hot->file, 0, (off_t)wanted);
    if (failed) {
        return lk_fail(
            error, LK_UNAVAILABLE,
            "%s: no room for %llu bytes: %s; make room, or set checkpoint.hot_steps to 0",
            hot->path, (unsigned long long)wanted, strerror(failed));
    }
    void *base =
        mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, hot->file, 0);
    if (base == MAP_FAILED) {
        return lk_file_fail(error, LK_UNAVAILABLE, hot->path, "map", -errno);
    }
    hot->base = base;
    (void)mlock(base, wanted);  // a wish, as for the arena
    for (uint64_t at = 0; at < wanted; at += PAGE_BYTES) (void)((volatile uint8_t *)base)[at];
    return LK_OK;
}

lk_status lk_hot_open(lk_hot_state *hot, const char *path, const uint8_t identity[LK_SHA256_BYTES],
                      uint64_t tensor_bytes, bool create, lk_error *error) {
    struct stat there;
    *hot = (lk_hot_state){.file = -1,
                          .tensor_bytes = tensor_bytes,
                          .copy_bytes = lk_hot_file_bytes(tensor_bytes) / LK_HOT_COPIES};
    memcpy(hot->identity, identity, sizeof hot->identity);
    lk_format(hot->path, sizeof hot->path, "%s", path);
    lk_status status = open_and_hold(hot, create, &there, error);
    if (status == LK_OK) {
        status = take_room(hot, (uint64_t)there.st_size, create, error);
        if (status != LK_OK && create) lk_hot_remove(hot);  // nothing half made stays
    }
    if (status != LK_OK) lk_hot_close(hot);
    return status;
}

void lk_hot_unmap(lk_hot_state *hot) {
    if (hot->base) munmap(hot->base, LK_HOT_COPIES * hot->copy_bytes);
    hot->base = NULL;
}

void lk_hot_close(lk_hot_state *hot) {
    lk_hot_unmap(hot);
    if (hot->file >= 0) close(hot->file);
    hot->file = -1;
}

// By its name while it is held, so it is this file and no other.
void lk_hot_leave(lk_hot_state *hot, bool remove) {
    if (hot->file >= 0 && remove) (void)unlink(hot->path);
    if (hot->file >= 0) close(hot->file);
    hot->file = -1;
}

void lk_hot_remove(lk_hot_state *hot) {
    lk_hot_leave(hot, true);
    lk_hot_close(hot);
}

// --- copies ------------------------------------------------------------------------------------

static lk_hot_copy judge(const lk_hot_state *hot, uint32_t which) {
    static const head nothing;
    const head *h = head_of(hot, which);
    // All bytes of it, those between its members too: nobody has written there.
    if (memcmp(h, &nothing, sizeof nothing) == 0)  // NOLINT(bugprone-suspicious-memory-comparison)
        return (lk_hot_copy){LK_HOT_EMPTY, 0, 0};
    const bool whole = atomic_load(&h->check) == check_of(h) &&
                       memcmp(h->magic, magic, sizeof magic) == 0 &&
                       h->tensor_bytes == hot->tensor_bytes &&
                       h->tensor_hash == XXH3_64bits(tensors_of(hot, which), h->tensor_bytes);
    if (!whole) return (lk_hot_copy){LK_HOT_TORN, 0, 0};
    const bool ours = memcmp(h->identity, hot->identity, sizeof h->identity) == 0;
    return (lk_hot_copy){ours ? LK_HOT_WHOLE : LK_HOT_FOREIGN, h->step, h->word};
}

void lk_hot_look(lk_hot_state *hot, lk_hot_copy copies[LK_HOT_COPIES]) {
    uint32_t newest = LK_HOT_COPIES;
    for (uint32_t i = 0; i < LK_HOT_COPIES; i++) {
        copies[i] = judge(hot, i);
        if (copies[i].verdict != LK_HOT_WHOLE) continue;
        if (newest == LK_HOT_COPIES || copies[i].step > copies[newest].step) newest = i;
    }
    hot->used = newest < LK_HOT_COPIES;
    hot->next = hot->used ? (newest + 1) % LK_HOT_COPIES : 0;
}

// Copies bytes and adds them to the hash while they are near.
static void copy_and_hash(void *to, const void *from, uint64_t bytes, XXH3_state_t *hash) {
    for (uint64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const size_t piece = (size_t)LK_MIN(bytes - at, (uint64_t)CHUNK_BYTES);
        memcpy((uint8_t *)to + at, (const uint8_t *)from + at, piece);
        (void)XXH3_64bits_update(hash, (uint8_t *)to + at, piece);
    }
}

void lk_hot_keep(lk_hot_state *hot, const lk_safetensors_tensor *tensors, size_t count,
                 uint64_t step, uint64_t word) {
    head *h = head_of(hot, hot->next);
    uint8_t *at = tensors_of(hot, hot->next);
    XXH3_state_t hash;
    (void)XXH3_64bits_reset(&hash);
    atomic_store(&h->check, 0);
    atomic_signal_fence(memory_order_seq_cst);
    memcpy(h->magic, magic, sizeof magic);
    memcpy(h->identity, hot->identity, sizeof h->identity);
    h->step = step;
    h->word = word;
    h->tensor_bytes = hot->tensor_bytes;
    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes = bytes_of(&tensors[i]);
        copy_and_hash(at, tensors[i].data, bytes, &hash);
        at += bytes;
    }
    lk_assert(at == tensors_of(hot, hot->next) + hot->tensor_bytes);
    h->tensor_hash = XXH3_64bits_digest(&hash);
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store(&h->check, check_of(h));
    hot->next = (hot->next + 1) % LK_HOT_COPIES;
    hot->used = true;
}

lk_status lk_hot_take(const lk_hot_state *hot, uint32_t which, const lk_safetensors_tensor *tensors,
                      size_t count, lk_error *error) {
    const head *h = head_of(hot, which);
    const uint8_t *at = tensors_of(hot, which);
    XXH3_state_t hash;
    (void)XXH3_64bits_reset(&hash);
    const bool good = atomic_load(&h->check) == check_of(h);
    for (size_t i = 0; good && i < count; i++) {
        const uint64_t bytes = bytes_of(&tensors[i]);
        lk_assert(bytes <= (uint64_t)(tensors_of(hot, which) + hot->tensor_bytes - at));
        copy_and_hash(tensors[i].data, at, bytes, &hash);
        at += bytes;
    }
    if (good && XXH3_64bits_digest(&hash) == h->tensor_hash) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: copy %u is torn", hot->path, which);
}

void lk_hot_clear(lk_hot_state *hot) {
    for (uint32_t i = 0; hot->base && i < LK_HOT_COPIES; i++) {
        memset(hot->base + i * hot->copy_bytes, 0, sizeof(head));
    }
    hot->next = 0;
    hot->used = false;
}
