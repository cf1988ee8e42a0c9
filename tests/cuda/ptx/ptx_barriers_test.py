#!/usr/bin/env python3
"""ptx_barriers_test - each barrier that nvcc left in a kernel is needed, and its absence is found;
and so is each commit and wait of asynchronous copies.

   ptx_barriers_test.py some|all PROGRAM...

PROGRAMs are the kernels' tests with the PTX executor as their device. Each of their tests passes
with all barriers; a barrier that tests come to is left out (LOCKSTEP_PTX_LEAVE_OUT), and one of
these tests, the quick ones first, must fail: by a race that the executor sees, whatever the order
of warps was, or by results.
`some`: of each kernel one barrier, and its commits and waits, of one size of its tiles. Exits 77
where there are no PROGRAMs.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../launches"))
from budget_test import kernel_name  # noqa: E402

ALL, PROGRAMS = sys.argv[1] == "all", sys.argv[2:]
# A kernel, which of its barriers (None: the only one that is left of a loop), and why none is
# missed there.
NEEDLESS = [
    (r"^join(_grains)?(<|$)", 0, "before the first of its sums, nvcc's copy: none was before"),
    (r"^join_and_update$", 0, "before the only sum of its threads"),
    (r"^(square|normalize|turn_back)_grain$", 0, "before the first of its sums: none was before"),
]


def run(program, test, leave_out=None, counts=None):
    env = dict(os.environ, LOCKSTEP_HOST_CUDA_SEED="1", LOCKSTEP_TEST=test)
    if leave_out:
        env["LOCKSTEP_PTX_LEAVE_OUT"] = f"{leave_out[0]}:{leave_out[1]}"
    if counts:
        env["LOCKSTEP_PTX_COUNTS"] = counts
    done = subprocess.run([program, "1"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace", check=False)
    return done.returncode, done.stderr


def short_names(kernels):
    said = subprocess.run(["c++filt"], input="\n".join(kernels), text=True, check=True,
                          stdout=subprocess.PIPE).stdout.splitlines()
    return dict(zip(kernels, map(kernel_name, said)))


def tests_of(program):
    said = subprocess.run([program], env=dict(os.environ, LOCKSTEP_TEST=""), text=True, check=True,
                          stdout=subprocess.PIPE)
    return said.stdout.split()


def barriers():
    """{(kernel, kind, line): the tests that come there, the quick ones first}, each a program and a
    name, or None where one fails as it is."""
    found = {}
    for program, test in [(p, t) for p in PROGRAMS for t in tests_of(p)]:
        with tempfile.NamedTemporaryFile() as counts:
            began = time.monotonic()
            code, error = run(program, test, counts=counts.name)
            seconds = time.monotonic() - began
            if code:
                print(f"{program}, {test}: fails with all barriers in place\n{error}")
                return None
            if os.path.getsize(counts.name) == 0:
                continue  # it launches nothing
            for kernel in json.load(counts):
                for kind in ("barriers", "groups"):
                    for line in kernel[kind]:
                        found.setdefault((kernel["kernel"], kind, line), []).append(
                            (seconds, program, test))
    return {barrier: [test[1:] for test in sorted(tests)] for barrier, tests in found.items()}


def is_needless(name, index, count):
    return any(re.search(pattern, name) and index == (at if at >= 0 else count + at)
               for pattern, at, _ in NEEDLESS)


def chosen(found):
    """The key of one, its kernel's short name, and is it needless."""
    names, seen = short_names(sorted({kernel for kernel, _, _ in found})), set()
    for kernel, kind, line in found:
        lines = sorted(at for k, what, at in found if (k, what) == (kernel, kind))
        name, index = names[kernel], lines.index(line)
        needless = kind == "barriers" and is_needless(name, index, len(lines))
        same = (re.sub(r"\d+x\d+", "", name), needless, index if kind == "groups" else kind)
        if ALL or (same not in seen and not needless):
            yield (kernel, kind, line), name, needless
        seen.add(same)


def main():
    if not all(map(os.path.exists, PROGRAMS)):
        print("skipped: no nvcc, so there is no PTX")
        return 77
    found = barriers()
    if found is None:
        return 1
    come = {program for tests in found.values() for program, _ in tests}
    if come != set(PROGRAMS):
        print(f"no test comes to a barrier: {' '.join(sorted(set(PROGRAMS) - come))}")
        return 1
    failed = tried = races = 0
    for barrier, name, needless in chosen(found):
        results = (run(*test, barrier[::2]) for test in found[barrier])
        code, error = next(((c, e) for c, e in results if c), (0, ""))
        tried += 1
        races += "a race" in error or "nobody wrote" in error or "never waited" in error
        if (code != 0) == needless:
            failed += 1
            print(f"{name}, line {barrier[2]}: left out, and "
                  f"{'a test fails' if needless else 'no test fails'}\n{error[-400:]}", flush=True)
    print(f"{len(found)} barriers, commits and waits, {tried} left out, {races} seen as a race, "
          f"{failed} problems")
    return 1 if failed or tried < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
