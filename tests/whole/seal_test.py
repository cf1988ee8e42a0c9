#!/usr/bin/env python3
"""seal_test - a sealed run does what arena/seal.c allows and nothing else, and does it to its end.

Runs with checkpoints, evaluation and several replicas, alone and as two workers with the window and
with messages, end with the digest of the run that is not sealed. The same traced: each system call
after the filter came is on the list of arena/seal.c.

   seal_test.py PROGRAM WORK_DIR SEAL_C
"""
import glob
import os
import re
import shutil
import subprocess
import sys

from program import Test, result

RUN = ["--seal", "--set", "checkpoint.every_steps=4", "--set", "checkpoint.keep_max=2"]
# A line of strace -ttt: the time, the call or its second half.
LINE = re.compile(r"(\d+\.\d+) (?:<\.\.\. )?(\w+)(?:\(| resumed>)")
THREAD = re.compile(r"\bclone3?\b.*CLONE_THREAD.* = (\d+)|clone3 resumed>.* = (\d+)")


def allowed(path):
    """The names of the list `allowed`, and what has rules of its own."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    block = text[text.index("allowed[] = {"):]
    names = re.findall(r"NAMED\((\w+)\)", block[:block.index("};")])
    return set(names) | {"open", "openat", "brk"}


def lines_of(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.readlines()


def calls_after(lines, moment):
    found = [match for match in map(LINE.match, lines) if match]
    return {match.group(2) for match in found if float(match.group(1)) > moment}


def calls_after_the_seal(prefix, path):
    """Of the process whose first thread was traced to `path`, and its threads; None where it was
    never sealed."""
    lines = lines_of(path)
    moment = [float(line.split()[0]) for line in lines
              if "SECCOMP_SET_MODE_FILTER" in line and "NULL" not in line]
    if not moment:
        return None
    calls = calls_after(lines, moment[0])
    for match in filter(None, map(THREAD.search, lines)):
        thread = f"{prefix}.{match.group(1) or match.group(2)}"
        if os.path.exists(thread):
            calls |= calls_after(lines_of(thread), moment[0])
    return calls


def runs(config):
    yield "alone", ["train", config, "--replicas", "2"]
    for how in ("window", "messages"):
        yield how, ["launch", "--workers", "2", "--replicas", "1", "train", config, "--collective",
                    how]


def plain(lines):
    """Without the ranks that launch puts before each line."""
    return [line[4:] if line.startswith("[0] ") else line for line in lines]


def trace(t, name, arguments, listed):
    prefix = os.path.join(t.work, "trace-" + name)
    for path in glob.glob(prefix + ".*"):
        os.remove(path)
    done = subprocess.run(["strace", "-ff", "-ttt", "-qq", "-o", prefix, t.program, *arguments,
                           "--run-dir", "traced-" + name, *RUN], cwd=t.work, capture_output=True,
                          text=True, timeout=300, check=False)
    if not t.check(done.returncode == 0, name, "traced", done.returncode, done.stderr):
        return
    seen = [calls_after_the_seal(prefix, path) for path in glob.glob(prefix + ".*")]
    seen = [calls for calls in seen if calls is not None]
    t.check(len(seen) == (1 if name == "alone" else 2), name, "sealed processes", len(seen))
    used = set().union(*seen)
    t.check({"write", "openat", "rename", "fsync"} <= used or {"renameat"} <= used, name,
            "a checkpoint was written after the seal", sorted(used))
    t.check(used <= listed, name, "beyond the list of arena/seal.c:", sorted(used - listed))
    print(f"{name}: {len(used)} of {len(listed)} allowed calls: {' '.join(sorted(used))}")


def main():
    t = Test()
    listed = allowed(sys.argv[3])
    config = t.write("seal.json", {
        "steps": 20, "evaluate_every_steps": 5,
        "data.test": {"made_up": {"first": 1000, "count": 300, "height": 10, "width": 10}}})
    wanted = result(t.expect(0, "train", config, "--run-dir", "plain")[1])
    for name, arguments in runs(config):
        code, lines, error = t.run(*arguments, "--run-dir", "sealed-" + name, *RUN)
        if code == 69:
            print(f"{name}: not here: {error.strip()}")
            continue
        t.check(code == 0 and result(plain(lines)) == wanted, name, code, lines, error)
        # It goes on from a sealed run's checkpoint, sealed again.
        code, lines, error = t.run(*arguments, "--run-dir", "sealed-" + name, *RUN, "--resume",
                                   "--set", "steps=24")
        t.check(code == 0, name, "resumed", code, lines, error)
        if shutil.which("strace"):
            trace(t, name, arguments, listed)
        else:
            print("not traced: strace is not installed")
    t.finish()


if __name__ == "__main__":
    main()
