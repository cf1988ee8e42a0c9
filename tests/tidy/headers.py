#!/usr/bin/env python3
"""headers - every header compiles alone, as C11 and as C++17. Exits 1 if one does not; 77 where
there is no C++ compiler.

   headers.py ROOT CC CXX
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys

FOLDERS = ("arena", "ops", "comm", "io", "apps")
# What these include or are is not there for every compiler, and why.
NEITHER = {
    "comm/mpi/private.h": "MPI's own header, where MPI is built in",
    "ops/cuda/device.h": "device code: nvcc's",
    "ops/cuda/join.h": "device code: nvcc's",
    "ops/cuda/sums.h": "device code: nvcc's",
    "ops/cuda/sums_launches.h": "device code: nvcc's",
    "ops/cuda/conv.h": "device code: nvcc's",
    "ops/cuda/conv_phase.h": "device code: nvcc's",
    "ops/cuda/dense.h": "device code: nvcc's",
    "ops/cuda/elements.h": "device code: nvcc's",
    "ops/cuda/loss.h": "device code: nvcc's",
    "ops/cuda/grouped_conv.h": "device code: nvcc's",
    "ops/cuda/layer_norm.h": "device code: nvcc's",
    "ops/cuda/norm.h": "device code: nvcc's",
    "ops/cuda/operand.h": "device code: nvcc's",
    "ops/cuda/plain.h": "device code: nvcc's",
    "ops/cuda/pool.h": "device code: nvcc's",
    "ops/cuda/update.h": "device code: nvcc's",
    "ops/cuda/blas_calls.h": "cuBLAS' own header",
}


def headers(root):
    for folder in FOLDERS:
        for at, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                path = os.path.relpath(os.path.join(at, name), root)
                if name.endswith(".h") and not name.endswith(".inc.h") and path not in NEITHER:
                    yield path


def compile_alone(root, compiler, language, path):
    """Included in an empty source twice, with nothing before it: what the compiler says."""
    source = f'#include "{path}"\n#include "{path}"\n'
    done = subprocess.run([*compiler, *language, "-Wall", "-Werror", "-D_GNU_SOURCE", "-I", root,
                           "-fsyntax-only", "-"],
                          input=source, capture_output=True, text=True, check=False)
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
    return None if done.returncode == 0 else f"{path}: {language[0]}: {first}"


def main():
    root, cc, cxx = sys.argv[1:4]
    if not shutil.which(cxx):
        print("SKIPPED: no C++ compiler")
        return 77
    ways = [([cc], ["-std=c11", "-Wextra", "-x", "c"]), ([cxx], ["-std=c++17", "-x", "c++"])]
    jobs = [(root, compiler, language, path)
            for path in sorted(headers(root)) for compiler, language in ways]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [line for line in pool.map(lambda job: compile_alone(*job), jobs) if line]
    print("\n".join(found))
    print(f"headers: {len(jobs)} compiled alone, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
