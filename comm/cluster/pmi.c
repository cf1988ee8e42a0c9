// pmi.c - the lines of pmi.h. Reads what a process that proved to be a member sends; trusts nothing
// of it all the same.
#include "comm/cluster/pmi.h"

#include <string.h>

static const char kvs_name[] = "lockstep";

// A key=value of a line; `value` of the key "value" runs to the line's end. NULL: not there.
static const char *field(const char *line, const char *name, size_t *length) {
    size_t name_length = strlen(name);
    for (const char *at = line; *at;) {
        bool value = strncmp(at, "value=", 6) == 0;
        size_t token = value ? strlen(at) : strcspn(at, " ");
        if (strncmp(at, name, name_length) == 0 && at[name_length] == '=') {
            *length = token - name_length - 1;
            return at + name_length + 1;
        }
        at += token;
        at += strspn(at, " ");
    }
    return NULL;
}

static bool says(const char *text, size_t length, const char *word) {
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

// --- the book ----------------------------------------------------------------------------------

// Where the key is, or would be. There is always a free place: see put.
static uint32_t *find(lk_pmi *p, const char *key, size_t length) {
    uint32_t hash = 2166136261u;  // FNV-1a
    for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)key[i]) * 16777619u;
    for (uint32_t at = hash % LK_PMI_PLACES;; at = (at + 1) % LK_PMI_PLACES) {
        if (p->place[at] == 0) return &p->place[at];
        const char *there = p->pool + p->place[at] - 1;
        if (says(key, length, there)) return &p->place[at];
    }
}

// NULL, or why not.
static const char *put(lk_pmi *p, const char *key, size_t key_length, const char *value,
                       size_t value_length) {
    if (key_length == 0 || key_length >= LK_PMI_KEY_BYTES) return "bad_key_length";
    if (value_length >= LK_PMI_VALUE_BYTES) return "bad_value_length";
    uint32_t *place = find(p, key, key_length);
    size_t bytes = key_length + value_length + 2;
    if (*place) return "duplicate_key";
    // Half of the places stay free, so that a search always ends.
    if (p->entries >= LK_PMI_PLACES / 2 || bytes > LK_PMI_POOL_BYTES - p->pool_used) {
        return "no_room";
    }
    char *at = p->pool + p->pool_used;
    memcpy(at, key, key_length);
    at[key_length] = '\0';
    memcpy(at + key_length + 1, value, value_length);
    at[key_length + 1 + value_length] = '\0';
    *place = p->pool_used + 1;
    p->pool_used += (uint32_t)bytes;
    p->entries++;
    return NULL;
}

void lk_pmi_open(lk_pmi *p, uint32_t world, const uint32_t *host) {
    static const char name[] = "PMI_process_mapping";
    char mapping[LK_PMI_VALUE_BYTES];
    size_t used = 0;
    lk_assert(world >= 1 && world <= LK_CLUSTER_WORLD_MAX);
    memset(p, 0, offsetof(lk_pmi, pool));
    p->world = world;
    // (vector,(first host,hosts,ranks on each),..): one triple for each run of ranks on a host. One
    // that is too long is left out, and MPI then goes by the hosts' names.
    used += lk_format(mapping, sizeof mapping, "(vector");
    for (uint32_t rank = 0, run; rank < world && used < sizeof mapping; rank += run) {
        for (run = 1; rank + run < world && host[rank + run] == host[rank]; run++) continue;
        used += lk_format(mapping + used, sizeof mapping - used, ",(%u,1,%u)", host[rank], run);
    }
    if (used + 2 > sizeof mapping) return;
    lk_format(mapping + used, sizeof mapping - used, ")");
    (void)put(p, name, sizeof name - 1, mapping, used + 1);
}

// --- lines -------------------------------------------------------------------------------------

static void answer_put(lk_pmi *p, const char *line, char *answer) {
    size_t key_length = 0, value_length = 0;
    const char *key = field(line, "key", &key_length);
    const char *value = field(line, "value", &value_length);
    const char *wrong = "no_key_or_value";
    if (key && value) wrong = put(p, key, key_length, value, value_length);
    lk_format(answer, LK_PMI_LINE_BYTES, "cmd=put_result rc=%d msg=%s\n", wrong ? -1 : 0,
              wrong ? wrong : "success");
}

static void answer_get(lk_pmi *p, const char *line, char *answer) {
    size_t length = 0;
    const char *key = field(line, "key", &length);
    uint32_t place = key && length ? *find(p, key, length) : 0;
    if (!place) {
        lk_format(answer, LK_PMI_LINE_BYTES, "cmd=get_result rc=-1 msg=key_not_found\n");
        return;
    }
    const char *value = p->pool + place - 1 + length + 1;
    lk_format(answer, LK_PMI_LINE_BYTES, "cmd=get_result rc=0 msg=success value=%s\n", value);
}

static lk_pmi_act arrive(lk_pmi *p, uint32_t rank, char *answer) {
    if (p->in_barrier[rank]) return LK_PMI_WRONG;
    p->in_barrier[rank] = true;
    if (++p->arrived < p->world) return LK_PMI_WAIT;
    p->arrived = 0;
    memset(p->in_barrier, 0, sizeof p->in_barrier);
    lk_format(answer, LK_PMI_LINE_BYTES, "cmd=barrier_out rc=0\n");
    return LK_PMI_RELEASE;
}

lk_pmi_act lk_pmi_line(lk_pmi *p, uint32_t rank, const char *line, char answer[LK_PMI_LINE_BYTES]) {
    size_t length = 0;
    const char *command = field(line, "cmd", &length);
    const size_t room = LK_PMI_LINE_BYTES;
    lk_assert(rank < p->world);
    if (!command || p->in_barrier[rank] || p->has_ended[rank]) return LK_PMI_WRONG;
    if (says(command, length, "barrier_in")) return arrive(p, rank, answer);
    if (says(command, length, "put")) {
        answer_put(p, line, answer);
    } else if (says(command, length, "get")) {
        answer_get(p, line, answer);
    } else if (says(command, length, "init")) {
        lk_format(answer, room, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    } else if (says(command, length, "get_maxes")) {
        lk_format(answer, room, "cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d rc=0\n",
                  LK_PMI_KEY_BYTES, LK_PMI_KEY_BYTES, LK_PMI_VALUE_BYTES);
    } else if (says(command, length, "get_appnum")) {
        lk_format(answer, room, "cmd=appnum appnum=0 rc=0\n");
    } else if (says(command, length, "get_my_kvsname")) {
        lk_format(answer, room, "cmd=my_kvsname kvsname=%s rc=0\n", kvs_name);
    } else if (says(command, length, "get_universe_size")) {
        lk_format(answer, room, "cmd=universe_size size=%u rc=0\n", p->world);
    } else if (says(command, length, "finalize")) {
        p->has_ended[rank] = true;
        p->ended++;
        lk_format(answer, room, "cmd=finalize_ack rc=0\n");
    } else {
        return LK_PMI_WRONG;
    }
    return LK_PMI_ANSWER;
}
