#!/usr/bin/env python3
"""resources_test - what ptxas gives every kernel: registers, spills, stack, shared memory, blocks.

   resources_test.py SOURCE_DIR TABLE ARCHES [--record] FLAG...    ARCHES: 80,100

TABLE says what each kernel takes on each architecture. More registers than slack, spilled bytes,
stack or static shared memory, fewer blocks on a multiprocessor, a kernel that is not listed or is
no more: each fails. A block of 256 threads is made for two on a multiprocessor
(lk_cuda_blocks_wanted), and spills nothing: what does not reach that is named in the table's
"exceptions". Another ptxas allots otherwise: then all is printed, and only exceptions are checked.
Dynamic shared memory is at most 48 KiB a block (tests/cuda/host), so two fit everywhere.
"""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import ptx_test

REGISTERS, THREADS, BLOCKS, SLACK = 65536, 2048, 32, 8
STACK = 1024  # bytes; more of them the driver takes from the device's memory at a first launch
FOUND = re.compile(
    r"Compiling entry function '(\w+)'.*\n.*\n\s*(\d+) bytes stack frame, (\d+) bytes spill "
    r"stores, (\d+) bytes spill loads\n.*Used (\d+) registers([^\n]*)")


def ptxas_of(nvcc):
    return os.path.join(os.path.dirname(os.path.realpath(nvcc)), "ptxas")


def version_of(ptxas):
    said = subprocess.run([ptxas, "--version"], check=True, stdout=subprocess.PIPE, text=True)
    return re.search(r"V(\d+\.\d+\.\d+)", said.stdout)[1]


def short_names(mangled):
    """Demangled, without arguments and what all names have."""
    said = subprocess.run(["c++filt"], check=True, input="\n".join(mangled),
                          stdout=subprocess.PIPE, text=True).stdout.splitlines()
    names = {}
    for one, name in zip(mangled, said):
        depth, end = 0, len(name)
        for at, letter in enumerate(name):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                end = at
                break
        names[one] = re.sub(r"^void |lk_cuda_", "", name[:end]).replace("> >", ">>")
    return names


def blocks_of(registers, threads):
    warps = math.ceil(threads / 32)
    of_warp = math.ceil(registers * 32 / 256) * 256
    return min(REGISTERS // of_warp // warps, THREADS // threads, BLOCKS)


def resources(ptxas, ptx, arch, source):
    """{file kernel: numbers} of a source, from its PTX."""
    with tempfile.TemporaryDirectory() as work:
        file = os.path.join(work, "in.ptx")
        with open(file, "w", encoding="utf-8") as f:
            f.write(ptx)
        said = subprocess.run(
            [ptxas, "-v", f"-arch=sm_{arch}", file, "-o", os.path.join(work, "out.cubin")],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    threads = dict(re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+)", ptx))
    kernels = FOUND.findall(said)
    if len(kernels) != len(re.findall(r"\.entry ", ptx)):
        sys.exit(f"{source}: ptxas told of {len(kernels)} kernels only:\n{said}")
    names, found = short_names([kernel[0] for kernel in kernels]), {}
    for name, stack, stores, loads, registers, rest in kernels:
        shared = re.search(r"(\d+) bytes smem", rest)
        called = re.search(r"(\d+) bytes cumulative stack", rest)
        wide = int(threads.get(name, 32))
        found[f"{os.path.basename(source)} {names[name]}"] = {
            "threads": wide, "registers": int(registers), "spilled": int(stores) + int(loads),
            "stack": int(called[1] if called else stack),
            "shared": int(shared[1]) if shared else 0,
            "blocks": blocks_of(int(registers), wide)}
    return found


def compare(found, table, arch, ptxas):
    """Problems, as lines."""
    listed, same = table["kernels"].get(arch, {}), table["ptxas"] == ptxas
    lines = []
    for name, now in sorted(found.items()):
        excepted = any(re.search(pattern, name) for pattern in table["exceptions"])
        if now["threads"] >= 256 and now["blocks"] < 2 and not excepted:
            lines.append(f"{name}: one block on a multiprocessor: {now}")
        if now["spilled"] and not excepted:
            lines.append(f"{name}: spills: {now}")
        if now["stack"] > STACK:
            lines.append(f"{name}: more stack than a GPU sets aside for a thread: {now}")
        if name not in listed:
            lines.append(f"{name}: not in the table: {now}")
            continue
        then = listed[name]
        worse = [key for key in ("spilled", "stack", "shared") if now[key] > then[key]]
        worse += ["registers"] if now["registers"] > then["registers"] + SLACK else []
        worse += ["blocks"] if now["blocks"] < then["blocks"] else []
        text = f"{name}: worse in {', '.join(worse)} than listed: {now}, listed {then}"
        if worse and same:
            lines.append(text)
        elif worse:
            print(f"sm_{arch} {text} (by ptxas {table['ptxas']}, this is {ptxas})")
    return [f"sm_{arch} {line}" for line in lines]


def missing(found, table, arch):
    return [f"sm_{arch} {name}: in the table, but no kernel"
            for name in sorted(set(table["kernels"].get(arch, {})) - set(found))]


def read(file):
    with open(file, encoding="utf-8") as f:
        return json.load(f)


def write(file, table):
    """A line a kernel."""
    with open(file, "w", encoding="utf-8") as f:
        f.write("{\n" + f' "ptxas": "{table["ptxas"]}",\n "exceptions": ')
        f.write(json.dumps(table["exceptions"], indent=1).replace("\n", "\n ") + ',\n "kernels": {')
        for number, (arch, kernels) in enumerate(sorted(table["kernels"].items())):
            f.write(("," if number else "") + f'\n  "{arch}": {{\n')
            f.write(",\n".join(f"   {json.dumps(name)}: {json.dumps(one)}"
                               for name, one in sorted(kernels.items())) + "\n  }")
        f.write("\n }\n}\n")


def all_of(nvcc, folder, arch, flags):
    def one(source):
        with tempfile.TemporaryDirectory() as work:
            ptx = ptx_test.compile_ptx(nvcc, source, work, [f"-arch=compute_{arch}", *flags])
        return resources(ptxas_of(nvcc), ptx, arch, source)
    found = {}
    with ThreadPoolExecutor(2) as pool:
        for some in pool.map(one, ptx_test.sources(folder)):
            found.update(some)
    return found


def main():
    nvcc = ptx_test.find_nvcc()
    if not nvcc:
        print("skipped: no nvcc")
        return 77
    folder, file, arches = sys.argv[1:4]
    record = "--record" in sys.argv
    flags = [flag for flag in sys.argv[4:] if flag != "--record"] + ["-I", folder]
    table, ptxas, problems = read(file), version_of(ptxas_of(nvcc)), []
    for arch in arches.split(","):
        found = all_of(nvcc, folder, arch, flags)
        if record:
            table["ptxas"] = ptxas
            table["kernels"][arch] = found
        problems += compare(found, table, arch, ptxas) + missing(found, table, arch)
        print(f"sm_{arch}: {len(found)} kernels")
    if record:
        write(file, table)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
