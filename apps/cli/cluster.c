// cluster.c - lockstep cluster: who takes part, as this process understands it, and who said so.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/run/cluster.h"
#include "apps/cli/command.h"
#include "apps/run/order.h"
#include "io/manifest.h"

typedef unsigned long long ull;

// What each rank computes and reads. With a configuration: grains and shards.
typedef struct share {
    bool known;            // there is a configuration
    bool sharded;          // its order of examples
    uint32_t own_replicas; // of every worker of which nobody says it; 0: not known
    uint32_t grain, grains, shards, global_batch;
    uint64_t replicas;     // of all workers; 0: not known
} share;

static uint32_t replicas_of(const lk_cluster *c, const share *s, uint32_t rank) {
    return c->replicas[rank] ? c->replicas[rank] : s->own_replicas;
}

// Grains of a rank: those of its replicas, which follow on each other.
static lk_grain_range grains_of(const lk_cluster *c, const share *s, uint32_t rank) {
    uint32_t before = 0, all = (uint32_t)s->replicas;
    for (uint32_t r = 0; r < rank; r++) before += replicas_of(c, s, r);
    lk_grain_range first = lk_replica_grains(s->grains, all, before);
    lk_grain_range last =
        lk_replica_grains(s->grains, all, before + replicas_of(c, s, rank) - 1);
    return (lk_grain_range){first.first, last.first + last.count - first.first};
}

static lk_grain_range shards_of(const share *s, lk_grain_range grains) {
    return s->sharded ? lk_order_shards(s->shards, s->grains, grains)
                      : (lk_grain_range){0, s->shards};
}

static lk_status count_shards(const lk_config *c, uint32_t *out, lk_error *error) {
    lk_run_spec spec = c->spec;
    *out = 1;
    if (c->train.source.kind != LK_DATASET_MANIFEST) return LK_OK;
    lk_manifest manifest;
    lk_status status = lk_manifest_load(c->train.source.manifest, &manifest, error);
    if (status == LK_OK) *out = manifest.shard_count;
    spec.example_count = manifest.count;
    if (c->sharded) spec.shards = *out;
    lk_manifest_close(&manifest);
    return status == LK_OK ? lk_run_spec_check(&spec, error) : status;
}

static lk_status add_replicas(const lk_cluster *c, share *s, lk_error *error) {
    for (uint32_t r = 0; r < c->world; r++) {
        uint32_t own = replicas_of(c, s, r);
        if (!own) {
            s->replicas = 0;
            return LK_OK;
        }
        s->replicas += own;
    }
    if (!s->known || s->replicas <= s->grains) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "%llu replicas of %u workers: a global batch of %u has %u "
                   "grains of %u, wanted at least one for each replica; take fewer replicas (with "
                   "--replicas N each worker has N), or a larger batch", (ull)s->replicas,
                   c->world, s->global_batch, s->grains, s->grain);
}

static lk_status read_share(const lk_cluster *c, const lk_common_options *o, share *s,
                            lk_error *error) {
    static lk_run run;
    *s = (share){.own_replicas = o->config.replicas};
    LK_CHECK(lk_cluster_check_replicas(c, o->config.replicas, error));
    if (!o->config.config) {
        const lk_config_options *given = &o->config;
        if (given->set_count || given->data_directory || given->kernels ||
            given->examples || given->gpus || given->gpu || o->max_memory) {
            return lk_fail(error, LK_BAD_USAGE, "cluster: --set, --data, --examples, --kernels, "
                           "--gpus, --gpu and --max-memory go with a CONFIG; name one");
        }
        return add_replicas(c, s, error);
    }
    lk_config_options config = o->config;
    config.workers = LK_MAX(c->world, 1u);
    config.worker_replicas = c->world ? c->replicas : NULL;
    lk_status status = lk_run_configure(&run, &config, (lk_run_needs){0}, error);
    if (status == LK_OK) {
        const lk_run_spec *spec = &run.config.spec;
        uint32_t grains = lk_grain_count(spec), even = grains / LK_MAX(c->world, 1);
        uint32_t chosen = LK_MIN(run.layout.replicas, LK_MAX(even, 1));
        *s = (share){.known = true,
                     .sharded = run.config.sharded,
                     .own_replicas = run.config.replicas ? run.config.replicas : chosen,
                     .grain = spec->grain,
                     .grains = grains,
                     .global_batch = spec->global_batch};
        status = count_shards(&run.config, &s->shards, error);
    }
    if (status == LK_OK) status = add_replicas(c, s, error);
    if (status == LK_OK && run.config.replica_batch && s->replicas) {
        status = lk_config_check_factors(&run.config, s->replicas, error);
    }
    lk_run_close(&run);
    return status;
}

// --- text --------------------------------------------------------------------------------------

static const char *told_text(lk_cluster_told told) {
    switch (told) {
    case LK_TOLD_NOTHING: return "says nothing";
    case LK_TOLD_TAKEN: return "is taken";
    case LK_TOLD_SAME: return "says the same";
    case LK_TOLD_RANK: return "says which rank this is";
    case LK_TOLD_PASSED_OVER: break;
    }
    return "is passed over: it numbers the processes of the launcher";
}

static void print_sources(const lk_cluster *c, const lk_cluster_report *report, lk_text_out *out) {
    lk_text_line(out, "cluster from %s", c->source == LK_CLUSTER_NONE ? "nothing: one process on "
                 "its own" : c->origin);
    for (uint32_t i = 0; i < LK_CLUSTER_NONE; i++) {
        lk_text_line(out, "  %-9s %s", lk_cluster_source_name((lk_cluster_source)i),
                     told_text(report->told[i]));
    }
    if (report->unused[0]) lk_text_line(out, "  not used: %s", report->unused);
}

static void print_self(const lk_cluster *c, lk_text_out *out) {
    char task[LK_TASK_BYTES], hash_hex[LK_SHA256_HEX_BYTES];
    uint8_t hash[LK_SHA256_BYTES];
    if (c->evaluator) {
        lk_text_line(out, "rank none of %u: evaluator:0, beside the workers", c->world);
    } else {
        lk_cluster_task(c, c->rank, task);
        lk_text_line(out, "rank %u of %u: %s%s", c->rank, c->world, task,
                     lk_cluster_leads(c) ? ", which leads" : "");
    }
    if (c->world) {
        lk_cluster_task(c, LK_CLUSTER_LEADER, task);
        lk_text_line(out, "leader %s, rank %d", task, LK_CLUSTER_LEADER);
    }
    if (c->has_evaluator || c->evaluator) {
        lk_text_line(out, "evaluator %s", c->has_evaluator ? c->evaluator_address
                     : "this process (its address is not said, nor needed)");
    }
    lk_cluster_hash(c, hash);
    lk_hex(hash, sizeof hash, hash_hex);
    lk_text_line(out, "cluster_sha256 %s", hash_hex);
}

static void print_workers(const lk_cluster *c, const share *s, lk_text_out *out) {
    for (uint32_t r = 0; r < c->world; r++) {
        char task[LK_TASK_BYTES], replicas[48] = "replicas not said", work[160] = "";
        uint32_t own = replicas_of(c, s, r);
        lk_cluster_task(c, r, task);
        if (own) {
            snprintf(replicas, sizeof replicas, "%u replica%s%s", own, own == 1 ? "" : "s",
                     c->replicas[r] ? "" : " (as here)");
        }
        if (s->known) {
            lk_grain_range g = grains_of(c, s, r);
            uint32_t first = g.first * s->grain;
            uint32_t end = LK_MIN((g.first + g.count) * s->grain, s->global_batch);
            lk_grain_range shards = shards_of(s, g);
            snprintf(work, sizeof work, "  grains %u .. %u of %u (examples %u .. %u of a step)  "
                     "shards %u .. %u%s", g.first, g.first + g.count - 1, s->grains, first,
                     end - 1, shards.first, shards.first + shards.count - 1,
                     shards.count == s->shards ? ", all" : "");
        }
        bool self = r == c->rank && !c->evaluator;
        lk_text_line(out, "%c rank %-4u %-11s %-21s  %s%s", self ? '*' : ' ', r, task,
                     c->address[r][0] ? c->address[r] : "address not said", replicas, work);
    }
    if (!s->known)
        lk_text_line(out, "with a CONFIG: the grains and shards of each, too");
}

// --- who listens -------------------------------------------------------------------------------

// Are all workers on one machine, as far as can be told before they meet?
static bool are_on_one_host(const lk_cluster *c) {
    static const char *const names[] = {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "LOCAL_WORLD_SIZE"};
    const char *first = c->address[LK_CLUSTER_LEADER];
    size_t host = strrchr(first, ':') ? (size_t)(strrchr(first, ':') - first) + 1 : 0;
    for (uint32_t i = 0; i < LK_COUNT(names) && c->source != LK_CLUSTER_TF_CONFIG; i++) {
        const char *here = getenv(names[i]);
        if (here && strtoul(here, NULL, 10) == c->world) return true;
    }
    for (uint32_t r = 0; r < c->world; r++) {
        if (!host || strncmp(c->address[r], first, host) != 0) return false;
    }
    return true;
}

// What listens where, and who is let in.
static void say_listeners(const lk_cluster *c, char *rendezvous, char *mpi, size_t bytes) {
    const char *leader = c->address[LK_CLUSTER_LEADER];
    const bool launched = c->source == LK_CLUSTER_MPICH || c->source == LK_CLUSTER_OPEN_MPI;
    lk_format(rendezvous, bytes, "nobody");
    lk_format(mpi, bytes, "nobody");
    if (c->world <= 1) return;
    if (launched || !leader[0]) {
        lk_format(rendezvous, bytes, "nobody of lockstep: the launcher lets the workers meet");
    } else {
        lk_format(rendezvous, bytes, "rank 0 at %s until all have come, for %s", leader,
                  getenv("LOCKSTEP_KEY_FILE") ? "those who have the key"
                                              : "everybody: there is no LOCKSTEP_KEY_FILE");
    }
    if (are_on_one_host(c)) {
        lk_format(mpi, bytes, "nobody: all workers are on this machine and share memory");
        return;
    }
    lk_format(mpi, bytes,
              "every worker at ports of the kernel's choice, without a key and not encrypted, on "
              "the interface in --private-network, or with --insecure on all; nobody where the "
              "workers turn out to be on one machine");
}

static void print_listeners(const lk_cluster *c, lk_text_out *out) {
    char rendezvous[2 * LK_ADDRESS_BYTES], mpi[2 * LK_ADDRESS_BYTES];
    say_listeners(c, rendezvous, mpi, sizeof mpi);
    lk_text_line(out, "listens to meet: %s", rendezvous);
    lk_text_line(out, "listens for MPI: %s", mpi);
}

// --- JSON --------------------------------------------------------------------------------------

static void json_string(const char *key, const char *text, const char *end) {
    char escaped[2 * LK_CLUSTER_ORIGIN_BYTES + 2 * LK_ADDRESS_BYTES];
    lk_text_escape(escaped, sizeof escaped, text, strlen(text));
    if (*text) printf("\"%s\": \"%s\"%s", key, escaped, end);
    else printf("\"%s\": null%s", key, end);
}

static void json_number(const char *key, bool known, uint64_t number, const char *end) {
    if (known) printf("\"%s\": %llu%s", key, (ull)number, end);
    else printf("\"%s\": null%s", key, end);
}

static void json_worker(const lk_cluster *c, const share *s, uint32_t r) {
    char task[LK_TASK_BYTES];
    uint32_t own = replicas_of(c, s, r);
    lk_cluster_task(c, r, task);
    printf("    {\"rank\": %u, \"task\": \"%s\", ", r, task);
    json_string("address", c->address[r], ", ");
    json_number("replicas", own != 0, own, ", ");
    printf("\"replicas_said\": %s", c->replicas[r] ? "true" : "false");
    if (s->known) {
        lk_grain_range g = grains_of(c, s, r);
        lk_grain_range shards = shards_of(s, g);
        printf(", \"first_grain\": %u, \"grains\": %u, \"first_shard\": %u, \"shards\": %u",
               g.first, g.count, shards.first, shards.count);
    }
    printf(r + 1 < c->world ? "},\n" : "}\n");
}

static void print_json(const lk_cluster *c, const lk_cluster_report *report, const share *s) {
    char rendezvous[2 * LK_ADDRESS_BYTES], mpi[2 * LK_ADDRESS_BYTES];
    static const char *const told[] = {"nothing", "taken", "same", "rank", "passed over"};
    char hash_hex[LK_SHA256_HEX_BYTES];
    uint8_t hash[LK_SHA256_BYTES];
    lk_cluster_hash(c, hash);
    lk_hex(hash, sizeof hash, hash_hex);
    printf("{\n  \"source\": \"%s\",\n  ", lk_cluster_source_name(c->source));
    json_string("origin", c->origin, ",\n  \"told\": {");
    for (uint32_t i = 0; i < LK_CLUSTER_NONE; i++) {
        printf("\"%s\": \"%s\"%s", lk_cluster_source_name((lk_cluster_source)i),
               told[report->told[i]], i + 1 < LK_CLUSTER_NONE ? ", " : "},\n  ");
    }
    json_string("not_used", report->unused, ",\n  ");
    json_number("rank", !c->evaluator, c->rank, ",\n  ");
    printf("\"world\": %u,\n  \"leader\": %d,\n  \"leads\": %s,\n  \"evaluator\": %s,\n  ",
           c->world, LK_CLUSTER_LEADER, lk_cluster_leads(c) ? "true" : "false",
           c->evaluator ? "true" : "false");
    json_string("evaluator_address", c->evaluator_address, ",\n  ");
    json_number("replicas", s->replicas != 0, s->replicas, ",\n  ");
    json_number("grains", s->known, s->grains, ",\n  ");
    json_number("shards", s->known, s->shards, ",\n  ");
    say_listeners(c, rendezvous, mpi, sizeof mpi);
    json_string("listens_to_meet", rendezvous, ",\n  ");
    json_string("listens_for_mpi", mpi, ",\n  ");
    printf("\"cluster_sha256\": \"%s\",\n  \"workers\": [\n", hash_hex);
    for (uint32_t r = 0; r < c->world; r++) json_worker(c, s, r);
    printf("  ]\n}\n");
}

lk_status lk_command_cluster(int argc, char **argv, lk_error *error) {
    static lk_cluster cluster;
    lk_cluster_report report;
    lk_common_options o;
    share s;
    lk_text_out out;
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_CLUSTER | LK_OPT_JSON | LK_OPT_NO_CONFIG, &o,
                             error));
    const lk_cluster_input input = {.file = o.cluster};
    LK_CHECK(lk_cluster_read(&input, &cluster, &report, error));
    LK_CHECK(read_share(&cluster, &o, &s, error));
    if (o.json) {
        print_json(&cluster, &report, &s);
        return LK_OK;
    }
    lk_text_open(&out, STDOUT_FILENO);
    print_sources(&cluster, &report, &out);
    print_self(&cluster, &out);
    print_workers(&cluster, &s, &out);
    print_listeners(&cluster, &out);
    return lk_text_check(&out, "standard output", error);
}
