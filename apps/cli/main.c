// main.c - lockstep: finds the command, prints the error, gives the exit code.
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "io/png_read.h"
#include "ops/variant.h"

static const lk_command commands[] = {
    {"plan", lk_command_plan,
     "plan CONFIG [--json | --svg] [--show-shards] [--workers N [--collective nccl] [--bandwidth "
     "GBIT [--latency US]]]",
     "prints the plan of a run: every byte, before it starts"},
    {"cluster", lk_command_cluster, "cluster [CONFIG] [--cluster FILE] [--json]",
     "says who takes part in a run, and who said so\n"
     "With a CONFIG also the grains and shards of each. Looked at, in this order; two that "
     "disagree\n"
     "are refused:\n"
     "  --cluster FILE  JSON: {\"cluster\": {\"chief\": [\"host:port\"], \"worker\": [...]},\n"
     "                  \"task\": {\"type\": \"worker\", \"index\": 0}, \"replicas\": 2};\n"
     "                  without \"task\" the rank is a launcher's\n"
     "  TF_CONFIG       the same as text\n"
     "  torchrun        RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT\n"
     "  MPICH           PMI_RANK, PMI_SIZE\n"
     "  Open MPI        OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE\n"
     "  Slurm           SLURM_PROCID, SLURM_STEP_NUM_TASKS, in a step\n"},
    {"train", lk_command_train,
     "train CONFIG [--run-dir DIR] [--resume | --fresh | --resume-or-start] [--seal] "
     "[--verify-data] [--tensorboard] [--trace FILE] [--cluster FILE] [--quiet | --json]",
     "trains a network\n"
     "Ctrl-C, SIGTERM and SIGHUP save and end it after the step at hand; one more Ctrl-C ends it\n"
     "at once. An evaluation between two steps is given up, and made when the run is resumed;\n"
     "with several workers or on GPUs, and after the last step, it is ended first. SIGUSR1 has it\n"
     "say how far it is.\n"
     "\n"
     "Workers: lockstep train CONFIG for each that TF_CONFIG, torchrun or --cluster FILE\n"
     "describes, or mpiexec -n N lockstep train CONFIG; each with its own --replicas; or all of\n"
     "one machine by lockstep launch.\n"},
    {"launch", lk_command_launch,
     "launch --workers N [--replicas M] [--restarts K] [--elastic MIN] train CONFIG ...",
     "starts several workers of a run on this machine"},
    {"eval", lk_command_eval,
     "eval CONFIG (--run-dir DIR | --checkpoint FILE) [--judge DIR [--count N]] [--json]",
     "evaluates the test set with the weights of a run\n"
     "--judge: of a run with a generator, the score of its images and their Frechet distance.\n"
     "The training set need not be here.\n"},
    {"predict", lk_command_predict,
     "predict CONFIG (--run-dir DIR | --checkpoint FILE) --output FILE.npy [--images FILE] "
     "[--json]",
     "writes what a run's network says of images\n"
     "The training set need not be here.\n"},
    {"generate", lk_command_generate,
     "generate CONFIG (--run-dir DIR | --checkpoint FILE) --output FILE.png|FILE.npy [--count N] "
     "[--between A,B] [--seed S]",
     "writes images that a run's generator makes of noise\n"
     "No data need be here.\n"},
    {"embed", lk_command_embed, "embed CONFIG --to FILE.c",
     "writes a run as one C source, for bare metal"},
    {"config", lk_command_config, "config show CONFIG [--set KEY=VALUE ...] | schema",
     "shows a configuration with all defaults, or a schema"},
    {"data", lk_command_data, "data fetch|import|unpack|shard|verify|clean ... [--json]",
     "gets, imports, spreads and checks data sets"},
    {"checkpoint", lk_command_checkpoint,
     "checkpoint info FILE | verify FILE|RUN_DIR|--all | export FILE|RUN_DIR --output OUT "
     "[--json]",
     "looks at, proves and exports what a run has saved"},
    {"diff", lk_command_diff, "diff RUN_A RUN_B [--tolerance R] [--json]",
     "compares two runs: equal, or what differs first"},
    {"pack", lk_command_pack, "pack RUN_DIR --to FILE.tar [--json]",
     "writes what reproduces a run into one archive"},
    {"reproduce", lk_command_reproduce, "reproduce FILE.tar|RUN_DIR [--json]",
     "trains a packed run again and compares"},
    {"ledger", lk_command_ledger,
     "ledger RUN_DIR|CONFIG (--example N | --step S) [--replicas N] [--json]",
     "says where an example was used, or what a step used"},
    {"report", lk_command_report,
     "report RUN [RUN_B] [--output FILE.html] [--data DIRECTORY]",
     "writes one page about a run, or about two beside each other"},
    {"bench", lk_command_bench, "bench [--json]",
     "times training steps beside the machine's own peak"},
    {"verify", lk_command_verify, "verify [--kernels NAME] [--replicas N] [--json]",
     "trains the published runs and compares their digests"},
    {"doctor", lk_command_doctor, "doctor [--json]",
     "says what this machine has, and what is missing"},
    {"manual", lk_command_manual, "manual --to DIR", "writes these help texts as manual pages"},
    {"complete", lk_command_complete, "complete WORD ...",
     "says what may follow on a command line, for bash and zsh\n"
     "The last WORD is the one that is being written. A line for each answer: the word, a tab, "
     "what it\n"
     "is; \":files\" or \":directories\" where the shell knows better.\n"},
};

const lk_command *lk_command_at(uint32_t number) {
    return number < LK_COUNT(commands) ? &commands[number] : NULL;
}

void lk_print_usage(const char *command) {
    for (uint32_t i = 0; i < LK_COUNT(commands); i++) {
        const lk_command *c = &commands[i];
        if (strcmp(c->name, command) != 0) continue;
        const char *more = strchr(c->about, '\n');
        printf("usage: lockstep %s\n\n%c%.*s.\n%s", c->use, toupper((unsigned char)*c->about),
               (int)strcspn(c->about, "\n") - 1, c->about + 1, more ? more + 1 : "");
        if (!strstr(c->use, "CONFIG")) return;
        printf(
            "\nCONFIG is a JSON file or the name of a ready configuration (lockstep help "
            "configs);\nlockstep help keys explains what stands in it, lockstep config show CONFIG "
            "fills in the\ndefaults.\n");
    }
}

static void print_help(void) {
    printf("lockstep %s: a fixed-memory, deterministic, data-parallel trainer\n\n", LK_VERSION);
    for (uint32_t i = 0; i < LK_COUNT(commands); i++) {
        printf("  lockstep %s\n      %.*s\n", commands[i].use,
               (int)strcspn(commands[i].about, "\n"), commands[i].about);
    }
    printf("  lockstep help [COMMAND | configs | keys], lockstep --version\n");
    lk_print_options(~0u);
    printf("\nExit codes: 0 done");
#define PRINT_STATUS(name, code, text) \
    if ((code) != 0) printf(", %d %s", code, text);
    LK_STATUS_LIST(PRINT_STATUS)
#undef PRINT_STATUS
    printf(".\n");
}

static void on_panic(const char *file, int line, const char *what) {
    char text[400];
    size_t n =
        lk_format(text, sizeof text, "lockstep: internal error at %s:%d: %s; please report it\n",
                  file, line, what);
    ssize_t written = write(STDERR_FILENO, text, LK_MIN(n, sizeof text - 1));
    (void)written;
    _exit(LK_INTERNAL);
}

void lk_say_error(lk_error *error) {
    if (error->status == LK_OK) return;
    fflush(stdout);
    fprintf(stderr, "%slockstep: %s\n", lk_text_severity(STDERR_FILENO, LK_SEVERITY_ERROR),
            error->text);
    error->status = LK_OK;
}

static void say_line(void *out, const char *text) { lk_text_line(out, "%s", text); }

static void say_warning(void *out, const char *text) {
    if (out) lk_text_line(out, "WARNING: %s", text);
    fprintf(stderr, "%slockstep: WARNING: %s\n",
            lk_text_severity(STDERR_FILENO, LK_SEVERITY_WARNING), text);
}

lk_say lk_say_on(lk_text_out *out) { return (lk_say){say_line, say_warning, out}; }

static lk_status unknown_command(const char *name, lk_error *error) {
    const char *names[LK_COUNT(commands)];
    for (uint32_t i = 0; i < LK_COUNT(commands); i++) names[i] = commands[i].name;
    const char *near = lk_text_nearest(name, names, LK_COUNT(names));
    return lk_fail(error, LK_BAD_USAGE, "unknown command \"%s\"%s%s%s; see: lockstep help", name,
                   near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static bool is_one_of(const char *word, const char *one, const char *other, const char *third) {
    return strcmp(word, one) == 0 || strcmp(word, other) == 0 || strcmp(word, third) == 0;
}

static bool asks_for_help(const char *word) { return is_one_of(word, "--help", "-h", "-?"); }

// What this build can do, each with what does it.
static void print_version(void) {
    const lk_kernels *variant;
    lk_error none = {.status = LK_OK};
    printf("lockstep %s, arithmetic version %d\nkernels:", LK_VERSION, LK_ARITHMETIC_VERSION);
    for (unsigned i = 0;; i++) {
        const char *missing = lk_kernels_missing(i, &variant);
        if (!variant) break;
        printf(" %s%s%s%s", variant->name, missing ? " (not here: " : "", missing ? missing : "",
               missing ? ")" : "");
    }
    printf("%s\n", lk_cuda_linked() ? " cuda" : "");
    printf("MPI: %s\n", lk_mpi_built(&none) == LK_OK ? "yes" : "no");
    printf("CUDA: %s\n", lk_cuda_linked() ? "yes" : "no");
    printf("PNG files: %s\n", lk_png_can_read() ? "yes" : "no");
#ifdef __clang__
    printf("compiler: clang %s\n", __clang_version__);
#else
    printf("compiler: gcc %s\n", __VERSION__);
#endif
    printf("jansson: %s\n", jansson_version_str());
}

lk_status lk_run_named(int argc, char **argv, lk_error *error) {
    for (uint32_t i = 0; i < LK_COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        lk_status status = commands[i].main(argc - 1, argv + 1, error);
        if (!lk_answered) return status;
        lk_answered = false;
        error->status = LK_OK;
        return LK_OK;
    }
    return unknown_command(argv[1], error);
}

// "help COMMAND SUBCOMMAND" is "COMMAND SUBCOMMAND --help".
lk_status lk_help(int argc, char **argv, lk_error *error) {
    enum { WORDS_MAX = 4 };
    static char asked[] = "--help";
    char *words[WORDS_MAX + 2] = {argv[0]};
    int count = 1;
    if (argc <= 2) print_help();
    if (argc <= 2) return LK_OK;
    if (strcmp(argv[2], "configs") == 0) return lk_list_configs(error);
    if (strcmp(argv[2], "keys") == 0) return lk_list_keys(error);
    for (int i = 2; i < argc && count < WORDS_MAX; i++) words[count++] = argv[i];
    words[count++] = asked;
    return lk_run_named(count, words, error);
}

static lk_status run_command(int argc, char **argv, lk_error *error) {
    if (argc < 2) {
        print_help();
        return lk_fail(error, LK_BAD_USAGE, "no command given");
    }
    if (strcmp(argv[1], "help") == 0) return lk_help(argc, argv, error);
    if (asks_for_help(argv[1])) return lk_help(2, argv, error);
    if (is_one_of(argv[1], "version", "--version", "-V")) {
        print_version();
        return LK_OK;
    }
    return lk_run_named(argc, argv, error);
}

// A standard stream that was closed would be the next file that is opened, and what is said would
// stand in that file. A file that may not grow is an error of writing, not the end of the process.
static void prepare_process(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)open("/dev/null", O_RDWR);
    }
    signal(SIGXFSZ, SIG_IGN);
    lk_set_panic_handler(on_panic);
}

// An answer that did not reach its reader was not given.
static lk_status check_output(lk_status status, lk_error *error) {
    errno = 0;
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (written || (status != LK_OK && status != LK_DIFFERS)) return status;
    return lk_fail(error, LK_IO_ERROR, "standard output: writing failed: %s; check where it leads",
                   errno ? strerror(errno) : "an earlier part did not arrive");
}

// Less than that, and the first deep call ends the process by a signal, without a word. Where the
// limit may be raised, it is.
static lk_status prepare_stack(lk_error *error) {
    const rlim_t wanted = 4 * (rlim_t)LK_RUN_STACK_BYTES;
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= wanted) return LK_OK;
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = LK_MIN(16 * wanted, limit.rlim_max);
    if (limit.rlim_cur >= wanted && setrlimit(RLIMIT_STACK, &limit) == 0) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "the stack may have %llu bytes (ulimit -s), wanted at least %llu; raise it: "
                   "ulimit -s 8192",
                   (unsigned long long)before, (unsigned long long)wanted);
}

int main(int argc, char **argv) {
    lk_error error = {.status = LK_OK};
    prepare_process();
    lk_status status = prepare_stack(&error);
    if (status == LK_OK) status = check_output(run_command(argc, argv, &error), &error);
    lk_say_error(&error);
    // Not exit(): under --seal the C library's way out may want what the kernel now refuses.
    _exit(status);
}
