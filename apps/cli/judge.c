// judge.c - see judge.h.
#include "apps/cli/judge.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/run/weights.h"

// --- opening -------------------------------------------------------------------------------------

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static bool is_dots(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

// A checkpoint is looked at beside the configuration of its run.
static lk_status check_beside(const char *checkpoint, const char *config, lk_error *error) {
    if (!checkpoint || access(config, R_OK) == 0) return LK_OK;
    return lk_fail(error, LK_NO_INPUT,
                   "judge: %s: the configuration of its run, %s, cannot be read; wanted a "
                   "checkpoint in the checkpoints of its run, beside that run's config.json, or "
                   "the run's directory",
                   checkpoint, config);
}

// The run's directory, and the checkpoint where one is named.
static lk_status find(const char *path, char directory[LK_PATH_BYTES], const char **checkpoint,
                      lk_error *error) {
    char above[LK_PATH_BYTES];
    *checkpoint = ends_with(path, ".safetensors") ? path : NULL;
    if (!*checkpoint) return lk_path_join(directory, path, "", "", error);
    lk_path_parent(above, path);
    if (strcmp(above, ".") == 0) return lk_path_join(directory, "..", "", "", error);
    if (is_dots(above)) return lk_path_join(directory, above, "/", "..", error);
    lk_path_parent(directory, above);
    return LK_OK;
}

static lk_status refuse(const char *path, const char *what, lk_error *error) {
    return lk_fail(error, LK_BAD_CONFIG,
                   "judge: %s: %s; wanted the run of a classifier in precision float32 of images "
                   "as this run's, whose last layer is dense",
                   path, what);
}

static lk_status check(lk_judge *j, const char *path, const lk_run *like, lk_error *error) {
    const lk_model *m = &j->run.config.spec.model, *other = &like->config.spec.model;
    const lk_program *p = &j->run.program;
    if (m->graph || !lk_model_loss(m)->labels) return refuse(path, "it is no classifier", error);
    if (lk_model_loss(m) != &lk_loss_sparse_categorical_crossentropy) {
        return refuse(path, "its outputs are no softmax", error);
    }
    if (m->in_h != other->in_h || m->in_w != other->in_w || m->in_c != other->in_c) {
        return refuse(path, "its images are of another size", error);
    }
    if (m->input_type != other->input_type) {
        return refuse(path, "its inputs are of another type", error);
    }
    for (uint32_t i = 0; i < p->forward_end; i++) {
        if (p->ops[i].tensor[LK_Y] == p->logits) j->last_op = i;
    }
    const uint32_t hidden = p->ops[j->last_op].tensor[LK_X];
    j->classes = m->classes;
    if (hidden == LK_NONE || p->ops[j->last_op].type != &lk_op_dense) {
        return refuse(path, "its last layer is not dense", error);
    }
    if (p->tensors[hidden].dtype != LK_F32 || p->tensors[p->logits].dtype != LK_F32) {
        return refuse(path, "it has another precision", error);
    }
    if (p->tensors[hidden].shape[1] > LK_SCORE_FEATURES_MAX) {
        return refuse(path, "its last hidden layer has more than 2048 values", error);
    }
    j->features = (uint32_t)p->tensors[hidden].shape[1];
    return LK_OK;
}

lk_status lk_judge_open(lk_judge *j, const char *path, const lk_run *like, uint64_t max_memory,
                        const lk_say *say, lk_error *error) {
    char directory[LK_PATH_BYTES], config[LK_PATH_BYTES];
    const char *checkpoint;
    uint64_t steps;
    LK_CHECK(find(path, directory, &checkpoint, error));
    LK_CHECK(lk_path_join(config, directory, "/", "config.json", error));
    LK_CHECK(check_beside(checkpoint, config, error));
    const lk_config_options options = {
        .config = config, .no_data = true, .evaluates = true, .gpus = 1};
    j->opened = true;
    LK_CHECK(lk_run_configure(&j->run, &options, (lk_run_needs){0}, error));
    j->run.layout.replicas = 1;
    LK_CHECK(lk_run_plan(&j->run, error));
    LK_CHECK(check(j, path, like, error));
    LK_CHECK(lk_run_start(&j->run, max_memory, error));
    j->hidden = malloc((size_t)j->run.program.microbatch_examples * j->features *
                       sizeof *j->hidden);
    if (!j->hidden) return lk_fail(error, LK_UNAVAILABLE, "judge: %s: no memory for it", path);
    return lk_load_weights(&j->run, &lk_file_ops_posix, checkpoint, directory, say, &steps, error);
}

void lk_judge_close(lk_judge *j) {
    free(j->hidden);
    if (j->opened) lk_run_close(&j->run);
}

// --- judging -------------------------------------------------------------------------------------

typedef struct given {
    const uint8_t *images;
    uint64_t image_bytes;
} given;

static const uint8_t *given_image(void *context, uint64_t index) {
    const given *g = context;
    return g->images + index * g->image_bytes;
}

static uint32_t no_label(void *context, uint64_t index) {
    (void)context, (void)index;
    return 0;
}

// The hidden layer is read before the last op: afterwards another tensor may lie there.
static lk_status add_some(lk_judge *j, const lk_microbatch *microbatch, lk_moments *to,
                          lk_error *error) {
    lk_frame *f = &j->run.group.frames[0];
    const lk_program *p = &j->run.program;
    const uint64_t n = microbatch->examples;
    lk_frame_start(f);
    for (uint32_t i = 0; i <= j->last_op; i++) {
        if (i == j->last_op) {
            memcpy(j->hidden, lk_tensor_at(f, p->ops[i].tensor[LK_X]),
                   n * j->features * sizeof *j->hidden);
        }
        lk_execute_forward_op(f, microbatch, i);
    }
    if (f->bad_op != LK_NONE) {
        return lk_fail(error, LK_NOT_FINITE, "judge: %s is not finite",
                       lk_bad_tensor(p, f->bad_op, LK_NONE));
    }
    const float *logits = lk_tensor_at(f, p->logits);
    for (uint64_t m = 0; m < n; m++) {
        lk_moments_add(to, j->hidden + m * j->features, logits + m * j->classes);
    }
    return LK_OK;
}

lk_status lk_judge_add(lk_judge *j, const uint8_t *images, uint64_t count, lk_moments *to,
                       lk_error *error) {
    const lk_program *p = &j->run.program;
    const lk_model *m = &j->run.config.spec.model;
    given g = {images, (uint64_t)m->in_h * m->in_w * m->in_c};
    const lk_source source = {.context = &g, .image = given_image, .label = no_label};
    const uint32_t grain = p->spec->grain, rows = p->microbatch_examples;
    j->run.group.frames[0].source = &source;
    lk_status status = LK_OK;
    while (count > 0 && status == LK_OK) {
        const uint32_t some = (uint32_t)LK_MIN(count, (uint64_t)rows);
        const lk_microbatch microbatch = {.grain_count = (some + grain - 1) / grain,
                                          .examples = some,
                                          .total_grains = (some + grain - 1) / grain};
        status = add_some(j, &microbatch, to, error);
        g.images += some * g.image_bytes;
        count -= some;
    }
    j->run.group.frames[0].source = &j->run.train_source;
    return status;
}
