// tools.h - what the commands that take no configuration share: their options, their subcommands,
// the checkpoints of a directory, the places of known data sets. Host only; these commands may use
// the heap.
#ifndef LOCKSTEP_APPS_CLI_TOOLS_H
#define LOCKSTEP_APPS_CLI_TOOLS_H

#include <jansson.h>

#include "apps/cli/command.h"
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

enum { LK_ARGUMENTS_MAX = 20, LK_WORDS_MAX = 2 };

typedef struct lk_arguments {
    const char *help;            // for --help; its first line is the usage that errors repeat
    const lk_argument *options;  // (option_count), at most LK_ARGUMENTS_MAX
    uint32_t option_count;
    uint32_t word_count;  // so many words follow, no more and no fewer
    const bool *wordless;  // not NULL, and set by an option: one word may be left out
    bool *json;           // set by --json; NULL: there is none
    const char *words[LK_WORDS_MAX];
    bool helped;  // out: --help was asked for and answered, there is nothing to do
} lk_arguments;

// The option that getopt_long has just refused; of short ones, which there are not, the letter.
// Values of options are 256 and more.
const char *lk_refused_option(char **argv);

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

// --- checkpoints ---------------------------------------------------------------------------------

typedef struct lk_steps {
    uint64_t *steps;  // (count), ascending; free() it
    size_t count;
} lk_steps;

// The steps of which `directory` has checkpoint files, good or not. A directory that is not there
// has none. LK_IO_ERROR where it cannot be listed.
lk_status lk_list_checkpoints(const char *directory, lk_steps *out, lk_error *error);

// <directory>/step-....safetensors
lk_status lk_checkpoint_path(char out[LK_PATH_BYTES], const char *directory, uint64_t step,
                             lk_error *error);

// A checkpoint open for reading, with room for its entries.
typedef struct lk_open_checkpoint {
    char path[LK_PATH_BYTES];
    lk_safetensors reader;
    lk_safetensors_entry *entries;
    uint8_t *values;  // of all tensors, as they were verified; NULL: they were only looked at
    uint64_t step;
} lk_open_checkpoint;

// Opens and verifies; with `take`, the values stay in memory. After a failure there is nothing to
// close. A checkpoint of training has recorded what its values hash to; any other is refused.
lk_status lk_checkpoint_enter(lk_open_checkpoint *checkpoint, const char *path, bool take,
                              lk_error *error);
// A tensor's values, of a checkpoint that was taken.
const void *lk_checkpoint_values(const lk_open_checkpoint *checkpoint,
                                 const lk_safetensors_entry *entry);
void lk_checkpoint_leave(lk_open_checkpoint *checkpoint);

// lockstep checkpoint export
lk_status lk_command_checkpoint_export(int argc, char **argv, lk_error *error);

// --- data sets by name ---------------------------------------------------------------------------

// The name of the known set `number`, from 0; NULL after the last.
const char *lk_data_set_name(uint32_t number);

// Where a set of that name lies on this machine (all four files, plain or .gz), in the order in
// which a configuration looks: $LOCKSTEP_DATA, the user's cache, the system's data sets. False:
// nowhere.
bool lk_data_set_find(const char *name, char directory[LK_PATH_BYTES]);

// lockstep data fetch
lk_status lk_command_data_fetch(int argc, char **argv, lk_error *error);

// Floating-point operations of one step: those that must be done, behind a max-pool only the
// winners'. (bench.c)
double lk_step_flop(const lk_program *program);

#endif
