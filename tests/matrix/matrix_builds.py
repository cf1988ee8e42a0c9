#!/usr/bin/env python3
"""matrix_builds - builds the program by several compilers at several levels and compares all.

   matrix_builds.py SOURCE_DIR WORK_DIR COMPILER-LEVEL...      such as gcc-O1

Only the program is built; its build directories stay in WORK_DIR, so a second call is quick.
Exit code: run_matrix's; 77 where no compiler is there. A compiler that is missing is named.
"""
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def build(source, work, compiler, level):
    target = os.path.join(work, f"{compiler}-{level}")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    commands = [["cmake", "-S", source, "-B", target, *generator, "-DCMAKE_BUILD_TYPE=Release",
                 f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_C_FLAGS_RELEASE=-{level}",
                 "-DLOCKSTEP_TESTS=OFF", "-DLOCKSTEP_INSTALL=OFF", "-DLOCKSTEP_CUDA=OFF"],
                ["cmake", "--build", target, "--target", "lockstep_program", "--parallel", "2"]]
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print(done.stdout[-4000:])
            sys.exit(f"{compiler} -{level}: {' '.join(command)} ended with {done.returncode}")
    return f"{compiler}-{level}={os.path.join(target, 'lockstep')}"


def main():
    source, work, *builds = sys.argv[1:]
    programs = []
    for compiler, level in (name.split("-") for name in builds):
        if shutil.which(compiler):
            programs.append(build(source, work, compiler, level))
        else:
            print(f"no rows with {compiler}: it is not installed")
    if not programs:
        return 77
    return subprocess.run([sys.executable, os.path.join(HERE, "run_matrix"), "--rows", "pruned",
                           "--work", os.path.join(work, "runs"), *programs]).returncode


if __name__ == "__main__":
    sys.exit(main())
