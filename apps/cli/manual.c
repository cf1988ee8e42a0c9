// manual.c - lockstep manual: the help texts as manual pages. There is no second text: each page is
// what `lockstep help` prints, set in roff by its shape.
//
//   usage: ...            SYNOPSIS, until an empty line
//   Prose, from column 0  a paragraph
//     term  what it is    two blanks before, two or more between: an item; deeper lines go on
//     anything else       as it stands
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/tools.h"

static char date[16];

// --- text as roff ------------------------------------------------------------------------------

static void put_character(FILE *out, char c) {
    if (c == '-')
        fputs("\\-", out);
    else if (c == '\\')
        fputs("\\e", out);
    else
        putc(c, out);
}

// A hyphen of an option is a minus, and no line begins with what roff takes for a request.
static void put(FILE *out, const char *text, size_t length) {
    if (length && (*text == '.' || *text == '\'')) fputs("\\&", out);
    for (size_t i = 0; i < length; i++) put_character(out, text[i]);
    putc('\n', out);
}

// The same for text that may be filled: a source line ends where it would pass 80 characters.
static void put_filled(FILE *out, const char *text, size_t length) {
    enum { WIDTH = 60 };
    while (length > WIDTH) {
        const char *blank = memrchr(text, ' ', WIDTH);
        if (!blank) blank = memchr(text, ' ', length);
        if (!blank) break;
        put(out, text, (size_t)(blank - text));
        length -= (size_t)(blank + 1 - text);
        text = blank + 1;
    }
    put(out, text, length);
}

// A line "  term  text": the length of its term, or 0.
static size_t term_length(const char *line, size_t length) {
    if (length < 6 || strncmp(line, "  ", 2) != 0 || line[2] == ' ') return 0;
    const char *gap = memmem(line + 2, length - 2, "  ", 2);
    return gap ? (size_t)(gap - line) - 2 : 0;
}

typedef enum setting { HEADED, NOTHING, PROSE, ITEM, AS_IT_STANDS } setting;

static void change(FILE *out, setting *now, setting next) {
    const bool new = *now != next;
    if (new &&*now == AS_IT_STANDS) fputs(".fi\n.RE\n", out);
    if (new &&*now != HEADED && (next == PROSE || next == AS_IT_STANDS)) fputs(".PP\n", out);
    if (new &&next == AS_IT_STANDS) fputs(".RS 4\n.nf\n", out);
    *now = next;
}

static void put_line(FILE *out, setting *now, const char *line, size_t length) {
    const size_t blanks = strspn(line, " "), term = term_length(line, length);
    if (term) {
        change(out, now, ITEM);
        fputs(".TP\n.B ", out);
        put(out, line + 2, term);
        const char *text = line + 2 + term + strspn(line + 2 + term, " ");
        put_filled(out, text, length - (size_t)(text - line));
    } else if (*now == ITEM && blanks > 2) {
        put_filled(out, line + blanks, length - blanks);
    } else if (blanks == 0) {
        change(out, now, PROSE);
        put_filled(out, line, length);
    } else {
        change(out, now, AS_IT_STANDS);
        put(out, line + 2, length - 2);
    }
}

// The usage: its first lines, to an empty one. Returns what follows.
static const char *put_usage(FILE *out, const char *text) {
    static const char label[] = "usage: ";
    if (strncmp(text, label, sizeof label - 1) == 0) text += sizeof label - 1;
    while (*text && *text != '\n') {
        const size_t length = strcspn(text, "\n"), blanks = strspn(text, " ");
        put_filled(out, text + blanks, length - blanks);
        text += length + (text[length] == '\n');
    }
    return text;
}

static void put_text(FILE *out, const char *text, setting now) {
    while (*text) {
        const size_t length = strcspn(text, "\n");
        if (length)
            put_line(out, &now, text, length);
        else if (now != HEADED)
            change(out, &now, NOTHING);
        text += length + (text[length] == '\n');
    }
    change(out, &now, NOTHING);
}

// --- what a command prints of itself ------------------------------------------------------------

// Standard output of `lockstep WORD...`; free() it. NULL where it could not be had.
static char *print_of(int argc, char **argv, lk_error *error) {
    FILE *file = tmpfile();
    const int kept = dup(STDOUT_FILENO);
    struct stat about;
    char *text = NULL;
    fflush(stdout);
    if (file && kept >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0) {
        lk_status status = lk_help(argc, argv, error);
        fflush(stdout);
        if (status == LK_OK && fstat(fileno(file), &about) == 0 && about.st_size > 0) {
            text = calloc((size_t)about.st_size + 1, 1);
        }
        if (text && pread(fileno(file), text, (size_t)about.st_size, 0) != about.st_size) *text = 0;
        (void)dup2(kept, STDOUT_FILENO);
    }
    if (kept >= 0) close(kept);
    if (file) fclose(file);
    if (text && *text) return text;
    free(text);
    (void)lk_fail(error, LK_IO_ERROR,
                  "manual: what help prints could not be kept in a file of "
                  "the directory for temporary ones: %s",
                  strerror(errno));
    return NULL;
}

typedef struct subcommands {
    char names[16][32];
    uint32_t count;
    bool has_options;
} subcommands;

static subcommands *found;

static void collect(const char *name, const char *value, const char *text) {
    (void)value;
    (void)text;
    found->has_options |= *name == '-';
    if (*name == '-' || found->count == LK_COUNT(found->names)) return;
    lk_format(found->names[found->count++], sizeof *found->names, "%s", name);
}

// argv: "lockstep", the command, and its subcommand where there is one.
static void find_subcommands(int argc, char **argv, subcommands *out) {
    lk_error ignored = {.status = LK_OK};
    *out = (subcommands){.count = 0};
    found = out;
    lk_list_to = collect;
    (void)lk_run_named(argc, argv, &ignored);
    lk_list_to = NULL;
    if (out->has_options) out->count = 0;
}

// --- pages -------------------------------------------------------------------------------------

static void put_title(FILE *out, const char *name, const char *section, const char *about) {
    char title[64];
    size_t n = lk_format(title, sizeof title, "%s", name);
    for (size_t i = 0; i < LK_MIN(n, sizeof title - 1); i++) {
        title[i] = (char)toupper((unsigned char)title[i]);
    }
    fprintf(out, ".TH %s %s \"%s\" \"lockstep %s\" \"Lockstep\"\n.SH NAME\n%s \\- ", title, section,
            date, LK_VERSION, name);
    put(out, about, strcspn(about, "\n"));
}

static lk_status put_help(FILE *out, int argc, char **argv, lk_error *error) {
    char *text = print_of(argc, argv, error);
    if (!text) return error->status;
    if (argc == 3) fputs(".SH SYNOPSIS\n", out);
    const char *rest = put_usage(out, text);
    if (argc == 3) fputs(".SH DESCRIPTION\n", out);
    put_text(out, rest, argc == 3 || rest == text ? HEADED : NOTHING);
    free(text);
    return LK_OK;
}

// words: "lockstep", "help", the command and its subcommands so far.
static lk_status put_subcommands(FILE *out, int count, char **words, lk_error *error) {
    enum { WORDS_MAX = 5 };
    char *more[WORDS_MAX + 1] = {words[0]};
    subcommands all;
    for (int i = 2; i < count; i++) more[i - 1] = words[i];
    find_subcommands(count - 1, more, &all);
    if (all.count && count == 3) fputs(".SH SUBCOMMANDS\n", out);
    for (uint32_t i = 0; i < all.count && count < WORDS_MAX; i++) {
        memcpy(more, words, (size_t)count * sizeof *more);
        more[count] = all.names[i];
        fputs(".SS", out);
        for (int w = 3; w <= count; w++) fprintf(out, " %s", more[w]);
        putc('\n', out);
        LK_CHECK(put_help(out, count + 1, more, error));
        LK_CHECK(put_subcommands(out, count + 1, more, error));
    }
    return LK_OK;
}

static lk_status put_command(FILE *out, const lk_command *command, lk_error *error) {
    static char program[] = "lockstep", word[] = "help";
    char title[64], name[32];
    lk_format(title, sizeof title, "lockstep-%s", command->name);
    lk_format(name, sizeof name, "%s", command->name);
    char *words[] = {program, word, name, NULL};
    put_title(out, title, "1", command->about);
    LK_CHECK(put_help(out, 3, words, error));
    LK_CHECK(put_subcommands(out, 3, words, error));
    fputs(".SH SEE ALSO\n.BR lockstep (1)\n", out);
    return LK_OK;
}

static lk_status put_overview(FILE *out, const lk_command *unused, lk_error *error) {
    static char program[] = "lockstep";
    char *text = print_of(1, (char *[]){program, NULL}, error);
    const lk_command *c;
    (void)unused;
    if (!text) return error->status;
    // Its first line is "lockstep VERSION: what it is"; then the commands, to an empty line.
    const char *about = strchr(text, ':'), *rest = strstr(text, "\n\n");
    rest = rest ? strstr(rest + 2, "\n\n") : NULL;
    put_title(out, "lockstep", "1", about ? about + 2 : "");
    fputs(".SH SYNOPSIS\n.B lockstep\n.I COMMAND\n\\&...\n.SH COMMANDS\n", out);
    for (uint32_t i = 0; (c = lk_command_at(i)); i++) {
        fputs(".TP\n.B lockstep ", out);
        put(out, c->use, strlen(c->use));
        put_filled(out, c->about, strcspn(c->about, "\n"));
    }
    fputs(".SH OPTIONS\n", out);
    put_text(out, rest ? rest : "", HEADED);
    free(text);
    fputs(".SH SEE ALSO\n", out);
    for (uint32_t i = 0; (c = lk_command_at(i)); i++)
        fprintf(out, ".BR lockstep\\-%s (1),\n", c->name);
    fputs(".BR lockstep\\-keys (7)\n", out);
    return LK_OK;
}

static lk_status put_keys(FILE *out, const lk_command *unused, lk_error *error) {
    static char program[] = "lockstep", word[] = "help", keys[] = "keys";
    char *text = print_of(3, (char *[]){program, word, keys, NULL}, error);
    (void)unused;
    if (!text) return error->status;
    put_title(out, "lockstep-keys", "7", "the keys of a configuration");
    fputs(".SH DESCRIPTION\n.nf\n", out);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        put(out, line, strcspn(line, "\n"));
    }
    fputs(".fi\n.SH SEE ALSO\n.BR lockstep (1)\n", out);
    free(text);
    return LK_OK;
}

static lk_status write_page(const char *directory, const char *name,
                            lk_status (*put_page)(FILE *, const lk_command *, lk_error *),
                            const lk_command *command, lk_error *error) {
    char path[LK_PATH_BYTES];
    LK_CHECK(lk_path_join(path, directory, "/", name, error));
    FILE *out = fopen(path, "w");
    if (!out) return lk_file_fail(error, LK_IO_ERROR, path, "create", -errno);
    lk_status status = put_page(out, command, error);
    bool written = !ferror(out);
    written &= fclose(out) == 0;
    if (status == LK_OK && !written) {
        status = lk_file_fail(error, LK_IO_ERROR, path, "write", -errno);
    }
    return status;
}

// Of the sources, where whoever builds them says it, so that equal sources give equal pages.
static void set_date(void) {
    const char *text = getenv("SOURCE_DATE_EPOCH");
    time_t now = text ? (time_t)strtoll(text, NULL, 10) : time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts)) (void)strftime(date, sizeof date, "%Y-%m-%d", &parts);
}

static const char manual_help[] =
    "lockstep manual --to DIR\n"
    "\n"
    "Writes manual pages into DIR: lockstep.1, lockstep-COMMAND.1 for each command and\n"
    "lockstep-keys.7. They are what lockstep help prints, set in roff.\n"
    "\n"
    "  --to DIR  an existing directory\n";

lk_status lk_command_manual(int argc, char **argv, lk_error *error) {
    const char *to = NULL;
    const lk_argument options[] = {{.name = "to", .text = &to}};
    lk_arguments a = {.help = manual_help, .options = options, .option_count = LK_COUNT(options)};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!to) return lk_fail(error, LK_BAD_USAGE, "manual: --to DIR is missing");
    set_date();
    LK_CHECK(write_page(to, "lockstep.1", put_overview, NULL, error));
    LK_CHECK(write_page(to, "lockstep-keys.7", put_keys, NULL, error));
    const lk_command *c;
    for (uint32_t i = 0; (c = lk_command_at(i)); i++) {
        char name[64];
        lk_format(name, sizeof name, "lockstep-%s.1", c->name);
        LK_CHECK(write_page(to, name, put_command, c, error));
    }
    return LK_OK;
}
