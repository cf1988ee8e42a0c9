// data_import.c - lockstep data import: data sets of other formats as IDX files (io/data_import.h).
#define _GNU_SOURCE
#include "io/data_import.h"

#include <stdio.h>
#include <string.h>

#include "apps/cli/tools.h"

typedef unsigned long long ull;

static lk_status say_part(const lk_imported *part, const char *name, json_t *answer,
                          lk_error *error) {
    if (answer) {
        json_object_set_new(
            answer, name,
            json_pack("{s:I, s:[i,i,i], s:i, s:o, s:o}", "examples", (json_int_t)part->count,
                      "image", (int)part->height, (int)part->width, (int)part->channels, "classes",
                      (int)part->classes, "images", lk_json_text(part->images), "labels",
                      lk_json_text(part->labels)));
        return json_object_get(answer, name)
                   ? LK_OK
                   : lk_fail(error, LK_UNAVAILABLE, "no memory for the answer");
    }
    printf("%s: %llu images [%u, %u, %u], labels below %u\n  %s\n  %s\n", name, (ull)part->count,
           part->height, part->width, part->channels, part->classes, part->images, part->labels);
    return LK_OK;
}

// --- npy -----------------------------------------------------------------------------------------

static const char npy_help[] =
    "lockstep data import npy IMAGES.npy LABELS.npy --to DIR [--part train|test] [--json]\n"
    "\n"
    "Images: bytes (uint8), of shape (n, height, width) or (n, height, width, channels). Labels:\n"
    "integers of any width from 0 to 255, of shape (n) or (n, 1). Writes the IDX files of the "
    "part\n"
    "into DIR, for --data DIR; none that is there is replaced.\n";

static lk_status import_npy(int argc, char **argv, lk_error *error) {
    const char *to = NULL, *part = "train";
    bool json = false;
    lk_imported done;
    const lk_argument options[] = {{.name = "to", .text = &to}, {.name = "part", .text = &part}};
    lk_arguments a = {.help = npy_help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = 2,
                      .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!to) return lk_fail(error, LK_BAD_USAGE, "import: wanted --to DIR");
    const bool test = strcmp(part, "test") == 0;
    if (!test && strcmp(part, "train") != 0) {
        return lk_fail(error, LK_BAD_USAGE, "--part: found \"%s\", wanted \"train\" or \"test\"",
                       part);
    }
    LK_CHECK(lk_import_npy(a.words[0], a.words[1], to, test ? LK_IMPORT_TEST : LK_IMPORT_TRAIN,
                           &done, error));
    json_t *answer = json ? json_object() : NULL;
    LK_CHECK(say_part(&done, part, answer, error));
    return json ? lk_print_json(answer, error) : LK_OK;
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
    json_t *answer = json ? json_object() : NULL;
    if (!json) printf("CIFAR-%u\n", classes);
    LK_CHECK(say_part(&done[LK_IMPORT_TRAIN], "train", answer, error));
    LK_CHECK(say_part(&done[LK_IMPORT_TEST], "test", answer, error));
    return json ? lk_print_json(answer, error) : LK_OK;
}

lk_status lk_command_data_import(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep data import npy|cifar ...\n"
        "\n"
        "Writes data sets of other formats as IDX files of MNIST's naming, for --data DIR.\n"
        "  lockstep data import npy IMAGES.npy LABELS.npy --to DIR   two arrays of NumPy\n"
        "  lockstep data import cifar FOLDER --to DIR                CIFAR-10 or CIFAR-100, "
        "binary\n"
        "\n"
        "Each explains itself: lockstep data import npy --help.\n";
    static const lk_subcommand table[] = {{"npy", import_npy}, {"cifar", import_cifar}};
    return lk_run_subcommand(argc, argv, help, table, LK_COUNT(table), error);
}
