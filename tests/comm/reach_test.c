// reach_test.c - which addresses are in a network, what MPI is told before it starts, and which of
// the sockets that listen afterwards are outside.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/cluster/reach.h"

static const char *const variables[] = {"UCX_TLS", "UCX_NET_DEVICES", "FI_TCP_IFACE",
                                        "NCCL_SOCKET_IFNAME", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"};

static int forget_variables(void **state) {
    (void)state;
    for (size_t i = 0; i < LK_COUNT(variables); i++) unsetenv(variables[i]);
    return 0;
}

static lk_subnet network_of(const char *text) {
    lk_subnet n;
    lk_error error = {.status = LK_OK};
    assert_int_equal(lk_subnet_parse(text, &n, &error), LK_OK);
    return n;
}

// --- networks ------------------------------------------------------------------------------------

static void test_bad_networks(void **state) {
    (void)state;
    static const char *const bad[] = {"",        "10.1.0.0",     "10.1.0.0/",  "/16",
                                      "10.1/16", "10.1.0.0/33",  "fd00::/129", "10.1.0.0/8x",
                                      "host/8",  "10.1.0.0/-1",  "fd00::",     "10.1.0.256/8",
                                      "fd00/16", "10.1.0.0//16", ":/0",        "10.1.0.0/ 8"};
    for (size_t i = 0; i < LK_COUNT(bad); i++) {
        lk_subnet n;
        lk_error error = {.status = LK_OK};
        if (lk_subnet_parse(bad[i], &n, &error) != LK_BAD_USAGE) fail_msg("took \"%s\"", bad[i]);
        assert_non_null(strstr(error.text, bad[i]));
        assert_false(n.given);
    }
}

static void test_members(void **state) {
    (void)state;
    static const struct {
        const char *network, *address;
        bool has;
    } cases[] = {
        {"10.1.0.0/16", "10.1.255.255", true},   {"10.1.0.0/16", "10.2.0.0", false},
        {"10.16.0.0/12", "10.31.0.1", true},     {"10.16.0.0/12", "10.32.0.1", false},
        {"10.16.0.0/12", "10.15.0.1", false},    {"192.0.2.7/32", "192.0.2.7", true},
        {"192.0.2.7/32", "192.0.2.6", false},    {"192.0.2.7/31", "192.0.2.6", true},
        {"0.0.0.0/0", "203.0.113.9", true},      {"0.0.0.0/0", "fd00::1", false},
        {"fd00:1::/32", "fd00:1:ffff::", true},  {"fd00:1::/32", "fd00:2::", false},
        {"fd00:1::/33", "fd00:1:8000::", false}, {"::/0", "10.1.2.3", false},
        {"10.1.0.0/16", "a01::", false},  // the same bytes of the other family
    };
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        const lk_subnet n = network_of(cases[i].network);
        const bool six = strchr(cases[i].address, ':');
        uint8_t address[16] = {0};
        assert_int_equal(inet_pton(six ? AF_INET6 : AF_INET, cases[i].address, address), 1);
        if (lk_subnet_has(&n, six, address) == cases[i].has) continue;
        fail_msg("%s in %s: wanted %d", cases[i].address, cases[i].network, cases[i].has);
    }
    assert_false(lk_subnet_has(&(lk_subnet){.given = false}, false, (uint8_t[16]){0}));
}

// --- before MPI starts ---------------------------------------------------------------------------

static lk_status pin(lk_reach r) {
    lk_error error = {.status = LK_OK};
    return lk_reach_pin(&r, 1, &error);
}

static void expect_variable(const char *name, const char *value) {
    const char *found = getenv(name);
    if (!value)
        assert_null(found);
    else
        assert_string_equal(found ? found : "(none)", value);
}

static void test_pinned(void **state) {
    assert_int_equal(pin((lk_reach){.local = true}), LK_OK);
    expect_variable("UCX_TLS", "self,shm");
    expect_variable("UCX_NET_DEVICES", "lo");
    expect_variable("FI_TCP_IFACE", "lo");
    expect_variable("NCCL_SOCKET_IFNAME", "lo");
    expect_variable("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "127.0.0.1");
    // A user's own choice stays.
    forget_variables(state);
    setenv("UCX_TLS", "tcp", 1);
    assert_int_equal(pin((lk_reach){.local = true}), LK_OK);
    expect_variable("UCX_TLS", "tcp");
    // Several machines: the interface with an address in the network, or none and a refusal.
    forget_variables(state);
    assert_int_equal(pin((lk_reach){.network = network_of("127.0.0.0/8")}), LK_OK);
    expect_variable("UCX_NET_DEVICES", "lo");
    expect_variable("UCX_TLS", NULL);
    expect_variable("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", NULL);
    assert_int_equal(pin((lk_reach){.network = network_of("203.0.113.0/24")}), LK_BAD_CONFIG);
    forget_variables(state);
    assert_int_equal(pin((lk_reach){.insecure = false}), LK_BAD_CONFIG);
    assert_int_equal(pin((lk_reach){.insecure = true}), LK_OK);
    expect_variable("UCX_NET_DEVICES", NULL);
}

// --- after it has --------------------------------------------------------------------------------

// A socket that listens there; -1 where this machine has no such address.
static int listen_at(const char *address, char text[80]) {
    const bool six = strchr(address, ':');
    int file = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } at = {.any.sa_family = six ? AF_INET6 : AF_INET};
    socklen_t bytes = six ? sizeof at.six : sizeof at.four;
    void *number = six ? (void *)&at.six.sin6_addr : (void *)&at.four.sin_addr;
    assert_int_equal(inet_pton(at.any.sa_family, address, number), 1);
    if (file < 0 || bind(file, &at.any, bytes) != 0 || listen(file, 1) != 0) return -1;
    assert_int_equal(getsockname(file, &at.any, &bytes), 0);
    snprintf(text, 80, "%s:%u", address, ntohs(six ? at.six.sin6_port : at.four.sin_port));
    return file;
}

static void test_listeners(void **state) {
    (void)state;
    static const struct {
        const char *address, *network;
        bool local, outside;
    } cases[] = {
        {"127.0.0.1", NULL, true, false},
        {"127.9.9.9", NULL, true, false},
        {"0.0.0.0", NULL, true, true},
        {"0.0.0.0", "10.0.0.0/8", false, true},
        {"127.0.0.1", "10.0.0.0/8", false, false},
        {"::1", NULL, true, false},
        {"::", NULL, true, true},
        {"::ffff:127.0.0.1", NULL, true, false},
        {"::", "fd00::/8", false, true},
    };
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        lk_reach r = {.local = cases[i].local};
        lk_error error = {.status = LK_OK};
        char listens[LK_REACH_TEXT_BYTES], text[80], own[80];
        // This program's own, from before, is not MPI's.
        int before = listen_at("0.0.0.0", own);
        assert_true(before >= 0);
        if (cases[i].network) r.network = network_of(cases[i].network);
        (void)lk_reach_pin(&r, 0, &error);
        error.status = LK_OK;
        assert_int_equal(lk_reach_check(&r, 3, listens, &error), LK_OK);
        assert_string_equal(listens, "nothing");
        int file = listen_at(cases[i].address, text);
        if (file >= 0) {
            lk_status wanted = cases[i].outside ? LK_UNAVAILABLE : LK_OK;
            if (lk_reach_check(&r, 3, listens, &error) != wanted) fail_msg("listens at %s", text);
            assert_string_equal(listens, text);
            if (cases[i].outside) assert_non_null(strstr(error.text, text));
            if (cases[i].outside) assert_non_null(strstr(error.text, "rank 3: "));
            r.insecure = true;
            error.status = LK_OK;
            assert_int_equal(lk_reach_check(&r, 3, listens, &error), LK_OK);
            close(file);
        }
        close(before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bad_networks),
                                       cmocka_unit_test(test_members),
                                       cmocka_unit_test_setup(test_pinned, forget_variables),
                                       cmocka_unit_test_setup(test_listeners, forget_variables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
