// blas_library.c - finds cuBLASLt: the version that this was compiled for, where the system's
// loader looks for libraries.
#include <dlfcn.h>
#include <string.h>

#include "ops/cuda/blas_calls.h"

#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)
#define LIBRARY         "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static const char *why(void) {
    const char *said = dlerror();
    return said ? said : "no reason is given";
}

const lk_blas_calls *lk_blas_library(lk_error *error) {
    static lk_blas_calls calls;
    static bool loaded;
    if (loaded) return &calls;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        lk_fail(error, LK_UNAVAILABLE,
                "arithmetic \"fast\": " LIBRARY " cannot be loaded (%s); install cuBLAS " TEXT(
                    CUBLAS_VER_MAJOR) " of the CUDA toolkit or name its directory in "
                                      "LD_LIBRARY_PATH; \"strict\" needs no library",
                why());
        return NULL;
    }
#define LOAD(name)                                                         \
    void *at_##name = dlsym(library, #name);                               \
    if (!at_##name) {                                                      \
        lk_fail(error, LK_UNAVAILABLE,                                     \
                "arithmetic \"fast\": " LIBRARY " has no " #name           \
                ": it is not the library this program was built for (%s)", \
                why());                                                    \
        return NULL;                                                       \
    }                                                                      \
    memcpy(&calls.name, &at_##name, sizeof calls.name);
    LK_BLAS_CALL_LIST(LOAD)
#undef LOAD
    loaded = true;
    return &calls;
}
