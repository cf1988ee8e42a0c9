// complete.c - lockstep complete: what may follow on a command line. The shells' functions
// (toolchain/completion) ask it at every key, so completion knows what this program knows: it reads
// the table of commands, and each command's own table of options by lk_list_to.
#include <stdio.h>
#include <string.h>

#include "apps/cli/command.h"
#include "apps/run/data_sets.h"
#include "ops/variant.h"

enum { LISTED_MAX = 96 };

static struct listed {
    char name[64], value[64], text[160];
    bool takes_value;
} listed[LISTED_MAX];
static uint32_t listed_count;

static void collect(const char *name, const char *value, const char *text) {
    if (listed_count == LISTED_MAX) return;
    struct listed *l = &listed[listed_count++];
    lk_format(l->name, sizeof l->name, "%s", name);
    lk_format(l->value, sizeof l->value, "%s", value ? value : "");
    lk_format(l->text, sizeof l->text, "%s", text);
    l->takes_value = value != NULL;
}

// The options, or the subcommands, of what these words name.
static void list(int argc, char **argv) {
    lk_error ignored = {.status = LK_OK};
    listed_count = 0;
    lk_list_to = collect;
    (void)lk_run_named(argc, argv, &ignored);
    lk_list_to = NULL;
}

static const struct listed *find(const char *name) {
    for (uint32_t i = 0; i < listed_count; i++) {
        if (strcmp(listed[i].name, name) == 0) return &listed[i];
    }
    return NULL;
}

static void print_listed(bool options) {
    for (uint32_t i = 0; i < listed_count; i++) {
        const struct listed *l = &listed[i];
        if ((*l->name == '-') == options) printf("%s\t%s\n", l->name, l->text);
    }
}

static void print_commands(void) {
    const lk_command *c;
    for (uint32_t i = 0; (c = lk_command_at(i)); i++) {
        printf("%s\t%.*s\n", c->name, (int)strcspn(c->about, "\n"), c->about);
    }
}

static void print_configs(void) {
    lk_error ignored = {.status = LK_OK};
    (void)lk_list_configs(&ignored);
    puts(":files");
}

static void print_kernels(void) {
    const lk_kernels *variant;
    for (unsigned i = 0;; i++) {
        const char *missing = lk_kernels_missing(i, &variant);
        if (!variant) break;
        if (!missing) puts(variant->name);
    }
    if (lk_cuda_linked()) puts("cuda");
}

// What the text of an option lists: "keras|torch".
static void print_value(const struct listed *option) {
    static const char *const directories[] = {"DIR", "RUN", "DIRECTORY"};
    if (strcmp(option->name, "--kernels") == 0) print_kernels();
    if (strncmp(option->value, "FILE", 4) == 0 || strncmp(option->value, "OUT", 3) == 0) {
        puts(":files");
    }
    if (strcmp(option->value, "CONFIG") == 0) print_configs();
    for (uint32_t i = 0; i < LK_COUNT(directories); i++) {
        if (strcmp(option->value, directories[i]) == 0) puts(":directories");
    }
}

// What stands where no option does.
static void print_words(const lk_command *command, const char *subcommand) {
    const lk_command_main main = command->main;
    const bool config =
        strstr(command->use, "CONFIG") && !(subcommand && strcmp(subcommand, "schema") == 0);
    if (subcommand && main == lk_command_data && strcmp(subcommand, "fetch") == 0) {
        const lk_data_set *set;
        for (uint32_t i = 0; (set = lk_data_set_at(i)); i++) puts(set->name);
    } else if (config) {
        print_configs();
    } else {
        puts(main == lk_command_diff ? ":directories" : ":files");
    }
}

static void complete_help(int count, char **words) {
    static char program[] = "lockstep";
    if (count > 2) {
        list(2, (char *[]){program, words[1], NULL});
        print_listed(false);
        return;
    }
    print_commands();
    puts("configs\tthe ready configurations\nkeys\tthe keys of a configuration");
}

// words (count): what was typed behind the program's name, the last one not to its end.
static void complete(int count, char **words) {
    static char program[] = "lockstep";
    const lk_command *command = NULL;
    const char *last = words[count - 1], *subcommand = NULL;
    for (uint32_t i = 0; count > 1 && (command = lk_command_at(i)); i++) {
        if (strcmp(command->name, words[0]) == 0) break;
    }
    if (count == 1) {
        print_commands();
        puts("help\texplains a command, the keys or the configurations");
        if (*last == '-') puts("--help\n--version");
        return;
    }
    if (strcmp(words[0], "help") == 0) complete_help(count, words);
    if (!command) return;
    char *path[] = {program, words[0], NULL, NULL, NULL};
    int depth = 2;
    list(depth, path);
    for (int i = 1; i + 1 < count && depth + 1 < (int)LK_COUNT(path); i++) {
        if (*words[i] == '-' || !find(words[i])) continue;
        subcommand = words[i];
        path[depth++] = words[i];
        list(depth, path);
    }
    const struct listed *before = count > 2 ? find(words[count - 2]) : NULL;
    if (before && before->takes_value) {
        print_value(before);
        return;
    }
    print_listed(*last == '-');
    bool has_words = false;
    for (uint32_t i = 0; i < listed_count; i++) has_words |= *listed[i].name != '-';
    if (*last != '-' && !has_words) print_words(command, subcommand);
}

lk_status lk_command_complete(int argc, char **argv, lk_error *error) {
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        lk_print_usage(argv[0]);
        return LK_OK;
    }
    if (lk_list_to) return lk_answer(error);
    if (argc < 2)
        return lk_fail(error, LK_BAD_USAGE, "complete: found no word, wanted those typed");
    complete(argc - 1, argv + 1);
    return LK_OK;
}
