// broken_main.c - the platform of a core trainer that is compiled file by file (broken_test.py):
// standard output, and the reference kernels alone.
#include <stdio.h>
#include <stdlib.h>

#include "apps/baremetal/embedded.h"

void lk_board_write(const char *text, size_t bytes) { fwrite(text, 1, bytes, stdout); }

_Noreturn void lk_board_end(int code) { exit(code); }

int main(void) { return lk_board_train(&lk_embedded_run, &lk_kernels_reference); }
