// counts.cpp - what a profiler would count, of each kernel that ran: written at the end of the
// program to the file that LOCKSTEP_PTX_COUNTS names. counts.py makes a table of it.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ptx.h"

namespace {

std::vector<lk_ptx_kernel *> *kernels;

const char *const KINDS[] = {
#define LK_PTX_KIND(name, text) text,
    LK_PTX_KINDS(LK_PTX_KIND)
#undef LK_PTX_KIND
};

// The lines of a kind that some warp came to.
void write_lines(FILE *f, const lk_ptx_kernel *k, lk_ptx_kind kind) {
    const char *comma = "";
    for (size_t n = 0; n < k->code.size(); n++) {
        if (k->code[n].kind != kind || k->counts[n].runs == 0) continue;
        fprintf(f, "%s%" PRIu32, comma, k->code[n].line);
        comma = ",";
    }
}

void write_kernel(FILE *f, const lk_ptx_kernel *k) {
    uint64_t runs[LK_PTX_KIND_COUNT] = {0}, lanes[LK_PTX_KIND_COUNT] = {0};
    uint64_t sectors[LK_PTX_KIND_COUNT] = {0}, bytes[LK_PTX_KIND_COUNT] = {0};
    uint64_t passes[LK_PTX_KIND_COUNT] = {0}, optimum[LK_PTX_KIND_COUNT] = {0}, diverged = 0;
    for (size_t n = 0; n < k->code.size(); n++) {
        const lk_ptx_count &c = k->counts[n];
        const uint8_t kind = k->code[n].kind;
        runs[kind] += c.runs, lanes[kind] += c.lanes;
        sectors[kind] += c.sectors, bytes[kind] += c.bytes;
        passes[kind] += c.passes, optimum[kind] += c.optimum;
        diverged += c.diverged;
    }
    fprintf(f,
            "{\"kernel\":\"%s\",\"launches\":%" PRIu64 ",\"blocks\":%" PRIu64 ",\"warps\":%" PRIu64
            ",\"diverged\":%" PRIu64 ",\"kinds\":{",
            k->name.c_str(), k->launches, k->blocks, k->warps, diverged);
    const char *comma = "";
    for (uint32_t n = 0; n < LK_PTX_KIND_COUNT; n++) {
        if (runs[n] == 0) continue;
        fprintf(f,
                "%s\"%s\":{\"runs\":%" PRIu64 ",\"lanes\":%" PRIu64 ",\"sectors\":%" PRIu64
                ",\"bytes\":%" PRIu64 ",\"passes\":%" PRIu64 ",\"optimum\":%" PRIu64 "}",
                comma, KINDS[n], runs[n], lanes[n], sectors[n], bytes[n], passes[n], optimum[n]);
        comma = ",";
    }
    fprintf(f, "},\"barriers\":[");
    write_lines(f, k, LK_PTX_BARRIER);
    fprintf(f, "],\"groups\":[");
    write_lines(f, k, LK_PTX_GROUP);
    fprintf(f, "]}");
}

void write_all(void) {
    const char *name = getenv("LOCKSTEP_PTX_COUNTS");
    if (!name || !kernels) return;
    FILE *f = fopen(name, "w");
    if (!f) return perror(name);
    fprintf(f, "[");
    const char *comma = "";
    for (const lk_ptx_kernel *k : *kernels) {
        fprintf(f, "%s", comma);
        write_kernel(f, k);
        comma = ",\n";
    }
    fprintf(f, "]\n");
    fclose(f);
}

}  // namespace

void lk_ptx_count_kernel(lk_ptx_kernel *k) {
    if (!kernels) {
        kernels = new std::vector<lk_ptx_kernel *>();
        atexit(write_all);
    }
    kernels->push_back(k);
}

// What ran until now is not counted: work that was handed over has to be done.
extern "C" void lk_ptx_count_anew(void);
void lk_ptx_count_anew(void) {
    for (uint32_t i = 0; kernels && i < kernels->size(); i++) {
        lk_ptx_kernel *k = (*kernels)[i];
        k->counts.assign(k->counts.size(), {});
        k->launches = k->blocks = k->warps = 0;
    }
}

// The program ends by _exit (apps/cli/main.c), which asks nobody (CMakeLists.txt: --wrap).
extern "C" {
[[noreturn]] void __real__exit(int code);
[[noreturn]] void __wrap__exit(int code);
void __wrap__exit(int code) {
    write_all();
    __real__exit(code);
}
}
