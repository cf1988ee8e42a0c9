// weights.c - the newest whole checkpoint of a run directory, and its tensors into a started run.
#include "apps/run/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/text.h"
#include "ops/graph/average.h"
#include "ops/graph/mixed.h"

const char *lk_default_run_dir(const lk_run *run, char *path, size_t bytes) {
    snprintf(path, bytes, "runs/%s", *run->config.name ? run->config.name : "unnamed");
    return path;
}

lk_status lk_check_recorded(const lk_safetensors *reader, lk_error *error) {
    static const char *const keys[] = {LK_CHECKPOINT_KEY_DIGEST, LK_CHECKPOINT_KEY_STATE};
    for (uint32_t i = 0; i < LK_COUNT(keys); i++) {
        if (lk_safetensors_metadata(reader, keys[i])) continue;
        return lk_fail(error, LK_BAD_DATA,
                       "%s: has recorded no \"%s\", by which its weights are proven; take one that "
                       "training has saved",
                       reader->path, keys[i]);
    }
    return LK_OK;
}

static void say_damaged(void *context, const char *path, const lk_error *why) {
    (void)path;  // the error begins with it
    const char *what = why->status == LK_IO_ERROR ? "unreadable" : "damaged";
    lk_say_warning(context, "%s checkpoint passed over: %s", what, why->text);
}

static lk_status check_identity(const lk_run *run, const lk_safetensors *reader, const char *path,
                                lk_error *error) {
    const char *theirs = lk_safetensors_metadata(reader, "run_identity");
    if (theirs && strcmp(theirs, run->identity_hex) == 0) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: it belongs to run identity %s, this configuration's is %s", path,
                   theirs ? theirs : "(none)", run->identity_hex);
}

// A fast run goes on with the bits of the GPU and the library at hand.
static void warn_of_parting(const lk_run *run, const lk_safetensors *reader, const char *path,
                            const lk_say *say) {
    char cublas[24], shown[2][LK_TEXT_SHOWN_BYTES];
    const char *gpu = lk_safetensors_metadata(reader, "gpu");
    const char *theirs = lk_safetensors_metadata(reader, "cublas");
    if (!lk_run_is_fast(run)) return;
    lk_run_cublas(run, cublas, sizeof cublas);
    gpu = gpu ? gpu : "(unknown)";
    theirs = theirs ? theirs : "(unknown)";
    if (strcmp(gpu, run->gpus.gpu[0].device.name) == 0 && strcmp(theirs, cublas) == 0) return;
    lk_say_warning(say,
                   "%s was computed on %s with cuBLAS %s, this run goes on on %s with cuBLAS "
                   "%s: in arithmetic fast its bits may part from here from those of a run that "
                   "stayed",
                   path, lk_text_shown(shown[0], gpu), lk_text_shown(shown[1], theirs),
                   run->gpus.gpu[0].device.name, cublas);
}

lk_status lk_find_weights(const lk_file_ops *ops, const char *run_dir,
                          lk_safetensors_entry *entries, size_t capacity, const lk_say *say,
                          lk_checkpoint_found *found, lk_error *error) {
    char directory[LK_PATH_BYTES];
    lk_say mine = *say;
    LK_CHECK(lk_path_join(directory, run_dir, "/", "checkpoints", error));
    return lk_checkpoint_find_newest(ops, directory, entries, capacity, say_damaged, &mine, found,
                                     error);
}

static void take_identity(lk_run *run, const lk_safetensors *reader) {
    const char *theirs = lk_safetensors_metadata(reader, "run_identity");
    snprintf(run->weights_identity, sizeof run->weights_identity, "%s", theirs ? theirs : "");
}

// The values are verified as they lie in the run's memory, whatever else has read the file before.
static lk_status load_file(lk_run *run, const lk_file_ops *ops, const char *file,
                           lk_safetensors_entry *entries, size_t capacity,
                           lk_safetensors_tensor *tensors, const lk_say *say, uint64_t *steps_done,
                           lk_error *error) {
    lk_safetensors reader;
    LK_CHECK(lk_checkpoint_peek(&reader, ops, file, entries, capacity, error));
    lk_status status = lk_check_recorded(&reader, error);
    // Training goes on only from its own state; evaluation takes any weights that fit.
    if (status == LK_OK && run->needs.checkpoints) {
        status = check_identity(run, &reader, file, error);
    }
    lk_run_tensors(run, tensors);
    if (status == LK_OK) {
        status = lk_checkpoint_fits(&reader, tensors, lk_run_tensor_count(run), error);
    }
    if (status == LK_OK) {
        run->weights_changed = true;
        status = lk_checkpoint_load(&reader, tensors, lk_run_tensor_count(run), steps_done, error);
    }
    if (status == LK_OK) status = lk_run_round(run, file, error);
    if (status == LK_OK && run->needs.checkpoints) warn_of_parting(run, &reader, file, say);
    if (status == LK_OK) take_identity(run, &reader);
    lk_safetensors_close(&reader);
    return status;
}

// What all weights must be below, so that they are finite when rounded; and what holds more.
static const char *limit_of(const lk_model *m) {
    return lk_model_dtype(m) == LK_BF16 ? "3.396e38" : "65520";
}

static const char *wider_than(const lk_model *m) {
    return lk_model_dtype(m) == LK_BF16 ? "float32" : "mixed_bfloat16 or float32";
}

lk_status lk_run_check_initial(const lk_run *run, uint32_t bad, lk_error *error) {
    const lk_program *p = &run->program;
    const lk_model *m = &p->spec->model;
    if (bad == LK_NONE || *run->config.init.file || run->config.evaluates) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: an initial value of %s is infinite in 16 bits, wanted all below %s: %s; "
                   "its initializer is \"%s\": take another one, a smaller value of it, or "
                   "precision %s",
                   run->config.document.source, p->tensors[p->params[bad].tensor].name, limit_of(m),
                   lk_precision_name(m->precision), p->params[bad].initializer->name,
                   wider_than(m));
}

lk_status lk_run_round(lk_run *run, const char *from, lk_error *error) {
    const lk_program *p = &run->program;
    const lk_model *m = &p->spec->model;
    if (!lk_model_is_mixed(m)) return LK_OK;
    const uint32_t bad = lk_mixed_round(p, run->core.device);
    if (bad == LK_NONE) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: a weight of %s is infinite in 16 bits, wanted all below %s: %s; begin "
                   "with smaller ones, or with precision %s",
                   from, p->tensors[p->params[bad].tensor].name, limit_of(m),
                   lk_precision_name(m->precision), wider_than(m));
}

// --- an export -----------------------------------------------------------------------------------

// Parameters, and the states that evaluation reads.
static bool is_exported(const lk_program *p, uint32_t entry) {
    return entry < p->param_count || lk_state_evaluated(p, entry);
}

static bool is_shaped(const lk_safetensors_entry *entry, const lk_tensor *tensor) {
    bool same = entry->dtype == LK_SAFETENSORS_F32 && entry->dim_count == tensor->rank;
    for (uint32_t d = 0; same && d < tensor->rank; d++) same = entry->dims[d] == tensor->shape[d];
    return same;
}

static lk_status refuse_parameters(const lk_safetensors *reader, const char *name, const char *what,
                                   lk_error *error) {
    char shown[LK_TEXT_SHOWN_BYTES];
    return lk_fail(error, LK_BAD_DATA,
                   "%s: its parameters are not those of the model: %s %s; take the configuration "
                   "of the run that it was exported of",
                   reader->path, lk_text_shown(shown, name), what);
}

// Exports have kernels that are divided already, and none of the vectors.
static bool is_vector(const lk_program *p, uint32_t entry, const char *name) {
    const char *word = strrchr(name, '/');
    return entry >= p->param_count && word && strcmp(word, "/vector_u") == 0;
}

static lk_status check_own(const lk_program *p, uint32_t index, const lk_safetensors *reader,
                           lk_error *error) {
    const lk_tensor *tensor = &p->tensors[p->params[index].tensor];
    const lk_safetensors_entry *entry = lk_safetensors_find(reader, tensor->name);
    if (!entry && is_vector(p, index, tensor->name)) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: %s is not there: an export has the divided kernels of "
                       "spectral_normalization; evaluate it with a configuration without that key",
                       reader->path, tensor->name);
    }
    if (!entry) return refuse_parameters(reader, tensor->name, "is not there", error);
    if (is_shaped(entry, tensor)) return LK_OK;
    return refuse_parameters(reader, tensor->name, "has another shape or type there", error);
}

// Every parameter by its name, and none left over.
static lk_status check_parameters(const lk_program *p, const lk_safetensors *reader,
                                  lk_error *error) {
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        if (is_exported(p, i)) LK_CHECK(check_own(p, i, reader, error));
    }
    for (size_t e = 0; e < reader->entry_count; e++) {
        bool known = false;
        for (uint32_t i = 0; i < lk_entry_count(p) && !known; i++) {
            const char *name = p->tensors[p->params[i].tensor].name;
            known = is_exported(p, i) && strcmp(reader->entries[e].name, name) == 0;
        }
        if (!known) {
            return refuse_parameters(reader, reader->entries[e].name,
                                     "is there, and not in the model", error);
        }
    }
    return LK_OK;
}

// Reads them, and compares what they hash to with what the file says.
static lk_status load_parameters(lk_run *run, const lk_safetensors *reader, lk_error *error) {
    const lk_program *p = &run->program;
    const char *digest = lk_safetensors_metadata(reader, "digest");
    char found[LK_SHA256_HEX_BYTES];
    LK_CHECK(check_parameters(p, reader, error));
    run->weights_changed = true;
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        if (!is_exported(p, i)) continue;
        const lk_tensor *tensor = &p->tensors[p->params[i].tensor];
        const lk_safetensors_entry *entry = lk_safetensors_find(reader, tensor->name);
        LK_CHECK(lk_safetensors_read(reader, entry, run->core.device + tensor->offset, error));
    }
    lk_run_digest(run, found);
    const lk_average_calls *averages = p->spec->model.averages;
    if (averages) averages->start(p, run->core.device);
    if (digest && strcmp(digest, found) == 0) return lk_run_round(run, reader->path, error);
    return lk_fail(error, LK_BAD_DATA,
                   "%s: the digest of its parameters is %s, it says %.*s: it was changed or "
                   "damaged; export it again",
                   reader->path, found, 64, digest ? digest : "none");
}

static lk_status load_export(lk_run *run, const lk_safetensors *reader, uint64_t *steps_done,
                             lk_error *error) {
    const char *layout = lk_safetensors_metadata(reader, "layout");
    const char *step = lk_safetensors_metadata(reader, "step");
    char shown[LK_TEXT_SHOWN_BYTES];
    if (strcmp(layout, "keras") != 0) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: is an export of layout \"%s\", whose parameters are turned; wanted one "
                       "of layout keras",
                       reader->path, lk_text_shown(shown, layout));
    }
    *steps_done = step ? strtoull(step, NULL, 10) : 0;
    take_identity(run, reader);
    return load_parameters(run, reader, error);
}

enum { ENTRIES_MIN = 4096 };

bool lk_is_export(const lk_file_ops *ops, const char *file) {
    lk_safetensors reader;
    lk_error none = {.status = LK_OK};
    lk_safetensors_entry *entries = calloc(ENTRIES_MIN, sizeof *entries);
    bool is = false;
    if (entries && lk_safetensors_open(&reader, ops, file, entries, ENTRIES_MIN, &none) == LK_OK) {
        is = lk_safetensors_metadata(&reader, "layout") != NULL;
        lk_safetensors_close(&reader);
    }
    free(entries);
    return is;
}

// An export names its layout; a checkpoint does not. What cannot be read at all is no export
// either: who loads checkpoints says what is wrong with it.
static lk_status try_export(lk_run *run, const lk_file_ops *ops, const char *file,
                            lk_safetensors_entry *entries, size_t capacity, uint64_t *steps_done,
                            bool *is_export, lk_error *error) {
    lk_safetensors reader;
    lk_error none = {.status = LK_OK};
    *is_export = false;
    if (run->needs.checkpoints) return LK_OK;
    if (lk_safetensors_open(&reader, ops, file, entries, capacity, &none) != LK_OK) return LK_OK;
    *is_export = lk_safetensors_metadata(&reader, "layout") != NULL;
    lk_status status = *is_export ? load_export(run, &reader, steps_done, error) : LK_OK;
    lk_safetensors_close(&reader);
    return status;
}

lk_status lk_load_weights(lk_run *run, const lk_file_ops *ops, const char *file,
                          const char *run_dir, const lk_say *say, uint64_t *steps_done,
                          lk_error *error) {
    const uint32_t count = lk_run_tensor_count(run);
    const size_t capacity = LK_MAX(ENTRIES_MIN, (size_t)count);
    lk_checkpoint_found found = {0};
    lk_safetensors_entry *entries = calloc(capacity, sizeof *entries);
    lk_safetensors_tensor *tensors = calloc(count, sizeof *tensors);
    lk_status status =
        entries && tensors ? LK_OK : lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    bool done = false;
    if (status == LK_OK && !file) {
        status = lk_find_weights(ops, run_dir, entries, capacity, say, &found, error);
        file = found.path;
    } else if (status == LK_OK) {
        status = try_export(run, ops, file, entries, capacity, steps_done, &done, error);
    }
    if (status == LK_OK && !done) {
        status = load_file(run, ops, file, entries, capacity, tensors, say, steps_done, error);
    }
    if (status == LK_OK) {
        if (run->cuda) run->cuda->upload(&run->gpus);
        lk_say_line(say, "weights of step %llu from %s", (unsigned long long)*steps_done, file);
    }
    free(entries);
    free(tensors);
    return status;
}
