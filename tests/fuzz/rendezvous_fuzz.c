// Fuzz target (libFuzzer): what a connection may send to the chief of a rendezvous. The first byte
// says in what pieces it comes; the first line is a hello, to which the right proof is added here
// so that what stands behind it is reached, too; the others are lines to MPI's address book, each
// from the rank that its first byte says.
//
// A hello is understood only with its proof, and then means what writing it again says. Answers of
// the book are whole lines; what was put is got.
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "comm/cluster/chief.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD = 3 };

static void require(bool holds) {
    if (!holds) abort();
}

static void prove(const lk_key *key, const uint8_t question[LK_HELLO_BYTES], const char *said,
                  char hex[2 * LK_HELLO_BYTES + 1]) {
    static const char purpose[] = "lockstep 1 join";
    uint8_t proof[LK_HELLO_BYTES];
    crypto_generichash_state state;
    crypto_generichash_init(&state, key->bytes, sizeof key->bytes, LK_HELLO_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)purpose, sizeof purpose);
    crypto_generichash_update(&state, question, LK_HELLO_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)said, strlen(said));
    crypto_generichash_final(&state, proof, LK_HELLO_BYTES);
    lk_hex(proof, sizeof proof, hex);
}

static void say_hello(const char *line) {
    static const lk_key key = {.bytes = {1, 2, 3}, .given = true};
    static const uint8_t question[LK_HELLO_BYTES] = {4, 5, 6};
    char whole[LK_PMI_LINE_BYTES + 2 * LK_HELLO_BYTES + 2], again[LK_HELLO_LINE_BYTES];
    uint8_t heard[LK_HELLO_BYTES];
    lk_hello hello, same;
    require(!lk_hello_read(&hello, &key, question, line));
    (void)lk_hello_asked(line, heard);
    size_t length = strlen(line);
    memcpy(whole, line, length + 1);
    prove(&key, question, line, whole + length);
    if (!lk_hello_read(&hello, &key, question, whole)) return;
    require(hello.rank < LK_CLUSTER_WORLD_MAX && hello.world <= LK_CLUSTER_WORLD_MAX);
    require(hello.name[0] != '\0' && strlen(hello.name) < sizeof hello.name);
    same = hello;
    lk_hello_write(&same, &key, question, again);
    require(lk_hello_read(&same, &key, question, again));
    memcpy(hello.answer, same.answer, sizeof hello.answer);
    memcpy(hello.proof, same.proof, sizeof hello.proof);
    require(memcmp(&hello, &same, sizeof hello) == 0);
}

// False where the chief would break the connection.
static bool say_to_book(lk_pmi *pmi, const char *line) {
    char answer[LK_PMI_LINE_BYTES];
    uint32_t rank = (uint8_t)line[0] % WORLD, arrived = pmi->arrived;
    memset(answer, 0x55, sizeof answer);
    lk_pmi_act act = lk_pmi_line(pmi, rank, *line ? line + 1 : line, answer);
    require(pmi->arrived < WORLD && pmi->ended <= WORLD && pmi->pool_used <= sizeof pmi->pool);
    if (act == LK_PMI_WAIT) require(pmi->arrived == arrived + 1);
    if (act == LK_PMI_WAIT || act == LK_PMI_WRONG) return act == LK_PMI_WAIT;
    const char *end = memchr(answer, '\n', sizeof answer);
    require(end && end[1] == '\0' && strncmp(answer, "cmd=", 4) == 0);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lk_pmi pmi;
    static lk_line_in in;
    const uint32_t hosts[WORLD] = {0, 1, 1};
    uint32_t lines = 0;
    if (size < 2) return 0;
    size_t piece = data[0] ? data[0] : size;
    bool broken = false;
    in.used = 0;
    lk_pmi_open(&pmi, WORLD, hosts);
    for (size_t at = 1; at < size && !broken;) {
        const char *line;
        size_t count = LK_MIN(piece, size - at);
        size_t taken = lk_line_take(&in, (const char *)data + at, count, &line, &broken);
        require(taken >= 1 && taken <= count && in.used < sizeof in.text && !(line && broken));
        at += taken;
        if (!line) continue;
        if (lines++ == 0)
            say_hello(line);
        else if (!say_to_book(&pmi, line))
            break;
    }
    return 0;
}
