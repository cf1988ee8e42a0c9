#!/usr/bin/env python3
"""freestanding_test - the core needs nothing: compiled for each target without a library, it may
ask for memcpy, memset, memmove and memcmp, and for what the compiler itself brings (libgcc), by
name.

   freestanding_test.py SOURCE_DIR WORK_DIR

The core is tests/tidy/tidy.py's list, which must be the one that the build has. A compiler that is
not installed is named. Exit 1 where a target's core asks for more.
"""
import os
import re
import shutil
import subprocess
import sys

FLAGS = ("-std=c11 -O2 -ffreestanding -nostdlib -nostdinc -ffp-contract=off -fno-fast-math "
         "-fno-math-errno -Wall -Wextra -Werror").split()
C_LIBRARY = {"memcpy", "memset", "memmove", "memcmp"}
# The compiler's own arithmetic (libgcc): integers only, correctly rounded, subnormals kept.
WIDE = {  # a 32-bit processor; sizes and counters are 64-bit
    "__aeabi_uldivmod": "division of 64-bit sizes",
    "__aeabi_ldivmod": "division of 64-bit offsets",
}
SOFT = {  # a processor without a float unit
    "__addsf3": "a + b", "__subsf3": "a - b", "__mulsf3": "a * b", "__divsf3": "a / b",
    "__eqsf2": "a == b", "__nesf2": "a != b", "__ltsf2": "a < b", "__lesf2": "a <= b",
    "__gtsf2": "a > b", "__gesf2": "a >= b", "__unordsf2": "NaN?",
    "__floatsisf": "int32 to float", "__floatunsisf": "uint32 to float",
    "__floatundisf": "uint64 to float", "__clzdi2": "leading zeros",
    "__bswapsi2": "order of bytes",
}
M7 = ("-mcpu=cortex-m7 -mthumb -mfpu=fpv5-sp-d16 -mfloat-abi=hard -fno-short-enums "
      "-Wno-format").split()
#    target, compiler and flags, nm, helpers allowed
TARGETS = [
    ("x86-64 gcc", ["gcc"], "nm", {}),
    ("x86-64 clang", ["clang"], "nm", {}),
    ("aarch64", ["aarch64-linux-gnu-gcc"], "aarch64-linux-gnu-nm", {}),
    ("riscv64", ["riscv64-linux-gnu-gcc"], "riscv64-linux-gnu-nm",
     {"__clzdi2": "leading zeros, for which the base instructions have none",
      "__bswapsi2": "the other order of bytes, for which they have none either"}),
    ("riscv64 no F", ["riscv64-unknown-elf-gcc", "-march=rv64imac", "-mabi=lp64"],
     "riscv64-unknown-elf-nm", SOFT),
    ("cortex-m7", ["arm-none-eabi-gcc", *M7], "arm-none-eabi-nm", WIDE),
]


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def core_of_build(source):
    """The files that the folders' CMakeLists.txt give to lockstep_core()."""
    found = []
    for folder in ("arena", "ops", "comm", "io"):
        with open(os.path.join(source, folder, "CMakeLists.txt"), encoding="utf-8") as f:
            for names in re.findall(r"lockstep_core\(([^)]*)\)", f.read()):
                found += [f"{folder}/{name}" for name in names.split()]
    return found


def compile_core(source, work, core, compiler):
    """All of the core as one object, so that only what it lacks is undefined."""
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    builtin = output(*compiler, "-print-file-name=include").strip()  # stdint.h and its like
    objects = []
    for name in core:
        objects.append(os.path.join(work, name.replace("/", "_") + ".o"))
        output(*compiler, *FLAGS, "-isystem", builtin, "-I", source, "-c",
               os.path.join(source, name), "-o", objects[-1])
    whole = os.path.join(work, "core.o")
    output(*compiler, "-nostdlib", "-r", *objects, "-o", whole)
    return whole


def main():
    source, work = sys.argv[1:3]
    sys.path.insert(0, os.path.join(source, "tests", "tidy"))
    from tidy import CORE
    if sorted(CORE) != sorted(core_of_build(source)):
        print(f"the core of tests/tidy/tidy.py and that of the build differ: "
              f"{sorted(set(CORE) ^ set(core_of_build(source)))}")
        return 1
    wrong = 0
    print(f"{'target':14} {'code':>7}  what {len(CORE)} files of the core ask for")
    for name, compiler, nm, helpers in TARGETS:
        if not shutil.which(compiler[0]):
            print(f"{name:14} {'-':>7}  {compiler[0]} is not installed: toolchain/packages cross")
            continue
        whole = compile_core(source, os.path.join(work, name.replace(" ", "_")), CORE, compiler)
        asked = set(re.findall(r"\bU (\S+)", output(nm, "-u", whole)))
        more = sorted(asked - C_LIBRARY - set(helpers))
        text = output(nm[:-2] + "size", whole).splitlines()[1].split()[0]
        print(f"{name:14} {text:>7}  {' '.join(sorted(asked & C_LIBRARY))}")
        for helper in sorted(asked & set(helpers)):
            print(f"{'':24}{helper}: {helpers[helper]}")
        if more:
            wrong += 1
            print(f"{'':24}NOT ALLOWED: {' '.join(more)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
