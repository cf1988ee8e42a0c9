// posix.c - the platform of the core trainer where there is Linux, native or in qemu-user: the
// console is standard output, the kernels are named on the command line.
//
//   lockstep_embedded [reference | portable | ... | auto]
#include <unistd.h>

#include "apps/baremetal/embedded.h"
#include "ops/variant.h"

void lk_board_write(const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = write(STDOUT_FILENO, text, bytes);
        if (written < 0) _exit(LK_IO_ERROR);
        text += written;
        bytes -= (size_t)written;
    }
}

_Noreturn void lk_board_end(int code) { _exit(code); }

int main(int argc, char **argv) {
    lk_error error = {.status = LK_OK};
    const lk_kernels *kernels;
    lk_status status = lk_kernels_choose(argc > 1 ? argv[1] : NULL, &kernels, &error);
    if (status == LK_OK) return lk_board_train(&lk_embedded_run, kernels);
    char line[LK_ERROR_TEXT_BYTES + 16];
    size_t length = lk_format(line, sizeof line, "lockstep: %s\n", error.text);
    lk_board_write(line, LK_MIN(length, sizeof line - 1));
    return status;
}
