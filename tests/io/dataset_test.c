// Tests of io/dataset.h, and through it of data_file.h, gunzip.h and manifest.h: every kind of
// source gives the same examples and the same hash; every bad input gives its own line and status.
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "io/data_cache.h"
#include "io/dataset.h"
#include "io/dataset_proof.h"
#include "io/gunzip.h"
#include "io/idx.h"
#include "io/manifest.h"
#include "io/shuffle.h"

enum { COUNT = 103, HEIGHT = 5, WIDTH = 7, IMAGE = HEIGHT * WIDTH };
enum { IMAGES_BYTES = 16 + COUNT * IMAGE, LABELS_BYTES = 8 + COUNT };

static char root[64];                              // a fresh directory for each test
static char images[128], labels[128], cache[128];  // in it
static uint8_t images_file[IMAGES_BYTES], labels_file[LABELS_BYTES];
static _Alignas(64) uint8_t memory[1 << 16];

static const char *in_root(const char *name) {
    static char path[8][160];
    static unsigned turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static void put(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

// The second is part of the stamp: each file that a test changes gets a time of its own.
static void age(const char *path, int second) {
    const struct timespec times[2] = {{second, 0}, {second, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

// Nobody may believe the times of a file that was changed a moment ago; everybody may, later.
static void grow_old(void) { usleep(2100000); }

static void put_gzip(const char *path, const void *data, size_t bytes, const char *mode) {
    gzFile f = gzopen(path, mode);
    assert_non_null(f);
    assert_int_equal(gzwrite(f, data, (unsigned)bytes), (int)bytes);
    assert_int_equal(gzclose(f), Z_OK);
}

static size_t get(const char *path, void *data, size_t bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t got = fread(data, 1, bytes, f);
    fclose(f);
    return got;
}

static int setup(void **state) {
    (void)state;
    const lk_made_up made_up = {.seed = 4, .count = COUNT, .height = HEIGHT, .width = WIDTH,
                                .channels = 1, .classes = 10};
    const lk_idx idx = {.ndim = 3, .count = COUNT, .height = HEIGHT, .width = WIDTH, .channels = 1};
    const lk_idx flat = {.ndim = 1, .count = COUNT};
    uint8_t header[LK_IDX_HEADER_BYTES_MAX];
    memcpy(images_file, header, lk_idx_write_header(&idx, header));
    memcpy(labels_file, header, lk_idx_write_header(&flat, header));
    for (uint64_t i = 0; i < COUNT; i++) {
        uint32_t label;
        lk_made_up_example(&made_up, i, images_file + 16 + i * IMAGE, &label);
        labels_file[8 + i] = (uint8_t)label;
    }
    snprintf(root, sizeof root, "/tmp/lockstep-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(images, sizeof images, "%s/images.idx", root);
    snprintf(labels, sizeof labels, "%s/labels.idx", root);
    snprintf(cache, sizeof cache, "%s/some/cache", root);
    put(images, images_file, sizeof images_file);
    put(labels, labels_file, sizeof labels_file);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static lk_dataset_source pair(const char *image_path, const char *label_path) {
    return (lk_dataset_source){.kind = LK_DATASET_IDX, .images = image_path, .labels = label_path,
                               .classes = 10, .cache = cache};
}

static lk_dataset_source sharded(const char *manifest) {
    return (lk_dataset_source){.kind = LK_DATASET_MANIFEST, .manifest = manifest, .classes = 10,
                               .cache = cache};
}

static void open_good(const lk_dataset_source *source, lk_dataset *set) {
    lk_error error = {0};
    uint64_t bytes;
    assert_int_equal(lk_dataset_bytes(source, &bytes, &error), LK_OK);
    assert_true(bytes <= sizeof memory);
    memset(memory, 0xa5, sizeof memory);
    lk_status status = lk_dataset_open(source, memory, bytes, set, &error);
    if (status != LK_OK) fail_msg("%s", error.text);
    for (uint64_t i = bytes; i < sizeof memory; i++) assert_int_equal(memory[i], 0xa5);
}

// Opening (or with `verify`, verifying) fails with this status and a line that has this text.
static void expect_bad(const lk_dataset_source *source, bool verify, lk_status status,
                       const char *text) {
    lk_error error = {0};
    lk_dataset set;
    uint64_t bytes;
    if (lk_dataset_bytes(source, &bytes, &error) == LK_OK)
        (verify ? lk_dataset_verify : lk_dataset_open)(source, memory, bytes, &set, &error);
    if (!strstr(error.text, text)) fail_msg("found \"%s\", wanted \"%s\"", error.text, text);
    assert_int_equal(error.status, status);
}

// The first `count` examples of the files.
static void check_first(const lk_dataset *set, uint64_t count) {
    assert_int_equal(set->count, count);
    assert_int_equal(set->height, HEIGHT);
    assert_int_equal(set->width, WIDTH);
    assert_int_equal(set->channels, 1);
    assert_int_equal(set->image_bytes, IMAGE);
    for (uint64_t i = 0; i < count; i++) {
        assert_memory_equal(lk_dataset_image(set, i), images_file + 16 + i * IMAGE, IMAGE);
        assert_int_equal(lk_dataset_label(set, i), labels_file[8 + i]);
    }
    uint8_t sha256[LK_SHA256_BYTES];
    lk_sha256 hash;
    lk_sha256_start(&hash);
    lk_sha256_add(&hash, images_file + 16, count * IMAGE);
    lk_sha256_add(&hash, labels_file + 8, count);
    lk_sha256_finish(&hash, sha256);
    assert_memory_equal(set->sha256, sha256, sizeof sha256);
}

static void check_examples(const lk_dataset *set) { check_first(set, COUNT); }

static void test_plain_files(void **state) {
    (void)state;
    lk_dataset_source source = pair(images, labels);
    lk_dataset set;
    for (int again = 0; again < 3; again++) {  // computed, believed, without a cache
        if (again == 2) source.cache = "";
        source.populate = again == 1;
        open_good(&source, &set);
        check_examples(&set);
        assert_int_equal(set.classes, 10);
        assert_int_equal(set.mapped_bytes, IMAGES_BYTES + LABELS_BYTES);
        lk_dataset_close(&set);
    }
    source.classes = 0;
    open_good(&source, &set);
    assert_int_equal(set.classes, 10);
    lk_dataset_close(&set);
}

static void test_made_up(void **state) {
    (void)state;
    const lk_dataset_source source = {
        .kind = LK_DATASET_MADE_UP, .cache = cache,
        .made_up = {.seed = 4, .count = COUNT, .height = HEIGHT, .width = WIDTH, .channels = 1,
                    .classes = 10}};
    lk_dataset set;
    for (int again = 0; again < 2; again++) {
        open_good(&source, &set);
        check_examples(&set);
        assert_int_equal(set.mapped_bytes, 0);
        lk_dataset_close(&set);
    }
}

// --- labels of two bytes -------------------------------------------------------------------------

static uint32_t wide_label(uint64_t example) { return (uint32_t)(example * 641 % 1000); }

// The images of the other files, with labels below 1,000.
static lk_dataset_source wide_pair(void) {
    static char path[192];
    static uint8_t file[8 + 2 * COUNT] = {0, 0, 0x0b, 1, 0, 0, 0, COUNT};
    for (uint64_t i = 0; i < COUNT; i++) {
        file[8 + 2 * i] = (uint8_t)(wide_label(i) >> 8);
        file[9 + 2 * i] = (uint8_t)wide_label(i);
    }
    snprintf(path, sizeof path, "%s", in_root("wide.idx"));
    put(path, file, sizeof file);
    lk_dataset_source source = pair(images, path);
    source.classes = 1000;
    return source;
}

static void check_wide(const lk_dataset *set) {
    assert_int_equal(set->count, COUNT);
    assert_int_equal(set->label_bytes, 2);
    assert_int_equal(lk_dataset_label_row(set), 1);
    for (uint64_t i = 0; i < COUNT; i++) {
        assert_memory_equal(lk_dataset_image(set, i), images_file + 16 + i * IMAGE, IMAGE);
        assert_int_equal(lk_dataset_label(set, i), wide_label(i));
    }
}

static void test_labels_of_two_bytes(void **state) {
    (void)state;
    lk_dataset_source source = wide_pair();
    lk_dataset set;
    lk_error error = {0};
    uint8_t sha256[LK_SHA256_BYTES];
    open_good(&source, &set);
    check_wide(&set);
    assert_int_equal(set.classes, 1000);
    memcpy(sha256, set.sha256, sizeof sha256);
    assert_int_equal(lk_dataset_shard(&set, 4, in_root("wide"), &error), LK_OK);
    assert_int_equal(lk_dataset_check_labels(&set, 1000, &error), LK_OK);
    lk_dataset_close(&set);
    lk_dataset_source shards = sharded(in_root("wide/manifest.json"));
    shards.classes = 1000;
    open_good(&shards, &set);
    check_wide(&set);
    assert_int_equal(set.part_count, 4);
    assert_memory_equal(set.sha256, sha256, sizeof sha256);
    lk_dataset_close(&set);
    uint32_t most = 0;
    for (uint64_t i = 0; i < COUNT; i++) most = LK_MAX(most, wide_label(i));
    source.classes = 0;
    open_good(&source, &set);
    assert_int_equal(set.classes, most + 1);
    lk_dataset_close(&set);
    source.classes = 600;
    expect_bad(&source, false, LK_BAD_DATA, "wide.idx: byte 10: label 1: found 641, wanted 0 to "
               "599 (600 classes)");
}

// Labels of two bytes that the caller holds, in the machine's order, are those of the files.
static void test_held_labels_of_two_bytes(void **state) {
    (void)state;
    static uint16_t held[COUNT];
    const lk_dataset_source files = wide_pair();
    for (uint64_t i = 0; i < COUNT; i++) held[i] = (uint16_t)wide_label(i);
    lk_dataset_source source = {.kind = LK_DATASET_HELD,
                                .classes = 1000,
                                .held = {.images = images_file + 16,
                                         .labels = held,
                                         .count = COUNT,
                                         .height = HEIGHT,
                                         .width = WIDTH,
                                         .channels = 1,
                                         .label_type = LK_IDX_U16}};
    uint8_t sha256[LK_SHA256_BYTES];
    lk_dataset set;
    open_good(&files, &set);
    memcpy(sha256, set.sha256, sizeof sha256);
    lk_dataset_close(&set);
    open_good(&source, &set);
    check_wide(&set);
    assert_memory_equal(set.sha256, sha256, sizeof sha256);
    lk_dataset_close(&set);
    source.classes = 600;
    expect_bad(&source, false, LK_BAD_DATA, "labels in memory: byte 2: label 1: found 641, wanted "
               "0 to 599");
    source.held.count = (uint64_t)1 << 32;
    expect_bad(&source, false, LK_BAD_DATA, "examples in memory: found 4294967296");
}

// Made-up labels take two bytes where there are more classes than a byte tells apart.
static void test_made_up_classes(void **state) {
    (void)state;
    const uint32_t classes[] = {256, 257, 65536};
    for (size_t c = 0; c < LK_COUNT(classes); c++) {
        const lk_made_up made_up = {.seed = 4, .count = COUNT, .height = HEIGHT, .width = WIDTH,
                                    .channels = 1, .classes = classes[c]};
        const lk_dataset_source source = {
            .kind = LK_DATASET_MADE_UP, .cache = "", .made_up = made_up};
        lk_dataset set;
        open_good(&source, &set);
        assert_int_equal(set.classes, classes[c]);
        assert_int_equal(set.label_bytes, classes[c] > 256 ? 2 : 1);
        for (uint64_t i = 0; i < COUNT; i++) {
            uint8_t image[IMAGE];
            uint32_t label;
            lk_made_up_example(&made_up, i, image, &label);
            assert_int_equal(lk_dataset_label(&set, i), label);
            assert_memory_equal(lk_dataset_image(&set, i), image, IMAGE);
        }
        lk_dataset_close(&set);
    }
}

// A shard of other labels than those before it.
static void test_shards_of_other_labels(void **state) {
    (void)state;
    lk_dataset_source source = pair(images, labels);
    lk_dataset set;
    lk_error error = {0};
    open_good(&source, &set);
    assert_int_equal(lk_dataset_shard(&set, 2, in_root("mixed"), &error), LK_OK);
    lk_dataset_close(&set);
    uint8_t file[8 + 2 * COUNT] = {0, 0, 0x0b, 1, 0, 0, 0, COUNT - COUNT / 2 - COUNT % 2};
    put(in_root("mixed/labels-00001.idx"), file, 8 + 2 * (size_t)file[7]);
    const lk_dataset_source shards = sharded(in_root("mixed/manifest.json"));
    expect_bad(&shards, false, LK_BAD_DATA,
               "labels-00001.idx: byte 2: found labels of 16 bits, 2 bytes of an example, wanted 8 "
               "bits and 1 bytes, as in the shards before it; shard the data again");
}

static void test_any_number_of_shards_is_the_same_set(void **state) {
    (void)state;
    const uint32_t counts[] = {1, 2, 7, 50, COUNT};
    const lk_dataset_source whole = pair(images, labels);
    lk_dataset set;
    lk_error error = {0};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        char name[32], manifest[192];
        snprintf(name, sizeof name, "shards-%u", (unsigned)counts[i]);
        const char *directory = in_root(name);
        open_good(&whole, &set);
        assert_int_equal(lk_dataset_shard(&set, counts[i], directory, &error), LK_OK);
        lk_dataset_close(&set);
        snprintf(manifest, sizeof manifest, "%s/manifest.json", directory);
        const lk_dataset_source source = sharded(manifest);
        for (int again = 0; again < 2; again++) {
            open_good(&source, &set);
            check_examples(&set);
            assert_int_equal(set.part_count, counts[i]);
            for (uint32_t s = 0; s < counts[i]; s++)
                assert_int_equal(set.parts[s].count,
                                 COUNT / counts[i] + (s < COUNT % counts[i]));
            lk_dataset_close(&set);
        }
    }
    // Shards of shards, across their borders.
    const lk_dataset_source seven = sharded(in_root("shards-7/manifest.json"));
    open_good(&seven, &set);
    assert_int_equal(lk_dataset_shard(&set, 4, in_root("again"), &error), LK_OK);
    lk_dataset_close(&set);
    const lk_dataset_source four = sharded(in_root("again/manifest.json"));
    open_good(&four, &set);
    check_examples(&set);
    lk_dataset_close(&set);
}

// Whatever holds the set; and what one count left in the cache is not believed for another.
static void test_the_first_examples(void **state) {
    (void)state;
    lk_dataset set;
    lk_error error = {0};
    const lk_dataset_source whole = pair(images, labels);
    open_good(&whole, &set);
    assert_int_equal(lk_dataset_shard(&set, 7, in_root("sevenths"), &error), LK_OK);
    lk_dataset_close(&set);
    char manifest[192];
    snprintf(manifest, sizeof manifest, "%s", in_root("sevenths/manifest.json"));
    lk_dataset_source sources[] = {whole, sharded(manifest), whole};
    sources[2].kind = LK_DATASET_MADE_UP;
    sources[2].made_up = (lk_made_up){.seed = 4, .count = COUNT, .height = HEIGHT, .width = WIDTH,
                                      .channels = 1, .classes = 10};
    const uint64_t counts[] = {COUNT, 1, 14, 15, 16, 50, COUNT - 1, 1, COUNT};
    grow_old();  // then records are believed: each number of examples has one of its own
    for (size_t s = 0; s < LK_COUNT(sources); s++) {
        for (size_t i = 0; i < LK_COUNT(counts); i++) {
            sources[s].examples = counts[i];
            open_good(&sources[s], &set);
            check_first(&set, counts[i]);
            lk_dataset_close(&set);
        }
        sources[s].examples = 0;
        open_good(&sources[s], &set);
        check_examples(&set);
        lk_dataset_close(&set);
        sources[s].examples = COUNT + 1;
        expect_bad(&sources[s], false, LK_BAD_CONFIG, "found 103 examples, wanted the first 104");
    }
}

static void test_60000_over_7(void **state) {
    (void)state;
    enum { MANY = 60000 };
    static _Alignas(64) uint8_t big[1 << 18];
    const lk_dataset_source source = {.kind = LK_DATASET_MADE_UP, .cache = "",
                                      .made_up = {.seed = 1, .count = MANY, .height = 1,
                                                  .width = 2, .channels = 1, .classes = 3}};
    lk_dataset set;
    lk_error error = {0};
    lk_manifest m;
    lk_manifest_shard shard;
    assert_int_equal(lk_dataset_open(&source, big, sizeof big, &set, &error), LK_OK);
    assert_int_equal(lk_dataset_shard(&set, 7, in_root("seven"), &error), LK_OK);
    lk_dataset_close(&set);
    assert_int_equal(lk_manifest_load(in_root("seven/manifest.json"), &m, &error), LK_OK);
    assert_int_equal(m.shard_count, 7);
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(lk_manifest_get(&m, i, &shard, &error), LK_OK);
        assert_int_equal(shard.count, i < 3 ? 8572 : 8571);
    }
    lk_manifest_close(&m);
}

static void test_shard_refusals(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    lk_dataset set;
    open_good(&source, &set);
    lk_error error = {0};
    assert_int_equal(lk_dataset_shard(&set, 0, in_root("s"), &error), LK_BAD_USAGE);
    error = (lk_error){0};
    assert_int_equal(lk_dataset_shard(&set, COUNT + 1, in_root("s"), &error), LK_BAD_USAGE);
    error = (lk_error){0};
    assert_int_equal(lk_dataset_shard(&set, 2, in_root("no/such"), &error), LK_IO_ERROR);
    error = (lk_error){0};
    assert_int_equal(lk_dataset_shard(&set, 2, in_root("s"), &error), LK_OK);
    assert_int_equal(lk_dataset_shard(&set, 2, in_root("s"), &error), LK_BAD_USAGE);
    assert_non_null(strstr(error.text, "found a manifest"));
    // Somebody is at it, who was interrupted, or has just finished.
    char unfinished[300], manifest[256];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", in_root("s"));
    snprintf(unfinished, sizeof unfinished, "%s.tmp", manifest);
    assert_int_equal(rename(manifest, unfinished), 0);
    int other = open(unfinished, O_RDONLY);
    assert_int_equal(flock(other, LOCK_EX), 0);
    error = (lk_error){0};
    assert_int_equal(lk_dataset_shard(&set, 3, in_root("s"), &error), LK_UNAVAILABLE);
    assert_non_null(strstr(error.text, "another process writes shards there"));
    close(other);
    error = (lk_error){0};
    assert_int_equal(lk_dataset_shard(&set, 3, in_root("s"), &error), LK_OK);
    assert_int_not_equal(access(unfinished, F_OK), 0);
    const lk_dataset_source three = sharded(manifest);
    lk_dataset_close(&set);
    open_good(&three, &set);
    assert_int_equal(set.part_count, 3);
    lk_dataset_close(&set);
}

// --- gzip ----------------------------------------------------------------------------------------

static void test_gzip(void **state) {
    (void)state;
    const char *packed = in_root("images.gz"), *packed_labels = in_root("labels-packed");
    put_gzip(packed, images_file, 1000, "wb9");  // two members: gzip allows any number
    put_gzip(packed, images_file + 1000, IMAGES_BYTES - 1000, "ab1");
    put_gzip(packed_labels, labels_file, LABELS_BYTES, "wb");  // known by its first bytes
    lk_dataset_source source = pair(packed, packed_labels);
    lk_dataset set;
    lk_error error = {0};
    uint64_t bytes;
    for (int again = 0; again < 3; again++) {
        if (again == 2) source.cache = "";
        open_good(&source, &set);
        check_examples(&set);
        lk_dataset_close(&set);
    }
    source.cache = cache;
    assert_int_equal(lk_dataset_bytes(&source, &bytes, &error), LK_OK);
    assert_int_equal(lk_dataset_verify(&source, memory, bytes, &set, &error), LK_OK);
    check_examples(&set);
    lk_dataset_close(&set);
    uint8_t sha256[LK_SHA256_BYTES], unpacked[IMAGES_BYTES + 1];
    assert_int_equal(lk_gunzip_file(packed, in_root("out"), LK_GUNZIP_IDX, sha256, &error), LK_OK);
    assert_int_equal(get(in_root("out"), unpacked, sizeof unpacked), IMAGES_BYTES);
    assert_memory_equal(unpacked, images_file, IMAGES_BYTES);
}

// The unpacked file of images.gz, found by its size.
static void unpacked_name(char out[256]) {
    char command[256];
    snprintf(command, sizeof command, "find '%s' -name '*.idx' -size %dc", cache, IMAGES_BYTES);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, 256, f));
    out[strcspn(out, "\n")] = '\0';
    pclose(f);
}

static void test_a_damaged_cache_heals(void **state) {
    (void)state;
    const char *packed = in_root("images.gz");
    char unpacked[256];
    put_gzip(packed, images_file, IMAGES_BYTES, "wb");
    const lk_dataset_source source = pair(packed, labels);
    lk_dataset set;
    open_good(&source, &set);
    lk_dataset_close(&set);
    unpacked_name(unpacked);
    age(unpacked, 1000);  // touched, but the same bytes
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
    uint8_t damaged[IMAGES_BYTES];
    memcpy(damaged, images_file, IMAGES_BYTES);
    damaged[500] ^= 1;
    put(unpacked, damaged, IMAGES_BYTES);
    age(unpacked, 2000);
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
    put(unpacked, damaged, 100);
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
    assert_int_equal(unlink(unpacked), 0);
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
}

static void test_bad_gzip(void **state) {
    (void)state;
    const char *packed = in_root("images.gz"), *bad = in_root("bad.gz");
    static uint8_t bytes[2 * IMAGES_BYTES];
    put_gzip(packed, images_file, IMAGES_BYTES, "wb");
    size_t size = get(packed, bytes, sizeof bytes - 1);
    const lk_dataset_source source = pair(bad, labels);
    const size_t cuts[] = {1, 2, 9, 10, size / 2, size - 9, size - 8, size - 4, size - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        put(bad, bytes, cuts[i]);
        expect_bad(&source, false, LK_BAD_DATA, "wanted a whole gzip file");
    }
    put(bad, bytes, 0);
    expect_bad(&source, false, LK_BAD_DATA, "found no gzip header");
    put(bad, images_file, IMAGES_BYTES);
    expect_bad(&source, false, LK_BAD_DATA, "found no gzip header");
    bytes[size] = 'x';
    put(bad, bytes, size + 1);
    expect_bad(&source, false, LK_BAD_DATA, "bytes after the last member");
    const size_t flips[] = {3, size / 2, size - 8, size - 4};
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        bytes[flips[i]] ^= 0xff;
        put(bad, bytes, size);
        expect_bad(&source, false, LK_BAD_DATA, "wanted a whole gzip file");
        bytes[flips[i]] ^= 0xff;
    }
    put_gzip(bad, images_file, IMAGES_BYTES - 1, "wb");  // good gzip of a bad file
    expect_bad(&source, false, LK_BAD_DATA, "truncated");
    expect_bad(&source, true, LK_BAD_DATA, "truncated");
}

// Another process empties the .gz while it is unpacked into a pipe, which holds the reader back.
static void test_gzip_cut_while_unpacked(void **state) {
    (void)state;
    enum { NOISE_BYTES = 1 << 20 };
    static uint8_t noise[NOISE_BYTES];
    const char *packed = in_root("noise.gz");
    uint32_t x = 1;
    for (size_t i = 0; i < NOISE_BYTES; i++) {
        x = x * 1664525 + 1013904223;
        noise[i] = (uint8_t)(x >> 24);
    }
    put_gzip(packed, noise, NOISE_BYTES, "wb1");
    int ends[2], ended;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        uint8_t sha256[LK_SHA256_BYTES];
        lk_error error = {0};
        close(ends[0]);
        lk_status status = lk_gunzip(packed, ends[1], "the pipe", NOISE_BYTES, sha256, &error);
        _exit(strstr(error.text, "found its end, wanted a whole gzip file") ? (int)status : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], noise, 1), 1);
    assert_int_equal(truncate(packed, 0), 0);
    while (read(ends[0], noise, NOISE_BYTES) > 0) continue;
    close(ends[0]);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), LK_BAD_DATA);
}

// --- bad files -----------------------------------------------------------------------------------

static void test_missing_inputs(void **state) {
    (void)state;
    lk_dataset_source source = pair(in_root("absent"), labels);
    expect_bad(&source, false, LK_NO_INPUT, "absent: cannot open");
    source = pair(images, in_root("absent.gz"));
    expect_bad(&source, false, LK_NO_INPUT, "absent.gz: cannot open");
    source = pair(root, labels);
    expect_bad(&source, false, LK_NO_INPUT, "found a directory, wanted a file");
    source = sharded(in_root("manifest.json"));
    expect_bad(&source, false, LK_NO_INPUT, "manifest.json");
    source = sharded(root);
    expect_bad(&source, false, LK_NO_INPUT, root);
    assert_int_equal(mkfifo(in_root("pipe"), 0600), 0);
    source = pair(in_root("pipe"), labels);
    expect_bad(&source, false, LK_NO_INPUT, "wanted a file");
    if (geteuid() == 0) return;  // root may read everything
    assert_int_equal(chmod(images, 0), 0);
    source = pair(images, labels);
    expect_bad(&source, false, LK_NO_INPUT, "images.idx: cannot open");
}

static void test_bad_files(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels), exchanged = pair(labels, images);
    uint8_t bytes[IMAGES_BYTES + 1] = {0};
    memcpy(bytes, images_file, IMAGES_BYTES);
    expect_bad(&exchanged, false, LK_BAD_DATA, "labels.idx: byte 3: found 1 dimension (labels)");
    put(images, bytes, 0);
    expect_bad(&source, false, LK_BAD_DATA, "images.idx: byte 0: empty");
    put(images, bytes, IMAGES_BYTES - 1);
    expect_bad(&source, false, LK_BAD_DATA, "truncated");
    put(images, bytes, IMAGES_BYTES + 1);
    expect_bad(&source, false, LK_BAD_DATA, "too long");
    bytes[0] = 'P';
    put(images, bytes, IMAGES_BYTES);
    expect_bad(&source, false, LK_BAD_DATA, "images.idx: byte 0: found 50 00, wanted 00 00");
    put(images, images_file, IMAGES_BYTES);
    expect_bad(&(lk_dataset_source){.images = images, .labels = images, .cache = ""}, false,
               LK_BAD_DATA, "images.idx: byte 3: found 3 dimensions (images), wanted 1");

    memcpy(bytes, labels_file, LABELS_BYTES);
    bytes[8 + 42] = 10;
    put(labels, bytes, LABELS_BYTES);
    expect_bad(&source, false, LK_BAD_DATA,
               "labels.idx: byte 50: label 42: found 10, wanted 0 to 9");
    bytes[7] = COUNT - 1;
    put(labels, bytes, LABELS_BYTES - 1);
    expect_bad(&source, false, LK_BAD_DATA, "found 102 labels, wanted 103");
}

// A changed byte is found by the next start when the file's time changed, by verify in any case.
static void test_a_changed_file_changes_the_hash(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    lk_dataset before, after;
    age(images, 1000);
    open_good(&source, &before);
    uint8_t bytes[IMAGES_BYTES];
    memcpy(bytes, images_file, IMAGES_BYTES);
    bytes[20] ^= 1;
    put(images, bytes, IMAGES_BYTES);
    age(images, 2000);
    uint8_t sha256[LK_SHA256_BYTES];
    memcpy(sha256, before.sha256, sizeof sha256);
    lk_dataset_close(&before);
    open_good(&source, &after);
    assert_memory_not_equal(sha256, after.sha256, sizeof sha256);
    lk_dataset_close(&after);
}

// Somebody may set the time of the contents back; the file system keeps another.
static void test_a_change_under_an_old_time_is_seen(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    lk_dataset set;
    uint8_t bytes[IMAGES_BYTES], sha256[LK_SHA256_BYTES];
    age(images, 1000);
    open_good(&source, &set);
    memcpy(sha256, set.sha256, sizeof sha256);
    lk_dataset_close(&set);
    memcpy(bytes, images_file, IMAGES_BYTES);
    bytes[20] ^= 1;
    usleep(20000);  // a file system's clock ticks every few milliseconds
    put(images, bytes, IMAGES_BYTES);
    age(images, 1000);
    open_good(&source, &set);
    assert_memory_not_equal(sha256, set.sha256, sizeof sha256);
    lk_dataset_close(&set);
}

static void rewrite(const char *path, const char *from, const char *to) {
    static char text[8192], changed[8192];
    text[get(path, text, sizeof text - 1)] = '\0';
    char *at = strstr(text, from);
    assert_non_null(at);
    *at = '\0';
    snprintf(changed, sizeof changed, "%s%s%s", text, to, at + strlen(from));
    put(path, changed, strlen(changed));
}

// --- records and rot -----------------------------------------------------------------------------

// The only record of a data set (NAME.record), not that of an unpacked file.
static void record_name(char out[256]) {
    char command[256];
    snprintf(command, sizeof command, "find '%s' -name '*.record' ! -name '*.idx.record'", cache);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, 256, f));
    out[strcspn(out, "\n")] = '\0';
    pclose(f);
}

static uint64_t stamp_of(uint64_t before, const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return lk_data_stamp(before, &info);
}

// A file that differs in one of these is another, or was changed.
static void test_a_stamp_is_of_all_that_tells_files_apart(void **state) {
    (void)state;
    const struct stat one = {
        .st_size = 1000, .st_ino = 7, .st_mtim = {50, 60}, .st_ctim = {70, 80}};
    struct stat other[6] = {one, one, one, one, one, one};
    other[0].st_size++;
    other[1].st_ino++;
    other[2].st_mtim.tv_sec++;
    other[3].st_mtim.tv_nsec++;
    other[4].st_ctim.tv_sec++;
    other[5].st_ctim.tv_nsec++;
    for (int i = 0; i < 6; i++) {
        assert_int_not_equal(lk_data_stamp(0, &other[i]), lk_data_stamp(0, &one));
    }
    assert_int_not_equal(lk_data_stamp(1, &one), lk_data_stamp(0, &one));
}

static void open_and_close(const lk_dataset_source *source) {
    lk_dataset set;
    open_good(source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
}

// Any flipped bit of a record makes it none, and the truth is computed again.
static void test_a_damaged_record_is_not_believed(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    char name[256];
    uint8_t bytes[LK_DATA_RECORD_BYTES];
    lk_data_record record;
    grow_old();
    open_and_close(&source);
    record_name(name);
    assert_int_equal(get(name, bytes, sizeof bytes), LK_DATA_RECORD_BYTES - 1);
    for (size_t i = 0; i < LK_DATA_RECORD_BYTES - 1; i++) {
        bytes[i] ^= i % 2 ? 1 : 4;
        assert_false(lk_data_record_parse((const char *)bytes, LK_DATA_RECORD_BYTES - 1, &record));
        bytes[i] ^= i % 2 ? 1 : 4;
        assert_false(lk_data_record_parse((const char *)bytes, i, &record));
    }
    char *digit = strstr((char *)bytes, "sha256 ") + 7;
    *digit = *digit == '0' ? '1' : '0';  // the run would be another one
    put(name, bytes, LK_DATA_RECORD_BYTES - 1);
    open_and_close(&source);
    assert_true(lk_data_record_read(name, &record));
}

// Two changes in one tick of the clock have the same times.
static void test_a_young_file_is_not_believed(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    char name[256];
    lk_data_record record;
    put(images, images_file, IMAGES_BYTES);
    open_and_close(&source);
    record_name(name);
    assert_true(lk_data_record_read(name, &record));
    assert_int_equal(record.stamp, 0);
    grow_old();
    open_and_close(&source);
    assert_true(lk_data_record_read(name, &record));
    assert_int_equal(record.stamp, stamp_of(stamp_of(0, images), labels));
}

// Bytes that are others under the same stamp: as if the record had been written before they were.
static void test_rotten_bytes_are_refused(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    lk_dataset_source verified = source;
    verified.verify = true;
    char name[256];
    uint8_t bytes[IMAGES_BYTES];
    lk_data_record record;
    open_and_close(&source);
    record_name(name);
    memcpy(bytes, images_file, IMAGES_BYTES);
    bytes[2000] ^= 8;
    put(images, bytes, IMAGES_BYTES);
    grow_old();
    assert_true(lk_data_record_read(name, &record));
    record.stamp = stamp_of(stamp_of(0, images), labels);
    lk_data_record_write(name, &record);
    expect_bad(&source, false, LK_BAD_DATA, "images.idx: bytes 16 to 3620: they are not what they");
    expect_bad(&verified, false, LK_BAD_DATA, "touch it");
    expect_bad(&source, true, LK_BAD_DATA, "touch it");
    age(images, 1000);  // somebody says that it is right
    lk_dataset set;
    open_good(&source, &set);
    lk_dataset_close(&set);
}

// Of a set too large to be looked at whole, the last piece is looked at each time: a file that lost
// its end, and was filled up, shows there.
static void test_the_end_of_a_large_set_is_proved(void **state) {
    (void)state;
    enum { EXAMPLES = 20000, LARGE_IMAGE = 4096 };
    uint8_t *const pixels = calloc(EXAMPLES, LARGE_IMAGE), *const of_each = calloc(EXAMPLES, 1);
    lk_dataset_proof proof;
    lk_dataset_part part = {.count = EXAMPLES, .images = {.data = pixels, .name = "images"},
                            .labels = {.data = of_each, .name = "labels"}};
    lk_dataset set = {.count = EXAMPLES, .image_bytes = LARGE_IMAGE, .label_bytes = 1,
                      .part_count = 1, .parts = &part, .proof = &proof};
    lk_error error = {0};
    assert_non_null(pixels);
    assert_non_null(of_each);
    lk_dataset_cut(&set);
    lk_dataset_hash_pieces(&set, proof.piece);
    assert_int_equal(lk_dataset_prove_some(&set, "wrong", &error), LK_OK);
    of_each[EXAMPLES - 1] = 1;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(lk_dataset_prove_some(&set, "wrong", &error), LK_BAD_DATA);
    }
    free(pixels);
    free(of_each);
}

// .. in the cache, where the .gz has the right ones.
static void test_rotten_bytes_in_the_cache_are_unpacked_again(void **state) {
    (void)state;
    const char *packed = in_root("images.gz");
    char unpacked[256], inner[300], name[256];
    lk_data_record record;
    lk_dataset set;
    put_gzip(packed, images_file, IMAGES_BYTES, "wb");
    const lk_dataset_source source = pair(packed, labels);
    open_and_close(&source);
    unpacked_name(unpacked);
    snprintf(inner, sizeof inner, "%s.record", unpacked);
    record_name(name);
    uint8_t bytes[IMAGES_BYTES];
    memcpy(bytes, images_file, IMAGES_BYTES);
    bytes[2000] ^= 8;
    put(unpacked, bytes, IMAGES_BYTES);
    grow_old();
    assert_true(lk_data_record_read(inner, &record));
    record.stamp = stamp_of(0, unpacked);
    lk_data_record_write(inner, &record);
    assert_true(lk_data_record_read(name, &record));
    record.stamp = stamp_of(stamp_of(0, unpacked), labels);
    lk_data_record_write(name, &record);
    open_good(&source, &set);
    check_examples(&set);
    assert_true(set.healed);
    lk_dataset_close(&set);
    // And where it is the record that lies, it is not made true.
    assert_true(lk_data_record_read(name, &record));
    record.piece[0] ^= 1;
    record.stamp = stamp_of(stamp_of(0, unpacked), labels);
    lk_data_record_write(name, &record);
    expect_bad(&source, false, LK_BAD_DATA, "touch it");
}

// --- while a set is used -------------------------------------------------------------------------

static void write_at(const char *path, long at, uint8_t byte) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte, f), byte);
    assert_int_equal(fclose(f), 0);
}

static lk_status look(lk_dataset *set, const char *text) {
    lk_error error = {0};
    lk_status status = lk_dataset_unchanged(set, &error);
    if (text && !strstr(error.text, text)) fail_msg("%s, wanted %s", error.text, text);
    return status;
}

static void test_a_change_in_place_is_seen(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    lk_dataset set;
    const struct timespec tick = {0, 20000000};
    for (int young = 0; young < 2; young++) {
        put(labels, labels_file, LABELS_BYTES);
        if (!young) grow_old();
        open_good(&source, &set);
        assert_int_equal(look(&set, NULL), LK_OK);
        // What changes no byte: mode, another name, the name gone, another file of that name.
        assert_int_equal(chmod(labels, 0600), 0);
        assert_int_equal(look(&set, NULL), LK_OK);
        assert_int_equal(link(labels, in_root("other")), 0);
        assert_int_equal(rename(labels, in_root("moved")), 0);
        assert_int_equal(look(&set, NULL), LK_OK);
        put(labels, labels_file, 9);
        assert_int_equal(look(&set, NULL), LK_OK);
        assert_int_equal(rename(in_root("moved"), labels), 0);
        assert_int_equal(look(&set, NULL), LK_OK);
        // Touched, and the same bytes once more.
        nanosleep(&tick, NULL);
        assert_int_equal(utimensat(AT_FDCWD, labels, NULL, 0), 0);
        assert_int_equal(look(&set, NULL), LK_OK);
        write_at(labels, 30, labels_file[30]);
        assert_int_equal(look(&set, NULL), LK_OK);
        write_at(labels, 30, 255);
        assert_int_equal(look(&set, "labels.idx: bytes 8 to 110: they are no longer"), LK_BAD_DATA);
        write_at(labels, 30, labels_file[30]);
        write_at(labels, LABELS_BYTES, 0);
        assert_int_equal(look(&set, "labels.idx: it was changed in place"), LK_BAD_DATA);
        lk_dataset_close(&set);
        assert_int_equal(unlink(in_root("other")), 0);
    }
}

// Under the same times: in the tick of the clock in which it was opened, or set back.
static void test_a_change_that_hides_is_seen(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    lk_dataset set;
    for (int again = 0; again < 2; again++) {
        put(images, images_file, IMAGES_BYTES);
        age(images, 1000);
        if (again) grow_old();
        open_good(&source, &set);
        assert_int_equal(look(&set, NULL), LK_OK);
        write_at(images, 1000, images_file[1000] ^ 1);
        age(images, 1000);
        assert_int_equal(look(&set, "images.idx: bytes 16 to"), LK_BAD_DATA);
        // In one tick of the clock with the opening: as if that had found these times.
        struct stat info;
        assert_int_equal(stat(images, &info), 0);
        set.parts[0].images.state = lk_data_state_of(&info);
        assert_int_equal(look(&set, "images.idx: bytes 16 to"), LK_BAD_DATA);
        lk_dataset_close(&set);
    }
}

static void test_a_scrub_finds_every_byte(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    const lk_dataset_source made_up = {.kind = LK_DATASET_MADE_UP,
                                       .cache = "",
                                       .made_up = {.seed = 4,
                                                   .count = 3000,
                                                   .height = HEIGHT,
                                                   .width = WIDTH,
                                                   .channels = 1,
                                                   .classes = 10}};
    static _Alignas(64) uint8_t big[1 << 18];
    lk_dataset set;
    lk_error error = {0};
    open_good(&source, &set);
    for (int i = 0; i < 7; i++) assert_int_equal(lk_dataset_scrub(&set, &error), LK_OK);
    write_at(labels, LABELS_BYTES - 1, labels_file[LABELS_BYTES - 1] ^ 1);
    lk_status status = LK_OK;
    for (int i = 0; i < 2 && status == LK_OK; i++) status = lk_dataset_scrub(&set, &error);
    assert_int_equal(status, LK_BAD_DATA);
    assert_non_null(strstr(error.text, "labels.idx: bytes 8 to 110: they are no longer"));
    lk_dataset_close(&set);
    // 105,000 bytes of images are two chunks, and labels a third.
    error = (lk_error){0};
    assert_int_equal(lk_dataset_open(&made_up, big, sizeof big, &set, &error), LK_OK);
    for (uint64_t at = 0; at < 3000 * IMAGE + 3000; at += 4999) {
        uint8_t *byte = (uint8_t *)(uintptr_t)set.parts[0].images.data + at;
        *byte ^= 16;
        status = LK_OK;
        int chunks = 0;
        for (; chunks < 3 && status == LK_OK; chunks++) status = lk_dataset_scrub(&set, &error);
        assert_int_equal(status, LK_BAD_DATA);
        error = (lk_error){0};
        *byte ^= 16;
        while (chunks++ < 3) assert_int_equal(lk_dataset_scrub(&set, &error), LK_OK);
    }
    lk_dataset_close(&set);
}

// Rot in one of many shards is found, and named.
static void test_a_scrub_over_shards(void **state) {
    (void)state;
    const lk_dataset_source whole = pair(images, labels);
    char manifest[192], third[192];
    lk_dataset set;
    lk_error error = {0};
    open_good(&whole, &set);
    assert_int_equal(lk_dataset_shard(&set, 50, in_root("fifty"), &error), LK_OK);
    lk_dataset_close(&set);
    snprintf(manifest, sizeof manifest, "%s/fifty/manifest.json", root);
    snprintf(third, sizeof third, "%s/fifty/images-00033.idx", root);
    const lk_dataset_source source = sharded(manifest);
    open_good(&source, &set);
    for (int i = 0; i < 101; i++) assert_int_equal(lk_dataset_scrub(&set, &error), LK_OK);
    write_at(third, 20, images_file[20] ^ 77);
    lk_status status = LK_OK;
    for (int i = 0; i < 100 && status == LK_OK; i++) status = lk_dataset_scrub(&set, &error);
    assert_int_equal(status, LK_BAD_DATA);
    assert_non_null(strstr(error.text, "or the file after it"));
    lk_dataset_close(&set);
}

// A digest of the manifest counts also where there is a record already.
static void test_a_wrong_digest_is_found_in_spite_of_a_record(void **state) {
    (void)state;
    const lk_dataset_source whole = pair(images, labels);
    char manifest[192], digest[LK_SHA256_HEX_BYTES], lie[LK_SHA256_HEX_BYTES];
    lk_manifest m;
    lk_manifest_shard shard;
    lk_dataset set;
    lk_error error = {0};
    open_good(&whole, &set);
    assert_int_equal(lk_dataset_shard(&set, 3, in_root("three"), &error), LK_OK);
    lk_dataset_close(&set);
    snprintf(manifest, sizeof manifest, "%s/three/manifest.json", root);
    const lk_dataset_source source = sharded(manifest);
    open_and_close(&source);
    grow_old();
    open_and_close(&source);
    assert_int_equal(lk_manifest_load(manifest, &m, &error), LK_OK);
    assert_int_equal(lk_manifest_get(&m, 1, &shard, &error), LK_OK);
    lk_manifest_close(&m);
    lk_hex(shard.labels_sha256, LK_SHA256_BYTES, digest);
    memcpy(lie, digest, sizeof lie);
    lie[63] = lie[63] == '0' ? '1' : '0';
    rewrite(manifest, digest, lie);
    expect_bad(&source, false, LK_BAD_DATA, "labels-00001.idx: found SHA-256");
    rewrite(manifest, lie, digest);
    open_and_close(&source);
}

// --- what unpacking may cost ---------------------------------------------------------------------

// Bytes of all files in the cache.
static long cached_bytes(void) {
    char command[256], text[32] = "";
    snprintf(command, sizeof command,
             "find '%s' -type f -printf '%%s\\n' | awk '{s += $1} END {print s + 0}'", cache);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    pclose(f);
    return atol(text);
}

// So many zeros behind the header of `count` images of 28 x 28.
static void put_bomb(const char *path, uint32_t count, uint64_t zeros) {
    static const uint8_t nothing[1 << 16];
    const lk_idx idx = {.ndim = 3, .count = count, .height = 28, .width = 28, .channels = 1};
    uint8_t header[LK_IDX_HEADER_BYTES_MAX];
    gzFile f = gzopen(path, "wb9");
    assert_non_null(f);
    const int bytes = (int)lk_idx_write_header(&idx, header);
    assert_int_equal(gzwrite(f, header, (unsigned)bytes), bytes);
    for (; zeros > 0; zeros -= LK_MIN(zeros, sizeof nothing))
        assert_true(gzwrite(f, nothing, (unsigned)LK_MIN(zeros, sizeof nothing)) > 0);
    assert_int_equal(gzclose(f), Z_OK);
}

static void test_unpacking_is_bounded(void **state) {
    (void)state;
    const char *bomb = in_root("bomb.gz"), *out = in_root("out");
    const lk_dataset_source source = pair(bomb, labels);
    uint8_t sha256[LK_SHA256_BYTES];
    lk_error error = {0};
    struct stat info;
    // 100 images are said, 64 MB come: no more is written than is said.
    put_bomb(bomb, 100, 64 << 20);
    expect_bad(&source, false, LK_BAD_DATA, "too long: found more bytes than the 78416 that its");
    assert_int_equal(cached_bytes(), 0);
    int file = open(out, O_RDWR | O_CREAT, 0600);
    assert_int_equal(lk_gunzip(bomb, file, out, LK_GUNZIP_IDX, sha256, &error), LK_BAD_DATA);
    assert_int_equal(fstat(file, &info), 0);
    assert_true(info.st_size <= 78416);
    error = (lk_error){0};
    assert_int_equal(lk_gunzip(bomb, file, out, 1 << 20, sha256, &error), LK_BAD_DATA);
    assert_non_null(strstr(error.text, "found more bytes than the 1048576 that are wanted"));
    assert_int_equal(fstat(file, &info), 0);
    assert_true(info.st_size <= (1 << 20) + 78416);
    close(file);
    // More is said than so small a file can hold.
    put_bomb(bomb, 4000000000, 1 << 20);
    expect_bad(&source, false, LK_BAD_DATA, "its header says 3136000000016 bytes (4000000000 x 28");
    put_gzip(bomb, "no header of IDX at all", 23, "wb");
    expect_bad(&source, false, LK_BAD_DATA, "bomb.gz, unpacked: byte 0: found 6e 6f, wanted 00 00");
    put_gzip(bomb, "", 0, "wb");
    expect_bad(&source, false, LK_BAD_DATA, "bomb.gz, unpacked: byte 0: empty");
    assert_int_equal(cached_bytes(), 0);
    // As many as are said, to the last byte, in members of one byte.
    unlink(bomb);
    for (size_t i = 0; i < 24; i++) put_gzip(bomb, images_file + i, 1, "ab");
    put_gzip(bomb, images_file + 24, IMAGES_BYTES - 24, "ab");
    open_and_close(&source);
}

// An earlier state of the same .gz is not kept for ever.
static void test_only_the_last_state_is_kept(void **state) {
    (void)state;
    const char *packed = in_root("images.gz"), *other = in_root("other.gz");
    const lk_dataset_source source = pair(packed, labels), beside = pair(other, labels);
    put_gzip(other, images_file, IMAGES_BYTES, "wb");
    open_and_close(&beside);
    char strangers[2][300];  // as long as names of the cache are, and called unfinished
    for (int i = 0; i < 2; i++) {
        snprintf(strangers[i], sizeof strangers[i], "%s/%.*s.tmp", cache, i ? 37 : 23,
                 "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz");
        put(strangers[i], "x", 1);
    }
    for (int i = 0; i < 4; i++) {
        put_gzip(packed, images_file, IMAGES_BYTES, i % 2 ? "wb1" : "wb9");
        age(packed, 1000 + i);
        open_and_close(&source);
    }
    assert_true(cached_bytes() < 2 * IMAGES_BYTES + 5 * LK_DATA_RECORD_BYTES);
    assert_true(cached_bytes() > 2 * IMAGES_BYTES);
    for (int i = 0; i < 2; i++) assert_int_equal(unlink(strangers[i]), 0);
}

static void test_cleaning(void **state) {
    (void)state;
    static const struct {
        const char *name;
        lk_cache_entry entry;
    } names[] = {
        {"0123456789abcdef-0123456789abcdef.idx", LK_CACHE_UNPACKED},
        {"0123456789abcdef-0123456789abcdef.idx.record", LK_CACHE_RECORD},
        {"0123456789abcdef.record", LK_CACHE_RECORD},
        {"0123456789abcdef.record.tmp", LK_CACHE_UNFINISHED},
        {"0123456789abcdef-0123456789abcdef.idx.tmp.7f", LK_CACHE_UNFINISHED},
        {"0123456789abcdef-0123456789abcdef.idx.record.tmp", LK_CACHE_UNFINISHED},
        {"0123456789abcdef-0123456789abcdef.idx.tmp.x", LK_CACHE_FOREIGN},
        {"0123456789abcdef-0123456789abcdef.idx.tmp.", LK_CACHE_FOREIGN},
        {"0123456789abcdef-0123456789abcdef.idx2", LK_CACHE_FOREIGN},
        {"0123456789abcdef-0123456789abcde.idx", LK_CACHE_FOREIGN},
        {"0123456789abcdef0.record", LK_CACHE_FOREIGN},
        {"0123456789abcdeg.record", LK_CACHE_FOREIGN},
        {"0123456789abcdef", LK_CACHE_FOREIGN},
        {"0123456789abcdef.tmp", LK_CACHE_FOREIGN},
        {"data", LK_CACHE_FOREIGN},
        {"", LK_CACHE_FOREIGN},
    };
    lk_cache_cleaned done;
    lk_error error = {0};
    char path[300], command[300];
    assert_int_equal(lk_cache_clean(cache, false, &done, &error), LK_NO_INPUT);
    snprintf(command, sizeof command, "mkdir -p '%s/data/mnist'", cache);
    assert_int_equal(system(command), 0);
    uint32_t ours = 0;
    for (size_t i = 0; i < LK_COUNT(names); i++) {
        assert_int_equal(lk_cache_entry_of(names[i].name), names[i].entry);
        snprintf(path, sizeof path, "%s/%s", cache, names[i].name);
        if (i < LK_COUNT(names) - 2) put(path, "1234567", 7);
        ours += names[i].entry != LK_CACHE_FOREIGN;
    }
    snprintf(path, sizeof path, "%s/%s", cache, names[4].name);
    int writer = open(path, O_RDWR);
    assert_int_equal(flock(writer, LOCK_EX), 0);
    for (int dry = 1; dry >= 0; dry--) {
        error = (lk_error){0};
        assert_int_equal(lk_cache_clean(cache, dry, &done, &error), LK_OK);
        assert_int_equal(done.files, ours - 1);
        assert_int_equal(done.bytes, 7 * (ours - 1));
        assert_int_equal(done.busy, 1);
    }
    close(writer);
    assert_int_equal(lk_cache_clean(cache, false, &done, &error), LK_OK);
    assert_int_equal(done.files, 1);
    for (size_t i = 0; i + 1 < LK_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", cache, names[i].name);
        assert_int_equal(access(path, F_OK) == 0, names[i].entry == LK_CACHE_FOREIGN);
    }
}

// A process that is killed while it unpacks, at whatever moment, leaves nothing for ever.
static void test_killed_while_unpacking(void **state) {
    (void)state;
    enum { COUNT_OF_MANY = 40000 };
    const char *packed = in_root("many.gz"), *few = in_root("few.gz");
    const lk_dataset_source many = pair(packed, labels), source = pair(few, labels);
    char command[400];
    put_bomb(packed, COUNT_OF_MANY, (uint64_t)COUNT_OF_MANY * 784);
    put_gzip(few, images_file, IMAGES_BYTES, "wb");
    for (int i = 0; i < 6; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            lk_error error = {0};
            lk_dataset set;
            _exit((int)lk_dataset_open(&many, memory, sizeof memory, &set, &error));
        }
        usleep(3000 + 9000 * (unsigned)i);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    open_and_close(&source);
    snprintf(command, sizeof command, "test -z \"$(find '%s' -name '*.tmp.*')\"", cache);
    assert_int_equal(system(command), 0);
}

// --- manifests -----------------------------------------------------------------------------------

static void test_lying_manifests(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *text;
    } lies[] = {
        {"\"count\": 103", "\"count\": 104", "wanted 103, the sum of its shards"},
        {"\"height\": 5", "\"height\": 6", "found images of 5 x 7 x 1, wanted 6 x 7 x 1"},
        {"\"count\": 52", "\"count\": \"52\"", "shards[0].count"},
        {"\"channels\"", "\"chanels\"", "chanels"},
        {"lockstep-manifest-1", "lockstep-manifest-2", "format"},
        {"images-00000.idx", "../images.idx", "shards[0].images"},
        {"images-00000.idx", "images-00001.idx", "found 51 examples, wanted 52"},
        {"images-00000.idx", "labels-00000.idx", "found 1 dimension (labels)"},
        {"\"data_sha256\": \"", "\"data_sha256\": \"x", "data_sha256"},
        {"\"shards\": [", "\"shards\": [], \"more\": [", "more"},
        {"\"width\": 7", "\"width\": 7, \"width\": 7", "width"},
        {"]\n}\n", "", "manifest.json"},
    };
    const lk_dataset_source whole = pair(images, labels);
    const char *manifest = in_root("two/manifest.json");
    const lk_dataset_source two = sharded(manifest);
    static char text[8192];
    lk_dataset set;
    lk_error error = {0};
    open_good(&whole, &set);
    assert_int_equal(lk_dataset_shard(&set, 2, in_root("two"), &error), LK_OK);
    lk_dataset_close(&set);
    size_t size = get(in_root("two/manifest.json"), text, sizeof text - 1);
    char path[192];
    snprintf(path, sizeof path, "%s", two.manifest);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        put(path, text, size);
        rewrite(path, lies[i].from, lies[i].to);
        const lk_dataset_source lying = sharded(path);
        expect_bad(&lying, false, LK_BAD_DATA, lies[i].text);
        expect_bad(&lying, true, LK_BAD_DATA, lies[i].text);
    }
    // One spelling of a digest: the right one in upper case is none.
    char *digest = strstr(text, "\"data_sha256\": \"") + strlen("\"data_sha256\": \"");
    for (; *digest != '"'; digest++) *digest = (char)toupper((unsigned char)*digest);
    put(path, text, size);
    const lk_dataset_source upper = sharded(path);
    expect_bad(&upper, false, LK_BAD_DATA, "wanted 64 lower-case hexadecimal digits");
}

static void test_damaged_shards(void **state) {
    (void)state;
    const lk_dataset_source whole = pair(images, labels);
    lk_dataset set;
    lk_error error = {0};
    uint8_t bytes[IMAGES_BYTES];
    char manifest[192], second[192];
    snprintf(manifest, sizeof manifest, "%s/two/manifest.json", root);
    snprintf(second, sizeof second, "%s/two/images-00001.idx", root);
    open_good(&whole, &set);
    assert_int_equal(lk_dataset_shard(&set, 2, in_root("two"), &error), LK_OK);
    lk_dataset_close(&set);
    const lk_dataset_source source = sharded(manifest);
    open_good(&source, &set);
    lk_dataset_close(&set);
    size_t size = get(second, bytes, sizeof bytes);
    bytes[size - 1] ^= 1;
    put(second, bytes, size);
    age(second, 1000);
    expect_bad(&source, false, LK_BAD_DATA, "images-00001.idx: found SHA-256");
    expect_bad(&source, true, LK_BAD_DATA, "images-00001.idx: found SHA-256");
    bytes[size - 1] ^= 1;
    put(second, bytes, size);
    open_good(&source, &set);
    lk_dataset_close(&set);
    rewrite(manifest, "\"data_sha256\": \"", "\"data_sha256\": \"00");
    expect_bad(&source, false, LK_BAD_DATA, "data_sha256");
    assert_int_equal(unlink(second), 0);
    rewrite(manifest, "\"data_sha256\": \"00", "\"data_sha256\": \"");
    expect_bad(&source, false, LK_NO_INPUT, "images-00001.idx: cannot open");
}

// A worker of a run in order "sharded" has only the shards that it reads.
static void test_some_shards(void **state) {
    (void)state;
    const lk_dataset_source whole = pair(images, labels);
    lk_dataset set;
    lk_manifest m;
    lk_manifest_shard third;
    lk_error error = {0};
    uint8_t wanted[LK_SHA256_BYTES], bytes[IMAGES_BYTES];
    char manifest[192], file[192], digest[LK_SHA256_HEX_BYTES], lie[LK_SHA256_HEX_BYTES];
    open_good(&whole, &set);
    memcpy(wanted, set.sha256, sizeof wanted);
    assert_int_equal(lk_dataset_shard(&set, 5, in_root("five"), &error), LK_OK);
    lk_dataset_close(&set);
    for (int i = 0; i < 5; i++) {  // 21, 21, 21, 20, 20 examples: 2 and 3 stay
        snprintf(file, sizeof file, "%s/five/images-%05d.idx", root, i);
        if (i < 2 || i > 3) assert_int_equal(unlink(file), 0);
    }
    snprintf(manifest, sizeof manifest, "%s/five/manifest.json", root);
    lk_dataset_source source = sharded(manifest);
    expect_bad(&source, false, LK_NO_INPUT, "images-00000.idx: cannot open");
    source.some = true;
    source.first_shard = 2;
    source.shard_count = 2;
    for (int again = 0; again < 2; again++) {  // the second time by the record
        open_good(&source, &set);
        assert_int_equal(set.count, COUNT);
        assert_memory_equal(set.sha256, wanted, sizeof wanted);
        for (uint64_t i = 42; i < 83; i++) {
            assert_memory_equal(lk_dataset_image(&set, i), images_file + 16 + i * IMAGE, IMAGE);
            assert_int_equal(lk_dataset_label(&set, i), labels_file[8 + i]);
        }
        assert_null(set.parts[1].images.data);
        assert_int_equal(set.parts[4].first, 83);
        lk_dataset_close(&set);
    }
    source.shard_count = 3;
    expect_bad(&source, false, LK_NO_INPUT, "shard 4 of 5: ");
    source.shard_count = 0;  // none: its numbers alone
    open_good(&source, &set);
    assert_int_equal(set.count, COUNT);
    assert_int_equal(set.mapped_bytes, 0);
    lk_dataset_close(&set);
    // Each is checked by its own digest, also where the manifest alone has changed.
    source.shard_count = 2;
    assert_int_equal(lk_manifest_load(manifest, &m, &error), LK_OK);
    assert_int_equal(lk_manifest_get(&m, 3, &third, &error), LK_OK);
    lk_manifest_close(&m);
    lk_hex(third.images_sha256, LK_SHA256_BYTES, digest);
    memcpy(lie, digest, sizeof lie);
    lie[0] = lie[0] == '0' ? '1' : '0';
    rewrite(manifest, digest, lie);
    expect_bad(&source, false, LK_BAD_DATA, "images-00003.idx: found SHA-256");
    rewrite(manifest, lie, digest);
    snprintf(file, sizeof file, "%s/five/images-00003.idx", root);
    size_t size = get(file, bytes, sizeof bytes);
    bytes[size - 1] ^= 1;
    put(file, bytes, size);
    age(file, 1000);
    expect_bad(&source, false, LK_BAD_DATA, "images-00003.idx: found SHA-256");
}

static void test_the_data_hash_of_a_manifest_is_checked(void **state) {
    (void)state;
    const lk_dataset_source whole = pair(images, labels);
    char manifest[192], digest[LK_SHA256_HEX_BYTES];
    lk_dataset set;
    lk_error error = {0};
    open_good(&whole, &set);
    lk_hex(set.sha256, LK_SHA256_BYTES, digest);
    assert_int_equal(lk_dataset_shard(&set, 3, in_root("three"), &error), LK_OK);
    lk_dataset_close(&set);
    snprintf(manifest, sizeof manifest, "%s/three/manifest.json", root);
    const lk_dataset_source source = sharded(manifest);
    open_good(&source, &set);  // leaves a record: the lie must be found all the same
    lk_dataset_close(&set);
    char lie[LK_SHA256_HEX_BYTES];
    memcpy(lie, digest, sizeof lie);
    lie[0] = lie[0] == '0' ? '1' : '0';
    rewrite(manifest, digest, lie);
    expect_bad(&source, false, LK_BAD_DATA, "data_sha256: its shards have");
    expect_bad(&source, true, LK_BAD_DATA, "data_sha256: its shards have");
}

static void test_owned_addresses(void **state) {
    (void)state;
    const lk_dataset_source source = pair(images, labels);
    lk_dataset set;
    const char *file = NULL;
    open_good(&source, &set);
    const uint8_t *last = lk_dataset_image(&set, COUNT - 1) + IMAGE - 1;
    assert_true(lk_dataset_owns_address(&set, last, &file));
    assert_string_equal(file, images);
    assert_true(lk_dataset_owns_address(&set, set.parts[0].labels.map, &file));
    assert_string_equal(file, labels);
    assert_true(lk_dataset_owns_address(&set, set.parts[0].labels.map + LABELS_BYTES - 1, NULL));
    assert_false(lk_dataset_owns_address(&set, set.parts[0].labels.map + LABELS_BYTES, NULL));
    assert_false(lk_dataset_owns_address(&set, &set, &file));
    assert_false(lk_dataset_owns_address(&set, NULL, &file));
    lk_dataset_close(&set);
}

static void test_a_cache_that_is_no_directory_is_done_without(void **state) {
    (void)state;
    put_gzip(in_root("images.gz"), images_file, IMAGES_BYTES, "wb");
    lk_dataset_source source = pair(in_root("images.gz"), labels);
    source.cache = images;
    lk_dataset set;
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
}

// Full, or else not able to keep the unpacked file: here another thing has its name.
static void test_a_cache_that_fails_is_done_without(void **state) {
    (void)state;
    const char *packed = in_root("images.gz");
    char unpacked[256], command[600];
    put_gzip(packed, images_file, IMAGES_BYTES, "wb");
    const lk_dataset_source source = pair(packed, labels);
    lk_dataset set;
    open_good(&source, &set);
    lk_dataset_close(&set);
    unpacked_name(unpacked);
    snprintf(command, sizeof command, "rm '%s' && mkdir -p '%s/full'", unpacked, unpacked);
    assert_int_equal(system(command), 0);
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
    snprintf(command, sizeof command, "test -z \"$(find '%s' -name '*.tmp.*')\"", cache);
    assert_int_equal(system(command), 0);
}

// In a container or on a host that shares the cache, somebody may have this process's number.
static void test_a_cache_is_shared_with_equal_process_ids(void **state) {
    (void)state;
    const char *packed = in_root("images.gz");
    char unpacked[256], theirs[300];
    put_gzip(packed, images_file, IMAGES_BYTES, "wb");
    const lk_dataset_source source = pair(packed, labels);
    lk_dataset set;
    open_good(&source, &set);
    lk_dataset_close(&set);
    unpacked_name(unpacked);
    assert_int_equal(unlink(unpacked), 0);
    snprintf(theirs, sizeof theirs, "%s.tmp.%ld", unpacked, (long)getpid());
    put(theirs, images_file, 1000);
    int writer = open(theirs, O_RDWR);
    assert_int_equal(flock(writer, LOCK_EX), 0);  // it is at it
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
    assert_int_equal(access(theirs, F_OK), 0);
    // It was killed: the next that unpacks anything removes what it has left.
    close(writer);
    assert_int_equal(unlink(unpacked), 0);
    open_good(&source, &set);
    check_examples(&set);
    lk_dataset_close(&set);
    assert_int_not_equal(access(theirs, F_OK), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_plain_files),
        TEST(test_made_up),
        TEST(test_labels_of_two_bytes),
        TEST(test_held_labels_of_two_bytes),
        TEST(test_made_up_classes),
        TEST(test_shards_of_other_labels),
        TEST(test_any_number_of_shards_is_the_same_set),
        TEST(test_the_first_examples),
        TEST(test_60000_over_7),
        TEST(test_shard_refusals),
        TEST(test_gzip),
        TEST(test_a_damaged_cache_heals),
        TEST(test_bad_gzip),
        TEST(test_gzip_cut_while_unpacked),
        TEST(test_missing_inputs),
        TEST(test_bad_files),
        TEST(test_a_changed_file_changes_the_hash),
        TEST(test_a_change_under_an_old_time_is_seen),
        TEST(test_a_damaged_record_is_not_believed),
        TEST(test_a_stamp_is_of_all_that_tells_files_apart),
        TEST(test_a_young_file_is_not_believed),
        TEST(test_rotten_bytes_are_refused),
        TEST(test_the_end_of_a_large_set_is_proved),
        TEST(test_rotten_bytes_in_the_cache_are_unpacked_again),
        TEST(test_a_change_in_place_is_seen),
        TEST(test_a_change_that_hides_is_seen),
        TEST(test_a_scrub_finds_every_byte),
        TEST(test_a_scrub_over_shards),
        TEST(test_a_wrong_digest_is_found_in_spite_of_a_record),
        TEST(test_unpacking_is_bounded),
        TEST(test_only_the_last_state_is_kept),
        TEST(test_cleaning),
        TEST(test_killed_while_unpacking),
        TEST(test_lying_manifests),
        TEST(test_damaged_shards),
        TEST(test_some_shards),
        TEST(test_the_data_hash_of_a_manifest_is_checked),
        TEST(test_owned_addresses),
        TEST(test_a_cache_that_is_no_directory_is_done_without),
        TEST(test_a_cache_that_fails_is_done_without),
        TEST(test_a_cache_is_shared_with_equal_process_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
