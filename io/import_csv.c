// import_csv.c - one example a line to IDX, in two passes over the file: what it has, every cell
// checked; then the bytes.
#include "io/import_files.h"

#include <string.h>

#include "io/csv.h"

typedef unsigned long long ull;

static const lk_file_ops *const ops = &lk_file_ops_posix;

enum { FEATURES_MAX = 65535 };

typedef struct table {
    const char *path;
    int file;
    uint64_t bytes, at;
    uint64_t columns, label;  // the label's, from 0
    bool names_first;         // the first line is one of names
    bool texts;               // labels are names of classes
    bool known;               // .. which classes.txt says
    uint64_t greatest;        // label that is a number
    uint64_t rows;            // without the first line, if that is one of names
    lk_class_list *classes;
    lk_csv csv;
} table;

static lk_status more(void *context, uint8_t *out, size_t bytes, size_t *count, lk_error *error) {
    table *t = context;
    *count = (size_t)LK_MIN(bytes, t->bytes - t->at);
    LK_CHECK(lk_file_read_all(ops, t->file, t->path, out, *count, t->at, error));
    t->at += *count;
    return LK_OK;
}

static void rewind_table(table *t) {
    t->at = 0;
    lk_csv_start(&t->csv, t->path, more, t);
}

static lk_status refuse(const table *t, const char *what, lk_error *error) {
    return lk_fail(error, LK_BAD_DATA, "%s: line %llu, column %llu: %s", t->path, (ull)t->csv.line,
                   (ull)t->csv.column, what);
}

// --- what the first line says --------------------------------------------------------------------

// Columns, which of them is the label, and whether the line is one of names: a feature is no
// number, or the label was asked for by its name.
static lk_status read_first(table *t, const lk_csv_columns *columns, lk_error *error) {
    lk_csv_cell cell, wish = {.letters = 0};
    uint64_t number = 0, words = 0;
    bool named = false, last_word = false, label_word = false;
    float ignored;
    if (columns->label && strlen(columns->label) < sizeof wish.text) {
        wish.letters = strlen(columns->label);
        memcpy(wish.text, columns->label, wish.letters + 1);
    }
    const bool by_number = lk_csv_whole(&wish, FEATURES_MAX + 1, &number);
    for (cell.last = false; !cell.last; t->columns++) {
        LK_CHECK(lk_csv_next(&t->csv, &cell, error));
        if (cell.end) return lk_fail(error, LK_BAD_DATA, "%s: it is empty", t->path);
        if (t->columns > FEATURES_MAX) return refuse(t, "more than 65,536 columns", error);
        last_word = !lk_csv_number(&cell, &ignored);
        words += last_word;
        const bool here = by_number ? t->columns + 1 == number
                                    : columns->label && strcmp(cell.text, columns->label) == 0;
        if (!here) continue;
        if (named) return refuse(t, "the label's name for the second time", error);
        named = true;
        t->label = t->columns;
        label_word = last_word;
    }
    if (columns->label && !named) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--label: %s has no column \"%s\"; its columns are %llu", t->path,
                       columns->label, (ull)t->columns);
    }
    if (!columns->label) {
        t->label = t->columns - 1;
        label_word = last_word;
    }
    if (t->columns < 2) return refuse(t, "one column, wanted features and a label", error);
    t->names_first = (columns->label && !by_number) || words > label_word;
    return LK_OK;
}

// --- the lines -----------------------------------------------------------------------------------

// One cell of a line of an example: -1 for the label, or the feature's value.
static lk_status check_feature(const table *t, const lk_csv_cell *cell, uint64_t *value,
                               lk_error *error) {
    float number;
    if (cell->letters == 0) return refuse(t, "the cell is empty, wanted a number", error);
    if (lk_csv_whole(cell, 255, value)) return LK_OK;
    if (lk_csv_number(cell, &number)) {
        return refuse(t, "a number that is not whole or not from 0 to 255", error);
    }
    return refuse(t, "no finite number; a label in another column is said by --label", error);
}

static uint32_t number_of(const table *t, const lk_csv_cell *cell) {
    return lk_class_list_find(t->classes, cell->text, cell->letters);
}

static lk_status check_label(table *t, const lk_csv_cell *cell, lk_error *error) {
    uint64_t number;
    if (cell->letters == 0) return refuse(t, "the label is missing", error);
    const bool whole = lk_csv_whole(cell, UINT64_MAX, &number);
    if (t->rows == 0) t->texts = !whole;
    if (t->texts == whole) {
        return refuse(t, "a number among labels that are names, or a name among numbers", error);
    }
    if (!t->texts) {
        t->greatest = LK_MAX(t->greatest, number);
        return number < LK_CLASSES_MAX
                   ? LK_OK
                   : refuse(t, "a label above 65535, wanted 0 to 65535", error);
    }
    if (number_of(t, cell) < t->classes->count) return LK_OK;
    if (t->known) return refuse(t, "a label that is not in classes.txt", error);
    if (lk_class_list_add(t->classes, cell->text, cell->letters)) return LK_OK;
    return refuse(t, "one class more than 65,536, or no name of at most 63 printing letters",
                  error);
}

typedef lk_status (*cell_visitor)(table *t, void *context, bool is_label, const lk_csv_cell *cell,
                                  lk_error *error);

// All cells of all examples; every line has as many as the first.
static lk_status each_cell(table *t, cell_visitor visit, void *context, lk_error *error) {
    lk_csv_cell cell;
    bool skip = t->names_first;
    rewind_table(t);
    t->rows = 0;
    for (;;) {
        uint64_t column = 0;
        do {
            LK_CHECK(lk_csv_next(&t->csv, &cell, error));
            if (cell.end) return LK_OK;
            if (column == t->columns) return refuse(t, "more cells than the first line has", error);
            if (!skip) LK_CHECK(visit(t, context, column == t->label, &cell, error));
            column++;
        } while (!cell.last);
        if (column < t->columns) return refuse(t, "fewer cells than the first line has", error);
        t->rows += !skip;
        skip = false;
    }
}

static lk_status check_cell(table *t, void *context, bool is_label, const lk_csv_cell *cell,
                            lk_error *error) {
    uint64_t ignored;
    (void)context;
    return is_label ? check_label(t, cell, error) : check_feature(t, cell, &ignored, error);
}

static lk_status copy_cell(table *t, void *context, bool is_label, const lk_csv_cell *cell,
                           lk_error *error) {
    lk_import_files *f = context;
    const lk_import_part part = lk_import_place(f, t->rows);
    uint64_t value = 0;
    if (!is_label) {
        LK_CHECK(check_feature(t, cell, &value, error));
        const uint8_t byte = (uint8_t)value;
        return lk_import_image(f, part, &byte, 1, error);
    }
    if (t->texts)
        value = number_of(t, cell);
    else if (!lk_csv_whole(cell, t->greatest, &value))
        value = UINT64_MAX;
    if (value == UINT64_MAX || (t->texts && value == t->classes->count)) {
        return refuse(t, "the file changed while it was read", error);
    }
    return lk_import_label(f, part, (uint32_t)value, error);
}

// --- all -----------------------------------------------------------------------------------------

static lk_status find_shape(const table *t, const lk_csv_columns *columns, lk_imported *of,
                            lk_error *error) {
    const uint64_t features = t->columns - 1;
    const uint32_t *shape = columns->shape;
    *of = (lk_imported){.height = 1, .width = (uint32_t)features, .channels = 1};
    if (!shape[0]) return LK_OK;
    of->height = shape[0];
    of->width = shape[1];
    of->channels = shape[2];
    if ((uint64_t)shape[0] * shape[1] * shape[2] == features) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: found %llu features, wanted %u x %u x %u by --shape",
                   t->path, (ull)features, shape[0], shape[1], shape[2]);
}

static lk_status import_table(table *t, lk_import_files *f, const lk_csv_columns *columns,
                              const lk_import_to *to, lk_imported out[2], lk_error *error) {
    lk_imported of;
    rewind_table(t);
    LK_CHECK(read_first(t, columns, error));
    LK_CHECK(lk_import_known_names(to, t->classes, error));
    t->known = t->classes->count > 0;
    LK_CHECK(each_cell(t, check_cell, NULL, error));
    if (t->rows == 0) return lk_fail(error, LK_BAD_DATA, "%s: there is no example in it", t->path);
    LK_CHECK(find_shape(t, columns, &of, error));
    if (!t->known) lk_class_list_sort(t->classes);
    of.classes = t->classes->count;
    of.label_type = lk_idx_label_type(t->texts ? of.classes : (uint32_t)t->greatest + 1);
    const uint64_t rows = t->rows;
    LK_CHECK(lk_import_start(f, to, out, error));
    LK_CHECK(lk_import_begin(f, rows, &of, error));
    LK_CHECK(each_cell(t, copy_cell, f, error));
    if (t->rows != rows) return refuse(t, "the file changed while it was read", error);
    if (t->texts && !t->known) LK_CHECK(lk_import_list(f, t->classes, error));
    return lk_import_finish(f, error);
}

lk_status lk_import_csv(const char *path, const lk_csv_columns *columns, const lk_import_to *to,
                        lk_class_list *classes, lk_imported out[2], lk_error *error) {
    table t = {.path = path, .classes = classes};
    lk_import_files f;
    f.file_count = 0;
    LK_CHECK(lk_file_open_read(ops, path, &t.file, &t.bytes, error));
    lk_status status = import_table(&t, &f, columns, to, out, error);
    ops->close(ops->context, t.file);
    lk_import_abandon(&f);
    return status;
}
