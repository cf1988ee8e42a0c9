// Fuzz target (libFuzzer): any text as TF_CONFIG; text behind a line "--- variables" is the
// environment, NAME=value a line.
//
// What is understood must hold together: ranks below the world, good addresses, no two alike, the
// same when it is read again. What is refused must be refused in one line.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT_BYTES = 1 << 16 };
static char text[TEXT_BYTES + 2];
static size_t bytes, variables;  // of the text; where the variables begin

// The lines behind `variables` have been cut into strings.
static const char *find(void *context, const char *name) {
    (void)context;
    size_t length = strlen(name);
    if (strcmp(name, "TF_CONFIG") == 0) return text;
    for (size_t at = variables; at < bytes; at += strlen(text + at) + 1) {
        const char *line = text + at;
        if (strncmp(line, name, length) == 0 && line[length] == '=') return line + length + 1;
    }
    return NULL;
}

static void require(bool holds) {
    if (!holds) abort();
}

static void check(const lk_cluster *c) {
    require(c->world <= LK_CLUSTER_WORLD_MAX);
    require((c->source == LK_CLUSTER_NONE) == (c->origin[0] == '\0'));
    require(c->evaluator ? c->rank == 0 : c->rank < c->world);
    for (uint32_t r = 0; r < c->world; r++) {
        const char *address = c->address[r];
        size_t length = strnlen(address, LK_ADDRESS_BYTES);
        if (length == 0) continue;
        require(lk_address_wrong(address, length) == NULL);
        require(strcmp(address, c->evaluator_address) != 0);
        for (uint32_t other = 0; other < r; other++)
            require(strcmp(address, c->address[other]) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lk_cluster first, again;
    static const char marker[] = "--- variables\n";
    const lk_cluster_input input = {.variable = find};
    lk_error error = {.status = LK_OK};
    if (size > TEXT_BYTES) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    char *line = strstr(text, marker);
    bytes = size;
    variables = line ? (size_t)(line - text) + sizeof marker - 1 : size;
    if (line) *line = '\0';
    for (size_t i = variables; i < size; i++) text[i] = text[i] == '\n' ? '\0' : text[i];
    lk_status status = lk_cluster_read(&input, &first, NULL, &error);
    require(status == error.status);
    if (status == LK_OK) {
        check(&first);
        require(lk_cluster_read(&input, &again, NULL, &error) == LK_OK);
        require(memcmp(&first, &again, sizeof first) == 0);
    } else {
        require(error.text[0] != '\0' && !strchr(error.text, '\n'));
    }
    return 0;
}
