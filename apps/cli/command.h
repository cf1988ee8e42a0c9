// command.h - what the commands of the program share: the table, options, the last word on errors.
#ifndef LOCKSTEP_APPS_CLI_COMMAND_H
#define LOCKSTEP_APPS_CLI_COMMAND_H

#include "apps/run/run.h"
#include "apps/run/traffic.h"
#include "apps/run/watch.h"
#include "comm/threads/clock.h"
#include "io/text.h"

// Each gets its own arguments (argv[0] is the command's name) and returns the exit code's status;
// `error` is printed by main where the status says so.
typedef lk_status (*lk_command_main)(int argc, char **argv, lk_error *error);

// Prints the error, where there is one that was not printed yet.
void lk_say_error(lk_error *error);

lk_status lk_command_plan(int argc, char **argv, lk_error *error);
lk_status lk_command_train(int argc, char **argv, lk_error *error);
lk_status lk_command_launch(int argc, char **argv, lk_error *error);
lk_status lk_command_eval(int argc, char **argv, lk_error *error);
lk_status lk_command_predict(int argc, char **argv, lk_error *error);
lk_status lk_command_embed(int argc, char **argv, lk_error *error);
lk_status lk_command_data(int argc, char **argv, lk_error *error);
lk_status lk_command_checkpoint(int argc, char **argv, lk_error *error);
lk_status lk_command_diff(int argc, char **argv, lk_error *error);
lk_status lk_command_bench(int argc, char **argv, lk_error *error);
lk_status lk_command_verify(int argc, char **argv, lk_error *error);
lk_status lk_command_cluster(int argc, char **argv, lk_error *error);
lk_status lk_command_doctor(int argc, char **argv, lk_error *error);
lk_status lk_command_config(int argc, char **argv, lk_error *error);

enum { LK_SET_MAX = 64 };

// --collective. The words from LK_COLLECTIVE_MPI on say how bytes travel between workers.
typedef enum lk_collective {
    LK_COLLECTIVE_AUTO,
    LK_COLLECTIVE_THREADS,
    LK_COLLECTIVE_NCCL,
    LK_COLLECTIVE_MPI,
    LK_COLLECTIVE_WINDOW,
    LK_COLLECTIVE_MESSAGES,
    LK_COLLECTIVE_RING,  // what TensorFlow's tutorial calls the transport of the host
} lk_collective;

lk_status lk_collective_parse(const char *text, lk_collective *out, lk_error *error);
// Sets what the choice means to MPI. LK_UNAVAILABLE or LK_BAD_USAGE where it cannot be.
lk_status lk_collective_choose(lk_collective asked, uint32_t world, lk_mpi_options *mpi,
                               lk_error *error);
// .. and once it is known on how many GPUs this process trains.
lk_status lk_collective_check_gpus(lk_collective asked, uint32_t world, uint32_t gpus,
                                   lk_error *error);
// Of several workers, once they have met: do their GPUs exchange by themselves? By all at the same
// point. LK_RANKS_DISAGREE where they were asked different things.
lk_status lk_collective_choose_way(lk_run *run, lk_collective asked, lk_error *error);
// .. or shall it be planned so?
lk_status lk_collective_imagine(lk_run *run, lk_collective asked, lk_error *error);
void lk_collective_print(lk_collective asked, const lk_run *run, lk_text_out *out);

// The options of every command that takes a configuration; a command's own come beside them.
typedef struct lk_common_options {
    lk_config_options config;
    const char *set[LK_SET_MAX];
    const char *run_dir;     // --run-dir
    const char *checkpoint;  // --checkpoint FILE
    const char *output;      // --output FILE
    const char *to;          // --to FILE
    const char *cluster;     // --cluster FILE
    uint64_t max_memory;     // --max-memory, bytes
    uint32_t workers;        // --workers, for a plan
    lk_link link;            // --bandwidth, --latency, for a plan of workers
    lk_mpi_options mpi;      // --start-timeout, --step-timeout
    lk_collective collective;
    bool resume, fresh, resume_or_start, seal, json, show_shards;
    bool quiet;                                      // --quiet: results alone
    char epochs[32], seed[32];                       // --epochs, --seed, as --set has them
    uint32_t start_delay_seconds, throttle_seconds;  // of an evaluator
    bool insecure;                                   // --insecure: no key between hosts
} lk_common_options;

// Which of them a command accepts; another one is refused as unknown to it.
typedef enum lk_option_group {
    LK_OPT_TRAIN = 1,        // --run-dir --resume --fresh .., and those of workers
    LK_OPT_PLAN = 2,         // --show-shards --json --workers --bandwidth --latency
    LK_OPT_WEIGHTS = 4,      // --run-dir --checkpoint
    LK_OPT_OUTPUT = 8,       // --output
    LK_OPT_EMBED = 16,       // --to
    LK_OPT_CLUSTER = 32,     // --cluster
    LK_OPT_JSON = 64,        // --json
    LK_OPT_NO_CONFIG = 128,  // CONFIG may be left out; config.config is then NULL
    LK_OPT_QUIET = 256,      // --quiet
    // All of a command that trains, or starts what does.
    LK_OPT_OF_TRAIN = LK_OPT_TRAIN | LK_OPT_CLUSTER | LK_OPT_JSON | LK_OPT_QUIET,
} lk_option_group;

// Parses, and takes the one CONFIG argument. LK_BAD_USAGE names the option and the nearest that
// exists.
lk_status lk_parse_common(int argc, char **argv, unsigned groups, lk_common_options *out,
                          lk_error *error);

// The value of an option that is a number from 1 to `most`. LK_BAD_USAGE names the option.
lk_status lk_parse_number(const char *option, const char *text, uint32_t most, uint32_t *out,
                          lk_error *error);

// --output: what is written takes the place of what has this name, of a plain file, not of a
// device or pipe. LK_BAD_USAGE names it.
lk_status lk_check_place(const char *output, lk_error *error);

// Where a configured run lives without --run-dir; returns `path`.
const char *lk_default_run_dir(const lk_run *run, char *path, size_t bytes);

// Removes the run that lives in `path`, for --fresh. A directory without a recorded identity was
// not made by a run and is left for lk_run_dir_open to judge. LK_BAD_USAGE names what is of no run,
// and nothing is removed then; otherwise as lk_run_dir_open, which takes the lock first.
lk_status lk_remove_run(const char *path, lk_error *error);

// The newest valid checkpoint of a run directory; says on `out` what had to be passed over. `ops`
// are lk_file_ops_posix, or those of a directory that is held.
lk_status lk_find_weights(const lk_file_ops *ops, const char *run_dir,
                          lk_safetensors_entry *entries, size_t capacity, lk_text_out *out,
                          lk_checkpoint_found *found, lk_error *error);

// Training records with every checkpoint what its values hash to. LK_BAD_DATA: this one has not.
lk_status lk_check_recorded(const lk_safetensors *reader, lk_error *error);
// Adds to an error of identity which keys of this configuration differ from the recorded one.
void lk_explain_identity(const lk_run *run, const char *run_dir, lk_error *error);
// The steps of the run that is recorded there; 0 where that is not known.
uint64_t lk_recorded_steps(const lk_run *run, const char *run_dir);

// Loads weights into a started run: from one file, or from the newest valid checkpoint of a run
// directory; says on `out` which, and what had to be passed over. *steps_done is what it recorded.
lk_status lk_load_weights(lk_run *run, const lk_file_ops *ops, const char *file,
                          const char *run_dir, lk_text_out *out, uint64_t *steps_done,
                          lk_error *error);

// train as the evaluator of a cluster: each checkpoint once, until the last step.
lk_status lk_evaluator(const lk_common_options *options, lk_error *error);

// SIGBUS on a mapped file of these sets that somebody cut short: one line and exit 74. Before they
// are opened, which reads all of them; they are zero then. One may be NULL.
void lk_watch_data(const lk_dataset *one, const lk_dataset *other);

// The plan as one JSON document; out == NULL measures. Returns its length. `link` may be NULL.
size_t lk_plan_json(const lk_run *run, const lk_link *link, char *out, size_t bytes);

// The names of the ready configurations, one a line; the keys of a configuration.
lk_status lk_list_configs(lk_error *error);
lk_status lk_list_keys(lk_error *error);

#endif
