// data_import.c - lockstep data import: data sets of other formats as IDX files (io/data_import.h).
#define _GNU_SOURCE
#include "io/data_import.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "apps/cli/tools.h"
#include "io/idx.h"

typedef unsigned long long ull;

static int labels_most(const lk_imported *part) {
    return (int)lk_idx_row_numbers(part->label_bytes, part->label_type) - 1;
}

static const char *const first_lines[] = {
    [LK_FIRST_NAMES] = "names", [LK_FIRST_EXAMPLE] = "an example"};

static lk_status say_part(const lk_imported *part, const char *name, json_t *answer,
                          lk_error *error) {
    if (answer) {
        json_t *labels = part->label_bytes ? json_integer(labels_most(part)) : NULL;
        json_object_set_new(
            answer, name,
            json_pack("{s:I, s:[i,i,i], s:i, s:o*, s:o, s:o}", "examples", (json_int_t)part->count,
                      "image", (int)part->height, (int)part->width, (int)part->channels, "classes",
                      (int)part->classes, "sequence_labels", labels, "images",
                      lk_json_text(part->images), "labels", lk_json_text(part->labels)));
        if (part->first_line)
            json_object_set_new(json_object_get(answer, name), "first_line",
                                json_string(first_lines[part->first_line]));
        return json_object_get(answer, name)
                   ? LK_OK
                   : lk_fail(error, LK_UNAVAILABLE, "no memory for the answer");
    }
    printf("%s: %llu images [%u, %u, %u], labels below %u", name, (ull)part->count, part->height,
           part->width, part->channels, part->classes);
    if (part->label_bytes) printf(", up to %d of an example", labels_most(part));
    if (part->first_line) printf(", first line: %s", first_lines[part->first_line]);
    printf("\n  %s\n  %s\n", part->images, part->labels);
    return LK_OK;
}

static lk_status say_parts(const lk_imported parts[2], bool json, lk_error *error) {
    json_t *answer = json ? json_object() : NULL;
    if (parts[0].count) LK_CHECK(say_part(&parts[0], "train", answer, error));
    if (parts[1].count) LK_CHECK(say_part(&parts[1], "test", answer, error));
    return json ? lk_print_json(answer, error) : LK_OK;
}

// --- where to ------------------------------------------------------------------------------------

#define WHERE_USAGE "--to DIR [--part train|test | --validation SHARE [--seed N]] [--json]"
#define WHERE_HELP                                                                              \
    "Writes IDX files of MNIST's naming into DIR, for --data DIR; none that is there is\n"      \
    "replaced. All examples are of one part, train or test; or with --validation 0.1 a tenth\n" \
    "of them, chosen by the seed (0) and rounded down, is the test set and the rest trains.\n"

// Options of all importers but CIFAR's, and what they say.
typedef struct where_options {
    const char *to, *part, *validation;
    uint64_t seed;
    bool json;
} where_options;

enum { WHERE_OPTIONS = 4, OPTIONS_MAX = WHERE_OPTIONS + 3 };

static void describe_where(where_options *o, lk_argument out[WHERE_OPTIONS]) {
    *o = (where_options){.seed = UINT64_MAX};
    out[0] = (lk_argument){.name = "to", .text = &o->to};
    out[1] = (lk_argument){.name = "part", .text = &o->part};
    out[2] = (lk_argument){.name = "validation", .text = &o->validation};
    out[3] = (lk_argument){.name = "seed", .number = &o->seed, .max = INT64_MAX};
}

// "0.1", of at most six digits behind the point, in millionths.
static lk_status read_share(const char *text, uint32_t *millionths, lk_error *error) {
    const size_t letters = strlen(text);
    bool good = letters >= 3 && letters <= 8 && text[0] == '0' && text[1] == '.';
    uint32_t value = 0;
    for (size_t i = 2; i < 8; i++) {
        const char digit = good && i < letters ? text[i] : '0';
        good = good && digit >= '0' && digit <= '9';
        value = value * 10 + (uint32_t)(good ? digit - '0' : 0);
    }
    if (!good || value == 0) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--validation: found \"%s\", wanted a share between 0 and 1, such as 0.1",
                       text);
    }
    *millionths = value;
    return LK_OK;
}

static lk_status find_where(const where_options *o, lk_import_to *to, lk_error *error) {
    *to = (lk_import_to){.directory = o->to};
    if (!o->to) return lk_fail(error, LK_BAD_USAGE, "import: wanted --to DIR");
    if (o->part && o->validation) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--part and --validation: wanted one of them: a split set has both parts");
    }
    if (o->seed != UINT64_MAX && !o->validation) {
        return lk_fail(error, LK_BAD_USAGE, "--seed: wanted --validation beside it");
    }
    if (o->seed != UINT64_MAX) to->seed = o->seed;
    if (o->validation) LK_CHECK(read_share(o->validation, &to->test_millionths, error));
    const bool test = o->part && strcmp(o->part, "test") == 0;
    if (o->part && !test && strcmp(o->part, "train") != 0) {
        return lk_fail(error, LK_BAD_USAGE, "--part: found \"%s\", wanted \"train\" or \"test\"",
                       o->part);
    }
    to->part = test ? LK_IMPORT_TEST : LK_IMPORT_TRAIN;
    return LK_OK;
}

// Pages that nobody touches cost nothing.
static lk_status take_pages(const char *what, size_t bytes, void **memory, lk_error *error) {
    *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*memory != MAP_FAILED) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for the names in it", what);
}

// --- npy -----------------------------------------------------------------------------------------

static lk_status import_npy(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep data import npy IMAGES.npy LABELS.npy " WHERE_USAGE
        "\n"
        "\n"
        "Images: bytes (uint8), or float32 without infinities and NaN, of shape (n, values),\n"
        "(n, height, width) or (n, height, width, channels), in C order.\n"
        "Labels: integers of any width from 0 to 65535, of shape (n) or (n, 1).\n"
        "\n" WHERE_HELP;
    where_options where;
    lk_argument options[OPTIONS_MAX];
    lk_imported done[2];
    lk_import_to to;
    describe_where(&where, options);
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = WHERE_OPTIONS,
                      .word_count = 2,
                      .json = &where.json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    LK_CHECK(find_where(&where, &to, error));
    LK_CHECK(lk_import_npy(a.words[0], a.words[1], &to, done, error));
    return say_parts(done, where.json, error);
}

// --- png -----------------------------------------------------------------------------------------

static lk_status import_png(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep data import png FOLDER " WHERE_USAGE
        "\n"
        "\n"
        "FOLDER holds a folder for each class, named as it, with PNG files: all of one size, grey\n"
        "or RGB, in 8 bits. Classes are numbered in the order of their names, which go into\n"
        "DIR/classes.txt; where that is there already, as with --part test, its numbers are\n"
        "taken. Examples come round by round, one of each class, so that the first of them are\n"
        "of all classes.\n"
        "\n" WHERE_HELP;
    where_options where;
    lk_argument options[OPTIONS_MAX];
    lk_imported done[2];
    lk_import_to to;
    describe_where(&where, options);
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = WHERE_OPTIONS,
                      .word_count = 1,
                      .json = &where.json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    LK_CHECK(find_where(&where, &to, error));
    void *memory;
    LK_CHECK(take_pages(a.words[0], LK_IMPORT_PNG_BYTES, &memory, error));
    lk_status status = lk_import_png(a.words[0], &to, memory, LK_IMPORT_PNG_BYTES, done, error);
    munmap(memory, LK_IMPORT_PNG_BYTES);
    LK_CHECK(status);
    return say_parts(done, where.json, error);
}

// --- csv -----------------------------------------------------------------------------------------

// "28,28,1"
static lk_status read_shape(const char *text, uint32_t shape[3], lk_error *error) {
    const char *at = text;
    bool good = true;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t value = 0;
        const char *begin = at;
        while (*at >= '0' && *at <= '9' && at - begin < 6) {
            value = value * 10 + (uint32_t)(*at++ - '0');
        }
        good = good && value >= 1 && value <= (i == 2 ? 16 : 65535) && *at == (i == 2 ? '\0' : ',');
        shape[i] = value;
        if (*at) at++;
    }
    if (good) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--shape: found \"%s\", wanted height, width and channels, such as 28,28,1",
                   text);
}

static lk_status import_csv(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep data import csv FILE [--label COLUMN] [--shape H,W,C] " WHERE_USAGE
        "\n"
        "\n"
        "One example a line, its cells divided by commas: features, whole numbers from 0 to 255,\n"
        "and a label. COLUMN is the label's name in the first line, or its number from 1 (the\n"
        "last). A first line in which no feature is a number is one of names, and so is one\n"
        "where three features or more are called 0, 1, 2, .. and the label has a name. Labels\n"
        "are whole numbers from 0 to 65535, also written as 10.0, or names of classes, numbered\n"
        "in their order, which go into DIR/classes.txt; where that is there already, its\n"
        "numbers are taken, and another class is refused. H, W and C are the shape of the\n"
        "features in their order (1, as many as there are, 1). No cell may be missing.\n"
        "\n" WHERE_HELP;
    where_options where;
    lk_argument options[OPTIONS_MAX];
    lk_csv_columns columns = {.label = NULL};
    const char *shape = NULL;
    lk_imported done[2];
    lk_import_to to;
    describe_where(&where, options);
    options[WHERE_OPTIONS] = (lk_argument){.name = "label", .text = &columns.label};
    options[WHERE_OPTIONS + 1] = (lk_argument){.name = "shape", .text = &shape};
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = WHERE_OPTIONS + 2,
                      .word_count = 1,
                      .json = &where.json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    LK_CHECK(find_where(&where, &to, error));
    if (shape) LK_CHECK(read_shape(shape, columns.shape, error));
    lk_class_list *classes;
    LK_CHECK(take_pages(a.words[0], sizeof *classes, (void **)&classes, error));
    const lk_status status = lk_import_csv(a.words[0], &columns, &to, classes, done, error);
    munmap(classes, sizeof *classes);
    LK_CHECK(status);
    return say_parts(done, where.json, error);
}

// --- sequences -----------------------------------------------------------------------------------

static lk_status import_sequences(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep data import sequences FRAMES.npy OFFSETS.npy LABELS.npy LABEL_OFFSETS.npy "
        "[--frames N] [--labels N] [--classes N] " WHERE_USAGE
        "\n"
        "\n"
        "Sequences of any lengths, one behind the other, for loss transducer. FRAMES: uint8 or\n"
        "float32, of shape (frames of all examples, features). LABELS: integers from 1 to 65535,\n"
        "0 being the blank, of shape (labels of all examples). OFFSETS and LABEL_OFFSETS:\n"
        "integers, of shape (n + 1), from 0 on; example i has the frames from OFFSETS[i] to\n"
        "before OFFSETS[i + 1], one at least, and labels likewise, or none, but not in all. The\n"
        "files have room for N frames and N labels an example (those of the longest), and zeros\n"
        "behind; an example that is longer is refused, and so is a label that is not below\n"
        "--classes (65536). model.input is then [frames, features, 1], model.labels the labels.\n"
        "\n" WHERE_HELP;
    where_options where;
    lk_argument options[OPTIONS_MAX];
    lk_import_ragged from = {.frames_max = 0};
    lk_imported done[2];
    lk_import_to to;
    describe_where(&where, options);
    options[WHERE_OPTIONS] = (lk_argument){
        .name = "frames", .number = &from.frames_max, .min = 1, .max = LK_IMPORT_FRAMES_MAX};
    options[WHERE_OPTIONS + 1] = (lk_argument){
        .name = "labels", .number = &from.labels_max, .min = 1, .max = LK_IMPORT_LABELS_MAX};
    options[WHERE_OPTIONS + 2] = (lk_argument){
        .name = "classes", .number = &from.classes_max, .min = 2, .max = LK_CLASSES_MAX};
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = OPTIONS_MAX,
                      .word_count = 4,
                      .json = &where.json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    LK_CHECK(find_where(&where, &to, error));
    from.frames = a.words[0];
    from.frame_offsets = a.words[1];
    from.labels = a.words[2];
    from.label_offsets = a.words[3];
    LK_CHECK(lk_import_sequences(&from, &to, done, error));
    return say_parts(done, where.json, error);
}

// --- CIFAR ---------------------------------------------------------------------------------------

static const char cifar_help[] =
    "lockstep data import cifar FOLDER --to DIR [--json]\n"
    "\n"
    "FOLDER is cifar-10-batches-bin or cifar-100-binary, as the binary versions of CIFAR-10 and\n"
    "CIFAR-100 unpack. Writes the IDX files of both parts into DIR, for --data DIR, with the fine\n"
    "labels of CIFAR-100, and classes.txt, the names of the classes, where they lie in FOLDER. No\n"
    "file that is there is replaced.\n";

static lk_status import_cifar(int argc, char **argv, lk_error *error) {
    const char *to = NULL;
    bool json = false;
    uint32_t classes;
    lk_imported done[2];
    const lk_argument options[] = {{.name = "to", .text = &to}};
    lk_arguments a = {.help = cifar_help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = 1,
                      .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!to) return lk_fail(error, LK_BAD_USAGE, "import: wanted --to DIR");
    LK_CHECK(lk_import_cifar(a.words[0], to, done, &classes, error));
    if (!json) printf("CIFAR-%u\n", classes);
    return say_parts(done, json, error);
}

lk_status lk_command_data_import(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep data import npy|sequences|png|csv|cifar ...\n"
        "\n"
        "Writes data sets of other formats as IDX files of MNIST's naming, for --data DIR.\n"
        "  lockstep data import npy IMAGES.npy LABELS.npy --to DIR   two arrays of NumPy\n"
        "  lockstep data import sequences FRAMES.npy OFFSETS.npy LABELS.npy LABEL_OFFSETS.npy\n"
        "      --to DIR                                              sequences of any lengths\n"
        "  lockstep data import png FOLDER --to DIR                  pictures, a folder a class\n"
        "  lockstep data import csv FILE --to DIR                    a table, an example a line\n"
        "  lockstep data import cifar FOLDER --to DIR                CIFAR-10 or CIFAR-100, "
        "binary\n"
        "\n"
        "Each explains itself: lockstep data import npy --help.\n";
    static const lk_subcommand table[] = {
        {"npy", import_npy}, {"sequences", import_sequences}, {"png", import_png},
        {"csv", import_csv}, {"cifar", import_cifar}};
    return lk_run_subcommand(argc, argv, help, table, LK_COUNT(table), error);
}
