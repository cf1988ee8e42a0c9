// main.c - lockstep: finds the command, prints the error, gives the exit code.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "ops/variant.h"

static const struct {
    const char *name;
    lk_command_main main;
    const char *use;
} commands[] = {
    {"plan", lk_command_plan,
     "plan CONFIG [--json | --svg] [--show-shards] [--workers N [--collective nccl] [--bandwidth "
     "GBIT [--latency US]]]"},
    {"cluster", lk_command_cluster, "cluster [CONFIG] [--cluster FILE] [--json]"},
    {"train", lk_command_train,
     "train CONFIG [--run-dir DIR] [--resume | --fresh | --resume-or-start] [--seal] "
     "[--verify-data] [--tensorboard] [--trace FILE] [--cluster FILE] [--quiet | --json]"},
    {"launch", lk_command_launch,
     "launch --workers N [--replicas M] [--restarts K] [--elastic MIN] train CONFIG ..."},
    {"eval", lk_command_eval, "eval CONFIG (--run-dir DIR | --checkpoint FILE) [--json]"},
    {"predict", lk_command_predict,
     "predict CONFIG (--run-dir DIR | --checkpoint FILE) --output FILE.npy [--json]"},
    {"embed", lk_command_embed, "embed CONFIG --to FILE.c"},
    {"config", lk_command_config, "config show CONFIG [--set KEY=VALUE ...] | schema"},
    {"data", lk_command_data, "data fetch|unpack|shard|verify|clean ... [--json]"},
    {"checkpoint", lk_command_checkpoint,
     "checkpoint info FILE | verify FILE|RUN_DIR|--all | export FILE|RUN_DIR --output OUT "
     "[--json]"},
    {"diff", lk_command_diff, "diff RUN_A RUN_B [--tolerance R] [--json]"},
    {"pack", lk_command_pack, "pack RUN_DIR --to FILE.tar [--json]"},
    {"reproduce", lk_command_reproduce, "reproduce FILE.tar|RUN_DIR [--json]"},
    {"ledger", lk_command_ledger,
     "ledger RUN_DIR|CONFIG (--example N | --step S) [--replicas N] [--json]"},
    {"report", lk_command_report, "report RUN [RUN_B] [--output FILE.html] [--data DIRECTORY]"},
    {"bench", lk_command_bench, "bench [--json]"},
    {"verify", lk_command_verify, "verify [--kernels NAME] [--replicas N] [--json]"},
    {"doctor", lk_command_doctor, "doctor [--json]"},
};

static const char config_help[] =
    "\n"
    "CONFIG is a JSON file or the name of a ready configuration (lockstep help configs); lockstep\n"
    "help keys explains what stands in it, lockstep config show CONFIG fills in the defaults.\n"
    "With every CONFIG:\n"
    "  --set KEY=VALUE      change a value of the configuration: --set "
    "optimizer.learning_rate=0.05\n"
    "  --data DIRECTORY     the four IDX files of MNIST's naming, plain or .gz\n"
    "  --epochs N           the same as --set epochs=N; --seed N likewise\n"
    "  --replicas N         threads; any number up to the grains of a batch, same result\n"
    "  --examples N         train on the first N examples of the training set only\n"
    "  --kernels NAME       reference, portable, avx2, avx512, neon, cuda (a GPU); same result;\n"
    "                       default: the fastest of this processor\n"
    "  --gpus N             with --kernels cuda: GPUs that the replicas are divided over, or all\n"
    "  --gpu I              the number of the first of them\n"
    "  --max-memory BYTES   refuse a plan above this (64M and 2G are understood)\n"
    "\n"
    "A run, with lockstep train\n"
    "  --run-dir DIR        where it lives (runs/NAME); refused if something is there, unless\n"
    "  --resume             it goes on from its hot state or its newest whole checkpoint, or\n"
    "  --fresh              removes the run that is there and starts anew, or\n"
    "  --resume-or-start    starts where nothing is, goes on with this run, and ends with 0 where\n"
    "                       it is finished: for a supervisor to repeat\n"
    "  --seal               has the kernel refuse it any memory once it has started\n"
    "  --verify-data        looks at every byte of the data at the start and believes no record "
    "of\n"
    "                       them; without it at some, and at all while the run goes on\n"
    "  --tensorboard        writes event files for TensorBoard into the run's directory\n"
    "  --trace FILE         where the time of some steps goes, op by op, for ui.perfetto.dev\n"
    "  --quiet              says its result alone, and what goes wrong\n"
    "  --json               events in place of lines, each a JSON object: start, step, progress\n"
    "                       (once a second), evaluation, checkpoint, stopped, error, end\n"
    "Ctrl-C, SIGTERM and SIGHUP save and end it after the step at hand; one more Ctrl-C ends it\n"
    "at once. SIGUSR1 has it say how far it is.\n"
    "\n"
    "Workers: lockstep train CONFIG for each that TF_CONFIG, torchrun or --cluster FILE\n"
    "describes, or mpiexec -n N lockstep train CONFIG; each with its own --replicas; or all of\n"
    "one machine by lockstep launch. With\n"
    "  --cluster FILE       what TF_CONFIG would say; task may be a launcher's to tell\n"
    "  --start-timeout S    seconds that start-up may take (300)\n"
    "  --step-timeout S     seconds that one worker waits for another (60), ten times as many\n"
    "                       for rank 0 while it saves\n"
    "  --collective NAME    auto, threads, mpi or ring, window, messages, nccl: how bytes travel\n"
    "  --private-network N  between hosts: the network that is yours alone, such as 10.1.0.0/16;\n"
    "                       MPI, which has no encryption and no key, keeps to it\n"
    "  --insecure           between hosts: no LOCKSTEP_KEY_FILE, and MPI on any network\n"
    "  --start-delay S      of an evaluator: seconds before it begins (0)\n"
    "  --throttle S         of an evaluator: seconds from one evaluation to the next (0)\n";

static void print_help(void) {
    printf("lockstep %s: a fixed-memory, deterministic, data-parallel trainer\n\n", LK_VERSION);
    for (uint32_t i = 0; i < LK_COUNT(commands); i++) printf("  lockstep %s\n", commands[i].use);
    printf("  lockstep help [COMMAND | configs | keys], lockstep --version\n");
    fputs(config_help, stdout);
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
    fprintf(stderr, "lockstep: %s\n", error->text);
    error->status = LK_OK;
}

static void say_line(void *out, const char *text) { lk_text_line(out, "%s", text); }

static void say_warning(void *out, const char *text) {
    lk_text_line(out, "WARNING: %s", text);
    fprintf(stderr, "lockstep: WARNING: %s\n", text);
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
#ifdef __clang__
    printf("compiler: clang %s\n", __clang_version__);
#else
    printf("compiler: gcc %s\n", __VERSION__);
#endif
    printf("jansson: %s\n", jansson_version_str());
}

// A command with a CONFIG is asked by any of its words; the others explain themselves.
static bool help_is_asked(uint32_t command, int argc, char **argv) {
    const bool shared =
        strstr(commands[command].use, " CONFIG") || strstr(commands[command].use, " [CONFIG]");
    const bool own =
        commands[command].main == lk_command_launch || commands[command].main == lk_command_config;
    if (!shared || own) return false;
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (asks_for_help(argv[i])) return true;
    }
    return false;
}

static lk_status run_named(int argc, char **argv, lk_error *error) {
    for (uint32_t i = 0; i < LK_COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        if (!help_is_asked(i, argc, argv)) return commands[i].main(argc - 1, argv + 1, error);
        printf("usage: lockstep %s\n%s", commands[i].use, config_help);
        return LK_OK;
    }
    return unknown_command(argv[1], error);
}

// "help COMMAND SUBCOMMAND" is "COMMAND SUBCOMMAND --help".
static lk_status help(int argc, char **argv, lk_error *error) {
    enum { WORDS_MAX = 4 };
    static char asked[] = "--help";
    char *words[WORDS_MAX + 2] = {argv[0]};
    int count = 1;
    if (argc == 2) print_help();
    if (argc == 2) return LK_OK;
    if (strcmp(argv[2], "configs") == 0) return lk_list_configs(error);
    if (strcmp(argv[2], "keys") == 0) return lk_list_keys(error);
    for (int i = 2; i < argc && count < WORDS_MAX; i++) words[count++] = argv[i];
    words[count++] = asked;
    return run_named(count, words, error);
}

static lk_status run_command(int argc, char **argv, lk_error *error) {
    if (argc < 2) {
        print_help();
        return lk_fail(error, LK_BAD_USAGE, "no command given");
    }
    if (strcmp(argv[1], "help") == 0) return help(argc, argv, error);
    if (asks_for_help(argv[1])) return help(2, argv, error);
    if (is_one_of(argv[1], "version", "--version", "-V")) {
        print_version();
        return LK_OK;
    }
    return run_named(argc, argv, error);
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
