// cluster_read.c - reads a cluster's description: the document, the launchers' variables, and
// which of them counts. Host only.
//
// Where a rule is TensorFlow's, its sentence is kept word for word, so that it can be searched for.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/run/cluster.h"
#include "io/json.h"
#include "io/text.h"

// --- places in the document --------------------------------------------------------------------

enum { DEPTH_MAX = 3, SHOWN_BYTES = 96 };

typedef struct reader {
    const lk_cluster_input *input;
    char name[LK_CLUSTER_ORIGIN_BYTES];  // of the document, in errors
    const char *text;
    size_t bytes;
    lk_json document;
    lk_cluster *out;
    bool has_task;  // out->rank and out->evaluator are known
    char *unused;   // lk_cluster_report.unused
} reader;

// A value, and the way to it, so that an error can name its byte.
typedef struct spot {
    lk_json_cursor at;
    lk_json_step steps[DEPTH_MAX];
    uint32_t count;
} spot;

static bool find(const spot *object, const char *key, spot *out) {
    lk_json_cursor at;
    if (!lk_json_find(&object->at, key, &at)) return false;
    *out = *object;
    out->at = at;
    lk_assert(out->count < DEPTH_MAX);
    out->steps[out->count++] = (lk_json_step){.key = key};
    return true;
}

static lk_status element(const spot *array, size_t index, spot *out, lk_error *error) {
    *out = *array;
    lk_assert(out->count < DEPTH_MAX);
    out->steps[out->count++] = (lk_json_step){.index = index};
    return lk_json_element(&array->at, index, &out->at, error);
}

// The errors that follow, json.h's own too, begin with the byte of this value (or of its key).
static const lk_json_cursor *stand(reader *r, const spot *s, bool at_key) {
    size_t byte = lk_json_offset(r->text, r->bytes, s->steps, s->count, at_key);
    lk_format(r->document.source, sizeof r->document.source, "%.*s (byte %zu)", 150, r->name, byte);
    return &s->at;
}

__attribute__((format(printf, 4, 5))) static lk_status refuse(reader *r, const spot *s,
                                                              lk_error *error, const char *format,
                                                              ...) {
    char text[400];
    __builtin_va_list args;
    __builtin_va_start(args, format);
    lk_vformat(text, sizeof text, format, args);
    __builtin_va_end(args);
    stand(r, s, false);
    return lk_fail(error, LK_BAD_CONFIG, "%s: %s: %s", r->document.source,
                   s->at.path[0] ? s->at.path : "top level", text);
}

// One line and short, whatever the user wrote.
static const char *show(char out[SHOWN_BYTES], const char *text) {
    bool cut = lk_text_escape(out, SHOWN_BYTES - 3, text, strlen(text)) >= SHOWN_BYTES - 3;
    if (cut) memcpy(out + strlen(out), "...", 4);
    return out;
}

static lk_status keys_only(reader *r, const spot *object, const char *const *keys, uint32_t count,
                           lk_error *error) {
    const char *key = NULL;
    spot child = *object;
    child.count++;
    LK_CHECK(lk_json_as_object(stand(r, object, false), error));
    while (lk_json_next(&object->at, &key, &child.at)) {
        bool known = false;
        for (uint32_t i = 0; i < count; i++) known = known || strcmp(key, keys[i]) == 0;
        if (known) continue;
        child.steps[object->count] = (lk_json_step){.key = key};
        stand(r, &child, true);
        return lk_json_keys_only(&object->at, keys, count, error);
    }
    return LK_OK;
}

// --- the cluster -------------------------------------------------------------------------------

enum { CHIEF, MASTER, WORKER, EVALUATOR, PS, TYPES };
static const char *const type_names[TYPES] = {"chief", "master", "worker", "evaluator", "ps"};

typedef struct tasks {
    uint32_t count[TYPES];
    spot list[TYPES];
} tasks;

static const char no_ps[] =
    "a parameter server has no rank here: every worker holds all parameters and takes every step; "
    "take \"ps\" out, or make its machines workers";

static lk_status unknown_type(reader *r, const spot *s, const char *type, lk_error *error) {
    char shown[SHOWN_BYTES];
    const char *near = lk_text_nearest(type, type_names, TYPES);
    return refuse(r, s, error, "Unrecognized task_type: '%s', valid task types are: \"chief\", "
                  "\"worker\", \"evaluator\" and \"ps\".%s%s%s", show(shown, type),
                  near ? " Did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static uint32_t type_of(const char *name) {
    uint32_t type = 0;
    while (type < TYPES && strcmp(name, type_names[type]) != 0) type++;
    return type;
}

static lk_status find_lists(reader *r, const spot *cluster, tasks *t, lk_error *error) {
    const char *key = NULL;
    lk_json_cursor at;
    while (lk_json_next(&cluster->at, &key, &at)) {
        spot list;
        uint32_t type = type_of(key);
        if (!find(cluster, key, &list)) continue;
        if (type == TYPES) return unknown_type(r, &list, key, error);
        LK_CHECK(lk_json_as_array(stand(r, &list, false), 0, SIZE_MAX, error));
        t->count[type] = (uint32_t)LK_MIN(lk_json_length(&at), (size_t)UINT32_MAX / TYPES);
        t->list[type] = list;
    }
    if (t->count[PS]) return refuse(r, &t->list[PS], error, "%s", no_ps);
    if (t->count[MASTER] && t->count[CHIEF]) {
        return refuse(r, &t->list[MASTER], error, "If `master` node exists in `cluster`, job "
                      "`chief` is not supported. Keep one of the two: they are the same task");
    }
    for (uint32_t type = CHIEF; type <= EVALUATOR; type++) {
        if (type == WORKER || t->count[type] <= 1) continue;
        return refuse(r, &t->list[type], error, "There must be at most one '%s' job. Found %u "
                      "addresses; keep one", type_names[type == MASTER ? CHIEF : type],
                      t->count[type]);
    }
    uint32_t chiefs = t->count[CHIEF] + t->count[MASTER];
    if (chiefs + t->count[WORKER] > LK_CLUSTER_WORLD_MAX) {
        return refuse(r, cluster, error, "found %u workers, wanted at most %d; give each more "
                      "replicas instead", chiefs + t->count[WORKER], LK_CLUSTER_WORLD_MAX);
    }
    if (chiefs + t->count[WORKER] + t->count[EVALUATOR] == 0) {
        return refuse(r, cluster, error, "No `worker`, `chief` or `evaluator` tasks can be found "
                      "in `cluster_spec`. Give at least one address to \"worker\"");
    }
    return LK_OK;
}

// Where an address that was read before stands, in words; NULL if nobody has it.
static const char *owner_of(const lk_cluster *c, const char *address, char out[LK_TASK_BYTES]) {
    for (uint32_t rank = 0; rank < c->world; rank++) {
        if (strcmp(c->address[rank], address) != 0) continue;
        lk_cluster_task(c, rank, out);
        return out;
    }
    return strcmp(c->evaluator_address, address) == 0 ? "evaluator:0" : NULL;
}

// Addresses of a list, into address[0..]; read ones are in out already, the rest is zeros.
static lk_status read_list(reader *r, const spot *list, uint32_t count,
                           char (*address)[LK_ADDRESS_BYTES], lk_error *error) {
    for (uint32_t i = 0; i < count; i++) {
        spot one;
        const char *text, *wrong, *owner;
        char task[LK_TASK_BYTES], lower[LK_ADDRESS_BYTES] = "";
        LK_CHECK(element(list, i, &one, error));
        LK_CHECK(lk_json_as_string(stand(r, &one, false), &text, error));
        wrong = lk_address_wrong(text, strlen(text));
        if (wrong) {
            stand(r, &one, false);
            return lk_json_refuse(&one.at, error, "with %s; wanted host:port such as "
                                  "\"node1:2222\": correct it", wrong);
        }
        for (size_t n = 0; text[n]; n++) {
            bool upper = text[n] >= 'A' && text[n] <= 'Z';
            lower[n] = (char)(upper ? text[n] - 'A' + 'a' : text[n]);
        }
        owner = owner_of(r->out, lower, task);
        if (owner) {
            stand(r, &one, false);
            return lk_json_refuse(&one.at, error, "which is the address of %s already; give each "
                                  "task its own host:port", owner);
        }
        memcpy(address[i], lower, sizeof lower);
    }
    return LK_OK;
}

static lk_status read_addresses(reader *r, const tasks *t, lk_error *error) {
    lk_cluster *c = r->out;
    uint32_t chief = t->count[MASTER] ? MASTER : CHIEF;
    c->has_chief = t->count[chief] > 0;
    c->world = t->count[chief] + t->count[WORKER];
    c->has_evaluator = t->count[EVALUATOR] > 0;
    LK_CHECK(read_list(r, &t->list[chief], t->count[chief], c->address, error));
    LK_CHECK(read_list(r, &t->list[WORKER], t->count[WORKER], c->address + c->has_chief, error));
    return read_list(r, &t->list[EVALUATOR], t->count[EVALUATOR], &c->evaluator_address, error);
}

// --- the task ----------------------------------------------------------------------------------

// A number, or a string of one as other launchers write it.
static lk_status read_index(reader *r, const spot *s, uint64_t *out, lk_error *error) {
    lk_error ignored = {.status = LK_OK};
    bool whole = false, negative = false;
    const char *text;
    if (lk_json_type_of(&s->at) == LK_JSON_INTEGER) {
        whole = true;
        negative = lk_json_as_u64(&s->at, 0, INT64_MAX, out, &ignored) != LK_OK;
    } else if (lk_json_type_of(&s->at) == LK_JSON_STRING) {
        LK_CHECK(lk_json_as_string(&s->at, &text, error));
        negative = text[0] == '-';
        text += negative;
        whole = text[0] && strspn(text, "0123456789") == strlen(text);
        *out = strtoull(text, NULL, 10);  // too many digits: the largest, refused as an index
    }
    if (whole && !negative) return LK_OK;
    if (whole)
        return refuse(r, s, error, "Task index must be non-negative number. Tasks count from 0");
    stand(r, s, false);
    return lk_json_refuse(&s->at, error, "wanted a number, or a string of digits; correct it");
}

static lk_status read_type(reader *r, const spot *s, uint32_t *type, lk_error *error) {
    const char *name;
    LK_CHECK(lk_json_as_string(stand(r, s, false), &name, error));
    *type = type_of(name);
    if (*type == TYPES) return unknown_type(r, s, name, error);
    return *type == PS ? refuse(r, s, error, "%s", no_ps) : LK_OK;
}

// Whether this task is in the cluster, and its rank.
static lk_status place(reader *r, const tasks *t, const spot *type_spot, const spot *index_spot,
                       lk_error *error) {
    lk_cluster *c = r->out;
    uint32_t type;
    uint64_t index;
    LK_CHECK(read_type(r, type_spot, &type, error));
    LK_CHECK(read_index(r, index_spot, &index, error));
    const char *name = type_names[type];
    if (type == EVALUATOR && t->count[MASTER]) {
        return refuse(r, type_spot, error, "If `master` node exists in `cluster`, task_type "
                      "`evaluator` is not supported. Call it \"chief\" in \"cluster\"");
    }
    // An evaluator may be listed or not: it is no part of the exchange either way.
    uint64_t count = type == EVALUATOR ? 1 : t->count[type];
    if (count == 0) {
        return refuse(r, type_spot, error, "`task_type` '%s' not found in cluster_spec. Add its "
                      "address to \"cluster\", or correct the type", name);
    }
    if (index >= count) {
        return refuse(r, index_spot, error, "The `task_id` %llu exceeds the maximum id of %s. "
                      "There %s %llu, counted from 0", (unsigned long long)index, name,
                      count == 1 ? "is" : "are", (unsigned long long)count);
    }
    c->evaluator = type == EVALUATOR;
    c->rank = c->evaluator ? 0 : (uint32_t)index + (type == WORKER ? c->has_chief : 0);
    r->has_task = true;
    return LK_OK;
}

static lk_status read_task(reader *r, const spot *root, const tasks *t, lk_error *error) {
    static const char *const keys[] = {"type", "index"};
    spot task, type, index;
    if (!find(root, "task", &task)) {
        if (r->out->source == LK_CLUSTER_FILE) return LK_OK;  // a launcher may know
        return refuse(r, root, error, "When `cluster_spec` is given, you must also specify "
                      "`task_type` and `task_id`. Add \"task\": {\"type\": \"worker\", \"index\": "
                      "0}");
    }
    LK_CHECK(keys_only(r, &task, keys, LK_COUNT(keys), error));
    if (!find(&task, "type", &type)) {
        return refuse(r, &task, error, "If \"cluster\" is set in TF_CONFIG, task type must be set. "
                      "Add \"type\": \"worker\"");
    }
    if (!find(&task, "index", &index)) {
        return refuse(r, &task, error, "If \"cluster\" is set in TF_CONFIG, task index must be "
                      "set. Add \"index\": 0");
    }
    return place(r, t, &type, &index, error);
}

// A document without a cluster: it can only say worker 0, and says nothing of others.
static lk_status read_lonely_task(reader *r, const spot *root, lk_error *error) {
    static const char *const keys[] = {"type", "index"};
    spot task, s;
    uint32_t type = WORKER;
    uint64_t index = 0;
    if (!find(root, "task", &task)) return LK_OK;
    LK_CHECK(keys_only(r, &task, keys, LK_COUNT(keys), error));
    if (find(&task, "type", &s)) LK_CHECK(read_type(r, &s, &type, error));
    if (type != WORKER) {
        return refuse(r, &s, error, "If \"cluster\" is not set in TF_CONFIG, task type must be "
                      "WORKER. Add \"cluster\", or take \"task\" out");
    }
    if (find(&task, "index", &s)) LK_CHECK(read_index(r, &s, &index, error));
    if (index != 0) {
        return refuse(r, &s, error, "If \"cluster\" is not set in TF_CONFIG, task index must be 0. "
                      "Add \"cluster\", or take \"task\" out");
    }
    return LK_OK;
}

// --- replicas ----------------------------------------------------------------------------------

enum { REPLICAS_MAX = 1 << 20 };

static lk_status read_some_replicas(reader *r, const spot *s, uint32_t count, uint32_t *out,
                                    lk_error *error) {
    bool list = lk_json_type_of(&s->at) == LK_JSON_ARRAY;
    if (list) LK_CHECK(lk_json_as_array(stand(r, s, false), count, count, error));
    for (uint32_t i = 0; i < count; i++) {
        spot one = *s;
        if (list) LK_CHECK(element(s, i, &one, error));
        LK_CHECK(lk_json_as_u32(stand(r, &one, false), 1, REPLICAS_MAX, &out[i], error));
    }
    return LK_OK;
}

static lk_status read_replicas(reader *r, const spot *root, const tasks *t, lk_error *error) {
    lk_cluster *c = r->out;
    spot all, some;
    if (!find(root, "replicas", &all)) return LK_OK;
    if (lk_json_type_of(&all.at) != LK_JSON_OBJECT) {
        if (lk_json_type_of(&all.at) != LK_JSON_ARRAY)
            return read_some_replicas(r, &all, c->world, c->replicas, error);
        stand(r, &all, false);
        return lk_json_refuse(&all.at, error, "wanted a number for all, or an object such as "
                              "{\"worker\": [2, 4]}; correct it");
    }
    LK_CHECK(keys_only(r, &all, type_names, EVALUATOR, error));
    for (uint32_t type = CHIEF; type <= WORKER; type++) {
        if (!find(&all, type_names[type], &some)) continue;
        if (t->count[type] == 0) {
            return refuse(r, &some, error, "\"cluster\" has no \"%s\"; take it out here too",
                          type_names[type]);
        }
        uint32_t first = type == WORKER ? c->has_chief : 0;
        LK_CHECK(read_some_replicas(r, &some, t->count[type], c->replicas + first, error));
    }
    return LK_OK;
}

// --- the document ------------------------------------------------------------------------------

static const char *const root_keys[] = {
    "cluster", "task", "replicas", "service", "rpc_layer", "session_master", "eval_session_master",
    "environment", "model_dir",
};
enum { FIRST_UNUSED_KEY = 3, FIRST_STRING_KEY = 4, MODEL_DIR_KEY = 8 };

// Keys that TensorFlow knows and that mean nothing here: their types are checked, and the report
// names them.
static lk_status read_unused(reader *r, const spot *root, lk_error *error) {
    size_t length = 0;
    for (uint32_t i = FIRST_UNUSED_KEY; i < LK_COUNT(root_keys); i++) {
        const char *text = "";
        spot s;
        if (!find(root, root_keys[i], &s)) continue;
        stand(r, &s, false);
        if (i < FIRST_STRING_KEY && lk_json_type_of(&s.at) != LK_JSON_OBJECT) {
            return lk_json_refuse(&s.at, error, "If \"service\" is set in TF_CONFIG, it must be a "
                                  "dict. Take it out: it means nothing here");
        }
        if (i >= FIRST_STRING_KEY) LK_CHECK(lk_json_as_string(&s.at, &text, error));
        if (i == MODEL_DIR_KEY && !*text)
            return refuse(r, &s, error, "model_dir must be non-empty. Take it out: --run-dir says "
                          "where a run lives");
        length += lk_format(r->unused + length, sizeof ((lk_cluster_report *)0)->unused - length,
                            "%s%s", length ? ", " : "", root_keys[i]);
    }
    return LK_OK;
}

// Reads the loaded document into r->out. *says: it describes a cluster.
static lk_status read_root(reader *r, bool *says, lk_error *error) {
    spot root = {.at = lk_json_root(&r->document)}, s;
    tasks t = {0};
    if (find(&root, "sparseCluster", &s)) {
        return refuse(r, &s, error, "a sparse cluster names only some of its workers, and here "
                      "every worker must know all the others; turn dynamic workers off, so that "
                      "\"cluster\" is set");
    }
    LK_CHECK(keys_only(r, &root, root_keys, LK_COUNT(root_keys), error));
    LK_CHECK(read_unused(r, &root, error));
    *says = find(&root, "cluster", &s);
    if (*says) {
        LK_CHECK(lk_json_as_object(stand(r, &s, false), error));
        *says = lk_json_length(&s.at) > 0;
    }
    if (!*says) return read_lonely_task(r, &root, error);
    LK_CHECK(find_lists(r, &s, &t, error));
    LK_CHECK(read_addresses(r, &t, error));
    LK_CHECK(read_task(r, &root, &t, error));
    return read_replicas(r, &root, &t, error);
}

static lk_status read_document(reader *r, bool *says, lk_error *error) {
    lk_status status = lk_json_load_text(&r->document, r->name, r->text, r->bytes, error);
    if (status == LK_OK) status = read_root(r, says, error);
    lk_json_close(&r->document);
    return status;
}

static lk_status read_tf_config(reader *r, bool *says, lk_error *error) {
    r->text = r->input->variable(r->input->context, "TF_CONFIG");
    if (!r->text || !*r->text) return LK_OK;
    r->bytes = strlen(r->text);
    lk_format(r->name, sizeof r->name, "TF_CONFIG");
    lk_format(r->out->origin, sizeof r->out->origin, "TF_CONFIG");
    return read_document(r, says, error);
}

static lk_status load_file(const char *path, char *text, size_t *bytes, lk_error *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = 0;
    *bytes = 0;
    while (fd >= 0 && *bytes <= LK_CLUSTER_TEXT_BYTES_MAX) {
        count = read(fd, text + *bytes, LK_CLUSTER_TEXT_BYTES_MAX + 1 - *bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        *bytes += (size_t)count;
    }
    int number = errno;
    bool failed = fd < 0 || count < 0;
    if (fd >= 0) close(fd);
    if (failed) {
        return lk_fail(error, LK_NO_INPUT, "--cluster %s: cannot be read as a file: %s; check the "
                       "path", path, strerror(number));
    }
    if (*bytes <= LK_CLUSTER_TEXT_BYTES_MAX) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "--cluster %s: has more than %d bytes, too many for a "
                   "cluster; check the path", path, LK_CLUSTER_TEXT_BYTES_MAX);
}

static lk_status read_file(reader *r, bool *says, lk_error *error) {
    static char text[LK_CLUSTER_TEXT_BYTES_MAX + 1];
    const char *path = r->input->file;
    char shown[SHOWN_BYTES];
    if (!path) return LK_OK;
    LK_CHECK(load_file(path, text, &r->bytes, error));
    r->text = text;
    lk_format(r->name, sizeof r->name, "--cluster %s", show(shown, path));
    lk_format(r->out->origin, sizeof r->out->origin, "%s", r->name);
    LK_CHECK(read_document(r, says, error));
    if (*says) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "%s: describes no cluster; add \"cluster\": {\"worker\": "
                   "[\"host:port\", ...]}", r->name);
}

// --- launchers' variables ----------------------------------------------------------------------

// NULL where the variable is not set, or empty.
static const char *variable(const reader *r, const char *name) {
    const char *text = r->input->variable(r->input->context, name);
    return text && *text ? text : NULL;
}

static lk_status read_number(const reader *r, const char *name, uint32_t min, uint32_t max,
                             uint32_t *out, lk_error *error) {
    const char *text = variable(r, name);
    char shown[SHOWN_BYTES];
    lk_assert(text);
    size_t digits = strspn(text, "0123456789");
    unsigned long long number = strtoull(text, NULL, 10);
    *out = (uint32_t)LK_MIN(number, (unsigned long long)UINT32_MAX);
    if (digits && !text[digits] && number >= min && number <= max) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "%s: found \"%s\", wanted a number from %u to %u; correct "
                   "it, or unset it", name, show(shown, text), min, max);
}

// Rank and world from two variables. Both, or neither.
static lk_status read_pair(reader *r, const char *rank, const char *world, bool *says,
                           lk_error *error) {
    bool has_rank = variable(r, rank) != NULL, has_world = variable(r, world) != NULL;
    if (!has_rank && !has_world) return LK_OK;
    if (has_rank != has_world) {
        return lk_fail(error, LK_BAD_CONFIG, "%s is set and %s is not: set both, or unset it",
                       has_rank ? rank : world, has_rank ? world : rank);
    }
    LK_CHECK(read_number(r, world, 1, LK_CLUSTER_WORLD_MAX, &r->out->world, error));
    LK_CHECK(read_number(r, rank, 0, r->out->world - 1, &r->out->rank, error));
    r->has_task = true;
    *says = true;
    lk_format(r->out->origin, sizeof r->out->origin, "%s (%s, %s)",
              lk_cluster_source_name(r->out->source), rank, world);
    return LK_OK;
}

// The leader's address; an IPv6 address gets its brackets.
static lk_status read_master(reader *r, const char *host, lk_error *error) {
    char address[2 * LK_ADDRESS_BYTES], shown[SHOWN_BYTES];
    uint32_t port = LK_CLUSTER_PORT_DEFAULT;
    const char *colon = strchr(host, ':');
    bool bare_ipv6 = colon && strchr(colon + 1, ':') && host[0] != '[';
    if (variable(r, "MASTER_PORT"))
        LK_CHECK(read_number(r, "MASTER_PORT", 1, 65535, &port, error));
    // torchrun's agent may listen at MASTER_PORT itself, for its store: rank 0 is then beside it.
    const char *agent = variable(r, "TORCHELASTIC_USE_AGENT_STORE");
    if (agent && strcmp(agent, "True") == 0) port = port < 65535 ? port + 1 : port - 1;
    size_t length = lk_format(address, sizeof address, bare_ipv6 ? "[%s]:%u" : "%s:%u", host, port);
    const char *wrong = lk_address_wrong(address, LK_MIN(length, sizeof address - 1));
    if (wrong) {
        return lk_fail(error, LK_BAD_CONFIG, "MASTER_ADDR: found \"%s\" with %s; "
                       "wanted a host name or an IP address; correct it", show(shown, host), wrong);
    }
    for (size_t i = 0; i < length; i++) {
        bool upper = address[i] >= 'A' && address[i] <= 'Z';
        r->out->address[0][i] = (char)(upper ? address[i] - 'A' + 'a' : address[i]);
    }
    lk_format(r->out->origin, sizeof r->out->origin, "torchrun (RANK, WORLD_SIZE, MASTER_ADDR)");
    return LK_OK;
}

// RANK and WORLD_SIZE are anybody's names: without torchrun's own one of them alone says nothing.
static lk_status read_torchrun(reader *r, bool *says, lk_error *error) {
    const char *host = variable(r, "MASTER_ADDR");
    bool pair = variable(r, "RANK") && variable(r, "WORLD_SIZE");
    if (!pair && !variable(r, "TORCHELASTIC_RUN_ID")) return LK_OK;
    LK_CHECK(read_pair(r, "RANK", "WORLD_SIZE", says, error));
    if (!*says) return LK_OK;
    if (host) return read_master(r, host, error);
    if (r->out->world == 1) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "RANK and WORLD_SIZE are set and MASTER_ADDR is not: set "
                   "it to the host of rank 0, or unset them");
}

static lk_status read_mpich(reader *r, bool *says, lk_error *error) {
    return read_pair(r, "PMI_RANK", "PMI_SIZE", says, error);
}

static lk_status read_open_mpi(reader *r, bool *says, lk_error *error) {
    return read_pair(r, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", says, error);
}

// In a batch script or under salloc SLURM_NTASKS says what was asked for, and nobody has been
// started: only a step's tasks have ranks. The batch script's own step has a number from the end
// of 32 bits.
static lk_status read_slurm(reader *r, bool *says, lk_error *error) {
    const char *step = variable(r, "SLURM_STEP_ID");
    if (!step || strtoull(step, NULL, 10) >= 0xfffffff0) return LK_OK;
    bool own = variable(r, "SLURM_STEP_NUM_TASKS");
    return read_pair(r, "SLURM_PROCID", own ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", says, error);
}

static bool slurm_started_the_launcher(const reader *r) {
    return variable(r, "TORCHELASTIC_RUN_ID") || variable(r, "MPI_LOCALRANKID")
        || variable(r, "OMPI_COMM_WORLD_RANK");
}

// --- which of them counts ----------------------------------------------------------------------

typedef lk_status (*read_source)(reader *r, bool *says, lk_error *error);
static const read_source readers[LK_CLUSTER_NONE] = {
    [LK_CLUSTER_FILE] = read_file,         [LK_CLUSTER_TF_CONFIG] = read_tf_config,
    [LK_CLUSTER_TORCHRUN] = read_torchrun, [LK_CLUSTER_MPICH] = read_mpich,
    [LK_CLUSTER_OPEN_MPI] = read_open_mpi, [LK_CLUSTER_SLURM] = read_slurm,
};

static const char *from_environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

// The document in force does not say who this is; `other` does.
static lk_status take_rank(lk_cluster *out, const lk_cluster *other, lk_error *error) {
    char origin[LK_CLUSTER_ORIGIN_BYTES];
    out->rank = other->rank;
    out->evaluator = other->evaluator;
    LK_CHECK(lk_cluster_agree(out, other, error));
    memcpy(origin, out->origin, sizeof origin);
    lk_format(out->origin, sizeof out->origin, "%s, rank from %s", origin, other->origin);
    return LK_OK;
}

static lk_status no_rank(const lk_cluster *c, lk_error *error) {
    return lk_fail(error, LK_BAD_CONFIG, "%s: When `cluster_spec` is given, you must also specify "
                   "`task_type` and `task_id`. Add \"task\": {\"type\": \"worker\", \"index\": 0}, "
                   "or start it by a launcher that gives ranks", c->origin);
}

lk_status lk_cluster_read(const lk_cluster_input *given, lk_cluster *out, lk_cluster_report *report,
                          lk_error *error) {
    static lk_cluster candidate;  // as large as `out`: too large for a stack
    lk_cluster_report own;
    lk_cluster_input input = *given;
    bool found = false, has_task = false;
    if (!input.variable) input.variable = from_environment;
    if (!report) report = &own;
    *report = (lk_cluster_report){.unused = ""};
    lk_cluster_single(out);
    for (uint32_t source = 0; source < LK_CLUSTER_NONE; source++) {
        bool says = false;
        reader r = {.input = &input, .out = found ? &candidate : out};
        char unused[sizeof report->unused] = "";
        r.unused = found ? unused : report->unused;
        lk_cluster_single(r.out);
        r.out->source = (lk_cluster_source)source;
        LK_CHECK(readers[source](&r, &says, error));
        if (!says) continue;
        if (found && source == LK_CLUSTER_SLURM && slurm_started_the_launcher(&r)) {
            report->told[source] = LK_TOLD_PASSED_OVER;
        } else if (!found) {
            report->told[source] = LK_TOLD_TAKEN;
            found = true;
            has_task = r.has_task;
        } else if (!has_task) {
            LK_CHECK(take_rank(out, r.out, error));
            report->told[source] = LK_TOLD_RANK;
            has_task = true;
        } else {
            LK_CHECK(lk_cluster_agree(out, r.out, error));
            report->told[source] = LK_TOLD_SAME;
        }
    }
    if (found && !has_task) return no_rank(out, error);
    if (!found) lk_cluster_single(out);
    return LK_OK;
}

lk_status lk_cluster_check_replicas(const lk_cluster *c, uint32_t given, lk_error *error) {
    uint32_t said = c->evaluator || c->world == 0 ? 0 : c->replicas[c->rank];
    if (!said || !given || said == given) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "%s says %u replicas for rank %u, --replicas says %u; "
                   "take one of them away, or correct it", c->origin, said, c->rank, given);
}
