// rendezvous_test.c - the chief's door from both sides: the address book, the proofs, and what
// strangers may try. All in one thread, over loopback.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/cluster/chief.h"
#include "comm/threads/clock.h"
#include "comm/cluster/reach.h"

static lk_error error;

static int fresh(void **state) {
    (void)state;
    error.status = LK_OK;
    return 0;
}

// --- the address book --------------------------------------------------------------------------

static lk_pmi pmi;

static const char *ask(uint32_t rank, const char *line) {
    static char answer[LK_PMI_LINE_BYTES];
    switch (lk_pmi_line(&pmi, rank, line, answer)) {
    case LK_PMI_ANSWER: return answer;
    case LK_PMI_RELEASE: return "all";
    case LK_PMI_WAIT: return "wait";
    default: return "wrong";
    }
}

static void test_book(void **state) {
    (void)state;
    const uint32_t hosts[] = {0, 0, 1};
    lk_pmi_open(&pmi, 3, hosts);
    assert_string_equal(ask(0, "cmd=init pmi_version=1 pmi_subversion=1"),
                        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    assert_string_equal(ask(2, "cmd=get_universe_size"), "cmd=universe_size size=3 rc=0\n");
    assert_string_equal(ask(2, "cmd=get_my_kvsname"), "cmd=my_kvsname kvsname=lockstep rc=0\n");
    assert_string_equal(ask(2, "cmd=get_appnum"), "cmd=appnum appnum=0 rc=0\n");
    assert_string_equal(ask(1, "cmd=get_maxes"),
                        "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=1024 rc=0\n");
    assert_string_equal(ask(1, "cmd=get kvsname=lockstep key=PMI_process_mapping"),
                        "cmd=get_result rc=0 msg=success value=(vector,(0,1,2),(1,1,1))\n");
    assert_string_equal(ask(0, "cmd=get kvsname=lockstep key=a"),
                        "cmd=get_result rc=-1 msg=key_not_found\n");
    assert_string_equal(ask(0, "cmd=put kvsname=lockstep key=a value=key=b and more"),
                        "cmd=put_result rc=0 msg=success\n");
    assert_string_equal(ask(1, "cmd=get kvsname=lockstep key=a"),
                        "cmd=get_result rc=0 msg=success value=key=b and more\n");
    assert_string_equal(ask(2, "cmd=put kvsname=lockstep key=a value=2"),
                        "cmd=put_result rc=-1 msg=duplicate_key\n");
    assert_string_equal(ask(2, "cmd=put kvsname=lockstep key="),
                        "cmd=put_result rc=-1 msg=no_key_or_value\n");
    assert_string_equal(ask(2, "cmd=put key= value="), "cmd=put_result rc=-1 msg=bad_key_length\n");
    const char *const wrong[] = {"",          " ",         "cmd",
                                 "cmd=",      "cmd=spawn", "mcmd=spawn",
                                 "cmd=abort", "cmd=getx",  "key=a value=cmd=get"};
    for (size_t i = 0; i < LK_COUNT(wrong); i++) assert_string_equal(ask(1, wrong[i]), "wrong");
}

static void test_barrier_and_end(void **state) {
    (void)state;
    const uint32_t hosts[3] = {0};
    lk_pmi_open(&pmi, 3, hosts);
    for (int round = 0; round < 3; round++) {
        assert_string_equal(ask(1, "cmd=barrier_in"), "wait");
        assert_string_equal(ask(1, "cmd=barrier_in"), "wrong");
        assert_string_equal(ask(1, "cmd=get_appnum"), "wrong");
        assert_string_equal(ask(0, "cmd=barrier_in"), "wait");
        assert_string_equal(ask(2, "cmd=barrier_in"), "all");
    }
    assert_false(pmi.has_ended[1]);
    assert_string_equal(ask(1, "cmd=finalize"), "cmd=finalize_ack rc=0\n");
    assert_true(pmi.has_ended[1] && pmi.ended == 1);
    assert_string_equal(ask(1, "cmd=finalize"), "wrong");
}

// Until there is no room, and then still what was there is there.
static void test_full_book(void **state) {
    (void)state;
    const uint32_t hosts[2] = {0};
    char line[LK_PMI_LINE_BYTES], value[LK_PMI_VALUE_BYTES];
    uint32_t taken = 0;
    for (size_t bytes = 1; bytes < sizeof value; bytes = bytes == 1 ? sizeof value - 1 : 4096) {
        memset(value, 'v', sizeof value);
        value[bytes] = '\0';
        lk_pmi_open(&pmi, 2, hosts);
        for (taken = 0;; taken++) {
            snprintf(line, sizeof line, "cmd=put key=k%u value=%s", taken, value);
            if (strcmp(ask(0, line), "cmd=put_result rc=0 msg=success\n") != 0) break;
        }
        assert_string_equal(ask(0, line), "cmd=put_result rc=-1 msg=no_room\n");
        assert_true(taken > 1024 && pmi.pool_used <= LK_PMI_POOL_BYTES);
        for (uint32_t i = 0; i < taken; i += 17) {
            snprintf(line, sizeof line, "cmd=get key=k%u", i);
            assert_non_null(strstr(ask(1, line), value));
        }
        assert_string_equal(ask(1, "cmd=get key=nothing"),
                            "cmd=get_result rc=-1 msg=key_not_found\n");
    }
    memset(value, 'v', sizeof value - 1);
    snprintf(line, sizeof line, "cmd=put key=long value=%s%s", value, "v");
    assert_string_equal(ask(0, line), "cmd=put_result rc=-1 msg=bad_value_length\n");
}

// --- proofs ------------------------------------------------------------------------------------

static lk_cluster cluster;
static lk_key key, other_key;

static void describe(uint32_t world, uint32_t rank) {
    lk_cluster_single(&cluster);
    cluster.world = world;
    cluster.rank = rank;
    for (uint32_t w = 0; w < world; w++) {
        lk_format(cluster.address[w], LK_ADDRESS_BYTES, "localhost:%u", 1000 + w);
    }
}

static void test_proofs(void **state) {
    (void)state;
    uint8_t question[LK_HELLO_BYTES], heard[LK_HELLO_BYTES];
    char line[LK_HELLO_LINE_BYTES], answer[LK_HELLO_LINE_BYTES];
    lk_hello mine, theirs;
    describe(3, 2);
    lk_hello_self(&mine, &cluster);
    mine.kind = LK_HELLO_LIFE;
    lk_random(question);
    lk_hello_ask(question, line);
    assert_true(lk_hello_asked(line, heard) && memcmp(question, heard, sizeof heard) == 0);
    assert_false(lk_hello_asked("SSH-2.0-OpenSSH_9.2", heard));
    assert_false(lk_hello_asked("lockstep 2 00", heard));
    lk_hello_write(&mine, &key, question, line);
    assert_true(lk_hello_read(&theirs, &key, question, line));
    assert_memory_equal(&mine, &theirs, sizeof mine);
    lk_hello_welcome(&theirs, &key, answer);
    assert_true(lk_hello_welcomed(&mine, &key, answer));
    assert_false(lk_hello_welcomed(&mine, &other_key, answer));
    assert_false(lk_hello_read(&theirs, &other_key, question, line));
    // No byte may be another, none may be missing, and none may follow.
    size_t length = strlen(line);
    for (size_t i = 0; i < length; i++) {
        char kept = line[i];
        line[i] = kept == '1' ? '2' : '1';
        assert_false(lk_hello_read(&theirs, &key, question, line));
        line[i] = '\0';
        assert_false(lk_hello_read(&theirs, &key, question, line));
        line[i] = kept;
    }
    memcpy(line + length, "0", 2);
    assert_false(lk_hello_read(&theirs, &key, question, line));
    line[length] = '\0';
    // What was said once is of no use for another question.
    question[7] ^= 1;
    assert_false(lk_hello_read(&theirs, &key, question, line));
}

static void fill(uint8_t *bytes, size_t count, uint8_t first) {
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)(first + i);
}

// Proofs that another program has made (Python's hashlib.blake2b): they hold for their purpose and
// this key, and for no number that is written another way.
static void test_known_proofs(void **state) {
    (void)state;
    static const char common[] =
        "404142434445464748494a4b4c4d4e4f "
        "505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f "
        "707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f node";
    static const struct {
        const char *begin, *proof;
    } lines[] = {
        {"2 3 life 77", "54d1856aa9f2e01fbef8fa97a0670e17782edfd0111a6e63375f881027c27e41"},
        {"02 3 life 77", "dc630db1e11527ca1c4e25bdeae8ad3084fb5718ee5e044e0797c4b60c8cde65"},
        {"2 03 life 77", "bf46bb4b55b0ffb703acb48df330d7450bd1bbf00a0defd409088f10687afefe"},
        {"2 3 life 077", "88f6ec8f1080a682291888f1429b0d048f9d7dab83b7b4b9b0dd427d83c4ad2f"}};
    lk_key known = {.given = true};
    uint8_t question[LK_HELLO_BYTES];
    char line[LK_HELLO_LINE_BYTES];
    lk_hello hello;
    fill(known.bytes, sizeof known.bytes, 0);
    fill(question, sizeof question, 32);
    for (size_t i = 0; i < LK_COUNT(lines); i++) {
        snprintf(line, sizeof line, "join %s %s %s", lines[i].begin, common, lines[i].proof);
        assert_int_equal(lk_hello_read(&hello, &known, question, line), i == 0);
        if (i) continue;
        assert_true(hello.rank == 2 && hello.world == 3 && hello.process == 77);
        lk_hello_welcome(&hello, &known, line);
        assert_string_equal(
            line, "welcome 3e9752e043e18b12779657bf54a75646ddb3117c1bb24efb6673a4e70da2cb54");
    }
}

static void write_file(const char *name, const char *text, mode_t mode) {
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(name, mode), 0);
}

static lk_status load(const char *name, lk_key *out) {
    error.status = LK_OK;
    return lk_key_load(out, name, &error);
}

static void test_key_files(void **state) {
    (void)state;
    lk_key a, b;
    write_file("key.test", "sixteen bytes of", 0600);
    assert_int_equal(load("key.test", &a), LK_OK);
    assert_true(a.given);
    write_file("key.test", "sixteen bytes of\r\n", 0440);
    assert_int_equal(load("key.test", &b), LK_OK);
    assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
    write_file("key.test", "sixteen bytes of!", 0600);
    assert_int_equal(load("key.test", &b), LK_OK);
    assert_memory_not_equal(a.bytes, b.bytes, sizeof a.bytes);
    write_file("key.test", "fifteen bytes..\n", 0600);
    assert_int_equal(load("key.test", &b), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "found 15 bytes, wanted 16 to 4095"));
    write_file("key.test", "sixteen bytes of", 0604);
    assert_int_equal(load("key.test", &b), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "everybody on this machine"));
    write_file("key.test", "sixteen bytes of", 0602);
    assert_int_equal(load("key.test", &b), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "everybody on this machine"));
    assert_int_equal(load("no/such.test", &b), LK_NO_INPUT);
    assert_int_equal(load(NULL, &b), LK_OK);
    assert_false(b.given);
    remove("key.test");
}

static void test_lines(void **state) {
    (void)state;
    static lk_line_in in;
    static char bytes[LK_PMI_LINE_BYTES + 1];
    const char *line;
    bool broken;
    assert_int_equal(lk_line_take(&in, "ab", 2, &line, &broken), 2);
    assert_true(!line && !broken);
    assert_int_equal(lk_line_take(&in, "c\nde", 4, &line, &broken), 2);
    assert_string_equal(line, "abc");
    assert_int_equal(lk_line_take(&in, "\n", 1, &line, &broken), 1);
    assert_string_equal(line, "");
    memset(bytes, 'x', sizeof bytes);
    (void)lk_line_take(&in, bytes, LK_PMI_LINE_BYTES - 1, &line, &broken);
    assert_true(!line && !broken);
    (void)lk_line_take(&in, "x", 1, &line, &broken);
    assert_true(!line && broken);
    (void)lk_line_take(&in, "\n", 1, &line, &broken);
    assert_true(line && strlen(line) == LK_PMI_LINE_BYTES - 1);
    (void)lk_line_take(&in, "a\0b\n", 4, &line, &broken);
    assert_true(!line && broken);
}

// --- the door ----------------------------------------------------------------------------------

static lk_chief chief;
static struct sockaddr_in door;
static int own;  // what the chief's MPI would have

// Of every read: what has not come then will not, and the test fails where it is missed.
static const struct timeval deadline = {.tv_sec = 10};

static void open_door(uint32_t world) {
    lk_hello self;
    int pair[2], listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t bytes = sizeof door;
    door = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(listener, (struct sockaddr *)&door, sizeof door), 0);
    assert_int_equal(listen(listener, 1000), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&door, &bytes), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    own = pair[0];
    assert_int_equal(setsockopt(own, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline), 0);
    describe(world, 0);
    lk_hello_self(&self, &cluster);
    lk_chief_open(&chief, &key, &self, listener, pair[1]);
}

static void close_door(void) {
    if (chief.listener >= 0) close(chief.listener);
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS; i++) {
        if (chief.strangers[i].socket >= 0) close(chief.strangers[i].socket);
    }
    for (uint32_t w = 0; w < chief.world; w++) {
        if (chief.members[w].pmi >= 0) close(chief.members[w].pmi);
        if (chief.members[w].life >= 0) close(chief.members[w].life);
    }
    close(own);
}

static lk_status serve(void) {
    for (int i = 0; i < 4; i++) LK_CHECK(lk_chief_serve(&chief, 1, &error));
    return LK_OK;
}

static int knock(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&door, sizeof door), 0);
    assert_int_equal(serve(), LK_OK);
    return fd;
}

static void say(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

// The next line, or "" at the end of the connection.
static const char *hear(int fd) {
    static char text[2048];
    size_t used = 0;
    ssize_t count = 1;
    while (used + 1 < sizeof text && (count = recv(fd, text + used, 1, 0)) == 1) {
        if (text[used++] == '\n') break;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) fail_msg("nothing comes");
    text[used] = '\0';
    return text;
}

// The answer to the question, and what is sent behind it at once.
static lk_status introduce_and_say(int fd, uint32_t rank, lk_hello_kind kind, const lk_key *with,
                                   uint64_t process, const char *behind) {
    uint8_t question[LK_HELLO_BYTES];
    char line[LK_HELLO_LINE_BYTES + 40], heard[LK_HELLO_LINE_BYTES];
    lk_hello hello;
    cluster.rank = rank;
    lk_hello_self(&hello, &cluster);
    hello.kind = kind;
    hello.process = process;
    snprintf(heard, sizeof heard, "%.*s", LK_HELLO_LINE_BYTES - 1, hear(fd));
    heard[strcspn(heard, "\n")] = '\0';
    assert_true(lk_hello_asked(heard, question));
    lk_hello_write(&hello, with, question, line);
    strncat(line, "\n", 2);
    strncat(line, behind, 30);
    say(fd, line);
    return serve();
}

static lk_status introduce(int fd, uint32_t rank, lk_hello_kind kind, const lk_key *with,
                           uint64_t process) {
    return introduce_and_say(fd, rank, kind, with, process, "");
}

static int come(uint32_t rank, lk_hello_kind kind) {
    int fd = knock();
    assert_int_equal(introduce(fd, rank, kind, &key, 100 + rank), LK_OK);
    assert_memory_equal(hear(fd), "welcome ", 8);
    return fd;
}

static void test_all_come(void **state) {
    (void)state;
    open_door(3);
    int life2 = come(2, LK_HELLO_LIFE);
    assert_string_equal(hear(life2), "waiting 1\n");
    int pmi2 = come(2, LK_HELLO_PMI), pmi1 = come(1, LK_HELLO_PMI);
    assert_int_equal(lk_chief_absent(&chief), 1);
    int life1 = come(1, LK_HELLO_LIFE);
    assert_int_equal(lk_chief_absent(&chief), 3);
    chief.members[2].hello.host_id[0] ^= 1;  // as if of another host
    lk_chief_go(&chief);
    const char *go = hear(life1);
    char wanted[2 * LK_HELLO_NAME_BYTES];
    snprintf(wanted, sizeof wanted, "go 2 %d %s\n", (int)getpid(), chief.self.name);
    assert_string_equal(go, wanted);
    assert_int_equal(chief.hosts, 2);
    assert_int_equal(lk_chief_behind(&chief), 3);  // nobody has begun
    assert_int_equal(chief.listener, -1);
    assert_true(chief.host[0] == 0 && chief.host[1] == 0 && chief.host[2] == 1);
    // MPI's lines, in pieces and two at once.
    say(pmi1, "cmd=get_univ");
    assert_int_equal(serve(), LK_OK);
    say(pmi1, "erse_size\ncmd=get_appnum\n");
    assert_int_equal(serve(), LK_OK);
    assert_string_equal(hear(pmi1), "cmd=universe_size size=3 rc=0\n");
    assert_string_equal(hear(pmi1), "cmd=appnum appnum=0 rc=0\n");
    say(pmi1, "cmd=barrier_in\n");
    assert_int_equal(serve(), LK_OK);
    assert_int_equal(lk_chief_behind(&chief), 0);
    say(own, "cmd=barrier_in\n");
    assert_int_equal(serve(), LK_OK);
    assert_int_equal(lk_chief_behind(&chief), 2);
    say(pmi2, "cmd=barrier_in\n");
    assert_int_equal(serve(), LK_OK);
    assert_string_equal(hear(own), "cmd=barrier_out rc=0\n");
    assert_string_equal(hear(pmi1), "cmd=barrier_out rc=0\n");
    // An orderly end is none of anybody's business, another one is.
    say(pmi2, "cmd=finalize\n");
    assert_int_equal(serve(), LK_OK);
    close(pmi2);
    close(life2);
    assert_int_equal(serve(), LK_OK);
    close(life1);
    assert_int_equal(serve(), LK_RETRY);
    assert_int_equal(chief.lost, 1);
    close(pmi1);
    close_door();
}

static void test_lost_members(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++) {
        open_door(2);
        int pmi1 = come(1, LK_HELLO_PMI), life1 = come(1, LK_HELLO_LIFE);
        if (how == 1) say(pmi1, "cmd=init\n");  // before all are in: MPI has no business yet
        if (how != 1) lk_chief_go(&chief);
        if (how == 0) close(pmi1);
        if (how == 2) say(life1, "x");
        if (how == 3) say(pmi1, "nonsense\n");
        assert_int_equal(serve(), LK_RETRY);
        assert_int_equal(chief.lost, 1);
        if (how != 0) close(pmi1);
        close(life1);
        close_door();
    }
}

static void test_disagreement(void **state) {
    (void)state;
    open_door(3);
    int pmi1 = come(1, LK_HELLO_PMI), fd = knock();
    assert_int_equal(introduce(fd, 1, LK_HELLO_PMI, &key, 101), LK_RANKS_DISAGREE);
    assert_string_equal(hear(fd), "refused taken\n");
    close(fd);
    fd = knock();
    error.status = LK_OK;
    assert_int_equal(introduce(fd, 1, LK_HELLO_LIFE, &key, 999), LK_RANKS_DISAGREE);
    assert_non_null(strstr(error.text, "(process 101) and "));
    assert_non_null(strstr(error.text, "(process 999) come as rank 1;"));
    close(fd);
    fd = knock();
    error.status = LK_OK;
    describe(3, 0);
    cluster.replicas[1] = 7;
    assert_int_equal(introduce(fd, 2, LK_HELLO_PMI, &key, 102), LK_RANKS_DISAGREE);
    assert_string_equal(hear(fd), "refused cluster\n");
    assert_non_null(strstr(error.text, "comes as rank 2 of 3, and its description"));
    close(fd);
    close(pmi1);
    close_door();
}

// None of these may keep a member out, nor the chief busy.
static void test_strangers(void **state) {
    (void)state;
    static char bytes[LK_PMI_LINE_BYTES];
    int crowd[3 * LK_CHIEF_STRANGERS];
    open_door(2);
    int fd = knock();
    assert_int_equal(introduce(fd, 1, LK_HELLO_PMI, &other_key, 101), LK_OK);
    assert_string_equal(hear(fd), "refused key\n");
    close(fd);
    memset(bytes, 'j', sizeof bytes - 1);
    const char *const junk[] = {"\n", "GET / HTTP/1.1\r\n\r\n", "join 1 2 pmi\n", bytes,
                                "join 1 2 pmi 1 x x x x x\nmore\n"};
    for (size_t i = 0; i < LK_COUNT(junk); i++) {
        fd = knock();
        (void)hear(fd);
        say(fd, junk[i]);
        assert_int_equal(serve(), LK_OK);
        const char *heard = hear(fd);
        assert_true(strcmp(heard, "") == 0 || strcmp(heard, "refused key\n") == 0);
        close(fd);
    }
    // A worker waits for its answer: one that does not is none.
    fd = knock();
    assert_int_equal(introduce_and_say(fd, 1, LK_HELLO_PMI, &key, 101, "cmd=init\n"), LK_OK);
    assert_string_equal(hear(fd), "");
    close(fd);
    // More than there is room for, all silent: the oldest go.
    for (size_t i = 0; i < LK_COUNT(crowd); i++) crowd[i] = knock();
    int pmi1 = come(1, LK_HELLO_PMI), life1 = come(1, LK_HELLO_LIFE);
    assert_int_equal(lk_chief_absent(&chief), 2);
    // A silent one is turned away when its time is over, whatever it drips.
    fd = knock();
    (void)hear(fd);
    say(fd, "jo");
    assert_int_equal(serve(), LK_OK);
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS; i++) chief.strangers[i].deadline = 0;
    say(fd, "i");
    assert_int_equal(serve(), LK_OK);
    assert_string_equal(hear(fd), "");
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS; i++) {
        assert_int_equal(chief.strangers[i].socket, -1);
    }
    for (size_t i = 0; i < LK_COUNT(crowd); i++) close(crowd[i]);
    close(fd);
    close(pmi1);
    close(life1);
    close_door();
}

// Each one too many takes the place of the one that came before all others.
static void test_oldest_goes(void **state) {
    (void)state;
    enum { MORE = 3 };
    int crowd[LK_CHIEF_STRANGERS + MORE];
    char byte;
    open_door(2);
    for (size_t i = 0; i < LK_COUNT(crowd); i++) crowd[i] = knock();
    for (size_t i = 0; i < LK_COUNT(crowd); i++) {
        assert_memory_equal(hear(crowd[i]), "lockstep 1 ", 11);
        ssize_t count = recv(crowd[i], &byte, 1, MSG_DONTWAIT);
        assert_int_equal(count, i < MORE ? 0 : -1);  // it is over, or nothing is said
        close(crowd[i]);
    }
    close_door();
}

// What lies between two looks counts as a short while, however long it was.
static void test_patience(void **state) {
    (void)state;
    lk_patience p;
    lk_patience_start(&p);
    assert_true(lk_patience_spent(&p) < 0.4);
    for (int pause = 1; pause <= 3; pause++) {
        p.looked -= 1000;
        double spent = lk_patience_spent(&p);
        assert_true(spent >= pause * LK_LOOK_SECONDS_MAX &&
                    spent < pause * LK_LOOK_SECONDS_MAX + 0.4);
    }
    p.looked -= 0.2;
    assert_true(lk_patience_spent(&p) >= 3 * LK_LOOK_SECONDS_MAX + 0.2);
}

static void test_networks(void **state) {
    (void)state;
    static const struct {
        const char *network, *in, *out;
    } cases[] = {{"10.1.0.0/16", "10.1.255.9", "10.2.0.0"},
                 {"10.1.128.0/17", "10.1.128.1", "10.1.127.255"},
                 {"192.0.2.7/32", "192.0.2.7", "192.0.2.6"},
                 {"0.0.0.0/0", "203.0.113.1", NULL}};
    lk_subnet n;
    uint8_t address[16] = {0};
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        assert_int_equal(lk_subnet_parse(cases[i].network, &n, &error), LK_OK);
        assert_int_equal(inet_pton(AF_INET, cases[i].in, address), 1);
        assert_true(lk_subnet_has(&n, false, address));
        assert_false(lk_subnet_has(&n, true, address));
        if (!cases[i].out) continue;
        assert_int_equal(inet_pton(AF_INET, cases[i].out, address), 1);
        assert_false(lk_subnet_has(&n, false, address));
    }
    assert_int_equal(lk_subnet_parse("fd00:1::/33", &n, &error), LK_OK);
    assert_int_equal(inet_pton(AF_INET6, "fd00:1:7fff::1", address), 1);
    assert_true(lk_subnet_has(&n, true, address));
    assert_int_equal(inet_pton(AF_INET6, "fd00:1:8000::1", address), 1);
    assert_false(lk_subnet_has(&n, true, address));
    const char *const wrong[] = {"",           "10.1.0.0",    "10.1.0.0/",   "10.1.0.0/33",
                                 "10.1.0/8",   "10.1.0.0/8 ", "10.1.0.0/-1", "/8",
                                 "fd00::/129", "10.0.0.0/x",  "node/8",      "fd00::"};
    for (size_t i = 0; i < LK_COUNT(wrong); i++) {
        error.status = LK_OK;
        assert_int_equal(lk_subnet_parse(wrong[i], &n, &error), LK_BAD_USAGE);
        assert_false(n.given);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_book, fresh),
        cmocka_unit_test_setup(test_barrier_and_end, fresh),
        cmocka_unit_test_setup(test_full_book, fresh),
        cmocka_unit_test_setup(test_proofs, fresh),
        cmocka_unit_test_setup(test_known_proofs, fresh),
        cmocka_unit_test_setup(test_key_files, fresh),
        cmocka_unit_test_setup(test_lines, fresh),
        cmocka_unit_test_setup(test_all_come, fresh),
        cmocka_unit_test_setup(test_lost_members, fresh),
        cmocka_unit_test_setup(test_disagreement, fresh),
        cmocka_unit_test_setup(test_strangers, fresh),
        cmocka_unit_test_setup(test_oldest_goes, fresh),
        cmocka_unit_test_setup(test_patience, fresh),
        cmocka_unit_test_setup(test_networks, fresh),
    };
    if (lk_key_load(&key, NULL, &error) != LK_OK) return 1;
    other_key = key;
    other_key.bytes[31] = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
