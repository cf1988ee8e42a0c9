// run.cpp - runs the kernels of a file of PTX, for tests that write their own.
//
//   ptx_run FILE INPUT BLOCKS THREADS SHARED_BYTES SEED
//   ptx_run FILE                                         decodes all kernels, and says how many
//   ptx_run                                              prints the words that compute
//
// A kernel is given two addresses, of 8 bytes for each thread, which start as zero, and of INPUT's
// bytes; what else it has of parameters is bytes 0, 1, 2 .. of their offsets. Prints for each
// kernel a line: its name and what it left for each thread, in hexadecimal.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

static std::string read_file(const char *name) {
    std::string text;
    FILE *f = fopen(name, "rb");
    if (!f) {
        perror(name);
        exit(66);
    }
    char buffer[65536];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, f)) > 0;) text.append(buffer, got);
    fclose(f);
    return text;
}

static void *space(size_t bytes) {
    void *at = NULL;
    if (cudaHostAlloc(&at, bytes ? bytes : 1, cudaHostAllocDefault) != cudaSuccess) exit(71);
    memset(at, 0, bytes);
    return at;
}

static void run(lk_ptx_kernel *k, const cudaLaunchConfig_t *config, const std::string &input,
                uint64_t seed) {
    const size_t threads = (size_t)config->gridDim.x * config->blockDim.x;
    uint64_t *out = static_cast<uint64_t *>(space(threads * 8));
    void *in = space(input.size());
    std::vector<uint8_t> parameters(k->parameter_bytes + 16);
    for (size_t n = 16; n < parameters.size(); n++) parameters[n] = (uint8_t)n;
    memcpy(in, input.data(), input.size());
    memcpy(parameters.data(), &out, sizeof out);
    memcpy(parameters.data() + 8, &in, sizeof in);
    lk_ptx_count_kernel(k);
    lk_ptx_grid_run(k, config, parameters.data(), seed);
    printf("%s", k->name.c_str());
    for (size_t n = 0; n < threads; n++) printf(" %llx", (unsigned long long)out[n]);
    printf("\n");
    cudaFreeHost(out);
    cudaFreeHost(in);
}

int main(int argc, char **argv) {
    const lk_ptx_rules known = lk_ptx_arithmetic_rules();
    for (uint32_t n = 0; argc == 1 && n < known.count; n++) printf("%s\n", known.rules[n].word);
    if (argc == 1) return 0;
    if (argc != 2 && argc != 7) return 64;
    const std::string text = read_file(argv[1]);
    lk_ptx_module m = {text.data(), text.size(), {}};
    const std::vector<std::string> names = lk_ptx_names(&m);
    if (argc == 2) {
        for (const std::string &name : names) lk_ptx_find(&m, name);
        printf("%zu kernels\n", names.size());
        return 0;
    }
    const std::string input = read_file(argv[2]);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)atoi(argv[3]));
    config.blockDim = dim3((unsigned)atoi(argv[4]));
    config.dynamicSmemBytes = (size_t)atoi(argv[5]);
    for (const std::string &name : names) {
        run(lk_ptx_find(&m, name), &config, input, strtoull(argv[6], NULL, 10));
    }
    return 0;
}
