// doctor.c - lockstep doctor: what this machine offers a run, line by line, and what to do.
//
// It tries things rather than reading about them where that is possible: maps and locks a block,
// asks a child process to seal itself. Leaves nothing behind.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/run/run.h"
#include "apps/cli/tools.h"
#include "apps/run/data_sets.h"
#include "arena/seal.h"
#include "ops/variant.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep doctor [--json]\n"
    "\n"
    "Says what this machine offers: \"ok\", \"warning\" with what to do, or \"error\" where\n"
    "training is impossible (exit code 69).\n";

enum { MIB = 1 << 20, BLOCK_BYTES = 16 * MIB, COMFORT_BYTES = 256 * MIB };

static uint32_t errors;
static json_t *checks;  // --json: what was said; else NULL

static void say(const char *kind, const char *topic, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(const char *kind, const char *topic, const char *format, ...) {
    char text[2 * LK_PATH_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (checks) {
        json_array_append_new(checks, json_pack("{s:s, s:s, s:o}", "kind", kind, "topic", topic,
                                                "text", lk_json_text(text)));
    } else {
        printf("%-8s %-14s %s\n", kind, topic, text);
    }
    errors += strcmp(kind, "error") == 0;
}

// The first line of a small file of the kernel's; "" where there is none.
static const char *first_line(const char *path, char *out, size_t bytes) {
    out[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file && !fgets(out, (int)bytes, file)) out[0] = '\0';
    if (file) fclose(file);
    out[strcspn(out, "\n")] = '\0';
    return out;
}

// --- processor -----------------------------------------------------------------------------------

static void check_kernels(void) {
    lk_error why = {.status = LK_OK};
    const lk_kernels *chosen, *variant;
    char others[200] = "";
    if (lk_kernels_choose("auto", &chosen, &why) != LK_OK) {
        say("error", "kernels", "%s", why.text);
        return;
    }
    for (unsigned i = 0;; i++) {
        const char *missing = lk_kernels_missing(i, &variant);
        if (!variant) break;
        size_t used = strlen(others);
        snprintf(others + used, sizeof others - used, "%s%s%s%s%s", i ? ", " : "", variant->name,
                 missing ? " (no: this processor lacks " : "", missing ? missing : "",
                 missing ? ")" : "");
    }
    say("ok", "kernels", "%s chosen; this build has %s", chosen->name, others);
    const char *slow = lk_kernels_slow(chosen);
    if (slow) say("warning", "kernels", "%s", slow);
}

static void check_processors(void) {
    char text[64];
    cpu_set_t mine;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
    int usable = known ? CPU_COUNT(&mine) : (int)online;
    long long quota = 0, period = 1;
    first_line("/sys/fs/cgroup/cpu.max", text, sizeof text);
    bool limited = sscanf(text, "%lld %lld", &quota, &period) == 2 && period > 0;
    if (limited && quota < usable * period) {
        say("warning", "processors",
            "%d usable, but the cgroup's cpu.max grants only %.1f; use at most "
            "--replicas %lld",
            usable, (double)quota / (double)period, LK_MAX(1, quota / period));
        return;
    }
    say("ok", "processors", "%d usable of %ld online; as many --replicas are useful", usable,
        online);
}

static void check_float_mode(void) {
    lk_error why = {.status = LK_OK};
    if (lk_float_mode_check(&why) == LK_OK) {
        say("ok", "arithmetic", "rounds to nearest, keeps subnormal numbers");
    } else {
        say("error", "arithmetic", "%s", why.text);
    }
}

// No GPU is no fault of a machine; one that a build cannot use is said.
static void check_gpu(void) {
    const lk_cuda_calls *cuda = lk_cuda_linked();
    lk_error why = {.status = LK_OK};
    lk_cuda_device d;
    if (!cuda) {
        say("ok", "GPU", "not used: this build has no CUDA kernels");
    } else if (cuda->open(&d, 0, &why) != LK_OK) {
        say("ok", "GPU", "not used: %s", why.text);
    } else {
        say("ok", "GPU", "%s, compute capability %u.%u, %llu MiB; use it with --kernels cuda",
            d.name, d.major, d.minor, (ull)(d.total_bytes / MIB));
    }
}

// --- memory --------------------------------------------------------------------------------------

static void check_memory(void) {
    lk_memory_available a = lk_memory_query();
    if (a.bytes == UINT64_MAX) {
        say("warning", "memory", "no limit is known; give one with --max-memory");
    } else if (a.bytes < COMFORT_BYTES) {
        say("warning", "memory",
            "%llu MiB available by %s: enough for small models only; ask lockstep plan",
            (ull)(a.bytes / MIB), a.limit);
    } else {
        say("ok", "memory", "%llu MiB available by %s", (ull)(a.bytes / MIB), a.limit);
    }
}

static void check_lock(bool locked) {
    struct rlimit limit;
    char bytes[32] = "unknown";
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        snprintf(bytes, sizeof bytes, "%llu bytes", (ull)limit.rlim_cur);
        if (limit.rlim_cur == RLIM_INFINITY) snprintf(bytes, sizeof bytes, "unlimited");
    }
    if (locked) {
        say("ok", "memory lock", "a block of %d MiB could be locked (RLIMIT_MEMLOCK is %s)",
            BLOCK_BYTES / MIB, bytes);
    } else {
        say("warning", "memory lock",
            "RLIMIT_MEMLOCK is %s: the arena can be swapped out; raise it with "
            "ulimit -l, or memlock in /etc/security/limits.conf",
            bytes);
    }
}

// Bytes of this process in huge pages, as the kernel counts them.
static uint64_t huge_bytes(void) {
    char line[128];
    unsigned long long kilobytes = 0, value;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "AnonHugePages: %llu", &value) == 1) kilobytes = value;
    }
    if (file) fclose(file);
    return kilobytes * 1024;
}

static void check_huge(uint64_t bytes) {
    char mode[80];
    first_line("/sys/kernel/mm/transparent_hugepage/enabled", mode, sizeof mode);
    if (bytes >= BLOCK_BYTES / 2) {
        say("ok", "huge pages", "%llu of %d MiB came in huge pages (%s)", (ull)(bytes / MIB),
            BLOCK_BYTES / MIB, *mode ? mode : "mode unknown");
    } else {
        say("warning", "huge pages",
            "%llu of %d MiB came in huge pages (%s): slower, same results; "
            "/sys/kernel/mm/transparent_hugepage/enabled should say madvise or always",
            (ull)(bytes / MIB), BLOCK_BYTES / MIB, *mode ? mode : "not in this kernel");
    }
}

static void check_block(void) {
    lk_error why = {.status = LK_OK};
    lk_host_block block;
    uint64_t before = huge_bytes();
    if (lk_host_block_map(BLOCK_BYTES, &block, &why) != LK_OK) {
        say("error", "arena", "%s", why.text);
        return;
    }
    uint64_t after = huge_bytes();
    check_lock(block.locked);
    check_huge(after > before ? after - before : 0);
    lk_host_block_unmap(&block);
}

// --- the seal ------------------------------------------------------------------------------------

// There is no way back from a seal, so a child takes it.
static void check_seal(void) {
    int result = -1, ends[2];
    lk_error why = {.status = LK_OK};
    fflush(stdout);
    pid_t child = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
    if (child == 0) {
        lk_status status = lk_seal_enforce(&why);
        ssize_t written = write(ends[1], &why, sizeof why);
        _exit(written == sizeof why ? status : LK_INTERNAL);
    }
    if (child > 0) {
        close(ends[1]);
        bool told = read(ends[0], &why, sizeof why) == sizeof why;
        close(ends[0]);
        if (waitpid(child, &result, 0) != child || !told) result = -1;
    }
    if (WIFEXITED(result) && WEXITSTATUS(result) == 0) {
        say("ok", "seal", "the kernel can refuse memory after start-up (--seal)");
    } else {
        say("warning", "seal",
            "--seal does not work here: %s; without it the arena is still sealed, by "
            "Lockstep itself",
            why.status != LK_OK ? why.text : "the kernel ended the sealed process");
    }
}

// --- files ---------------------------------------------------------------------------------------

static void check_data(void) {
    char directory[LK_PATH_BYTES];
    const lk_data_set *set;
    for (uint32_t i = 0; (set = lk_data_set_at(i)) != NULL; i++) {
        const char *name = set->name;
        if (lk_data_set_find(name, directory)) {
            say("ok", "data", "%s in %s", name, directory);
        } else {
            say("warning", "data", "%s is not on this machine; get it with: lockstep data fetch %s",
                name, name);
        }
    }
}

static void check_configs(void) {
    char path[2 * LK_CONFIG_PATH_BYTES];
    uint32_t count = 0;
    if (!lk_config_find_ready("mnist-cnn", path, sizeof path)) {
        say("warning", "configurations",
            "no ready ones beside this program (%s); install it whole, or set "
            "LOCKSTEP_CONFIGS",
            path);
        return;
    }
    *strrchr(path, '/') = '\0';
    DIR *directory = opendir(path);
    for (struct dirent *e; directory && (e = readdir(directory));) {
        const char *dot = strrchr(e->d_name, '.');
        count += dot && strcmp(dot, ".json") == 0;
    }
    if (directory) closedir(directory);
    say("ok", "configurations", "%u ready in %s; their names: lockstep help configs", count, path);
}

lk_status lk_command_doctor(int argc, char **argv, lk_error *error) {
    bool json = false;
    lk_arguments a = {.help = help, .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    errors = 0;
    checks = json ? json_array() : NULL;
    check_kernels();
    check_gpu();
    check_processors();
    check_float_mode();
    check_memory();
    check_block();
    check_seal();
    check_data();
    check_configs();
    if (json) {
        LK_CHECK(lk_print_json(json_pack("{s:s, s:i, s:o}", "version", LK_VERSION, "errors",
                                         (int)errors, "checks", checks),
                               error));
    }
    if (errors == 0) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "training is impossible here: see the line%s that begin%s with \"error\"",
                   errors == 1 ? "" : "s", errors == 1 ? "s" : "");
}
