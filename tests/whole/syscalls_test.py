#!/usr/bin/env python3
"""syscalls_test - every system call of a short run, from the beginning of main on: the process is
killed at it, or it fails with EIO, ENOSPC or EINTR. It ends in time, by no signal of its own, with
a line and an exit code that are known; the next start brings the run to the end of an undisturbed
one.

   syscalls_test.py PROGRAM WORK_DIR [all]

By strace; skipped (77) where it is missing or may not trace. Without `all` a sample of the calls.
"""
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from program import Test, result

ALL = "all" in sys.argv[3:]
SAMPLE = 60
FAULTS = ("signal=KILL", "error=EIO", "error=ENOSPC", "error=EINTR")
CODES = {0, 64, 65, 66, 69, 70, 74, 75, 78}
# Their failure is none of a disk or a signal, and the C library ends the process by it, or they
# cannot fail; brk answers with an address and getpid with a number, never with an error.
UNFAILING = {"brk", "futex", "exit_group", "exit", "getpid", "getppid", "gettid", "rt_sigreturn",
             "rt_sigprocmask", "mprotect", "set_robust_list", "rseq", "clone3", "clone",
             "restart_syscall"}
CONFIG = {"steps": 12, "hash_every_steps": 4, "checkpoint.every_steps": 5, "checkpoint.keep_max": 1}


def traced(t, run, config, *options):
    """As run() of program.py."""
    begin = ["strace", "-f", "-qq", "-o", "trace", *options]
    try:
        done = subprocess.run([*begin, t.program, "train", config, "--run-dir", run, "--replicas",
                               "1"], capture_output=True, text=True, errors="replace", timeout=60,
                              stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return "it hangs", [], ""
    return done.returncode, done.stdout.splitlines(), done.stderr


def calls_of_main():
    """(name, so many before main, so many in all) of each call; strace counts each by itself."""
    before, all_, started = collections.Counter(), collections.Counter(), False
    with open("trace", encoding="utf-8", errors="replace") as f:
        for line in f:
            found = re.match(r"\d+\s+(\w+)\(", line)
            if not found:
                continue
            # The first thing that main does to the process.
            started = started or "rt_sigaction(SIGXFSZ" in line
            all_[found.group(1)] += 1
            if not started:
                before[found.group(1)] += 1
    return [(name, before[name], count) for name, count in sorted(all_.items())], started


def logs(run):
    found = []
    for name in ("metrics", "hashes"):
        with open(f"{run}/{name}.jsonl", encoding="utf-8") as f:
            found.append(f.read())
    return found


def strike(t, config, whole, name, at, fault):
    what = f"{fault} at {name} {at}"
    shutil.rmtree("fault", ignore_errors=True)
    code, lines, error = traced(t, "fault", config, "-e", f"trace={name}", "-e",
                                f"inject={name}:{fault}:when={at}")
    killed = fault == "signal=KILL"
    t.check(code in ((-signal.SIGKILL, 128 + signal.SIGKILL) if killed else CODES), what, code,
            error)
    # Where the line itself could not be written there is none.
    t.check(killed or code == 0 or name == "write" or "lockstep: " in error, what, code, error)
    t.check(code != 0 or killed or result(lines) in (whole[0], ("", "")), what + ": its bits",
            lines[-3:])
    code, lines, error = t.run("train", config, "--run-dir", "fault", "--resume-or-start",
                               "--replicas", "1")
    t.check(code == 0 and result(lines) == whole[0] and logs("fault") == whole[1],
            what + ": gone on with", code, error)
    left = [n for n in os.listdir("fault/checkpoints") if n.endswith(".tmp")]
    t.check(not left and set(os.listdir("fault")) == whole[2], what + ": the same directory", left,
            os.listdir("fault"))


def main():
    t = Test()
    if not shutil.which("strace") or subprocess.run(["strace", "-o", "trace", "true"], check=False,
                                                    capture_output=True).returncode:
        print("skipped: strace is missing, or may not trace here")
        sys.exit(77)
    config = t.write("short.json", CONFIG)
    code, lines, error = traced(t, "whole", config)
    t.check(code == 0, "traced", code, error)
    whole = result(lines), logs("whole"), set(os.listdir("whole"))
    calls, started = calls_of_main()
    t.check(started, "where main begins")
    # A call that only one of two runs makes, by the clock or for what lay in the cache, is no place
    # to strike at.
    shutil.rmtree("fault", ignore_errors=True)
    traced(t, "fault", config)
    again = {name: count for name, _, count in calls_of_main()[0]}
    calls = [(name, before, min(count, again.get(name, 0))) for name, before, count in calls]
    faults = [(name, at, fault) for name, before, count in calls
              for at in range(before + 1, count + 1) for fault in FAULTS
              if fault == "signal=KILL" or name not in UNFAILING]
    faults = [f for f in faults if not (f[0] in ("exit_group", "execve"))]
    step = 1 if ALL else max(1, len(faults) // SAMPLE)
    begin = time.monotonic()
    for fault in faults[::step]:
        strike(t, config, whole, *fault)
    print(f"{len(faults[::step])} of {len(faults)} faults at "
          f"{sum(count - before for _, before, count in calls)} calls of {len(calls)} kinds, "
          f"{time.monotonic() - begin:.0f} s")
    t.finish()


if __name__ == "__main__":
    main()
