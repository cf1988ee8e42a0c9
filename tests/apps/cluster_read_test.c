// cluster_read_test.c - every rule and message of a cluster's description, as tables: TF_CONFIG
// with TensorFlow's words, torchrun, MPICH, Open MPI, Slurm, and which of them counts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "apps/run/cluster.h"

// Variables as text: "RANK=0 WORLD_SIZE=2". Values have no spaces.
static const char *find_variable(void *context, const char *name) {
    static char value[64][512];
    static unsigned next;
    size_t length = strlen(name);
    for (const char *at = context; at && *at;) {
        size_t word = strcspn(at, " ");
        if (word > length && at[length] == '=' && strncmp(at, name, length) == 0) {
            char *out = value[next++ % 64];
            snprintf(out, sizeof value[0], "%.*s", (int)(word - length - 1), at + length + 1);
            return out;
        }
        at += word;
        at += *at == ' ';
    }
    return NULL;
}

static const char *tf_config;

static const char *find_tf_config(void *context, const char *name) {
    return strcmp(name, "TF_CONFIG") == 0 ? tf_config : find_variable(context, name);
}

static lk_cluster cluster;
static lk_cluster_report report;

static lk_status read_it(const char *file, const char *tf, const char *variables,
                         lk_error *error) {
    tf_config = tf;
    *error = (lk_error){.status = LK_OK};
    const lk_cluster_input input = {file, find_tf_config, (void *)(uintptr_t)variables};
    return lk_cluster_read(&input, &cluster, &report, error);
}

// --- TF_CONFIG: refused --------------------------------------------------------------------------

// '@' in the text marks the byte that the error must name; it is taken out. `message` is what the
// error must hold behind the byte.
static const struct {
    const char *text, *message;
} refused[] = {
    // The seventeen messages of TensorFlow, word for word where its rule is ours.
    {"{'cluster':{'worker':['a:1']},'task':{'type':@'worke','index':0}}",
     "task.type: Unrecognized task_type: 'worke', valid task types are: \"chief\", \"worker\", "
     "\"evaluator\" and \"ps\". Did you mean \"worker\"?"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':@'chief','index':0}}",
     "task.type: `task_type` 'chief' not found in cluster_spec."},
    {"{'cluster':{'chief':@['a:1','b:1']},'task':{'type':'chief','index':0}}",
     "cluster.chief: There must be at most one 'chief' job."},
    {"{'cluster':{'worker':['a:1'],'evaluator':@['b:1','c:1']},"
     "'task':{'type':'worker','index':0}}",
     "cluster.evaluator: There must be at most one 'evaluator' job."},
    {"{'cluster':{'worker':['a:1','b:1']},'task':{'type':'worker','index':@2}}",
     "task.index: The `task_id` 2 exceeds the maximum id of worker."},
    {"@{'cluster':{'worker':['a:1','b:1']}}",
     "When `cluster_spec` is given, you must also specify `task_type` and `task_id`."},
    {"{'cluster':@{'worker':[]},'task':{'type':'worker','index':0}}",
     "cluster: No `worker`, `chief` or `evaluator` tasks can be found in `cluster_spec`."},
    {"{'cluster':{'worker':['a:1']},'task':@{'index':0}}",
     "task: If \"cluster\" is set in TF_CONFIG, task type must be set."},
    {"{'cluster':{'worker':['a:1']},'task':@{'type':'worker'}}",
     "task: If \"cluster\" is set in TF_CONFIG, task index must be set."},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':@-1}}",
     "task.index: Task index must be non-negative number."},
    {"{'task':{'type':@'chief','index':0}}",
     "task.type: If \"cluster\" is not set in TF_CONFIG, task type must be WORKER."},
    {"{'task':{'type':'worker','index':@1}}",
     "task.index: If \"cluster\" is not set in TF_CONFIG, task index must be 0."},
    {"{'cluster':{'master':@['a:1'],'chief':['b:1']},'task':{'type':'chief','index':0}}",
     "cluster.master: If `master` node exists in `cluster`, job `chief` is not supported."},
    {"{'cluster':{'master':['a:1']},'task':{'type':@'evaluator','index':0}}",
     "task.type: If `master` node exists in `cluster`, task_type `evaluator` is not supported."},
    {"{'service':@3}", "service: found integer 3, If \"service\" is set in TF_CONFIG, it must be a "
                       "dict."},
    // Others of TensorFlow's rules, and what it lets pass.
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':@'-1'}}",
     "task.index: Task index must be non-negative number."},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':@'99999999999999999999'}}",
     "task.index: The `task_id` 18446744073709551615 exceeds the maximum id of worker."},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'evaluator','index':@1}}",
     "task.index: The `task_id` 1 exceeds the maximum id of evaluator."},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':@1.0}}",
     "task.index: found real 1.0, wanted a number, or a string of digits"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':@'one'}}",
     "task.index: found string \"one\", wanted a number, or a string of digits"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':@''}}",
     "task.index: found string \"\", wanted a number"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':@true}}",
     "task.index: found true, wanted a number"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':@1,'index':0}}",
     "task.type: found integer 1, wanted a string"},
    {"{'cluster':{'worker':['a:1']},'task':@'worker'}", "task: found string \"worker\", wanted an "
                                                        "object"},
    {"{'cluster':@['a:1'],'task':{'type':'worker','index':0}}",
     "cluster: found an array of 1 element, wanted an object"},
    {"{'cluster':{'worker':@'a:1'}}", "cluster.worker: found string \"a:1\", wanted an array"},
    {"{'cluster':{'worker':@{'0':'a:1'}}}", "cluster.worker: found an object of 1 key, wanted an "
                                            "array"},
    {"{'cluster':{'worker':['a:1',@7]}}", "cluster.worker[1]: found integer 7, wanted a string"},
    {"{'cluster':{'ps':@['a:1'],'worker':['b:1']},'task':{'type':'worker','index':0}}",
     "cluster.ps: a parameter server has no rank here"},
    {"{'cluster':{'worker':['b:1']},'task':{'type':@'ps','index':0}}",
     "task.type: a parameter server has no rank here"},
    {"{'sparseCluster':@{'worker':{'1':'a:1'}},'task':{'type':'worker','index':1}}",
     "sparseCluster: a sparse cluster names only some of its workers"},
    {"{'model_dir':@''}", "model_dir: model_dir must be non-empty."},
    {"{'rpc_layer':@3}", "rpc_layer: found integer 3, wanted a string"},
    // Unknown keys, the nearest suggested.
    {"{@'clutser':{'worker':['a:1']}}", "unknown key \"clutser\" at top level; did you mean "
                                        "\"cluster\"?"},
    {"{@'worker_hosts':['a:1']}", "unknown key \"worker_hosts\" at top level; remove it, or use"},
    {"{'cluster':{'chief':['a:1'],'workers':@['b:1']}}",
     "cluster.workers: Unrecognized task_type: 'workers', valid task types are: \"chief\", "
     "\"worker\", \"evaluator\" and \"ps\". Did you mean \"worker\"?"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker',@'idx':0}}",
     "unknown key \"idx\" at task; remove it, or use one of \"type\", \"index\""},
    {"{'task':{@'typ':'worker'}}", "unknown key \"typ\" at task; did you mean \"type\"?"},
    // Addresses.
    {"{'cluster':{'chief':[@'']},'task':{'type':'chief','index':0}}",
     "cluster.chief[0]: found string \"\", with no host and no port; wanted host:port"},
    {"{'cluster':{'worker':['a:1',@'b']}}", "cluster.worker[1]: found string \"b\", with no port"},
    {"{'cluster':{'worker':['a:1',@'b:x']}}", "with a port that is no number"},
    {"{'cluster':{'worker':['a:1',@'b:65536']}}", "with a port beyond 1 to 65535"},
    {"{'cluster':{'worker':[@'grpc://a:1']}}", "with a slash (a scheme or a path)"},
    {"{'cluster':{'worker':['z:1',@'Z:1']}}",
     "cluster.worker[1]: found string \"Z:1\", which is the address of worker:0 already"},
    {"{'cluster':{'worker':['a:1','b:1',@'A:1']}}",
     "cluster.worker[2]: found string \"A:1\", which is the address of worker:0 already"},
    {"{'cluster':{'worker':[@'a:1'],'chief':['a:1']}}", "the address of chief:0 already"},
    {"{'cluster':{'worker':['a:1'],'evaluator':[@'a:1']}}", "the address of worker:0 already"},
    // Replicas.
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':0},'replicas':@0}",
     "replicas: found integer 0, wanted an integer from 1 to 1048576"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':0},'replicas':@[1]}",
     "replicas: found an array of 1 element, wanted a number for all, or an object"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':0},"
     "'replicas':{'worker':@[1,2]}}",
     "replicas.worker: found an array of 2 elements, wanted an array of exactly 1 element"},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':0},'replicas':{'chief':@1}}",
     "replicas.chief: \"cluster\" has no \"chief\""},
    {"{'cluster':{'worker':['a:1']},'task':{'type':'worker','index':0},'replicas':{@'ps':1}}",
     "unknown key \"ps\" at replicas"},
};

static void unquote(char *out, size_t bytes, const char *text, long *mark) {
    size_t n = 0;
    *mark = -1;
    for (; *text && n + 1 < bytes; text++) {
        if (*text == '@') *mark = (long)n;
        else out[n++] = *text == '\'' ? '"' : *text;
    }
    out[n] = '\0';
}

static void tf_config_is_refused_with_byte_and_reason(void **state) {
    (void)state;
    for (size_t i = 0; i < LK_COUNT(refused); i++) {
        char text[512], place[64];
        long mark;
        lk_error error;
        unquote(text, sizeof text, refused[i].text, &mark);
        lk_status status = read_it(NULL, text, NULL, &error);
        snprintf(place, sizeof place, "TF_CONFIG (byte %ld): ", mark);
        if (status != LK_BAD_CONFIG || strncmp(error.text, place, strlen(place)) != 0
            || !strstr(error.text, refused[i].message)) {
            fail_msg("%s\n  found  %s\n  wanted %s%s", text, error.text, place, refused[i].message);
        }
    }
}

static void not_json_is_refused_with_its_byte(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"cluster\":", "TF_CONFIG:1:11 (byte 11): "},
        {"{'cluster':{}}", "TF_CONFIG:1:2 (byte 2): "},
        {"{\"cluster\":{\"worker\":[\"a:1\",]}}", "(byte 29): "},
        {"{\"task\":{},\"task\":{}}", "duplicate object key"},
        {"[]", "top level: found an array of 0 elements, wanted an object"},
        {" ", "TF_CONFIG:1:1 (byte 1): "},
    };
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        lk_error error;
        assert_int_equal(read_it(NULL, cases[i].text, NULL, &error), LK_BAD_CONFIG);
        if (!strstr(error.text, cases[i].message)) fail_msg("%s: %s", cases[i].text, error.text);
    }
}

static void too_many_workers_are_refused(void **state) {
    (void)state;
    static char text[16 * (LK_CLUSTER_WORLD_MAX + 2) + 128];
    for (uint32_t count = LK_CLUSTER_WORLD_MAX; count <= LK_CLUSTER_WORLD_MAX + 1; count++) {
        lk_error error;
        size_t n = (size_t)snprintf(text, sizeof text, "{\"cluster\":{\"worker\":[");
        for (uint32_t i = 0; i < count; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s\"a:%u\"", i ? "," : "", i + 1);
        snprintf(text + n, sizeof text - n, "]},\"task\":{\"type\":\"worker\",\"index\":%u}}",
                 LK_CLUSTER_WORLD_MAX - 1);
        bool fits = count == LK_CLUSTER_WORLD_MAX;
        assert_int_equal(read_it(NULL, text, NULL, &error), fits ? LK_OK : LK_BAD_CONFIG);
        if (!fits) assert_non_null(strstr(error.text, "found 1025 workers, wanted at most 1024"));
        if (fits) assert_string_equal(cluster.address[LK_CLUSTER_WORLD_MAX - 1], "a:1024");
    }
}

// --- TF_CONFIG: understood -----------------------------------------------------------------------

static const struct {
    const char *text;
    uint32_t rank, world;
    bool evaluator, says;
    const char *first, *last;  // addresses of rank 0 and of the last
} understood[] = {
    // The tutorial's own: no chief, worker 0 leads. TensorFlow's RunConfig refuses it ("must have
    // one "chief" node"), its collective path takes it; there is one rule here.
    {"{'cluster':{'worker':['localhost:12345','localhost:23456']},"
     "'task':{'type':'worker','index':0}}", 0, 2, false, true, "localhost:12345",
     "localhost:23456"},
    {"{'cluster':{'worker':['localhost:12345','localhost:23456']},"
     "'task':{'type':'worker','index':1}}", 1, 2, false, true, "localhost:12345",
     "localhost:23456"},
    // A chief: rank 0, workers behind it.
    {"{'cluster':{'worker':['b:1','c:1'],'chief':['a:1']},'task':{'type':'worker','index':0}}", 1,
     3, false, true, "a:1", "c:1"},
    {"{'cluster':{'worker':['b:1','c:1'],'chief':['a:1']},'task':{'type':'worker','index':'1'}}",
     2, 3, false, true, "a:1", "c:1"},
    {"{'cluster':{'worker':['b:1','c:1'],'chief':['a:1']},'task':{'type':'chief','index':'00'}}",
     0, 3, false, true, "a:1", "c:1"},
    {"{'cluster':{'master':['A.Example:1'],'worker':['b:1']},"
     "'task':{'type':'master','index':0}}", 0, 2, false, true, "a.example:1", "b:1"},
    {"{'cluster':{'chief':['a:1']},'task':{'type':'chief','index':0}}", 0, 1, false, true, "a:1",
     "a:1"},
    {"{'cluster':{'chief':['a:1'],'ps':[],'worker':[]},'task':{'type':'chief','index':0}}", 0, 1,
     false, true, "a:1", "a:1"},
    // An evaluator, inside and outside `cluster`, in nobody's way.
    {"{'cluster':{'worker':['a:1','b:1'],'evaluator':['e:1']},"
     "'task':{'type':'evaluator','index':0}}", 0, 2, true, true, "a:1", "b:1"},
    {"{'cluster':{'worker':['a:1','b:1']},'task':{'type':'evaluator','index':'0'}}", 0, 2, true,
     true, "a:1", "b:1"},
    {"{'cluster':{'worker':['a:1','b:1'],'evaluator':['e:1']},"
     "'task':{'type':'worker','index':1}}", 1, 2, false, true, "a:1", "b:1"},
    {"{'cluster':{'evaluator':['e:1']},'task':{'type':'evaluator','index':0}}", 0, 0, true, true,
     "", ""},
    // What a Kubeflow job sets.
    {"{'cluster':{'chief':['j-chief-0.ns.svc:2222'],'worker':['j-worker-0.ns.svc:2222']},"
     "'task':{'type':'worker','index':0},'environment':'cloud'}", 1, 2, false, true,
     "j-chief-0.ns.svc:2222", "j-worker-0.ns.svc:2222"},
    // Escapes are those of JSON.
    {"{'\\u0063luster':{'worker':['\\u0061:1']},'task':{'type':'worker','index':0}}", 0, 1, false,
     true, "a:1", "a:1"},
    // Nothing that speaks of others: one process.
    {"", 0, 1, false, false, "", ""},
    {"{}", 0, 1, false, false, "", ""},
    {"{'cluster':{}}", 0, 1, false, false, "", ""},
    {"{'task':{'type':'worker','index':0}}", 0, 1, false, false, "", ""},
    {"{'task':{}}", 0, 1, false, false, "", ""},
};

static void tf_config_gives_rank_and_world(void **state) {
    (void)state;
    for (size_t i = 0; i < LK_COUNT(understood); i++) {
        char text[512];
        long mark;
        lk_error error;
        unquote(text, sizeof text, understood[i].text, &mark);
        lk_status status = read_it(NULL, text, NULL, &error);
        uint32_t last = cluster.world ? cluster.world - 1 : 0;
        if (status != LK_OK || cluster.rank != understood[i].rank
            || cluster.world != understood[i].world || cluster.evaluator != understood[i].evaluator
            || (cluster.source == LK_CLUSTER_TF_CONFIG) != understood[i].says
            || strcmp(cluster.address[0], understood[i].first) != 0
            || strcmp(cluster.address[last], understood[i].last) != 0) {
            fail_msg("%s: rank %u of %u, %s", text, cluster.rank, cluster.world, error.text);
        }
    }
    assert_int_equal(report.told[LK_CLUSTER_TF_CONFIG], LK_TOLD_NOTHING);
}

static void replicas_and_unused_keys(void **state) {
    (void)state;
    lk_error error;
    const char *text = "{\"cluster\":{\"chief\":[\"a:1\"],\"worker\":[\"b:1\",\"c:1\"]},"
                       "\"task\":{\"type\":\"chief\",\"index\":0},\"rpc_layer\":\"grpc\","
                       "\"service\":{},\"replicas\":{\"worker\":[2,4]}}";
    assert_int_equal(read_it(NULL, text, NULL, &error), LK_OK);
    assert_int_equal(cluster.replicas[0], 0);
    assert_int_equal(cluster.replicas[1], 2);
    assert_int_equal(cluster.replicas[2], 4);
    assert_string_equal(report.unused, "service, rpc_layer");
    assert_int_equal(lk_cluster_check_replicas(&cluster, 3, &error), LK_OK);
    cluster.rank = 1;
    assert_int_equal(lk_cluster_check_replicas(&cluster, 0, &error), LK_OK);
    assert_int_equal(lk_cluster_check_replicas(&cluster, 2, &error), LK_OK);
    assert_int_equal(lk_cluster_check_replicas(&cluster, 3, &error), LK_BAD_CONFIG);
    assert_string_equal(error.text, "TF_CONFIG says 2 replicas for rank 1, --replicas says 3; take "
                                    "one of them away, or correct it");
}

// --- launchers, and which counts -----------------------------------------------------------------

#define TF_1_OF_2                                                  \
    "{\"cluster\":{\"worker\":[\"a:1\",\"b:1\"]},\"task\":{\"type\":" \
    "\"worker\",\"index\":1}}"
#define TORCH(rank, world) "RANK=" rank " WORLD_SIZE=" world " MASTER_ADDR=a MASTER_PORT=1"
#define PMI(rank, world) " PMI_RANK=" rank " PMI_SIZE=" world
#define OMPI(rank, world) " OMPI_COMM_WORLD_RANK=" rank " OMPI_COMM_WORLD_SIZE=" world
#define SLURM(rank, world) " SLURM_STEP_ID=0 SLURM_PROCID=" rank " SLURM_NTASKS=" world

static const struct {
    const char *tf, *variables;
    lk_cluster_source source;
    uint32_t rank, world;
    const char *address;  // of rank 0
    const char *refused;  // NULL: understood
} launched[] = {
    {NULL, "", LK_CLUSTER_NONE, 0, 1, "", NULL},
    {NULL, TORCH("1", "4"), LK_CLUSTER_TORCHRUN, 1, 4, "a:1", NULL},
    {NULL, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=Node", LK_CLUSTER_TORCHRUN, 0, 2, "node:29400", NULL},
    {NULL, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=fe80::1", LK_CLUSTER_TORCHRUN, 0, 2,
     "[fe80::1]:29400", NULL},
    {NULL, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=NODEZ", LK_CLUSTER_TORCHRUN, 0, 2, "nodez:29400",
     NULL},
    // Where torchrun's agent listens at MASTER_PORT itself, rank 0 is beside it.
    {NULL, TORCH("0", "2") " TORCHELASTIC_USE_AGENT_STORE=True", LK_CLUSTER_TORCHRUN, 0, 2, "a:2",
     NULL},
    {NULL, TORCH("0", "2") " TORCHELASTIC_USE_AGENT_STORE=False", LK_CLUSTER_TORCHRUN, 0, 2, "a:1",
     NULL},
    {NULL, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
     LK_CLUSTER_TORCHRUN, 0, 2, "a:65534", NULL},
    {NULL, "RANK=0 WORLD_SIZE=1", LK_CLUSTER_TORCHRUN, 0, 1, "", NULL},
    {NULL, "RANK=3", LK_CLUSTER_NONE, 0, 1, "", NULL},
    {NULL, "RANK= WORLD_SIZE=4", LK_CLUSTER_NONE, 0, 1, "", NULL},
    {NULL, PMI("2", "3"), LK_CLUSTER_MPICH, 2, 3, "", NULL},
    {NULL, OMPI("2", "3"), LK_CLUSTER_OPEN_MPI, 2, 3, "", NULL},
    {NULL, SLURM("2", "3"), LK_CLUSTER_SLURM, 2, 3, "", NULL},
    {NULL, SLURM("2", "8") " SLURM_STEP_NUM_TASKS=3", LK_CLUSTER_SLURM, 2, 3, "", NULL},
    {NULL, "SLURM_PROCID=0 SLURM_NTASKS=4", LK_CLUSTER_NONE, 0, 1, "", NULL},
    {NULL, "SLURM_STEP_ID=4294967291 SLURM_PROCID=0 SLURM_NTASKS=4", LK_CLUSTER_NONE, 0, 1, "",
     NULL},
    // Several that agree: the first is taken.
    {TF_1_OF_2, TORCH("1", "2") PMI("1", "2") OMPI("1", "2") SLURM("1", "2"),
     LK_CLUSTER_TF_CONFIG, 1, 2, "a:1", NULL},
    {NULL, TORCH("1", "2") PMI("1", "2"), LK_CLUSTER_TORCHRUN, 1, 2, "a:1", NULL},
    {NULL, SLURM("1", "2") PMI("1", "2"), LK_CLUSTER_MPICH, 1, 2, "", NULL},
    {NULL, OMPI("1", "2") PMI("1", "2"), LK_CLUSTER_MPICH, 1, 2, "", NULL},
    {"{}", PMI("1", "2"), LK_CLUSTER_MPICH, 1, 2, "", NULL},
    // Slurm's numbers of the launcher's own processes.
    {NULL, SLURM("0", "2") PMI("3", "4") " MPI_LOCALRANKID=1", LK_CLUSTER_MPICH, 3, 4, "", NULL},
    {NULL, SLURM("0", "2") OMPI("3", "4"), LK_CLUSTER_OPEN_MPI, 3, 4, "", NULL},
    {NULL, SLURM("0", "2") " TORCHELASTIC_RUN_ID=x " TORCH("3", "4"), LK_CLUSTER_TORCHRUN, 3, 4,
     "a:1", NULL},
    // Two that disagree, both named.
    {TF_1_OF_2, TORCH("0", "2"), 0, 0, 0, "",
     "TF_CONFIG says rank 1 of 2, torchrun (RANK, WORLD_SIZE, MASTER_ADDR) says rank 0 of 2; "
     "take one of them away, or correct it"},
    {TF_1_OF_2, "RANK=1 WORLD_SIZE=2 MASTER_ADDR=c", 0, 0, 0, "",
     "TF_CONFIG says rank 0 is at a:1, torchrun (RANK, WORLD_SIZE, MASTER_ADDR) says it is at "
     "c:29400; take one of them away, or correct it"},
    {TF_1_OF_2, PMI("1", "3"), 0, 0, 0, "",
     "TF_CONFIG says rank 1 of 2, MPICH (PMI_RANK, PMI_SIZE) says rank 1 of 3; take one of them "
     "away, or correct it"},
    {NULL, TORCH("1", "2") OMPI("0", "2"), 0, 0, 0, "",
     "torchrun (RANK, WORLD_SIZE, MASTER_ADDR) says rank 1 of 2, Open MPI (OMPI_COMM_WORLD_RANK, "
     "OMPI_COMM_WORLD_SIZE) says rank 0 of 2; take one of them away, or correct it"},
    {NULL, PMI("1", "2") SLURM("0", "2"), 0, 0, 0, "",
     "MPICH (PMI_RANK, PMI_SIZE) says rank 1 of 2, Slurm (SLURM_PROCID, SLURM_NTASKS) says rank 0 "
     "of 2; take one of them away, or correct it"},
    // Half a description, and numbers that are none.
    {NULL, "RANK=0 WORLD_SIZE=2", 0, 0, 0, "",
     "RANK and WORLD_SIZE are set and MASTER_ADDR is not: set it to the host of rank 0, or unset "
     "them"},
    {NULL, "TORCHELASTIC_RUN_ID=x RANK=0", 0, 0, 0, "",
     "RANK is set and WORLD_SIZE is not: set both, or unset it"},
    {NULL, "PMI_SIZE=2", 0, 0, 0, "", "PMI_SIZE is set and PMI_RANK is not: set both, or unset it"},
    {NULL, "PMI_RANK=2 PMI_SIZE=2", 0, 0, 0, "",
     "PMI_RANK: found \"2\", wanted a number from 0 to 1; correct it, or unset it"},
    {NULL, "PMI_RANK=0 PMI_SIZE=0", 0, 0, 0, "",
     "PMI_SIZE: found \"0\", wanted a number from 1 to 1024; correct it, or unset it"},
    {NULL, "PMI_RANK=-1 PMI_SIZE=2", 0, 0, 0, "",
     "PMI_RANK: found \"-1\", wanted a number from 0 to 1; correct it, or unset it"},
    {NULL, "PMI_RANK=0x PMI_SIZE=2", 0, 0, 0, "",
     "PMI_RANK: found \"0x\", wanted a number from 0 to 1; correct it, or unset it"},
    {NULL, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0", 0, 0, 0, "",
     "MASTER_PORT: found \"0\", wanted a number from 1 to 65535; correct it, or unset it"},
    {NULL, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=tcp://a", 0, 0, 0, "",
     "MASTER_ADDR: found \"tcp://a\" with a slash (a scheme or a path); wanted a host name or an "
     "IP address; correct it"},
};

static void launchers_count_in_order_and_must_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < LK_COUNT(launched); i++) {
        lk_error error;
        lk_status status = read_it(NULL, launched[i].tf, launched[i].variables, &error);
        if (launched[i].refused) {
            if (status != LK_BAD_CONFIG || strcmp(error.text, launched[i].refused) != 0)
                fail_msg("%s: found %s", launched[i].variables, error.text);
        } else if (status != LK_OK || cluster.source != launched[i].source
                   || cluster.rank != launched[i].rank || cluster.world != launched[i].world
                   || strcmp(cluster.address[0], launched[i].address) != 0) {
            fail_msg("%s: source %d, rank %u of %u at %s, %s", launched[i].variables,
                     cluster.source, cluster.rank, cluster.world, cluster.address[0], error.text);
        }
    }
}

// --- a file --------------------------------------------------------------------------------------

static const char *write_file(const char *text) {
    static const char name[] = "cluster_read_test.json";
    FILE *file = fopen(name, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
    return name;
}

static void a_file_goes_first_and_may_lack_the_task(void **state) {
    (void)state;
    lk_error error;
    const char *file = write_file("{\"cluster\":{\"worker\":[\"a:1\",\"b:1\"]}}");
    assert_int_equal(read_it(file, NULL, "", &error), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "--cluster cluster_read_test.json: When `cluster_spec` is "
                                       "given, you must also specify `task_type` and `task_id`."));
    assert_int_equal(read_it(file, NULL, "PMI_RANK=1 PMI_SIZE=2", &error), LK_OK);
    assert_int_equal(cluster.source, LK_CLUSTER_FILE);
    assert_int_equal(cluster.rank, 1);
    assert_string_equal(cluster.origin, "--cluster cluster_read_test.json, rank from MPICH "
                                        "(PMI_RANK, PMI_SIZE)");
    assert_int_equal(report.told[LK_CLUSTER_FILE], LK_TOLD_TAKEN);
    assert_int_equal(report.told[LK_CLUSTER_MPICH], LK_TOLD_RANK);
    assert_int_equal(read_it(file, NULL, "PMI_RANK=1 PMI_SIZE=3", &error), LK_BAD_CONFIG);
    assert_int_equal(read_it(file, TF_1_OF_2, "", &error), LK_OK);
    assert_int_equal(cluster.rank, 1);
    file = write_file(TF_1_OF_2);
    assert_int_equal(read_it(file, TF_1_OF_2, "PMI_RANK=1 PMI_SIZE=2", &error), LK_OK);
    assert_int_equal(report.told[LK_CLUSTER_TF_CONFIG], LK_TOLD_SAME);
    assert_int_equal(read_it(file, NULL, "PMI_RANK=0 PMI_SIZE=2", &error), LK_BAD_CONFIG);
    assert_string_equal(error.text, "--cluster cluster_read_test.json says rank 1 of 2, MPICH "
                                    "(PMI_RANK, PMI_SIZE) says rank 0 of 2; take one of them away, "
                                    "or correct it");
    assert_int_equal(read_it(write_file("{}"), NULL, "", &error), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "describes no cluster"));
    assert_int_equal(read_it(write_file(""), NULL, "", &error), LK_BAD_CONFIG);
    assert_int_equal(remove(file), 0);
    assert_int_equal(read_it("missing.json", NULL, "", &error), LK_NO_INPUT);
    assert_int_equal(read_it(".", NULL, "", &error), LK_NO_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tf_config_is_refused_with_byte_and_reason),
        cmocka_unit_test(not_json_is_refused_with_its_byte),
        cmocka_unit_test(too_many_workers_are_refused),
        cmocka_unit_test(tf_config_gives_rank_and_world),
        cmocka_unit_test(replicas_and_unused_keys),
        cmocka_unit_test(launchers_count_in_order_and_must_agree),
        cmocka_unit_test(a_file_goes_first_and_may_lack_the_task),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
