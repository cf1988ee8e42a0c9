// hello.c - the lines of hello.h, on libsodium's keyed BLAKE2b.
#define _GNU_SOURCE
#include "comm/cluster/hello.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(LK_HELLO_BYTES == crypto_generichash_BYTES, "a proof is libsodium's usual hash");

void lk_random(uint8_t out[LK_HELLO_BYTES]) { randombytes_buf(out, LK_HELLO_BYTES); }

// --- the key -----------------------------------------------------------------------------------

static lk_status read_key(const char *path, uint8_t *bytes, size_t room, size_t *count,
                          lk_error *error) {
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
    ssize_t got = -1;
    if (fd >= 0 && fstat(fd, &about) == 0) got = pread(fd, bytes, room, 0);
    int number = errno;
    if (fd >= 0) close(fd);
    if (got < 0) {
        return lk_fail(error, LK_NO_INPUT, "LOCKSTEP_KEY_FILE: %s: cannot be read: %s", path,
                       strerror(number));
    }
    if (about.st_mode & 0007) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "LOCKSTEP_KEY_FILE: %s: everybody on this machine may read or change the "
                       "key; take that away with: chmod o= %s",
                       path, path);
    }
    *count = (size_t)got;
    return LK_OK;
}

lk_status lk_key_load(lk_key *key, const char *path, lk_error *error) {
    uint8_t bytes[4096];
    size_t count = 0;
    if (sodium_init() < 0) return lk_fail(error, LK_UNAVAILABLE, "libsodium does not start");
    *key = (lk_key){.given = path != NULL};
    if (!path) return LK_OK;
    LK_CHECK(read_key(path, bytes, sizeof bytes, &count, error));
    bool all = count < sizeof bytes;
    while (count && (bytes[count - 1] == '\n' || bytes[count - 1] == '\r')) count--;
    if (all && count >= LK_HELLO_KEY_BYTES_MIN) {
        crypto_generichash(key->bytes, sizeof key->bytes, bytes, count, NULL, 0);
        sodium_memzero(bytes, sizeof bytes);
        return LK_OK;
    }
    return lk_fail(error, LK_BAD_CONFIG,
                   "LOCKSTEP_KEY_FILE: %s: found %s%zu bytes, wanted %d to %zu; make one with: "
                   "head -c 32 /dev/urandom | base64 > %s",
                   path, all ? "" : "at least ", count, LK_HELLO_KEY_BYTES_MIN, sizeof bytes - 1,
                   path);
}

// --- text --------------------------------------------------------------------------------------

// A cursor over the words of a line, one space between two; `good` once is bad for ever.
typedef struct words {
    const char *at;
    bool good;
} words;

static const char *next_word(words *w, size_t *length) {
    const char *word = w->at;
    *length = strcspn(word, " ");
    if (*length == 0) w->good = false;
    w->at = word + *length + (word[*length] == ' ');
    return word;
}

static bool next_is(words *w, const char *wanted) {
    size_t length;
    const char *word = next_word(w, &length);
    return length == strlen(wanted) && memcmp(word, wanted, length) == 0;
}

static uint64_t next_number(words *w, uint64_t most) {
    size_t length;
    const char *word = next_word(w, &length);
    uint64_t number = 0;
    w->good = w->good && length <= 18 && (word[0] != '0' || length == 1);
    for (size_t i = 0; w->good && i < length; i++) {
        w->good = word[i] >= '0' && word[i] <= '9';
        number = number * 10 + (uint64_t)(word[i] - '0');
    }
    w->good = w->good && number <= most;
    return w->good ? number : 0;
}

static void next_bytes(words *w, uint8_t *out, size_t count) {
    size_t length, done = 0;
    const char *word = next_word(w, &length);
    w->good = w->good && length == 2 * count &&
              sodium_hex2bin(out, count, word, length, NULL, &done, NULL) == 0 && done == count;
}

static bool ends(const words *w) { return w->good && *w->at == '\0'; }

// --- the question ------------------------------------------------------------------------------

enum { HEX_BYTES = 2 * LK_HELLO_BYTES + 1 };

void lk_hello_ask(const uint8_t question[LK_HELLO_BYTES], char line[LK_HELLO_LINE_BYTES]) {
    char hex[HEX_BYTES];
    lk_hex(question, LK_HELLO_BYTES, hex);
    lk_format(line, LK_HELLO_LINE_BYTES, "lockstep 1 %s", hex);
}

bool lk_hello_asked(const char *line, uint8_t question[LK_HELLO_BYTES]) {
    words w = {line, true};
    if (!next_is(&w, "lockstep") || !next_is(&w, "1")) return false;
    next_bytes(&w, question, LK_HELLO_BYTES);
    return ends(&w);
}

// --- the worker's line -------------------------------------------------------------------------

static void hash_file(crypto_generichash_state *state, const char *path) {
    uint8_t bytes[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd >= 0 ? read(fd, bytes, sizeof bytes) : 0;
    if (fd >= 0) close(fd);
    if (count > 0) crypto_generichash_update(state, bytes, (size_t)count);
}

void lk_hello_self(lk_hello *h, const lk_cluster *cluster) {
    crypto_generichash_state state;
    struct stat shared;
    *h = (lk_hello){.rank = cluster->rank, .world = cluster->world, .process = (uint64_t)getpid()};
    lk_cluster_hash(cluster, h->cluster);
    if (gethostname(h->name, sizeof h->name - 1) != 0 || !h->name[0]) h->name[0] = '-';
    for (char *at = h->name; *at; at++) {
        if (*at <= ' ' || *at > '~') *at = '_';
    }
    // One kernel, one name, one place for shared memory: two containers of a machine are two hosts.
    crypto_generichash_init(&state, NULL, 0, sizeof h->host_id);
    hash_file(&state, "/proc/sys/kernel/random/boot_id");
    crypto_generichash_update(&state, (const uint8_t *)h->name, sizeof h->name);
    if (stat("/dev/shm", &shared) == 0) {
        crypto_generichash_update(&state, (const uint8_t *)&shared.st_dev, sizeof shared.st_dev);
    }
    crypto_generichash_final(&state, h->host_id, sizeof h->host_id);
}

static void prove(const char *purpose, const lk_key *key, const uint8_t question[LK_HELLO_BYTES],
                  const void *text, size_t bytes, uint8_t proof[LK_HELLO_BYTES]) {
    crypto_generichash_state state;
    crypto_generichash_init(&state, key->bytes, sizeof key->bytes, LK_HELLO_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)purpose, strlen(purpose) + 1);
    crypto_generichash_update(&state, question, LK_HELLO_BYTES);
    crypto_generichash_update(&state, text, bytes);
    crypto_generichash_final(&state, proof, LK_HELLO_BYTES);
}

static const char *const kinds[] = {"pmi", "life"};

void lk_hello_write(lk_hello *h, const lk_key *key, const uint8_t question[LK_HELLO_BYTES],
                    char line[LK_HELLO_LINE_BYTES]) {
    char host_id[2 * LK_HELLO_HOST_ID_BYTES + 1], cluster[LK_SHA256_HEX_BYTES];
    char answer[HEX_BYTES], proof[HEX_BYTES];
    lk_random(h->answer);
    lk_hex(h->host_id, sizeof h->host_id, host_id);
    lk_hex(h->cluster, sizeof h->cluster, cluster);
    lk_hex(h->answer, sizeof h->answer, answer);
    size_t said = lk_format(line, LK_HELLO_LINE_BYTES, "join %u %u %s %llu %s %s %s %s ", h->rank,
                            h->world, kinds[h->kind], (unsigned long long)h->process, host_id,
                            cluster, answer, h->name);
    lk_assert(said + sizeof proof <= LK_HELLO_LINE_BYTES);
    prove("lockstep 1 join", key, question, line, said, h->proof);
    lk_hex(h->proof, sizeof h->proof, proof);
    memcpy(line + said, proof, sizeof proof);
}

bool lk_hello_read(lk_hello *h, const lk_key *key, const uint8_t question[LK_HELLO_BYTES],
                   const char *line) {
    words w = {line, true};
    uint8_t wanted[LK_HELLO_BYTES];
    *h = (lk_hello){.rank = 0};
    if (!next_is(&w, "join")) return false;
    h->rank = (uint32_t)next_number(&w, LK_CLUSTER_WORLD_MAX - 1);
    h->world = (uint32_t)next_number(&w, LK_CLUSTER_WORLD_MAX);
    words kind = w;
    h->kind = next_is(&kind, kinds[LK_HELLO_LIFE]) ? LK_HELLO_LIFE : LK_HELLO_PMI;
    if (!next_is(&w, kinds[h->kind])) return false;
    h->process = next_number(&w, INT32_MAX);
    next_bytes(&w, h->host_id, sizeof h->host_id);
    next_bytes(&w, h->cluster, sizeof h->cluster);
    next_bytes(&w, h->answer, sizeof h->answer);
    size_t length;
    const char *name = next_word(&w, &length);
    if (length >= sizeof h->name) return false;
    memcpy(h->name, name, length);
    size_t said = (size_t)(w.at - line);
    next_bytes(&w, h->proof, sizeof h->proof);
    if (!ends(&w)) return false;
    for (const char *at = h->name; *at; at++) {
        if (*at <= ' ' || *at > '~') return false;
    }
    prove("lockstep 1 join", key, question, line, said, wanted);
    return sodium_memcmp(wanted, h->proof, sizeof wanted) == 0;
}

// --- the chief's line --------------------------------------------------------------------------

void lk_hello_welcome(const lk_hello *h, const lk_key *key, char line[LK_HELLO_LINE_BYTES]) {
    uint8_t proof[LK_HELLO_BYTES];
    char hex[HEX_BYTES];
    prove("lockstep 1 welcome", key, h->answer, h->proof, sizeof h->proof, proof);
    lk_hex(proof, sizeof proof, hex);
    lk_format(line, LK_HELLO_LINE_BYTES, "welcome %s", hex);
}

bool lk_hello_welcomed(const lk_hello *h, const lk_key *key, const char *line) {
    uint8_t proof[LK_HELLO_BYTES], wanted[LK_HELLO_BYTES];
    words w = {line, true};
    if (!next_is(&w, "welcome")) return false;
    next_bytes(&w, proof, sizeof proof);
    if (!ends(&w)) return false;
    prove("lockstep 1 welcome", key, h->answer, h->proof, sizeof h->proof, wanted);
    return sodium_memcmp(wanted, proof, sizeof wanted) == 0;
}
