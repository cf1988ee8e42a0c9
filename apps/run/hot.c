// hot.c - the policy of hot.h: how often, under which name, which copy. Knows the names of a run's
// logs, and nothing of what is in a copy.
#define _GNU_SOURCE
#include "apps/run/hot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "apps/run/flop.h"
#include "comm/step/exchange.h"

typedef unsigned long long ull;

// What the leader says to all: where it is kept, and what a run that was removed has left there.
typedef struct hot_word {
    uint64_t key, forgotten, every;
    uint32_t resumes;
} hot_word;

static uint64_t forgotten;  // the key of a run that --fresh removed, or 0

// --- the plan ----------------------------------------------------------------------------------

// At its best, of one thread.
static double flop_per_second(const char *kernels) {
    if (strcmp(kernels, "avx512") == 0) return 170e9;
    if (strcmp(kernels, "avx2") == 0) return 90e9;
    if (strcmp(kernels, "neon") == 0) return 60e9;
    return 10e9;
}

static uint64_t tensor_bytes(const lk_run *run) {
    const lk_program *p = &run->program;
    lk_state_walk walk = {0};
    uint64_t bytes = 0;
    for (uint32_t t; (t = lk_next_state(p, &walk)) != LK_NONE;) bytes += p->tensors[t].bytes;
    return bytes;
}

// What GPUs keep would have to be waited for and fetched: only where it is said how often.
static bool fetches(const lk_run *run) {
    return run->cuda && run->config.hot_steps == LK_CONFIG_HOT_AUTO;
}

void lk_hot_plan(lk_run *run) {
    const lk_config *c = &run->config;
    const uint64_t bytes = tensor_bytes(run);
    const uint32_t replicas = LK_MAX(run->layout.replicas_all, run->layout.replicas);
    const double flop = lk_step_flop_of(&run->program).routed;
    run->hot_steps = run->hot_bytes = 0;
    run->hot_seconds = LK_HOT_SECONDS + (double)bytes / LK_HOT_BYTES_PER_SECOND;
    run->hot_step_seconds = flop / (flop_per_second(run->kernels->name) * replicas);
    if (!run->needs.checkpoints || c->hot_steps == 0 || fetches(run)) return;
    run->hot_steps = c->hot_steps;
    if (c->hot_steps == LK_CONFIG_HOT_AUTO) {
        const double steps = run->hot_seconds / (LK_HOT_SHARE * run->hot_step_seconds);
        run->hot_steps = (uint64_t)LK_MIN(steps, 1e9) + 1;
    }
    uint32_t host_workers = 1, before = 0;
    if (run->workers.joined) lk_mpi_host(&host_workers, &before);
    if (before == 0) run->hot_bytes = lk_hot_file_bytes(bytes);
}

// --- where -------------------------------------------------------------------------------------

static const char *directory(void) {
    const char *given = getenv("LOCKSTEP_HOT_DIRECTORY");
    return given && *given ? given : "/dev/shm";
}

// A run's own as long as it lives: its directory, and when its identity was written there. 0: none.
static uint64_t key_of(const char *run_dir) {
    char path[LK_PATH_BYTES], identity[LK_IDENTITY_HEX_BYTES] = "";
    lk_error none = {.status = LK_OK};
    struct stat dir, file;
    if (lk_run_dir_identity(&lk_file_ops_posix, run_dir, identity, &none) != LK_OK) return 0;
    if (lk_path_join(path, run_dir, "/", "identity", &none) != LK_OK) return 0;
    if (stat(run_dir, &dir) != 0 || stat(path, &file) != 0) return 0;
    const uint64_t numbers[] = {dir.st_ino, file.st_ino, (uint64_t)file.st_mtim.tv_sec,
                                (uint64_t)file.st_mtim.tv_nsec};
    const uint64_t key =
        XXH3_64bits_withSeed(numbers, sizeof numbers, XXH3_64bits(identity, sizeof identity));
    return key ? key : 1;
}

// Two hosts of one machine may look at one directory: each has a file of its own there.
static lk_status path_of(uint64_t key, char path[LK_PATH_BYTES], lk_error *error) {
    char host[LK_MPI_HOST_BYTES] = "";
    (void)gethostname(host, sizeof host - 1);
    return lk_hot_path(path, directory(), XXH3_64bits_withSeed(host, strlen(host), key), error);
}

static void remove_file(uint64_t key) {
    char path[LK_PATH_BYTES];
    lk_error none = {.status = LK_OK};
    struct stat there;
    if (key == 0 || path_of(key, path, &none) != LK_OK) return;
    if (lstat(path, &there) != 0 || !S_ISREG(there.st_mode) || there.st_uid != geteuid()) return;
    (void)unlink(path);
}

void lk_hot_forget(const char *run_dir) {
    forgotten = key_of(run_dir);
    remove_file(forgotten);
}

// --- what there is -----------------------------------------------------------------------------

// Of this host, by its first worker: what it has, and where this run will keep its own. `why`: what
// is wrong with it.
static lk_hot_offer open_mine(lk_hot *hot, const hot_word *word, lk_error *why) {
    lk_hot_offer mine = {.place = LK_HOT_NOT_ASKED};
    const lk_run *run = hot->run;
    char path[LK_PATH_BYTES];
    uint32_t host_workers = 1, before = 0;
    if (run->workers.joined) lk_mpi_host(&host_workers, &before);
    const bool create = word->every > 0 && !fetches(run);
    if (before > 0 || word->key == 0 || (!create && !word->resumes)) return mine;
    if (path_of(word->key, path, why) != LK_OK) return (lk_hot_offer){.place = LK_HOT_HELD};
    const lk_status status =
        lk_hot_open(&hot->state, path, run->identity, tensor_bytes(run), create, why);
    if (status == LK_NO_INPUT) {
        why->status = LK_OK;
        return (lk_hot_offer){.place = LK_HOT_COLD};
    }
    if (status != LK_OK) return (lk_hot_offer){.place = LK_HOT_HELD};
    hot->keeps = create;
    if (!word->resumes) lk_hot_clear(&hot->state);
    lk_hot_look(&hot->state, mine.copies);
    mine.place = LK_HOT_COLD;
    for (uint32_t i = 0; i < LK_HOT_COPIES; i++) {
        if (mine.copies[i].verdict != LK_HOT_EMPTY) mine.place = LK_HOT_HERE;
    }
    return mine;
}

void lk_hot_meet(lk_hot *hot, lk_run *run, const char *run_dir, bool resume, const lk_say *say) {
    hot_word word = {.every = run->hot_steps, .resumes = resume, .forgotten = forgotten};
    lk_error why = {.status = LK_OK};
    lk_safetensors_tensor *tensors = (lk_safetensors_tensor *)(void *)run->checkpoint_tables;
    *hot = (lk_hot){.run = run, .state = {.file = -1}, .tensors = tensors};
    lk_run_tensors(run, tensors);
    if (run_dir) word.key = key_of(run_dir);
    if (run->workers.joined) {
        lk_mpi_wait_for("the hot state of the other hosts");
        lk_mpi_broadcast(&word, sizeof word);
        if (run->workers.rank > 0) remove_file(word.forgotten);
    }
    hot->every = word.every;
    const lk_hot_offer mine = open_mine(hot, &word, &why);
    hot->offers[0] = mine;
    if (run->workers.joined) lk_mpi_gather(&mine, sizeof mine, hot->offers);
    if (why.status == LK_OK) return;
    lk_say_warning(say, "no hot state is kept on the host of rank %u: %s", run->workers.rank,
                   why.text);
}

void lk_hot_print(const lk_hot *hot, const lk_say *say) {
    const lk_run *run = hot->run;
    if (fetches(run)) {
        lk_say_line(say,
                     "hot state: off (GPUs keep parameters and slots; checkpoint.hot_steps=N "
                     "fetches them)");
    } else if (hot->every == 0) {
        lk_say_line(say, "hot state: off (as asked)");
    } else if (!hot->keeps) {
        lk_say_line(say, "hot state: off on this host");
    } else {
        lk_say_line(say, "hot state: every %llu step%s, %llu bytes, %s", (ull)hot->every,
                     hot->every == 1 ? "" : "s", (ull)run->hot_bytes, hot->state.path);
    }
}

// --- which copy --------------------------------------------------------------------------------

static void say_passed_over(const lk_say *say, const char *why) {
    lk_say_warning(say, "hot state passed over: %s", why);
}

// The step of the last whole line of a log; 0: there is none. Its tail holds that line.
static lk_status last_step(const char *run_dir, const char *name, uint64_t *step, lk_error *error) {
    static const char key[] = "\"step\":";
    const lk_file_ops *ops = &lk_file_ops_posix;
    char path[LK_PATH_BYTES];
    lk_error missing = {.status = LK_OK};
    uint64_t bytes;
    int file;
    *step = 0;
    LK_CHECK(lk_path_join(path, run_dir, "/", name, error));
    if (lk_file_open_read(ops, path, &file, &bytes, &missing) != LK_OK) return LK_OK;
    const size_t length = (size_t)LK_MIN(bytes, (uint64_t)LK_RUN_LOG_BYTES);
    char *tail = malloc(length + 1);
    lk_status status = tail ? LK_OK : lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    if (status == LK_OK) {
        status = lk_file_read_all(ops, file, path, tail, length, bytes - length, error);
    }
    ops->close(ops->context, file);
    char *end = status == LK_OK ? memrchr(tail, '\n', length) : NULL;
    if (end) {
        *end = '\0';
        const char *line = memrchr(tail, '\n', (size_t)(end - tail));
        const char *at = strstr(line ? line + 1 : tail, key);
        if (at) *step = strtoull(at + sizeof key - 1, NULL, 10);
    }
    free(tail);
    return status;
}

// Up to which step, exclusive, a log with these intervals has all its lines.
static uint64_t next_line(uint64_t last, uint64_t every) { return (last / every + 1) * every; }

lk_status lk_hot_choose(const lk_hot *hot, const char *run_dir, uint64_t total, const lk_say *say,
                        lk_hot_choice *choice, lk_error *error) {
    const lk_config *c = &hot->run->config;
    uint64_t metrics, hashes;
    char why[160];
    *choice = (lk_hot_choice){.found = false};
    LK_CHECK(last_step(run_dir, "metrics.jsonl", &metrics, error));
    LK_CHECK(last_step(run_dir, "hashes.jsonl", &hashes, error));
    uint64_t reach = LK_MIN(lk_run_logs(hot->run, metrics), next_line(hashes, c->hash_every_steps));
    if (metrics < total || hashes < total) reach = LK_MIN(reach, total);
    for (uint32_t w = 0; w < hot->run->workers.world; w++) {
        const lk_hot_offer *offer = &hot->offers[w];
        for (uint32_t i = 0; offer->place == LK_HOT_HERE && i < LK_HOT_COPIES; i++) {
            const lk_hot_copy *copy = &offer->copies[i];
            const bool late = copy->verdict == LK_HOT_WHOLE && copy->step >= reach;
            lk_format(why, sizeof why, "a copy of rank %u's host is torn", w);
            if (copy->verdict == LK_HOT_FOREIGN) {
                lk_format(why, sizeof why, "a copy of rank %u's host is of another run identity",
                          w);
            } else if (late) {
                lk_format(why, sizeof why, "step %llu of rank %u's host: the logs end before it",
                          (ull)copy->step, w);
            }
            if (late || copy->verdict == LK_HOT_TORN || copy->verdict == LK_HOT_FOREIGN) {
                say_passed_over(say, why);
            } else if (copy->verdict == LK_HOT_WHOLE &&
                       (!choice->found || copy->step > choice->step)) {
                *choice = (lk_hot_choice){true, w, i, copy->step, copy->word};
            }
        }
    }
    if (!choice->found && hot->every) lk_say_line(say, "hot state: none to go on from");
    return LK_OK;
}

void lk_hot_say_stale(const lk_hot_choice *choice, uint64_t step, const lk_say *say) {
    char why[160];
    lk_format(why, sizeof why, "its step %llu is older than the checkpoint of step %llu",
              (ull)choice->step, (ull)step);
    say_passed_over(say, why);
}

lk_status lk_hot_load(lk_hot *hot, lk_hot_choice *choice, lk_error *error) {
    lk_run *run = hot->run;
    const lk_run_workers *w = &run->workers;
    lk_status status = LK_OK;
    if (w->joined) {
        lk_mpi_wait_for("the leader's choice of a hot state");
        lk_mpi_broadcast(choice, sizeof *choice);
    }
    if (!choice->found && !hot->keeps) lk_hot_unmap(&hot->state);
    if (!choice->found) return LK_OK;
    if (choice->rank == w->rank) {
        status =
            lk_hot_take(&hot->state, choice->copy, hot->tensors, lk_run_tensor_count(run), error);
        if (status == LK_OK) status = lk_run_round(run, "the hot state", error);
    }
    if (w->joined) LK_CHECK(lk_mpi_settle(status, error));
    if (choice->rank > 0) {
        lk_mpi_broadcast_from(choice->rank, run->core.device,
                              run->program.regions[LK_REGION_DEVICE].bytes);
    }
    if (status == LK_OK && run->cuda) run->cuda->upload(&run->gpus);
    if (!hot->keeps) lk_hot_unmap(&hot->state);  // it is not in the plan
    return status;
}

// --- while it runs -----------------------------------------------------------------------------

bool lk_hot_is_due(const lk_hot *hot, uint64_t done, bool last) {
    if (fetches(hot->run)) return false;
    return hot->every > 0 && (done % hot->every == 0 || last);
}

lk_status lk_hot_keep_step(lk_hot *hot, uint64_t done, uint64_t word, lk_error *error) {
    if (!hot->keeps) return LK_OK;
    LK_CHECK(lk_run_fetch(hot->run, error));
    lk_hot_keep(&hot->state, hot->tensors, lk_run_tensor_count(hot->run), done, word);
    return LK_OK;
}

void lk_hot_end(lk_hot *hot, bool over) { lk_hot_leave(&hot->state, over || !hot->state.used); }
