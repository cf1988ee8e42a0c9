// hot_state_test.c - the hot state on a real file: what is kept is found, by turns; every torn,
// changed or foreign copy is seen; a writer killed anywhere leaves the other copy; strangers' files
// and links are refused, and nobody else can hold it.
#define _GNU_SOURCE
#include "io/hot_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS = 3, HEAD_BYTES = 4096 };

static const uint8_t identity[LK_SHA256_BYTES] = {1, 2, 3}, other[LK_SHA256_BYTES] = {9};
static char root[64], path[LK_PATH_BYTES];
static float values[TENSORS][5000];
static const uint64_t counts[TENSORS] = {7, 5000, 1};
static lk_safetensors_tensor tensors[TENSORS];
static uint64_t bytes;

static void fill(uint64_t step) {
    for (uint32_t i = 0; i < TENSORS; i++) {
        for (uint64_t k = 0; k < counts[i]; k++) values[i][k] = (float)(step * 100 + i * 10 + k);
    }
}

static bool is_filled(uint64_t step) {
    for (uint32_t i = 0; i < TENSORS; i++) {
        for (uint64_t k = 0; k < counts[i]; k++) {
            if (values[i][k] != (float)(step * 100 + i * 10 + k)) return false;
        }
    }
    return true;
}

static void must_open(lk_hot_state *hot) {
    lk_error error = {0};
    if (lk_hot_open(hot, path, identity, bytes, true, &error) != LK_OK) fail_msg("%s", error.text);
}

static void keep(lk_hot_state *hot, uint64_t step) {
    fill(step);
    lk_hot_keep(hot, tensors, TENSORS, step, step + 1000);
}

// The step of the newest whole copy, taken and compared; 0: none.
static uint64_t newest(lk_hot_state *hot) {
    lk_hot_copy copies[LK_HOT_COPIES];
    lk_error error = {0};
    uint32_t best = LK_HOT_COPIES;
    lk_hot_look(hot, copies);
    for (uint32_t i = 0; i < LK_HOT_COPIES; i++) {
        if (copies[i].verdict != LK_HOT_WHOLE) continue;
        if (best == LK_HOT_COPIES || copies[i].step > copies[best].step) best = i;
    }
    if (best == LK_HOT_COPIES) return 0;
    memset(values, 0, sizeof values);
    assert_int_equal(lk_hot_take(hot, best, tensors, TENSORS, &error), LK_OK);
    assert_true(is_filled(copies[best].step));
    assert_int_equal(copies[best].word, copies[best].step + 1000);
    return copies[best].step;
}

static int new_file(void **state) {
    (void)state;
    static int number;
    lk_error error = {0};
    assert_int_equal(lk_hot_path(path, root, (uint64_t)number++, &error), LK_OK);
    for (uint32_t i = 0; i < TENSORS; i++) {
        tensors[i] = (lk_safetensors_tensor){.name = "t",
                                             .dtype = LK_SAFETENSORS_F32,
                                             .dim_count = 1,
                                             .dims = {counts[i]},
                                             .data = values[i]};
    }
    bytes = lk_hot_tensor_bytes(tensors, TENSORS);
    assert_int_equal(bytes, 5008 * sizeof(float));
    return 0;
}

static void test_by_turns(void **state) {
    (void)state;
    lk_hot_state hot;
    struct stat there;
    lk_error error = {0};
    assert_int_equal(lk_hot_open(&hot, path, identity, bytes, false, &error), LK_NO_INPUT);
    must_open(&hot);
    assert_int_equal(stat(path, &there), 0);
    assert_int_equal(there.st_mode & 0777, 0600);
    assert_int_equal(there.st_size, lk_hot_file_bytes(bytes));
    assert_int_equal(newest(&hot), 0);
    assert_false(hot.used);
    for (uint64_t step = 1; step < 6; step++) {
        keep(&hot, step);
        assert_int_equal(newest(&hot), step);
    }
    // Another process finds it, and does not write over the newest.
    lk_hot_close(&hot);
    must_open(&hot);
    assert_int_equal(newest(&hot), 5);
    keep(&hot, 6);
    lk_hot_copy copies[LK_HOT_COPIES];
    lk_hot_look(&hot, copies);
    assert_int_equal(copies[0].step + copies[1].step, 11);
    lk_hot_clear(&hot);
    assert_int_equal(newest(&hot), 0);
    lk_hot_remove(&hot);
    assert_int_equal(access(path, F_OK), -1);
    lk_hot_remove(&hot);  // when closed: nothing
}

// Every byte of a copy counts: whichever changes, the copy is torn, the other stands.
static void test_changed_bytes(void **state) {
    (void)state;
    lk_hot_state hot;
    lk_hot_copy copies[LK_HOT_COPIES];
    must_open(&hot);
    keep(&hot, 1);
    keep(&hot, 2);
    for (uint64_t at = 0; at < HEAD_BYTES + bytes; at += at < 128 ? 1 : 997) {
        const bool unused = at >= 80 && at < HEAD_BYTES;  // of the head's page
        uint8_t *byte = hot.base + hot.copy_bytes + at;
        *byte ^= 0x10;
        lk_hot_look(&hot, copies);
        if (copies[0].verdict != LK_HOT_WHOLE || copies[0].step != 1) fail_msg("byte %d", (int)at);
        if ((copies[1].verdict == LK_HOT_WHOLE) != unused) {
            fail_msg("byte %d: verdict %d", (int)at, copies[1].verdict);
        }
        *byte ^= 0x10;
    }
    lk_error error = {0};
    hot.base[hot.copy_bytes + HEAD_BYTES + 100] ^= 1;
    assert_int_equal(lk_hot_take(&hot, 1, tensors, TENSORS, &error), LK_BAD_DATA);
    hot.base[HEAD_BYTES] ^= 1;
    assert_int_equal(newest(&hot), 0);  // both are torn
    lk_hot_remove(&hot);
}

// A writer is killed while it copies tensor `at`, or, at the end, right after the copy.
static void write_and_die(uint32_t at, uint64_t step) {
    lk_hot_state hot;
    lk_hot_copy copies[LK_HOT_COPIES];
    lk_safetensors_tensor torn[TENSORS];
    must_open(&hot);
    lk_hot_look(&hot, copies);
    fill(step);
    memcpy(torn, tensors, sizeof torn);
    void *hole = mmap(NULL, sizeof values[0], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at < TENSORS) torn[at].data = hole;
    lk_hot_keep(&hot, torn, TENSORS, step, step + 1000);
    _exit(0);
}

static void test_killed_writer(void **state) {
    (void)state;
    lk_hot_state hot;
    uint64_t whole = 0;
    for (uint64_t step = 1; step < 40; step++) {
        const uint32_t at = (uint32_t)(step * 7 % (TENSORS + 1));
        int status;
        pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            write_and_die(at, step);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        // A sanitizer may turn the signal into an exit code of its own.
        assert_int_equal(WIFEXITED(status) && WEXITSTATUS(status) == 0, at == TENSORS);
        if (at == TENSORS) whole = step;
        must_open(&hot);
        assert_int_equal(newest(&hot), whole);
        lk_hot_close(&hot);
    }
    assert_true(whole > 30);
    must_open(&hot);
    lk_hot_remove(&hot);
}

static void test_foreign(void **state) {
    (void)state;
    lk_hot_state hot;
    lk_hot_copy copies[LK_HOT_COPIES];
    lk_error error = {0};
    must_open(&hot);
    keep(&hot, 3);
    lk_hot_close(&hot);
    assert_int_equal(lk_hot_open(&hot, path, other, bytes, false, &error), LK_OK);
    lk_hot_look(&hot, copies);
    assert_int_equal(copies[0].verdict, LK_HOT_FOREIGN);
    assert_int_equal(copies[1].verdict, LK_HOT_EMPTY);
    assert_false(hot.used);
    lk_hot_close(&hot);
    // Of another size: refused by who only looks, made anew by who writes.
    assert_int_equal(lk_hot_open(&hot, path, identity, 2 * bytes, false, &error), LK_BAD_DATA);
    error.status = LK_OK;
    assert_int_equal(lk_hot_open(&hot, path, identity, 2 * bytes, true, &error), LK_OK);
    lk_hot_look(&hot, copies);
    assert_int_equal(copies[0].verdict, LK_HOT_EMPTY);
    lk_hot_remove(&hot);
}

static void test_held(void **state) {
    (void)state;
    lk_hot_state hot, second;
    lk_error error = {0};
    must_open(&hot);
    assert_int_equal(lk_hot_open(&second, path, identity, bytes, true, &error), LK_UNAVAILABLE);
    assert_int_equal(second.file, -1);
    lk_hot_unmap(&hot);  // and holds it still
    error.status = LK_OK;
    assert_int_equal(lk_hot_open(&second, path, identity, bytes, true, &error), LK_UNAVAILABLE);
    lk_hot_remove(&hot);
}

static void refused(const char *why) {
    lk_hot_state hot;
    lk_error error = {0};
    assert_int_equal(lk_hot_open(&hot, path, identity, bytes, true, &error), LK_BAD_DATA);
    if (!strstr(error.text, why)) fail_msg("%s: %s", why, error.text);
    assert_int_equal(hot.file, -1);
}

static void test_strangers(void **state) {
    (void)state;
    char precious[128], text[16] = "";
    snprintf(precious, sizeof precious, "%s/precious", root);
    int file = open(precious, O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(file, "precious", 8), 8);
    assert_int_equal(symlink(precious, path), 0);
    refused("is a link");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(link(precious, path), 0);
    refused("has another name");
    assert_int_equal(unlink(precious), 0);
    assert_int_equal(fchmod(file, 0644), 0);
    refused("is open to others");
    assert_int_equal(pread(file, text, sizeof text, 0), 8);
    assert_string_equal(text, "precious");
    close(file);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    refused("is no plain file");
    assert_int_equal(unlink(path), 0);
}

// Where the file system has no room, it is said before anything is touched.
static void test_no_room(void **state) {
    (void)state;
    lk_hot_state hot;
    lk_error error = {0};
    const uint64_t much = (uint64_t)1 << 60;
    assert_int_equal(lk_hot_open(&hot, path, identity, much, true, &error), LK_UNAVAILABLE);
    assert_non_null(strstr(error.text, "no room"));
    assert_non_null(strstr(error.text, "hot_steps"));
    assert_int_equal(access(path, F_OK), -1);
    // And where it has, it is taken at once: as many blocks as the file system gives for so much.
    struct stat there, wanted;
    FILE *control = tmpfile();
    const uint64_t some = 1 << 20;
    assert_non_null(control);
    assert_int_equal(posix_fallocate(fileno(control), 0, (off_t)lk_hot_file_bytes(some)), 0);
    assert_int_equal(fstat(fileno(control), &wanted), 0);
    fclose(control);
    error.status = LK_OK;
    assert_int_equal(lk_hot_open(&hot, path, identity, some, true, &error), LK_OK);
    assert_int_equal(stat(path, &there), 0);
    assert_true(there.st_blocks >= wanted.st_blocks);
    lk_hot_remove(&hot);
}

int main(void) {
    snprintf(root, sizeof root, "/tmp/lockstep-hot-XXXXXX");
    if (!mkdtemp(root)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_by_turns, new_file),
        cmocka_unit_test_setup(test_changed_bytes, new_file),
        cmocka_unit_test_setup(test_killed_writer, new_file),
        cmocka_unit_test_setup(test_foreign, new_file),
        cmocka_unit_test_setup(test_held, new_file),
        cmocka_unit_test_setup(test_strangers, new_file),
        cmocka_unit_test_setup(test_no_room, new_file),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(root);
    return failed;
}
