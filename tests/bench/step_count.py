#!/usr/bin/env python3
"""step_count.py - how many instructions AArch64 runs in one training step of the MNIST CNN, for
each kernel and table of kernels, counted under emulation.

   step_count.py SOURCE_DIR WORK_DIR [--compiler gcc|clang|both] [--examples N] [--require RATIO]

step_count.c is compiled for AArch64 as released and run by qemu-user with the plugin
qemu_counter.c, once with each table. All must end with the same digest. With --require, exit 1
where neon's step is not RATIO times shorter than portable's. Exit 77 where a tool is missing.
"""
import argparse
import os
import shutil
import subprocess
import sys

TRIPLE = "aarch64-linux-gnu"
FLAGS = ("-std=c11 -O3 -DNDEBUG -ffp-contract=off -fno-fast-math -fno-math-errno "
         "-Wall -Wextra -Werror").split()
SOURCES = """tests/bench/step_count ops/cpu/neon ops/cpu/portable ops/reference ops/variant
             ops/optimizer ops/initializer ops/rate comm/step/hash comm/step/driver
             comm/step/exchange comm/step/lanes comm/step/norms comm/step/reduce comm/step/step
             io/made_up arena/arena arena/base arena/plan arena/sha256""".split()
FOLDERS = [os.path.join("ops", "layers"), os.path.join("ops", "graph")]  # all that is in them
TABLES = ["reference", "portable", "neon"]
COMPILERS = {
    "gcc": [f"{TRIPLE}-gcc"],
    "clang": ["clang", f"--target={TRIPLE}", "-isystem", f"/usr/{TRIPLE}/include"],
}
NEON_FLAGS = {"gcc": ["-fno-schedule-insns"], "clang": []}  # ops/cpu/CMakeLists.txt has why
WHOLE = "the whole step"


def missing(tool):
    if shutil.which(tool):
        return False
    print(f"step_count: {tool} is not installed: toolchain/packages cross")
    return True


def build(source, work, name):
    os.makedirs(os.path.join(work, name), exist_ok=True)
    objects, running = [], []
    whole = [os.path.join(folder, file[:-2]) for folder in FOLDERS
             for file in sorted(os.listdir(os.path.join(source, folder))) if file.endswith(".c")]
    for file in SOURCES + whole:
        objects.append(os.path.join(work, name, os.path.basename(file) + ".o"))
        flags = FLAGS + (NEON_FLAGS[name] if file == "ops/cpu/neon" else []) + ["-I", source]
        command = COMPILERS[name] + flags + ["-c", os.path.join(source, file + ".c"),
                                             "-o", objects[-1]]
        running.append(subprocess.Popen(command))
        if len(running) == 2:
            if any([process.wait() for process in running]):
                sys.exit(1)
            running = []
    if any([process.wait() for process in running]):
        sys.exit(1)
    guest = os.path.join(work, name, "step_count")
    subprocess.run([f"{TRIPLE}-gcc", "-static", "-o", guest] + objects, check=True)
    return guest


def count(plugin, guest, table, examples):
    """The digest, and {kernel: instructions} of one step."""
    out = f"{guest}.{table}"
    said = subprocess.run(["qemu-aarch64", "-plugin", f"{plugin},out={out}", guest, table,
                           str(examples)], check=True, capture_output=True, text=True).stdout
    digest, names, counts = "", {}, {}
    for line in said.splitlines():
        words = line.split(None, 2)
        if words[0] == "digest":
            digest = words[1]
        elif words[0] == "account":
            names[int(words[1])] = words[2]
    with open(out) as f:
        for line in f:
            account, instructions = map(int, line.split())
            if account in names:
                counts[names[account]] = instructions
    counts[WHOLE] = sum(counts.values())
    return digest, counts


def table_of(name, results):
    counts = {table: results[table][1] for table in TABLES}
    kernels = sorted(counts["reference"], key=lambda k: (k == WHOLE, -counts["portable"][k]))
    print(f"\n{name}, million instructions" + " " * (26 - len(name)) +
          "reference  portable      neon   portable/neon  reference/neon")
    for kernel in kernels:
        r, p, n = (counts[table][kernel] for table in TABLES)
        print(f"{kernel:<47}{r / 1e6:10.3f}{p / 1e6:10.3f}{n / 1e6:10.3f}{p / n:16.2f}"
              f"{r / n:16.1f}")
    return counts["portable"][WHOLE] / counts["neon"][WHOLE]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("work")
    parser.add_argument("--compiler", choices=["gcc", "clang", "both"], default="gcc")
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--require", type=float, default=0.0)
    options = parser.parse_args()
    compilers = ["gcc", "clang"] if options.compiler == "both" else [options.compiler]
    if any([missing(tool) for tool in ["qemu-aarch64", f"{TRIPLE}-gcc", "gcc"] + compilers]):
        return 77
    os.makedirs(options.work, exist_ok=True)
    plugin = os.path.abspath(os.path.join(options.work, "qemu_counter.so"))
    subprocess.run(["gcc", "-std=c11", "-O2", "-fPIC", "-shared", "-I", options.source,
                    os.path.join(options.source, "tests/bench/qemu_counter.c"), "-o", plugin],
                   check=True)
    worst, digests = None, set()
    for name in compilers:
        guest = build(options.source, options.work, name)
        results = {table: count(plugin, guest, table, options.examples) for table in TABLES}
        digests |= {digest for digest, _ in results.values()}
        ratio = table_of(name, results)
        worst = ratio if worst is None else min(worst, ratio)
    if len(digests) != 1:
        print(f"step_count: digests differ: {sorted(digests)}")
        return 1
    print(f"\ndigest {digests.pop()}, the same with every table")
    if worst < options.require:
        print(f"step_count: neon is {worst:.2f} times shorter than portable, "
              f"wanted {options.require:.2f}")
        return 1
    return 0


sys.exit(main())
