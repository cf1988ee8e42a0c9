#!/usr/bin/env python3
"""barriers_test - every barrier and every wait of ops/cuda/ is needed, and its absence is seen.

   barriers_test.py SOURCE_DIR some|all PROGRAM...

Each call of __syncthreads, __syncwarp or __pipeline_wait_prior is left out once (the host execution
layer does so by file and line) and the kernels' tests run, those named like the file first: one of
them must fail, with one of a few seeds for the order of threads, and pass with all barriers. `some`
is every eighth of them; `all` checks before that every test passes with all barriers.
"""
import functools
import glob
import os
import re
import subprocess
import sys

SEEDS = (1, 2, 3)
EACH = {"some": 8, "all": 1}
HANGS_S = 60  # after a crash in device code cmocka goes on, and the runtime's lock is held


def passes(program, seed, leave_out):
    # The first failure ends the program: one within a kernel leaves the layer's lock taken.
    env = dict(os.environ, LOCKSTEP_HOST_CUDA_SEED=str(seed), ASAN_OPTIONS="detect_leaks=0",
               CMOCKA_TEST_ABORT="1")
    if leave_out:
        env["LOCKSTEP_HOST_CUDA_LEAVE_OUT"] = leave_out
    try:
        return subprocess.run([program, "1"], env=env, stdout=subprocess.DEVNULL,
                              timeout=HANGS_S if leave_out else None,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def barriers(folder):
    for path in sorted(glob.glob(os.path.join(folder, "ops", "cuda", "*.*"))):
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                if re.search(r"\b__(sync(threads|warp)|pipeline_wait_prior)\(",
                             line.split("//")[0]):
                    yield f"{os.path.basename(path)}:{number}"


@functools.lru_cache(maxsize=None)
def passes_whole(program):
    return passes(program, SEEDS[0], None)


def likely_first(programs, barrier):
    stem = barrier.split(".")[0]
    return sorted(programs, key=lambda program: stem not in os.path.basename(program))


def main():
    folder, each, programs = sys.argv[1], EACH[sys.argv[2]], sys.argv[3:]
    failed = 0
    for program in programs if each == 1 else []:
        if not passes_whole(program):
            print(f"{program}: fails with all barriers in place")
            failed += 1
    found = list(barriers(folder))[::each]
    for barrier in found:
        order = likely_first(programs, barrier)
        failing = next((p for seed in SEEDS for p in order if not passes(p, seed, barrier)), None)
        if failing is None or not passes_whole(failing):
            print(f"{barrier}: left out, and {failing or 'no test'} fails"
                  f"{', as it does with all barriers' if failing else ''}")
            failed += 1
    print(f"{len(found)} barriers, {failed} problems")
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
