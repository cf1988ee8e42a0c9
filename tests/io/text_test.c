// Tests of io/text.h: lines through a pipe, progress on a pseudo-terminal, escaping, words.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "io/text.h"

static char got[1 << 20];

enum {
    MOMENT_MS = 100
};  // after which nothing more comes: the kernel hands a terminal's bytes on
    // at a time of its own

// What arrives at `fd`.
static size_t receive(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    size_t length = 0;
    while (poll(&polled, 1, MOMENT_MS) > 0) {
        ssize_t count = read(fd, got + length, sizeof got - 1 - length);
        if (count <= 0) break;
        length += (size_t)count;
    }
    got[length] = '\0';
    return length;
}

static void test_lines(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    lk_text_out out;
    lk_text_open(&out, ends[1]);
    assert_false(out.terminal);
    assert_int_equal(lk_text_progress(&out, "step %d", 1), LK_OK);
    assert_int_equal(receive(ends[0]), 0);
    assert_int_equal(lk_text_line(&out, "loss %.9g of %s %d", 0.1f, "run", 7), LK_OK);
    assert_int_equal(lk_text_clear(&out), LK_OK);
    receive(ends[0]);
    assert_string_equal(got, "loss 0.100000001 of run 7\n");

    char text[LK_TEXT_LINE_BYTES + 10];
    memset(text, 'x', sizeof text);
    text[LK_TEXT_LINE_BYTES - 1] = '\0';  // with its newline exactly the longest line
    assert_int_equal(lk_text_record(&out, "%s", text), LK_OK);
    assert_int_equal(receive(ends[0]), LK_TEXT_LINE_BYTES);
    assert_memory_equal(got + LK_TEXT_LINE_BYTES - 4, "xxx\n", 4);
    text[LK_TEXT_LINE_BYTES - 1] = 'x';
    text[LK_TEXT_LINE_BYTES] = '\0';
    assert_int_equal(lk_text_record(&out, "%s", text), LK_INTERNAL);
    assert_int_equal(receive(ends[0]), 0);
    memcpy(text + LK_TEXT_LINE_BYTES - 6, "\xe2\x82\xac", 3);  // the cut would halve it
    assert_int_equal(lk_text_line(&out, "%s", text), LK_OK);
    assert_int_equal(receive(ends[0]), LK_TEXT_LINE_BYTES - 2);
    assert_memory_equal(got + LK_TEXT_LINE_BYTES - 7, "x...\n", 5);

    lk_error error = {0};
    assert_int_equal(lk_text_check(&out, "log", &error), LK_OK);
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(lk_text_line(&out, "nobody"), LK_IO_ERROR);
    assert_int_equal(lk_text_line(&out, "reads"), LK_IO_ERROR);
    assert_int_equal(out.write_errno, EPIPE);
    assert_int_equal(lk_text_check(&out, "log", &error), LK_IO_ERROR);
    assert_non_null(strstr(error.text, "log: writing failed: Broken pipe"));
    close(ends[1]);
}

// A slow reader of a full non-blocking pipe, and signals without restart: nothing is lost.
static void *drain(void *argument) {
    int fd = *(int *)argument;
    size_t *total = malloc(sizeof *total);
    char bytes[512];
    ssize_t count;
    *total = 0;
    while ((count = read(fd, bytes, sizeof bytes)) > 0) {
        *total += (size_t)count;
        usleep(50);
    }
    return total;
}

static void ignore(int number) { (void)number; }

static void write_many(bool non_blocking) {
    int ends[2];
    assert_int_equal(pipe2(ends, 0), 0);
    if (non_blocking) fcntl(ends[1], F_SETFL, O_NONBLOCK);
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
    struct sigaction action = {.sa_handler = ignore};
    sigaction(SIGALRM, &action, NULL);
    // The reader begins with them blocked: one that ended its read would leave nobody to read.
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    pthread_t reader;
    assert_int_equal(pthread_create(&reader, NULL, drain, &ends[0]), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    ualarm(500, 500);
    lk_text_out out;
    lk_text_open(&out, ends[1]);
    char text[1000];
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 300; i++) assert_int_equal(lk_text_line(&out, "%s", text), LK_OK);
    ualarm(0, 0);
    close(ends[1]);
    void *total;
    pthread_join(reader, &total);
    assert_int_equal(*(size_t *)total, 300 * sizeof text);
    free(total);
    close(ends[0]);
}

// A reader that begins late, and then reads to the end.
static void *read_late(void *argument) {
    size_t length = 0;
    ssize_t count;
    usleep(100000);
    while ((count = read(*(int *)argument, got + length, sizeof got - 1 - length)) > 0) {
        length += (size_t)count;
    }
    got[length] = '\0';
    return NULL;
}

// Nobody reads: no line waits. The first and the last lines are kept, in their order, and those
// between are counted.
static void test_held_lines(void **state) {
    (void)state;
    enum { LINES = 5000 };
    static char memory[3 * LK_TEXT_LINE_BYTES];
    int ends[2];
    unsigned next = 0, skipped = 0, gaps = 0;
    lk_text_out out;
    pthread_t reader;
    assert_int_equal(pipe2(ends, 0), 0);
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
    lk_text_open(&out, ends[1]);
    lk_text_hold(&out, memory, sizeof memory);
    alarm(20);  // whoever waits here waits for ever
    for (unsigned i = 0; i < LINES; i++) {
        assert_int_equal(lk_text_line(&out, "line %u of a run that talks", i), LK_OK);
    }
    assert_int_equal(pthread_create(&reader, NULL, read_late, &ends[0]), 0);
    assert_int_equal(lk_text_release(&out), LK_OK);
    assert_int_equal(lk_text_line(&out, "the end"), LK_OK);
    alarm(0);
    close(ends[1]);
    pthread_join(reader, NULL);
    close(ends[0]);
    for (char *line = got, *end; (end = strchr(line, '\n')); line = end + 1) {
        char wanted[64];
        *end = '\0';
        snprintf(wanted, sizeof wanted, "line %u of a run that talks", next);
        if (sscanf(line, "... %u lines are left out", &skipped) == 1) {
            next += skipped;
            gaps++;
        } else if (next < LINES) {
            assert_string_equal(line, wanted);
            next++;
        } else {
            assert_string_equal(line, "the end");
        }
    }
    assert_true(next == LINES && gaps == 1 && skipped > LINES / 2 && skipped < LINES - 300);
}

static void test_signals_and_full_pipes(void **state) {
    (void)state;
    write_many(false);
    write_many(true);
}

// From a handler: never while a call is under way, never waiting for a reader.
static void test_now(void **state) {
    (void)state;
    int ends[2];
    char text[LK_TEXT_LINE_BYTES];
    lk_text_out out;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    lk_text_open(&out, ends[1]);
    assert_true(lk_text_line_now(&out, "stopping"));
    assert_false(lk_text_progress_now(&out, "no terminal"));
    receive(ends[0]);
    assert_string_equal(got, "stopping\n");
    out.busy = 1;
    assert_false(lk_text_line_now(&out, "between two halves of another"));
    out.busy = 0;
    assert_int_equal(receive(ends[0]), 0);
    memset(text, 'x', sizeof text);
    text[sizeof text - 2] = '\0';
    int lines = 0;
    while (lines < 1000 && lk_text_line_now(&out, text)) lines++;
    assert_in_range(lines, 1, 999);  // full
    assert_int_equal(out.write_errno, 0);
    while (receive(ends[0])) continue;
    assert_true(lk_text_line_now(&out, "again"));
    assert_int_equal(out.busy, 0);
    receive(ends[0]);
    assert_string_equal(got, "again\n");
    close(ends[0]);
    close(ends[1]);
}

static void test_progress(void **state) {
    (void)state;
    setenv("TERM", "xterm", 1);
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (master < 0 || grantpt(master) || unlockpt(master)) skip();
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    struct termios raw;
    tcgetattr(slave, &raw);
    cfmakeraw(&raw);
    tcsetattr(slave, TCSANOW, &raw);
    struct winsize size = {.ws_col = 10, .ws_row = 5};
    ioctl(slave, TIOCSWINSZ, &size);

    lk_text_out out;
    lk_text_open(&out, slave);
    assert_true(out.terminal);
    lk_text_clear(&out);
    assert_int_equal(receive(master), 0);
    lk_text_progress(&out, "step %d", 1);
    receive(master);
    assert_string_equal(got, "\r\033[Kstep 1");
    lk_text_progress(&out, "12345678901234567890");  // one column is left free: no wrap
    receive(master);
    assert_string_equal(got, "\r\033[K123456789");
#define FIVE "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
    lk_text_progress(&out, FIVE FIVE);
    assert_int_equal(receive(master), 4 + 18);
    size.ws_col = 4;
    ioctl(slave, TIOCSWINSZ, &size);
    lk_text_progress(&out, "123456789");
    receive(master);
    assert_string_equal(got, "\r\033[K123");
    assert_true(lk_text_progress_now(&out, "567890"));
    receive(master);
    assert_string_equal(got, "\r\033[K567");
    lk_text_line(&out, "a whole line, however wide");
    receive(master);
    assert_string_equal(got, "\r\033[Ka whole line, however wide\n");
    lk_text_line(&out, "next");
    receive(master);
    assert_string_equal(got, "next\n");
    lk_text_progress(&out, "1");
    lk_text_clear(&out);
    lk_text_clear(&out);
    receive(master);
    assert_string_equal(got, "\r\033[K1\r\033[K");
    size.ws_col = 0;  // unknown: 80
    ioctl(slave, TIOCSWINSZ, &size);
    lk_text_progress(&out, "%0100d", 0);
    assert_int_equal(receive(master), 4 + 79);

    setenv("TERM", "dumb", 1);
    lk_text_open(&out, slave);
    assert_false(out.terminal);
    unsetenv("TERM");
    lk_text_open(&out, slave);
    assert_false(out.terminal);
    close(slave);
    close(master);
}

static void assert_escaped(const char *text, size_t length, const char *wanted) {
    char out[256];
    assert_int_equal(lk_text_escape(out, sizeof out, text, length), strlen(wanted));
    assert_string_equal(out, wanted);
    for (size_t bytes = 0; bytes <= strlen(wanted); bytes++) {
        memset(out, '#', sizeof out);
        assert_int_equal(lk_text_escape(out, bytes, text, length), strlen(wanted));
        if (bytes) assert_memory_equal(out, wanted, strlen(out));
        if (bytes) assert_true(strlen(out) < bytes);
        assert_int_equal(out[bytes], '#');
    }
}

static void test_escape(void **state) {
    (void)state;
    assert_escaped("", 0, "");
    assert_escaped("plain /", 7, "plain /");
    assert_escaped("a\"\\\b\f\n\r\t\x01\x7f", 10, "a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u007f");
    assert_escaped("bfnrt", 5, "bfnrt");
    assert_escaped("a\0b", 3, "a\\u0000b");
#define WIDE "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
    assert_escaped(WIDE, 9, WIDE);
#define BAD "\xef\xbf\xbd"
    assert_escaped("\xff|\xc3", 3, BAD "|" BAD);
    assert_escaped("\xc0\xaf", 2, BAD BAD);
    assert_escaped("\xed\xa0\x80", 3, BAD BAD BAD);
    assert_escaped("\xf4\x90\x80\x80", 4, BAD BAD BAD BAD);
    assert_escaped("\xe2\x82", 2, BAD BAD);

    // Whatever the bytes, jansson reads the result; where it reads the bytes themselves, the same.
    uint32_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        char bytes[8], out[64], quoted[70];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[i] = (char)(seed >> 24 | (seed >> 20 & 1 ? 0x80u : 0u));
        }
        size_t length = lk_text_escape(out, sizeof out, bytes, 1 + seed % sizeof bytes);
        assert_true(length < sizeof out);
        int n = snprintf(quoted, sizeof quoted, "\"%s\"", out);
        json_t *read = json_loadb(quoted, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(read);
        json_t *same = json_stringn(bytes, 1 + seed % sizeof bytes);
        assert_int_equal(same != NULL, strstr(out, BAD) == NULL);
        if (same) assert_true(json_equal(same, read));
        json_decref(same);
        json_decref(read);
    }
}

static void test_nearest(void **state) {
    (void)state;
    static const char *const words[] = {"filters", "kernel", "strides", "sgd", "a", "global_batch"};
#define NEAREST(word) lk_text_nearest(word, words, LK_COUNT(words))
    assert_string_equal(NEAREST("fitlers"), "filters");
    assert_string_equal(NEAREST("filter"), "filters");
    assert_string_equal(NEAREST("Filters"), "filters");
    assert_string_equal(NEAREST("stride"), "strides");
    assert_string_equal(NEAREST("sdg"), "sgd");
    assert_string_equal(NEAREST("global-batch"), "global_batch");
    assert_string_equal(NEAREST("globl_bathc"), "global_batch");
    assert_null(NEAREST("momentum"));
    assert_null(NEAREST("b"));
    assert_null(NEAREST("xyz"));
    assert_null(NEAREST("xyd"));
    assert_null(NEAREST("sxy"));
    assert_null(NEAREST(""));
    assert_null(NEAREST("filtersfiltersfiltersfiltersfiltersfiltersfiltersfilters"));
    assert_null(lk_text_nearest("word", NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_signals_and_full_pipes),
        cmocka_unit_test(test_progress), cmocka_unit_test(test_escape),
        cmocka_unit_test(test_nearest),  cmocka_unit_test(test_now),
        cmocka_unit_test(test_held_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
