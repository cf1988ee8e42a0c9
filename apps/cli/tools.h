// tools.h - what the commands that take no configuration share: their options, their subcommands,
// what they print as JSON. Host only; these commands may use the heap.
#ifndef LOCKSTEP_APPS_CLI_TOOLS_H
#define LOCKSTEP_APPS_CLI_TOOLS_H

#include <jansson.h>

#include "apps/cli/command.h"
#include "apps/run/checkpoints.h"
#include "io/file_ops.h"

// --- command lines -------------------------------------------------------------------------------

// One option, --name VALUE. The value goes to `text` or to `number`, whichever is given.
typedef struct lk_argument {
    const char *name;
    const char **text;
    uint64_t *number;  // decimal digits, from min to max
    uint64_t min, max;
    bool *flag;  // has no value
} lk_argument;

enum { LK_ARGUMENTS_MAX = 20, LK_WORDS_MAX = 4 };

typedef struct lk_arguments {
    const char *help;            // for --help; its first line is the usage that errors repeat
    const lk_argument *options;  // (option_count), at most LK_ARGUMENTS_MAX
    uint32_t option_count;
    uint32_t word_count;   // words that are no options: exactly this many
    const bool *wordless;  // not NULL, and set by an option: one word may be left out
    bool *json;            // set by --json; NULL: there is none
    const char *words[LK_WORDS_MAX];
    bool helped;  // out: --help was asked for and answered, there is nothing to do
} lk_arguments;

// The option that getopt_long has just refused; of short ones, which there are not, the letter.
// Values of options are 256 and more.
const char *lk_refused_option(char **argv);

// For lk_list_to: an option as a help text describes it, in a line "  --name VALUE  text".
void lk_list_described(const char *help, const char *name, bool has_value);

// LK_BAD_USAGE names what is wrong, the nearest option, and the usage.
lk_status lk_parse_arguments(int argc, char **argv, lk_arguments *arguments, lk_error *error);

// Prints one JSON document as a line and lets go of it. LK_IO_ERROR where it could not be made.
lk_status lk_print_json(json_t *document, lk_error *error);
// A string of JSON, whatever bytes the text has.
json_t *lk_json_text(const char *text);

typedef struct lk_subcommand {
    const char *name;
    lk_command_main main;
} lk_subcommand;

// Runs the one that argv[1] names, with argv[0] its own name.
lk_status lk_run_subcommand(int argc, char **argv, const char *help, const lk_subcommand *table,
                            uint32_t count, lk_error *error);

// lockstep checkpoint export
lk_status lk_command_checkpoint_export(int argc, char **argv, lk_error *error);

// lockstep data fetch
lk_status lk_command_data_fetch(int argc, char **argv, lk_error *error);

// lockstep data import
lk_status lk_command_data_import(int argc, char **argv, lk_error *error);

#endif
