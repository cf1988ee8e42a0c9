#!/usr/bin/env python3
"""words_test - the PTX executor knows every word of the kernels, on every architecture.

   words_test.py PTX_RUN SOURCE_DIR ARCHES FLAG...      ARCHES: 80,100

nvcc compiles the kernels for each architecture, with the flags of the build; each of their entries
is decoded, but the persistent kernel, which is not played. Exits 77 where there is no nvcc.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ptx_test import compile_ptx, find_nvcc, sources  # noqa: E402


def main():
    nvcc, failed = find_nvcc(), 0
    if not nvcc:
        print("skipped: no nvcc")
        return 77
    run, folder, arches, flags = sys.argv[1], sys.argv[2], sys.argv[3].split(","), sys.argv[4:]
    for arch in arches:
        count = 0
        for source in sources(folder):
            if os.path.basename(source) == "persistent.cu":
                continue
            with tempfile.TemporaryDirectory() as work:
                ptx = compile_ptx(nvcc, source, work, [*flags, "-I", folder,
                                                       f"-arch=compute_{arch}"])
                done = subprocess.run([run, os.path.join(work, "out.ptx")], text=True, check=False,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if done.returncode or ptx.count(".entry ") != int(done.stdout.split()[0]):
                failed += 1
                print(f"compute_{arch}, {source}: {done.stdout}{done.stderr}")
            count += ptx.count(".entry ")
        print(f"compute_{arch}: {count} kernels", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
