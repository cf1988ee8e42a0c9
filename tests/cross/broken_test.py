#!/usr/bin/env python3
"""broken_test - a contract broken on purpose must show: the table of toolchain/same-bits gets a red
cell for a build with contraction on, and for one that adds in another tree.

   broken_test.py PROGRAM SOURCE_DIR WORK_DIR

Each is the core trainer, compiled file by file from a copy of the sources in which a line is
changed; a third, unchanged, must be equal. Compiled by clang, which finds a product and a sum to
contract (the softmax's p - 1); gcc 12 finds none, so well are the fmas spelt out. Exit 77 where
there is no clang, or no fma in this processor.
"""
import os
import platform
import re
import shutil
import subprocess
import sys

FLAGS = "-std=c11 -O2 -fno-fast-math -fno-math-errno".split()
# The tree over slices and grains becomes a sum from left to right.
TREE = ("ops/layers/sums.h",
        "for (; t->leaves >> level & 1; level++) value = t->node[level] + value;",
        "if (t->leaves) value = t->node[0] + value, t->leaves = 0;")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def must(*command):
    code, output = run(*command)
    if code != 0:
        sys.exit(f"{' '.join(command)} ended with {code}:\n{output[-3000:]}")
    return output


def fma_flags():
    """What makes this machine's compiler know an fma; None where the processor has none."""
    if platform.machine() != "x86_64":
        return []
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return ["-mfma"] if " fma " in f.read() else None


def build(source, work, name, core, flags, change=None):
    tree = os.path.join(work, name)
    for folder in ("arena", "ops", "comm", "io", "apps", "tests/cross"):
        shutil.copytree(os.path.join(source, folder), os.path.join(tree, folder))
    if change:
        path, old, new = change
        path = os.path.join(tree, path)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if text.count(old) != 1:
            sys.exit(f"{path}: the line that the test changes is not there: {old}")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))
    files = [*core, "apps/baremetal/train.c", "tests/cross/broken_main.c"]
    program = os.path.join(tree, "lockstep_embedded")
    must("clang", *FLAGS, *flags, "-I", tree, *(os.path.join(tree, f) for f in files),
         os.path.join(work, "run.c"), "-o", program)
    return f"{name}={program}"


def main():
    program, source, work = sys.argv[1:4]
    fma = fma_flags()
    if fma is None or not shutil.which("clang"):
        print("no fma in this processor, or no clang: a contraction cannot be shown here")
        return 77
    sys.path.insert(0, os.path.join(source, "tests", "tidy"))
    from tidy import CORE
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    must(program, "embed", os.path.join(source, "apps/configs/published/odd-shapes.json"),
         "--set", "steps=4", "--to", os.path.join(work, "run.c"))
    off = ["-ffp-contract=off", *fma]
    builds = [build(source, work, "unchanged", CORE, off),
              build(source, work, "contraction", CORE, ["-ffp-contract=fast", *fma]),
              build(source, work, "other-tree", CORE, off, TREE)]
    code, output = run(os.path.join(source, "toolchain/same-bits"), "--run", "odd-shapes",
                       "--program", program, "--work", os.path.join(work, "same-bits"),
                       "--targets", "x86-64", *(word for b in builds for word in ("--also", b)))
    print(output)
    cells = dict(re.findall(r"^(\S+) .*\b(yes|NO)$", output, re.M))
    wanted = {"unchanged": "yes", "contraction": "NO", "other-tree": "NO"}
    wrong = [name for name in wanted if cells.get(name) != wanted[name]]
    if "x86-64" in cells and cells["x86-64"] != "yes":
        wrong.append("x86-64")
    if code != 1 or wrong:
        print(f"same-bits ended with {code}, wanted 1; not as wanted: {wrong}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
