// lost_test.c - whom a worker blames for its waiting (comm/mpi/lost.c), and when: by what it is
// told of rounds, of signs of life and of connections. Processes are real, all else is made up.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/cluster/rendezvous.h"
#include "comm/mpi/private.h"

enum { WORLD = 4, SELF = 3, TIMEOUT = 10 };

// --- what lost.c is told -------------------------------------------------------------------------

struct lk_mpi_common lk_mpi;
static bool given[WORLD];
static uint32_t chief_missed;  // by the sign of life; LK_NONE: nobody
static uint32_t said_lost;
static uint32_t gave_up_for[WORLD];  // LK_NONE: for nobody

bool lk_mpi_has_given(uint32_t w, const lk_mpi_gift *g) {
    (void)g;
    return given[w];
}
uint32_t lk_mpi_given(lk_round round) {
    (void)round;
    return 1;
}
void lk_mpi_say_lost(uint32_t w) { gave_up_for[SELF] = w; }
uint32_t lk_mpi_said_lost(uint32_t w) { return gave_up_for[w]; }
bool lk_rendezvous_lost(uint32_t *rank) {
    if (chief_missed != LK_NONE) *rank = chief_missed;
    return chief_missed != LK_NONE;
}
bool lk_rendezvous_speaks(void) { return false; }
uint32_t lk_rendezvous_seconds(void) { return 0; }
void lk_rendezvous_blame_chief(char *out, size_t bytes) { (void)out, (void)bytes; }
void lk_rendezvous_run(void) {}
void lk_rendezvous_last_word(void) {}
void lk_rendezvous_say_lost(uint32_t rank) { said_lost = rank; }

// --- a world -------------------------------------------------------------------------------------

static pid_t child;  // rank 1

static int begin(void **state) {
    (void)state;
    child = fork();
    if (child == 0) {
        alarm(300);  // whatever becomes of the test
        for (;;) pause();
    }
    lk_mpi.world = lk_mpi.host_workers = WORLD;
    lk_mpi.rank = SELF;
    lk_mpi.step = 7;
    lk_mpi.options.step_timeout_seconds = TIMEOUT;
    for (uint32_t w = 0; w < WORLD; w++) {
        lk_mpi.peers[w] = (lk_mpi_peer){.process = w == 1 ? child : getpid(), .name = "node"};
    }
    lk_mpi_wait_for("a test");
    lk_mpi_watch();
    return child < 0;
}

static int end(void **state) {
    (void)state;
    kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    return 0;
}

// Before each test nobody has given anything, and all is well.
static int start_up(void **state) {
    (void)state;
    memset(given, 0, sizeof given);
    given[SELF] = true;
    chief_missed = said_lost = LK_NONE;
    for (uint32_t w = 0; w < WORLD; w++) gave_up_for[w] = LK_NONE;
    lk_mpi.leader_writes = lk_mpi.broken = false;
    return 0;
}

// And start-up is over.
static int clear(void **state) {
    lk_mpi_seal();
    return start_up(state);
}

static void goes_on(lk_round round, double seconds) {
    const lk_mpi_gift g = {.round = round, .wanted = 1};
    lk_error error = {.status = LK_OK};
    if (lk_mpi_judge_silence(seconds, &g, &error) != LK_OK) fail_msg("%s", error.text);
}

// The waiting ends: rank `w` is to blame, and the line says `how`.
static void ends(lk_round round, double seconds, uint32_t w, const char *how) {
    const lk_mpi_gift g = {.round = round, .wanted = 1};
    lk_error error = {.status = LK_OK};
    char want[160];
    snprintf(want, sizeof want, "rank %d: rank %u on node (process %lld) %s, noticed at step 7 in",
             SELF, w, (long long)lk_mpi.peers[w].process, how);
    assert_int_equal(lk_mpi_judge_silence(seconds, &g, &error), LK_RETRY);
    if (strncmp(error.text, want, strlen(want)) != 0) fail_msg("%s\nwanted %s", error.text, want);
}

static const char silent[] = "is silent for longer than --step-timeout";
static const char cut_off[] = "is cut off: MPI says its connection broke";
static const char died[] = "has died";

// A process that exits with 1, in a call of MPI or not, ends with `code` and says `line`.
static void exits(bool inside, int code, const char *line) {
    char text[600];
    int ends[2], how;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        lk_mpi.inside = inside;
        (void)atexit(lk_mpi_on_exit);
        exit(1);
    }
    close(ends[1]);
    const ssize_t got = read(ends[0], text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(process, &how, 0), process);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), code);
    if (strcmp(text, line) != 0) fail_msg("%s\nwanted %s", text, line);
}

// --- tests: once start-up is over, and the child is dead, it remains so --------------------------

static void test_start_ended_by_mpi(void **state) {
    (void)state;
    exits(false, 1, "");
    exits(true, LK_RETRY,
          "lockstep: rank 3: MPI has ended this process during start-up, waiting for a test; is "
          "every one of the 4 workers running? see --start-timeout\n");
}

static void test_round_ended_by_mpi(void **state) {
    (void)state;
    exits(false, 1, "");
    exits(true, LK_RETRY,
          "lockstep: rank 3: MPI has ended this process at step 7; the last checkpoint stands, go "
          "on with --resume\n");
}

static void test_silence(void **state) {
    (void)state;
    goes_on(LK_ROUND_BOXES, TIMEOUT - 0.1);
    ends(LK_ROUND_BOXES, TIMEOUT, 0, silent);
    given[0] = true;
    ends(LK_ROUND_BOXES, TIMEOUT, 1, silent);
    given[1] = given[2] = true;
    goes_on(LK_ROUND_BOXES, TIMEOUT);  // the last has just come
    clear(state);
    lk_mpi_allow(5);  // an evaluation may take longer
    goes_on(LK_ROUND_REPORTS, TIMEOUT);
    ends(LK_ROUND_REPORTS, TIMEOUT + 5, 0, silent);
    ends(LK_ROUND_BOXES, TIMEOUT, 0, silent);
}

// A leader that writes may take longer than a step, but for the rounds behind its writing.
static void test_leader_that_saves(void **state) {
    (void)state;
    lk_mpi.leader_writes = true;
    goes_on(LK_ROUND_BOXES, TIMEOUT);
    goes_on(LK_ROUND_STEP, TIMEOUT);
    ends(LK_ROUND_SUMS, TIMEOUT, 0, silent);
    ends(LK_ROUND_NORMS, TIMEOUT, 0, silent);
    ends(LK_ROUND_BOXES, (double)LK_MPI_SAVE_TIMES * TIMEOUT, 0, silent);
    given[0] = true;  // it is another that is missing
    ends(LK_ROUND_BOXES, TIMEOUT, 1, silent);
}

static void test_broken_connection(void **state) {
    (void)state;
    lk_mpi.broken = true;
    ends(LK_ROUND_BOXES, 0.1, 0, cut_off);
    given[0] = given[1] = true;
    ends(LK_ROUND_BOXES, 0.1, 2, cut_off);
    given[2] = true;
    goes_on(LK_ROUND_BOXES, 0.1);
}

// One that ended for another's death is not to blame, and that other is dead, too; unless it is
// this worker, which lives.
static void test_ended_for_another(void **state) {
    (void)state;
    kill(child, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    gave_up_for[1] = 2;
    ends(LK_ROUND_BOXES, 0.1, 2, died);
    assert_int_equal(gave_up_for[SELF], 2);
    gave_up_for[1] = SELF;
    ends(LK_ROUND_BOXES, 0.1, 1, died);
    char line[256];  // where MPI ends this process for it, the dead one is named all the same
    snprintf(line, sizeof line,
             "lockstep: rank 3: rank 1 on node (process %lld) has died, noticed at step 7 in phase "
             "reduce; the last checkpoint stands, go on with --resume\n",
             (long long)lk_mpi.peers[1].process);
    exits(true, LK_RETRY, line);
}

static void test_sign_of_life(void **state) {
    (void)state;
    chief_missed = 2;
    ends(LK_ROUND_BOXES, 0.1, 2, died);
    assert_int_equal(said_lost, 2);
}

// A dead worker whose part has come may have given up for want of another: after a long wait it is
// not the one to blame.
static void test_dead_process(void **state) {
    (void)state;
    ends(LK_ROUND_BOXES, 0.1, 1, died);
    assert_int_equal(said_lost, 1);
    given[1] = true;
    ends(LK_ROUND_BOXES, 0.1, 2, died);  // as the tests before have said
    given[2] = true;
    ends(LK_ROUND_BOXES, 0.1, 1, died);
    goes_on(LK_ROUND_BOXES, TIMEOUT / 2.0);
    ends(LK_ROUND_BOXES, TIMEOUT, 0, silent);
}

// The chief knows who was missed first. Its word counts before what this host's kernel says, after
// a long wait only of one that has not come.
static void test_first_of_the_dead(void **state) {
    (void)state;
    chief_missed = 2;
    ends(LK_ROUND_BOXES, 0.1, 2, died);
    ends(LK_ROUND_BOXES, TIMEOUT / 2.0, 2, died);
    given[2] = true;
    ends(LK_ROUND_BOXES, 0.1, 2, died);
    ends(LK_ROUND_BOXES, TIMEOUT / 2.0, 1, died);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_start_ended_by_mpi, start_up),
        cmocka_unit_test_setup(test_round_ended_by_mpi, clear),
        cmocka_unit_test_setup(test_silence, clear),
        cmocka_unit_test_setup(test_leader_that_saves, clear),
        cmocka_unit_test_setup(test_broken_connection, clear),
        cmocka_unit_test_setup(test_ended_for_another, clear),
        cmocka_unit_test_setup(test_sign_of_life, clear),
        cmocka_unit_test_setup(test_dead_process, clear),
        cmocka_unit_test_setup(test_first_of_the_dead, clear),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
