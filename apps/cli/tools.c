// tools.c - command lines of the commands without a configuration, and what they print as JSON.
#define _GNU_SOURCE
#include "apps/cli/tools.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- command lines -------------------------------------------------------------------------------

// Refuses with the usage: the first line of the help.
static lk_status refuse(const char *help, lk_error *error, const char *what, const char *given,
                        const char *near) {
    return lk_fail(error, LK_BAD_USAGE, "%s \"%s\"%s%s%s; usage: %.*s", what, given,
                   near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "",
                   (int)strcspn(help, "\n"), help);
}

const char *lk_refused_option(char **argv) {
    static char letter[3] = "-";
    // Inside of a word with several letters getopt_long has not gone on yet.
    if (optopt <= 0 || optopt > 255) return argv[optind - 1];
    letter[1] = (char)optopt;
    return letter;
}

static lk_status refuse_option(const lk_arguments *a, const char *given, lk_error *error) {
    const char *names[LK_ARGUMENTS_MAX + 2];
    char name[64], near_option[64];
    for (uint32_t i = 0; i < a->option_count; i++) names[i] = a->options[i].name;
    names[a->option_count] = "help";
    names[a->option_count + 1] = "json";
    const char *word = given + strspn(given, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    const char *near = lk_text_nearest(name, names, a->option_count + 1 + (a->json != NULL));
    if (near) snprintf(near_option, sizeof near_option, "--%s", near);
    return refuse(a->help, error, "unknown option", given, near ? near_option : NULL);
}

void lk_list_described(const char *help, const char *name, bool has_value) {
    char option[64], wanted[72], value[64] = "", text[160] = "";
    snprintf(option, sizeof option, "--%s", name);
    snprintf(wanted, sizeof wanted, "\n  %s ", option);
    const char *at = strstr(help, wanted);
    if (!at) {  // some usages say it in their line alone: [--json]
        snprintf(wanted, sizeof wanted, "%s ", option);
        at = strstr(help, wanted);
        if (at) sscanf(at + strlen(wanted), "%63[A-Za-z.]", value);
    } else {
        at += strlen(wanted);
        if (*at >= 'A' && *at <= 'Z') sscanf(at, "%63[^ \n]", value);
        at = strstr(at - 1, "  ");
        if (at) sscanf(at + strspn(at, " "), "%159[^\n]", text);
    }
    lk_list_to(option, has_value ? value : NULL, text);
}

static lk_status list_arguments(const lk_arguments *a, lk_error *error) {
    for (uint32_t i = 0; i < a->option_count; i++) {
        lk_list_described(a->help, a->options[i].name, !a->options[i].flag);
    }
    if (a->json) lk_list_described(a->help, "json", false);
    return lk_answer(error);
}

static lk_status list_subcommands(const char *help, const char *of, const lk_subcommand *table,
                                  uint32_t count, lk_error *error) {
    for (uint32_t i = 0; i < count; i++) {
        char line[96], text[160] = "";
        snprintf(line, sizeof line, "\n  lockstep %s %s ", of, table[i].name);
        const char *at = strstr(help, line), *gap = at ? strstr(at + strlen(line), "  ") : NULL;
        if (gap) sscanf(gap + strspn(gap, " "), "%159[^\n]", text);
        lk_list_to(table[i].name, NULL, text);
    }
    return lk_answer(error);
}

static lk_status take_value(const lk_argument *option, const char *value, lk_error *error) {
    if (option->flag) {
        *option->flag = true;
        return LK_OK;
    }
    if (option->text) {
        if (!*value) {
            return lk_fail(error, LK_BAD_USAGE, "--%s: found \"\", wanted a value", option->name);
        }
        *option->text = value;
        return LK_OK;
    }
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    bool whole = *value >= '0' && *value <= '9' && *end == '\0' && errno == 0;
    if (!whole || number < option->min || number > option->max) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--%s: found \"%s\", wanted an integer from %llu to %llu", option->name,
                       value, (unsigned long long)option->min, (unsigned long long)option->max);
    }
    *option->number = number;
    return LK_OK;
}

static lk_status take_words(int argc, char **argv, lk_arguments *a, lk_error *error) {
    const uint32_t given = (uint32_t)(argc - optind);
    const bool fewer = a->wordless && *a->wordless && given + 1 == a->word_count;
    if (given != a->word_count && !fewer) {
        return lk_fail(error, LK_BAD_USAGE, "%s: found %d arguments, wanted %u; usage: %.*s",
                       argv[0], argc - optind, a->word_count, (int)strcspn(a->help, "\n"), a->help);
    }
    for (uint32_t i = 0; i < given; i++) a->words[i] = argv[optind + (int)i];
    return LK_OK;
}

lk_status lk_parse_arguments(int argc, char **argv, lk_arguments *a, lk_error *error) {
    enum { HELP = 256, JSON, FIRST };
    struct option options[LK_ARGUMENTS_MAX + 3] = {{"help", no_argument, NULL, HELP}};
    if (a->json) {
        options[a->option_count + 1] = (struct option){"json", no_argument, NULL, JSON};
    }
    lk_assert(a->option_count <= LK_ARGUMENTS_MAX && a->word_count <= LK_WORDS_MAX);
    if (lk_list_to) return list_arguments(a, error);
    for (uint32_t i = 0; i < a->option_count; i++) {
        options[i + 1] = (struct option){a->options[i].name,
                                         a->options[i].flag ? no_argument : required_argument, NULL,
                                         FIRST + (int)i};
    }
    opterr = 0;
    optind = 1;
    for (;;) {
        int found = getopt_long(argc, argv, ":h", options, NULL);
        if (found == -1) break;
        const char *given = lk_refused_option(argv);
        if (found == ':') return refuse(a->help, error, "a value is missing after", given, NULL);
        if (found == '?') return refuse_option(a, given, error);
        if (found == HELP || found == 'h') {
            fputs(a->help, stdout);
            a->helped = true;
            return LK_OK;
        }
        if (found == JSON) {
            *a->json = true;
            continue;
        }
        LK_CHECK(take_value(&a->options[found - FIRST], optarg, error));
    }
    return take_words(argc, argv, a, error);
}

lk_status lk_run_subcommand(int argc, char **argv, const char *help, const lk_subcommand *table,
                            uint32_t count, lk_error *error) {
    const char *names[LK_ARGUMENTS_MAX];
    lk_assert(count <= LK_COUNT(names));
    if (lk_list_to && argc < 2) return list_subcommands(help, argv[0], table, count, error);
    if (argc < 2) {
        return lk_fail(error, LK_BAD_USAGE, "%s: a subcommand is missing; usage: %.*s", argv[0],
                       (int)strcspn(help, "\n"), help);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(help, stdout);
        return LK_OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(argv[1], table[i].name) == 0) return table[i].main(argc - 1, argv + 1, error);
        names[i] = table[i].name;
    }
    return refuse(help, error, "unknown subcommand", argv[1],
                  lk_text_nearest(argv[1], names, count));
}

// --- JSON ----------------------------------------------------------------------------------------

json_t *lk_json_text(const char *text) {
    json_t *plain = json_string(text);
    if (plain) return plain;
    char safe[2 * LK_PATH_BYTES];  // not UTF-8: what is wrong becomes U+FFFD
    size_t n = 0;
    for (; *text && n + 4 < sizeof safe; text++) {
        const bool ascii = (unsigned char)*text < 0x80;
        n += (size_t)snprintf(safe + n, sizeof safe - n, ascii ? "%c" : "\xef\xbf\xbd", *text);
    }
    return json_string(safe);
}

lk_status lk_print_json(json_t *document, lk_error *error) {
    char *text = document ? json_dumps(document, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(document);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "--json: no memory for the answer");
    puts(text);
    free(text);
    return LK_OK;
}

