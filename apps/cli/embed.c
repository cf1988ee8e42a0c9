// embed.c - lockstep embed: a run as one C source, for targets that have no files to read it from.
//
// The source holds what decides the bits (the spec and the examples) and what the host knows of
// them (data hash, run identity, bytes of the core's arena), so that the target can compare. It is
// compiled with apps/baremetal/train.c; nothing in it depends on the target.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/embed.h"
#include "ops/graph/spectral.h"

typedef unsigned long long ull;

enum { TEXT_COLUMNS = 88 };

// --- strings -------------------------------------------------------------------------------------

// Bytes as the literals of one string, a line each. Each byte as short as an octal escape can be,
// since what follows it is one too or ends the literal.
typedef struct literal {
    FILE *file;
    int column;
} literal;

static void put_bytes(literal *l, const uint8_t *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        if (l->column == 0) fputs("    \"", l->file);
        l->column += fprintf(l->file, "\\%o", bytes[i]);
        if (l->column < TEXT_COLUMNS) continue;
        fputs("\"\n", l->file);
        l->column = 0;
    }
}

static void end_bytes(literal *l) {
    fputs(l->column ? "\";\n" : "    ;\n", l->file);
    l->column = 0;
}

void lk_embed_string(FILE *f, const char *text) {
    fputc('"', f);
    for (const char *c = text; *c; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                     (*c >= '0' && *c <= '9') || *c == '_' || *c == '-' || *c == '.' || *c == ' ';
        if (plain)
            fputc(*c, f);
        else
            fprintf(f, "\\%03o", (unsigned)(uint8_t)*c);
    }
    fputc('"', f);
}

static const char *truth(bool value) { return value ? "true" : "false"; }

// --- the spec ------------------------------------------------------------------------------------

static void put_list(FILE *f, const lk_setting *k, const void *list) {
    const lk_steps_list *steps = list;
    const lk_floats_list *floats = list;
    const bool whole = k->kind == LK_SETTING_STEPS;
    const uint32_t count = whole ? steps->count : floats->count;
    fprintf(f, ",\n     .%s = {.count = %uu, .at = {", k->name, count);
    for (uint32_t i = 0; i < count; i++) {
        if (whole)
            fprintf(f, "%s%lluu", i ? ", " : "", (ull)steps->at[i]);
        else
            fprintf(f, "%s%af", i ? ", " : "", (double)floats->at[i]);
    }
    fprintf(f, "}}");
}

static void put_rate(FILE *f, const char *name, const lk_rate *rate);

// A field as a designated initializer.
static void put_field(FILE *f, const lk_setting *k, const void *owner) {
    const uint8_t *field = (const uint8_t *)owner + k->offset;
    const uint32_t *u = (const uint32_t *)(const void *)field;
    const void *const *pointer = (const void *const *)(const void *)field;
    const char *name = k->field ? k->field : k->name;
    if (k->kind == LK_SETTING_CHOICE) fprintf(f, ",\n     .%s = %uu", name, *u);
    switch (k->kind) {
    case LK_SETTING_U32: fprintf(f, ",\n     .%s = %uu", name, *u); break;
    case LK_SETTING_PAIR:
        fprintf(f, ",\n     .%s_h = %uu, .%s_w = %uu", name, u[0], name, u[1]);
        break;
    case LK_SETTING_BOOL: fprintf(f, ",\n     .%s = %s", name, truth(*(const bool *)field)); break;
    case LK_SETTING_FLOAT:
        fprintf(f, ",\n     .%s = %af", name, (double)*(const float *)(const void *)field);
        break;
    case LK_SETTING_PADDING:
        fprintf(f, ",\n     .%s = LK_PADDING_%s", name, *u == LK_PADDING_SAME ? "SAME" : "VALID");
        break;
    case LK_SETTING_ACTIVATION:
        if (!*pointer) break;
        fprintf(f, ",\n     .%s = &lk_layer_%s", name, lk_layer_words_of(*pointer)->name);
        break;
    case LK_SETTING_INITIALIZER:
        fprintf(f, ",\n     .%s = &lk_initializer_%s", name,
                ((const lk_initializer *)*pointer)->name);
        break;
    case LK_SETTING_U64:
        fprintf(f, ",\n     .%s = %lluu", name, (ull) * (const uint64_t *)(const void *)field);
        break;
    case LK_SETTING_STEPS:
    case LK_SETTING_FLOATS: put_list(f, k, field); break;
    case LK_SETTING_RATE: put_rate(f, name, (const lk_rate *)(const void *)field); break;
    case LK_SETTING_SHAPE:
        fprintf(f, ",\n     .%s = {.count = %uu, .at = {%uu, %uu, %uu}}", name, u[0], u[1], u[2],
                u[3]);
        break;
    case LK_SETTING_SIDES:
        fprintf(f, ",\n     .%s = {%uu, %uu, %uu, %uu}", name, u[0], u[1], u[2], u[3]);
        break;
    case LK_SETTING_CHOICE: break;
    case LK_SETTING_WEIGHTS: break;  // there are none: check_model
    case LK_SETTING_L2:              // of layers alone, which are compiled already
    case LK_SETTING_TEXT:
        lk_panic(__FILE__, __LINE__, "a kind of key that no layer or optimizer has");
    }
}

static void put_rate(FILE *f, const char *name, const lk_rate *rate) {
    const lk_rate_words *words = lk_rate_words_of(rate->type);
    fprintf(f, ",\n     .%s = {.type = &lk_rate_%s", name, words->name);
    for (uint32_t i = 0; i < words->key_count; i++) put_field(f, &words->keys[i], rate);
    fprintf(f, "}");
}

static void put_optimizer(FILE *f, const lk_optimizer *o) {
    const lk_optimizer_words *words = lk_optimizer_words_of(o->type);
    fprintf(f, "        .optimizer = {.type = &lk_optimizer_%s", words->name);
    for (uint32_t i = 0; i < words->key_count; i++) put_field(f, &words->keys[i], o);
    fprintf(f, "},\n");
}

static void put_loss(FILE *f, const lk_model *m) {
    const lk_loss_words *words = lk_loss_words_of(m->loss);
    const lk_loss_options *o = &m->loss_options;
    fprintf(f, "                  .loss = &lk_loss_%s,\n", words->name);
    fprintf(f, "                  .loss_options = {.input_count = %uu, .inputs = {%uu, %uu}",
            o->input_count, o->inputs[0], o->inputs[1]);
    for (uint32_t i = 0; i < words->key_count; i++) put_field(f, &words->keys[i], o);
    fprintf(f, "}},\n");
}

// Mixed precision, and how its loss is scaled.
static void put_precision(FILE *f, const lk_model *m) {
    const lk_loss_scale *s = &m->loss_scale;
    if (!lk_model_is_mixed(m)) return;
    fprintf(f, "                  .precision = (lk_precision)%u, .skips = %s,\n",
            (unsigned)m->precision, truth(m->skips));
    if (m->precision != LK_MIXED_FLOAT16) return;
    fprintf(f,
            "                  .loss_scale = {.is_static = %uu, .initial = %af, .growth = %af,\n"
            "                                 .backoff = %af, .least = %af, .growth_steps = %uu,\n"
            "                                 .replays = %uu, .skips_max = %uu},\n",
            s->is_static, (double)s->initial, (double)s->growth, (double)s->backoff,
            (double)s->least, s->growth_steps, s->replays, s->skips_max);
}

// Floats as hexadecimal: exact, in any compiler.
static void put_spec(FILE *f, const lk_run_spec *s) {
    const lk_model *m = &s->model;
    fprintf(f, "    .spec = {\n");
    fprintf(f, "        .model = {.in_h = %uu, .in_w = %uu, .in_c = %uu, .classes = %uu,\n",
            m->in_h, m->in_w, m->in_c, m->classes);
    if (m->input_type) fprintf(f, "                  .input_type = %uu,\n", m->input_type);
    if (m->input_range) fprintf(f, "                  .input_range = %uu,\n", m->input_range);
    if (m->labels) fprintf(f, "                  .labels = %uu,\n", m->labels);
    put_precision(f, m);
    if (m->averages) fprintf(f, "                  .averages = &lk_average_linked,\n");
    put_loss(f, m);
    put_optimizer(f, &s->optimizer);
    fprintf(f, "        .seed = %lluu,\n        .global_batch = %uu,\n        .grain = %uu,\n",
            (ull)s->seed, s->global_batch, s->grain);
    fprintf(f, "        .drop_remainder = %s,\n        .example_count = %lluu,\n",
            truth(s->drop_remainder), (ull)s->example_count);
    fprintf(f, "        .data_hash = {");
    for (uint32_t i = 0; i < LK_SHA256_BYTES; i++)
        fprintf(f, "%s0x%02x",
                i == 0  ? ""
                : i % 8 ? ", "
                        : ",\n                      ",
                s->data_hash[i]);
    fprintf(f, "},\n");
    if (s->shards)
        fprintf(f, "        .shards = %uu,\n        .shard_first = shard_first,\n", s->shards);
    fprintf(f, "    },\n");
}

static void put_shards(FILE *f, const lk_run_spec *s) {
    if (s->shards == 0) return;
    fprintf(f, "\n// The first example of each shard, and the number of all.\n");
    fprintf(f, "static const uint64_t shard_first[%u] = {", s->shards + 1);
    for (uint32_t k = 0; k <= s->shards; k++)
        fprintf(f, "%s%lluu,", k % 6 ? " " : "\n    ", (ull)s->shard_first[k]);
    fprintf(f, "\n};\n");
}

// --- the source ----------------------------------------------------------------------------------

// Floats as IDX files have them, wherever they came from.
static void put_image(literal *text, const lk_dataset *set, const uint8_t *image) {
    for (uint64_t i = 0; set->native && i < set->image_bytes; i += sizeof(float)) {
        uint8_t value[sizeof(float)];
        memcpy(value, image + i, sizeof value);
        lk_idx_turn_floats(value, sizeof value);
        put_bytes(text, value, sizeof value);
    }
    if (!set->native) put_bytes(text, image, set->image_bytes);
}

static void put_examples(FILE *f, const lk_dataset *set) {
    literal text = {.file = f};
    fprintf(f, "\n// Image after image, each (height, width, channels).\n");
    fprintf(f, "static const uint8_t images[%llu] LK_EMBEDDED_EXAMPLES =\n",
            (ull)(set->count * set->image_bytes));
    for (uint64_t i = 0; i < set->count; i++)
        put_image(&text, set, lk_dataset_image(set, i));
    end_bytes(&text);
    fprintf(f, "\nstatic const uint8_t labels[%llu] LK_EMBEDDED_EXAMPLES =\n",
            (ull)(set->count * set->label_bytes));
    const uint32_t row = lk_dataset_label_row(set);
    for (uint64_t i = 0; i < set->count * row; i++) {
        uint8_t label[2];
        const bool frames = row > 1 && i % row == 0;  // of a sequence
        put_bytes(&text, label,
                  lk_idx_put_label(label, lk_dataset_label(set, i),
                                   frames ? LK_IDX_U16 : set->label_type));
    }
    end_bytes(&text);
}

// What an image is made with beside what every run needs: CMakeLists.txt reads these lines.
static void put_parts(FILE *f, const lk_run *run) {
    const lk_model *m = &run->config.spec.model;
    const struct {
        bool asked;
        const char *name, *what;
    } parts[] = {{lk_model_is_mixed(m), "MIXED", "mixed precision"},
                 {m->labels > 0, "LABELS", "sequences of labels"},
                 {lk_program_norm(&run->program) != LK_NORM_NONE, "NORMS", "norms"},
                 {lk_spectral_count(m) > 0, "SPECTRAL", "spectral_normalization"}};
    for (uint32_t i = 0; i < LK_COUNT(parts); i++) {
        if (!parts[i].asked) continue;
        fprintf(f, "_Static_assert(LK_HAS_%s, \"built without %s: configure it again\");\n",
                parts[i].name, parts[i].what);
    }
}

static void put_source(FILE *f, const lk_run *run) {
    const lk_run_spec *s = &run->config.spec;
    fprintf(f, "// A training run as constants. Written by lockstep %s embed; not to be edited.\n",
            LK_VERSION);
    fprintf(f, "#include \"apps/baremetal/embedded.h\"\n\n");
    fprintf(f, "_Static_assert(LK_ARITHMETIC_VERSION == %d && LK_PROGRAM_FORMAT == %d,\n",
            LK_ARITHMETIC_VERSION, LK_PROGRAM_FORMAT);
    fprintf(f, "               \"another version of Lockstep wrote this: embed it again\");\n");
    put_parts(f, run);
    fprintf(f, "\n");
    lk_embed_program(f, &run->program);
    put_shards(f, s);
    put_examples(f, &run->train);
    fprintf(f, "\nstatic uint8_t arena[%llu] LK_EMBEDDED_ARENA;\n", (ull)run->core_bytes);
    fprintf(f, "\nconst lk_embedded lk_embedded_run = {\n    .name = ");
    lk_embed_string(f, *run->config.name ? run->config.name : "unnamed");
    fprintf(f, ",\n    .run_identity = \"%s\",\n", run->identity_hex);
    put_spec(f, s);
    fprintf(f, "    .program = &program,\n    .steps = %lluu,\n    .log_every_steps = %lluu,\n",
            (ull)lk_run_steps(run), (ull)run->config.log_every_steps);
    fprintf(f, "    .images = images,\n    .labels = labels,\n    .label_bytes = %uu,\n",
            run->train.label_bytes);
    if (run->train.label_type == LK_IDX_U16) fprintf(f, "    .label_type = LK_IDX_U16,\n");
    fprintf(f, "    .arena = arena,\n");
    fprintf(f, "    .arena_bytes = sizeof arena,\n};\n");
}

// Whole, or what was there before stays. What is no plain file, such as a pipe, gets it directly.
static lk_status write_source(const lk_run *run, const char *path, lk_error *error) {
    struct stat there;
    char temporary[LK_PATH_BYTES];
    bool plain = stat(path, &there) != 0 || S_ISREG(there.st_mode);
    int file = -1;
    if (plain) LK_CHECK(lk_file_create_beside(&lk_file_ops_posix, path, temporary, &file, error));
    FILE *f = plain ? fdopen(file, "w") : fopen(path, "we");
    if (!f) return lk_file_fail(error, LK_IO_ERROR, plain ? temporary : path, "create", -errno);
    errno = 0;
    put_source(f, run);
    bool good = fflush(f) == 0 && !ferror(f) && (!plain || fsync(fileno(f)) == 0);
    int number = errno;
    good = fclose(f) == 0 && good;
    if (good && (!plain || lk_file_publish(&lk_file_ops_posix, temporary, path, error) == LK_OK)) {
        return LK_OK;
    }
    if (plain) (void)remove(temporary);
    if (good) return error->status;
    return lk_fail(error, LK_IO_ERROR, "%s: writing failed: %s; make room and start it again",
                   plain ? temporary : path, strerror(number ? number : EIO));
}

// What boards do not compute.
static lk_status check_arithmetic(const lk_run *run, lk_error *error) {
    if (lk_run_is_fast(run)) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "embed: arithmetic \"fast\" needs a GPU, which a target without an "
                       "operating system has not; use \"strict\"");
    }
    if (lk_spec_augments(&run->config.spec, true) || lk_spec_crops(&run->config.spec)) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "embed: %s: data.augment, data.normalize: boards take images as they are; "
                       "leave them out, or train this one here",
                       run->config.document.source);
    }
    if (lk_spec_has_strips(&run->config.spec)) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "embed: %s: data.strips: boards make none yet; use sequences that were "
                       "imported (lockstep data import sequences), or train this one here",
                       run->config.document.source);
    }
    return LK_OK;
}

static lk_status check_model(const lk_run *run, lk_error *error) {
    if (run->config.spec.model.graph) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: model.networks: embed writes models of one network and one objective; "
                       "train this one here",
                       run->config.document.source);
    }
    if (*run->config.init.file) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: init.file: embed writes runs that begin with what their initializers "
                       "make; leave it out, or train this one here",
                       run->config.document.source);
    }
    if (*run->config.early.metric) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: early_stopping: embed writes runs of a length that is known, and "
                       "boards evaluate at the end alone; leave it out, or train this one here",
                       run->config.document.source);
    }
    if (run->config.spec.model.loss_options.class_weight.at) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "embed: %s: model.loss.class_weight: boards know none yet; leave it out, or "
                       "train this one here",
                       run->config.document.source);
    }
    for (uint32_t i = 0; i < run->config.spec.model.layer_count; i++) {
        const lk_layer *l = &run->config.spec.model.layers[i];
        if (l->l2 == 0.0f) continue;
        return lk_fail(error, LK_UNAVAILABLE,
                       "embed: %s: kernel_regularizer of layer %s: boards know none yet; leave it "
                       "out, or train this one here",
                       run->config.document.source, l->name);
    }
    return LK_OK;
}

static lk_status embed(lk_run *run, const lk_common_options *o, lk_error *error) {
    if (!o->to)
        return lk_fail(error, LK_BAD_USAGE,
                       "embed: --to is missing, wanted the C source to write: --to run.c");
    LK_CHECK(lk_output_of_no_run("--to", o->to, NULL, error));
    LK_CHECK(lk_check_inputs(o, "--to", o->to, error));
    LK_CHECK(lk_output_of_no_input("--to", o->to, &run->config, error));
    LK_CHECK(check_arithmetic(run, error));
    LK_CHECK(check_model(run, error));
    // A target without an operating system has one lane, unless somebody says otherwise.
    if (!run->config.replicas) run->layout.replicas = 1;
    LK_CHECK(lk_run_plan(run, error));
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    LK_CHECK(write_source(run, o->to, error));
    printf("%s: %llu examples, %llu steps; arena %llu bytes\nrun_identity %s\n", o->to,
           (ull)run->train.count, (ull)lk_run_steps(run), (ull)run->core_bytes, run->identity_hex);
    return LK_OK;
}

lk_status lk_command_embed(int argc, char **argv, lk_error *error) {
    static lk_run run;
    lk_common_options o;
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_EMBED, &o, error));
    const lk_run_needs needs = {.checkpoints = false, .logs = false};
    o.config.workers = 1;
    lk_status status = lk_run_configure(&run, &o.config, needs, error);
    if (status == LK_OK) status = embed(&run, &o, error);
    lk_run_close(&run);
    return status;
}
