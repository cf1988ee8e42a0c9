// command.h - what the commands of the program share: the table, options, the last word on errors.
#ifndef LOCKSTEP_APPS_CLI_COMMAND_H
#define LOCKSTEP_APPS_CLI_COMMAND_H

#include "apps/cli/watch.h"
#include "apps/run/collective.h"
#include "apps/run/output.h"
#include "apps/run/run.h"
#include "apps/run/say.h"
#include "apps/run/traffic.h"
#include "apps/run/weights.h"
#include "comm/threads/clock.h"
#include "io/text.h"

// Each gets its own arguments (argv[0] is the command's name) and returns the exit code's status;
// `error` is printed by main where the status says so.
typedef lk_status (*lk_command_main)(int argc, char **argv, lk_error *error);

// A run's lines on `out`; warnings on stderr, too.
lk_say lk_say_on(lk_text_out *out);  // NULL: warnings alone, on standard error

// A row of the table of commands. What help, the manual pages and completion say comes from it and
// from the commands' own tables of options: there is no second text.
typedef struct lk_command {
    const char *name;
    lk_command_main main;
    const char *use;    // its command line
    const char *about;  // what it does, in a line; behind a newline more, for commands without a
                        // help of their own
} lk_command;

// Number `number` of the table, from 0; NULL after the last.
const lk_command *lk_command_at(uint32_t number);
// Runs the command argv[1]. LK_BAD_USAGE where there is none of that name.
lk_status lk_run_named(int argc, char **argv, lk_error *error);
// lockstep help [WORD...]
lk_status lk_help(int argc, char **argv, lk_error *error);
// "usage: ..." and what the command does. Of a subcommand, nothing.
void lk_print_usage(const char *command);
// The options of these groups, as help shows them.
void lk_print_options(unsigned groups);

// While this is not NULL, whoever parses options hands them over (name with its dashes; what its
// value is called, NULL: it has none) in place of parsing, and returns lk_answer().
extern void (*lk_list_to)(const char *name, const char *value, const char *text);
// A parser has answered by itself, with help or a list: what is returned ends the command, and is
// no error of it.
lk_status lk_answer(lk_error *error);
extern bool lk_answered;

// Prints the error, where there is one that was not printed yet.
void lk_say_error(lk_error *error);

lk_status lk_command_plan(int argc, char **argv, lk_error *error);
lk_status lk_command_train(int argc, char **argv, lk_error *error);
lk_status lk_command_launch(int argc, char **argv, lk_error *error);
lk_status lk_command_eval(int argc, char **argv, lk_error *error);
lk_status lk_command_generate(int argc, char **argv, lk_error *error);
lk_status lk_command_predict(int argc, char **argv, lk_error *error);
lk_status lk_command_embed(int argc, char **argv, lk_error *error);
lk_status lk_command_data(int argc, char **argv, lk_error *error);
lk_status lk_command_checkpoint(int argc, char **argv, lk_error *error);
lk_status lk_command_diff(int argc, char **argv, lk_error *error);
lk_status lk_command_pack(int argc, char **argv, lk_error *error);
lk_status lk_command_reproduce(int argc, char **argv, lk_error *error);
lk_status lk_command_ledger(int argc, char **argv, lk_error *error);
lk_status lk_command_bench(int argc, char **argv, lk_error *error);
lk_status lk_command_report(int argc, char **argv, lk_error *error);
lk_status lk_command_verify(int argc, char **argv, lk_error *error);
lk_status lk_command_cluster(int argc, char **argv, lk_error *error);
lk_status lk_command_doctor(int argc, char **argv, lk_error *error);
lk_status lk_command_config(int argc, char **argv, lk_error *error);
lk_status lk_command_manual(int argc, char **argv, lk_error *error);
lk_status lk_command_complete(int argc, char **argv, lk_error *error);

enum { LK_SET_MAX = 64 };

// The options of every command that takes a configuration; a command's own come beside them.
typedef struct lk_common_options {
    lk_config_options config;
    const char *set[LK_SET_MAX];
    const char *run_dir;     // --run-dir
    const char *checkpoint;  // --checkpoint FILE
    const char *output;      // --output FILE
    const char *to;          // --to FILE
    const char *images;      // --images FILE
    const char *cluster;     // --cluster FILE
    uint64_t max_memory;     // --max-memory, bytes
    uint64_t example, step;  // --example plus 1, --step; 0: not given
    uint64_t count, between[2];  // --count; --between A,B plus 1 each; 0: not given
    uint32_t workers;        // --workers, for a plan
    lk_link link;            // --bandwidth, --latency, for a plan of workers
    lk_mpi_options mpi;      // --start-timeout, --step-timeout
    lk_collective collective;
    bool resume, fresh, resume_or_start, seal, json, svg, show_shards;
    bool quiet;                                      // --quiet: results alone
    char epochs[32], seed[32];                       // --epochs, --seed, as --set has them
    char trace[LK_CONFIG_PATH_BYTES];                // --trace, likewise
    char init[LK_CONFIG_PATH_BYTES];                 // --init, --init-map, --init-skip, likewise
    char judge[LK_CONFIG_PATH_BYTES];                // --judge, likewise
    char init_map[LK_CONFIG_PATH_BYTES], init_skip[LK_CONFIG_PATH_BYTES];
    uint32_t start_delay_seconds, throttle_seconds;  // of an evaluator
    bool insecure;                                   // --insecure: no key between hosts
    bool require_lock;                               // --require-lock
    const char *metrics_file;                        // --metrics-file FILE
} lk_common_options;

// Which of them a command accepts; another one is refused as unknown to it.
typedef enum lk_option_group {
    LK_OPT_TRAIN = 1,        // --run-dir --resume --fresh .., and those of workers
    LK_OPT_PLAN = 2,         // --show-shards --json --svg --workers --bandwidth --latency
    LK_OPT_WEIGHTS = 4,      // --run-dir --checkpoint
    LK_OPT_OUTPUT = 8,       // --output
    LK_OPT_EMBED = 16,       // --to
    LK_OPT_CLUSTER = 32,     // --cluster
    LK_OPT_JSON = 64,        // --json
    LK_OPT_NO_CONFIG = 128,  // CONFIG may be left out; config.config is then NULL
    LK_OPT_QUIET = 256,      // --quiet
    LK_OPT_LEDGER = 512,     // --example --step
    LK_OPT_IMAGES = 1024,    // --images
    LK_OPT_JUDGE = 4096,     // --judge --count
    LK_OPT_GENERATE = 2048,  // --output --count --between
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

// What is written takes the place of none of the files that these options say to read. LK_BAD_USAGE
// names it.
lk_status lk_check_inputs(const lk_common_options *o, const char *option, const char *output,
                          lk_error *error);

// train as the evaluator of a cluster: each checkpoint once, until the last step.
lk_status lk_evaluator(const lk_common_options *options, lk_error *error);

// SIGBUS on a mapped file of these sets that somebody cut short: one line and exit 74. Before they
// are opened, which reads all of them; they are zero then. One may be NULL.
void lk_watch_data(const lk_dataset *one, const lk_dataset *other);

// The names of the ready configurations, one a line; the keys of a configuration.
lk_status lk_list_configs(lk_error *error);
lk_status lk_list_keys(lk_error *error);
// lockstep config schema (config_schema.c)
lk_status lk_print_schema(lk_error *error);

#endif
