// import_csv.c - one example a line to IDX, in two passes over the file: what it has, every cell
// checked; then the bytes.
#include "io/import_files.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "io/csv.h"

typedef unsigned long long ull;

static const lk_file_ops *const ops = &lk_file_ops_posix;

// COUNTED_MIN: so few columns that are called 0, 1, .. may as well be values.
enum { FEATURES_MAX = 65535, COUNTED_MIN = 3 };

typedef struct table {
    const char *path;
    int file;
    uint64_t bytes, at;
    uint64_t columns, label;  // the label's, from 0
    bool names_first;         // the first line is one of names
    bool texts;               // labels are names of classes
    bool known;               // classes.txt says what classes there are
    bool number_names;        // .. and calls one of them by a number
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

// NUMBER: also what the C library would read as one, such as nan, 0x10 or " 3".
typedef enum cell_kind { NUMBER, NAME, NOTHING } cell_kind;

static cell_kind kind_of(const lk_csv_cell *cell) {
    static const char *const missing[] = {"na", "n/a", "null", "none"};
    char *end;
    strtod(cell->text, &end);
    if (end != cell->text && end + strspn(end, " \t") == cell->text + cell->letters) return NUMBER;
    bool letter = false;
    for (size_t i = 0; i < cell->letters; i++) {
        const uint8_t small = (uint8_t)cell->text[i] | 0x20;
        letter = letter || (small >= 'a' && small <= 'z') || small >= 0x80;
    }
    for (uint32_t i = 0; i < LK_COUNT(missing); i++) {
        letter = letter && strcasecmp(cell->text, missing[i]) != 0;
    }
    return letter ? NAME : NOTHING;
}

// Of the first line's cells. `wish`: what was asked for by --label.
typedef struct first_line {
    uint64_t kinds[NOTHING + 1];  // how many there are of each
    // How many features are named by their number, from 0: in front of the label, and behind it.
    uint64_t before, after;
    uint64_t wishes, wish_at, second_at;
    cell_kind wish_kind, number_kind, last_kind;
} first_line;

static lk_status read_cells(table *t, const lk_csv_cell *wish, uint64_t number, first_line *line,
                            lk_error *error) {
    lk_csv_cell cell;
    *line = (first_line){.wishes = 0};
    for (cell.last = false; !cell.last; t->columns++) {
        LK_CHECK(lk_csv_next(&t->csv, &cell, error));
        if (cell.end) return lk_fail(error, LK_BAD_DATA, "%s: it is empty", t->path);
        if (t->columns > FEATURES_MAX) return refuse(t, "more than 65,536 columns", error);
        const cell_kind kind = line->last_kind = kind_of(&cell);
        uint64_t value;
        const bool whole = lk_csv_whole(&cell, FEATURES_MAX, &value);
        line->kinds[kind]++;
        line->before += whole && value == t->columns && line->before == t->columns;
        line->after = whole && value + 1 == t->columns ? line->after + 1 : 0;
        if (t->columns + 1 == number) line->number_kind = kind;
        if (wish->letters == 0 || strcmp(cell.text, wish->text) != 0) continue;
        if (line->wishes++ == 0) {
            line->wish_at = t->columns;
            line->wish_kind = kind;
        } else if (line->wishes == 2) {
            line->second_at = t->columns;
        }
    }
    if (t->columns < 2) return refuse(t, "one column, wanted features and a label", error);
    return LK_OK;
}

// Plainly names: no feature is a number and one is a name; or they are called 0, 1, .. and the
// label has a name, as a frame of pandas may be written.
static bool is_of_names(const table *t, const first_line *line, cell_kind label) {
    const uint64_t names = line->kinds[NAME] - (label == NAME);
    const uint64_t numbers = line->kinds[NUMBER] - (label == NUMBER);
    const uint64_t features = t->columns - 1;
    return (names > 0 && numbers == 0) ||
           (label == NAME && features >= COUNTED_MIN && line->before >= t->label &&
            line->after >= features - t->label);
}

// Columns, which of them is the label, and whether the line is one of names: it plainly is, or
// the label was asked for by its name. A number is a column's; if there is none, a name's.
static lk_status read_first(table *t, const lk_csv_columns *columns, lk_error *error) {
    lk_csv_cell wish = {.letters = 0};
    uint64_t number = 0;
    first_line line;
    if (columns->label && strlen(columns->label) < sizeof wish.text) {
        wish.letters = strlen(columns->label);
        memcpy(wish.text, columns->label, wish.letters + 1);
    }
    if (!lk_csv_whole(&wish, FEATURES_MAX + 1, &number)) number = 0;
    LK_CHECK(read_cells(t, &wish, number, &line, error));
    const bool by_number = number >= 1 && number <= t->columns;
    const bool by_name = columns->label && !by_number;
    t->label = !columns->label ? t->columns - 1 : by_number ? number - 1 : line.wish_at;
    const cell_kind label = !columns->label ? line.last_kind
                            : by_number     ? line.number_kind
                                            : line.wish_kind;
    const bool plainly = is_of_names(t, &line, label);
    if (by_name && (line.wishes == 0 || (label == NUMBER && !plainly))) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--label: %s has no column \"%s\"; its columns are %llu", t->path,
                       columns->label, (ull)t->columns);
    }
    if (by_name && line.wishes > 1) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: line 1, column %llu: the label's name for the second time", t->path,
                       (ull)line.second_at + 1);
    }
    t->names_first = by_name || plainly;
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
    return refuse(t,
                  t->csv.line > 1
                      ? "no finite number; a label in another column is said by --label"
                      : "no finite number; if the first line is one of names, say the label's by "
                        "--label",
                  error);
}

static uint32_t number_of(const table *t, const lk_csv_cell *cell) {
    return lk_class_list_find(t->classes, cell->text, cell->letters);
}

// A whole number, also as others write one among floats: 10.0.
static bool read_label(const lk_csv_cell *cell, uint64_t *number) {
    lk_csv_cell whole = {.letters = strcspn(cell->text, ".")};
    const char *point = cell->text + whole.letters;
    if (*point && (!point[1] || point[1 + strspn(point + 1, "0")])) return false;
    memcpy(whole.text, cell->text, whole.letters);
    return lk_csv_whole(&whole, UINT64_MAX, number);
}

static lk_status check_number(table *t, uint64_t number, lk_error *error) {
    if (number >= LK_CLASSES_MAX) {
        return refuse(t, "a label above 65535, wanted 0 to 65535", error);
    }
    if (t->known && number >= t->classes->count) {
        return refuse(t, "a label that is not in classes.txt: it has fewer classes", error);
    }
    t->greatest = LK_MAX(t->greatest, number);
    return LK_OK;
}

static lk_status check_label(table *t, const lk_csv_cell *cell, lk_error *error) {
    uint64_t number;
    float ignored;
    if (cell->letters == 0) return refuse(t, "the label is missing", error);
    const bool whole = !t->number_names && read_label(cell, &number);
    if (!whole && !t->number_names && lk_csv_number(cell, &ignored)) {
        return refuse(t, "a label that is no whole number from 0 to 65535", error);
    }
    if (t->rows == 0) t->texts = !whole;
    if (t->texts == whole) {
        return refuse(t,
                      t->rows == 1 && !t->names_first && whole
                          ? "a number among labels that are names; if the first line is one of "
                            "names, say the label's by --label"
                          : "a number among labels that are names, or a name among numbers",
                      error);
    }
    if (!t->texts) return check_number(t, number, error);
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
    else if (!read_label(cell, &value) || value > t->greatest)
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

// Where a class is called by a number, as folders of digits are, labels are names, whatever they
// look like.
static void look_at_names(table *t) {
    lk_csv_cell name;
    uint64_t ignored;
    t->known = t->classes->count > 0;
    for (uint32_t i = 0; i < t->classes->count && !t->number_names; i++) {
        name.letters = lk_format(name.text, sizeof name.text, "%s", t->classes->names[i]);
        t->number_names = lk_csv_whole(&name, UINT64_MAX, &ignored);
    }
}

static lk_status import_table(table *t, lk_import_files *f, const lk_csv_columns *columns,
                              const lk_import_to *to, lk_imported out[2], lk_error *error) {
    lk_imported of;
    rewind_table(t);
    LK_CHECK(read_first(t, columns, error));
    LK_CHECK(lk_import_known_names(to, t->classes, error));
    look_at_names(t);
    LK_CHECK(each_cell(t, check_cell, NULL, error));
    if (t->rows == 0) return lk_fail(error, LK_BAD_DATA, "%s: there is no example in it", t->path);
    LK_CHECK(find_shape(t, columns, &of, error));
    if (!t->known) lk_class_list_sort(t->classes);
    of.first_line = t->names_first ? LK_FIRST_NAMES : LK_FIRST_EXAMPLE;
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
