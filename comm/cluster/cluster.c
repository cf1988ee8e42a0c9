// cluster.c - ranks and tasks, the grammar of an address, and whether two descriptions agree. Core.
#include "comm/cluster/cluster.h"

const char *lk_cluster_source_name(lk_cluster_source source) {
    static const char *const names[] = {
#define SOURCE_NAME(name, text) text,
        LK_CLUSTER_SOURCE_LIST(SOURCE_NAME)
#undef SOURCE_NAME
    };
    lk_assert(source < LK_CLUSTER_SOURCES);
    return names[source];
}

void lk_cluster_single(lk_cluster *cluster) {
    __builtin_memset(cluster, 0, sizeof *cluster);
    cluster->source = LK_CLUSTER_NONE;
    cluster->world = 1;
}

bool lk_cluster_leads(const lk_cluster *cluster) {
    return cluster->evaluator || cluster->rank == LK_CLUSTER_LEADER;
}

void lk_cluster_task(const lk_cluster *cluster, uint32_t rank, char out[LK_TASK_BYTES]) {
    lk_assert(rank < cluster->world);
    if (cluster->has_chief && rank == 0) {
        lk_format(out, LK_TASK_BYTES, "chief:0");
    } else {
        lk_format(out, LK_TASK_BYTES, "worker:%u", rank - cluster->has_chief);
    }
}

// --- addresses ---------------------------------------------------------------------------------

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_name(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-'
        || c == '_';
}

static const char *port_wrong(const char *text, size_t length) {
    uint32_t port = 0;
    if (length == 0) return "no port";
    for (size_t i = 0; i < length; i++) {
        if (!is_digit(text[i])) return "a port that is no number";
        port = LK_MIN(port * 10 + (uint32_t)(text[i] - '0'), 100000u);
    }
    if (port < 1 || port > 65535) return "a port beyond 1 to 65535";
    return length <= 5 ? NULL : "a port of more than five digits";
}

// The length of the host, its brackets included, or 0 with *wrong set.
static size_t host_length(const char *text, size_t length, const char **wrong) {
    size_t n = 0;
    if (text[0] == '[') {
        size_t colons = 0;
        for (n = 1; n < length && (is_hex(text[n]) || text[n] == ':' || text[n] == '.'); n++)
            colons += text[n] == ':';
        if (n < length && text[n] == ']' && colons >= 2) return n + 1;
        *wrong = "brackets that hold no IPv6 address";
        return 0;
    }
    while (n < length && is_name(text[n])) n++;
    if (n == 0) *wrong = "no host";
    return n;
}

const char *lk_address_wrong(const char *text, size_t length) {
    const char *wrong = NULL;
    if (length == 0) return "no host and no port";
    if (length >= LK_ADDRESS_BYTES) return "more than 263 bytes";
    size_t host = host_length(text, length, &wrong), colons = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '/') return "a slash (a scheme or a path)";
        colons += i >= host && text[i] == ':';
    }
    if (wrong) return text[0] == ':' || text[0] == '[' ? wrong : "a character no host name has";
    if (host == length) return "no port";
    if (text[host] != ':') return "a character no host name has";
    if (colons > 1) return "more than one colon (an IPv6 address stands in brackets)";
    return port_wrong(text + host + 1, length - host - 1);
}

// --- two descriptions --------------------------------------------------------------------------

static void say_place(const lk_cluster *c, char out[64]) {
    if (c->evaluator) lk_format(out, 64, "evaluator");
    else lk_format(out, 64, "rank %u of %u", c->rank, c->world);
}

lk_status lk_cluster_agree(const lk_cluster *a, const lk_cluster *b, lk_error *error) {
    char here[64], there[64];
    // An evaluator is alone in its own launcher's eyes.
    bool alone = (a->evaluator && !b->evaluator && b->world == 1)
              || (b->evaluator && !a->evaluator && a->world == 1);
    if (alone) return LK_OK;
    if (a->evaluator != b->evaluator || a->world != b->world || a->rank != b->rank) {
        say_place(a, here);
        say_place(b, there);
        return lk_fail(error, LK_BAD_CONFIG, "%s says %s, %s says %s; take one of them away, or "
                       "correct it", a->origin, here, b->origin, there);
    }
    for (uint32_t r = 0; r < a->world; r++) {
        const char *x = a->address[r], *y = b->address[r];
        if (!x[0] || !y[0] || __builtin_memcmp(x, y, LK_ADDRESS_BYTES) == 0) continue;
        return lk_fail(error, LK_BAD_CONFIG, "%s says rank %u is at %s, %s says it is at %s; take "
                       "one of them away, or correct it", a->origin, r, x, b->origin, y);
    }
    return LK_OK;
}

void lk_cluster_hash(const lk_cluster *c, uint8_t hash[LK_SHA256_BYTES]) {
    lk_sha256 h;
    lk_sha256_start(&h);
    lk_sha256_add_u32(&h, c->world);
    lk_sha256_add_u32(&h, c->has_chief);
    for (uint32_t r = 0; r < c->world; r++) {
        lk_sha256_add(&h, c->address[r], LK_ADDRESS_BYTES);
        lk_sha256_add_u32(&h, c->replicas[r]);
    }
    lk_sha256_finish(&h, hash);
}
