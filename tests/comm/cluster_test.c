// cluster_test.c - ranks, tasks, addresses, and two descriptions that agree or do not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "comm/cluster/cluster.h"

static lk_cluster a, b;

static void make(lk_cluster *c, const char *origin, uint32_t rank, uint32_t world) {
    lk_cluster_single(c);
    lk_format(c->origin, sizeof c->origin, "%s", origin);
    c->rank = rank;
    c->world = world;
}

static void tasks_have_ranks(void **state) {
    (void)state;
    char task[LK_TASK_BYTES];
    make(&a, "A", 0, 3);
    static const char *const without[] = {"worker:0", "worker:1", "worker:2"};
    static const char *const with[] = {"chief:0", "worker:0", "worker:1"};
    for (uint32_t chief = 0; chief < 2; chief++) {
        a.has_chief = chief;
        for (uint32_t r = 0; r < 3; r++) {
            lk_cluster_task(&a, r, task);
            assert_string_equal(task, chief ? with[r] : without[r]);
            a.rank = r;
            assert_int_equal(lk_cluster_leads(&a), r == 0);
        }
    }
    a.evaluator = true;
    assert_true(lk_cluster_leads(&a));
}

static void addresses_are_checked(void **state) {
    (void)state;
    static const char *const good[] = {"a:1", "node-1.rack_2.example.com:65535", "10.0.0.1:2222",
                                       "[::1]:29400", "[2001:db8::1]:2222", "LOCALHOST:00001",
                                       "[::ffff:10.0.0.1]:1"};
    static const struct {
        const char *text, *wrong;
    } bad[] = {
        {"", "no host and no port"},
        {"a", "no port"},
        {"a:", "no port"},
        {":1", "no host"},
        {"a:0", "a port beyond 1 to 65535"},
        {"a:65536", "a port beyond 1 to 65535"},
        {"a:99999999999999999999999", "a port beyond 1 to 65535"},
        {"a:000001", "a port of more than five digits"},
        {"a:+1", "a port that is no number"},
        {"a:1 ", "a port that is no number"},
        {" a:1", "a character no host name has"},
        {"a b:1", "a character no host name has"},
        {"http://a:1", "a slash (a scheme or a path)"},
        {"a:1/x", "a slash (a scheme or a path)"},
        {"::1:2222", "no host"},
        {"1::2222", "more than one colon (an IPv6 address stands in brackets)"},
        {"[a:1", "brackets that hold no IPv6 address"},
        {"[a]:1", "brackets that hold no IPv6 address"},
        {"[::1]", "no port"},
        {"[::1]x:1", "a character no host name has"},
    };
    for (size_t i = 0; i < LK_COUNT(good); i++)
        assert_null(lk_address_wrong(good[i], strlen(good[i])));
    for (size_t i = 0; i < LK_COUNT(bad); i++)
        assert_string_equal(lk_address_wrong(bad[i].text, strlen(bad[i].text)), bad[i].wrong);
    char longest[LK_ADDRESS_BYTES + 1];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + LK_ADDRESS_BYTES - 3, ":1", 2);
    assert_null(lk_address_wrong(longest, LK_ADDRESS_BYTES - 1));
    assert_string_equal(lk_address_wrong(longest, LK_ADDRESS_BYTES), "more than 263 bytes");
}

// `text` NULL: they agree.
static void judge(const char *text) {
    lk_error error = {.status = LK_OK};
    lk_status status = lk_cluster_agree(&a, &b, &error);
    assert_int_equal(status, text ? LK_BAD_CONFIG : LK_OK);
    assert_string_equal(error.text, text ? text : "");
}

static void two_agree_or_are_named(void **state) {
    (void)state;
    make(&a, "A", 1, 3);
    make(&b, "B", 1, 3);
    judge(NULL);
    memcpy(a.address[2], "x:1", sizeof "x:1");
    judge(NULL);  // only one of them knows addresses
    memcpy(b.address[2], "x:2", sizeof "x:2");
    judge("A says rank 2 is at x:1, B says it is at x:2; take one of them away, or correct it");
    memcpy(b.address[2], "x:1", sizeof "x:1");
    judge(NULL);
    b.rank = 2;
    judge("A says rank 1 of 3, B says rank 2 of 3; take one of them away, or correct it");
    b.rank = 1;
    b.world = 2;
    judge("A says rank 1 of 3, B says rank 1 of 2; take one of them away, or correct it");
    a.evaluator = true;
    judge("A says evaluator, B says rank 1 of 2; take one of them away, or correct it");
    make(&b, "B", 0, 1);
    judge(NULL);  // an evaluator's launcher knows of one process
    b.evaluator = true;
    judge("A says evaluator, B says evaluator; take one of them away, or correct it");
}

static void the_hash_is_the_same_for_all_and_only_for_them(void **state) {
    (void)state;
    uint8_t x[LK_SHA256_BYTES], y[LK_SHA256_BYTES];
    make(&a, "A", 1, 3);
    make(&b, "B", 2, 3);
    lk_cluster_hash(&a, x);
    b.has_evaluator = true;
    lk_cluster_hash(&b, y);
    assert_memory_equal(x, y, sizeof x);
    for (int change = 0; change < 4; change++) {
        make(&b, "A", 1, 3);
        if (change == 0) b.world = 4;
        if (change == 1) b.has_chief = true;
        if (change == 2) memcpy(b.address[2], "x:1", sizeof "x:1");
        if (change == 3) b.replicas[2] = 1;
        lk_cluster_hash(&b, y);
        assert_memory_not_equal(x, y, sizeof x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_have_ranks),
        cmocka_unit_test(addresses_are_checked),
        cmocka_unit_test(two_agree_or_are_named),
        cmocka_unit_test(the_hash_is_the_same_for_all_and_only_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
