#!/usr/bin/env python3
"""clang_tidy - .clang-tidy over the C files that a build compiles. Exits 1 if it finds anything.

   tests/tidy/clang_tidy.py ROOT BUILD_DIR      BUILD_DIR has compile_commands.json

Files for another processor than this build's are left out: they are compiled to nothing here.
Exits 77 where there is no clang-tidy or no list of commands.
"""
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys

FOLDERS = ("arena", "ops", "comm", "io", "apps")


def files_of(root, build):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        found = {os.path.realpath(os.path.join(c["directory"], c["file"])) for c in json.load(f)}
    for path in sorted(found):
        inside = os.path.relpath(path, root)
        if inside.split("/")[0] in FOLDERS and inside.endswith(".c"):
            yield path


def judge(tool, build, path):
    done = subprocess.run([tool, "-p", build, "--quiet", path], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout


def main():
    root, build = map(os.path.realpath, sys.argv[1:3])
    tool = shutil.which("clang-tidy")
    if not tool or not os.path.exists(os.path.join(build, "compile_commands.json")):
        print("skipped: no clang-tidy here, or a build without compile_commands.json")
        sys.exit(77)
    files = list(files_of(root, build))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for code, text in pool.map(lambda path: judge(tool, build, path), files):
            failed += code != 0
            if code:
                print(text, flush=True)
    print(f"clang-tidy: {len(files)} files, {failed} with findings")
    sys.exit(1 if failed or not files else 0)


if __name__ == "__main__":
    main()
