#!/usr/bin/env python3
"""crash_test - runs that are killed, stopped, damaged and resumed end as if nothing had happened.

   crash_test.py PROGRAM WORK_DIR [ROUNDS]
"""
import glob
import os
import random
import re
import shutil
import signal
import sys
import time

from program import Test, finish, result, value

STARTS = 40
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 20
SEED = 20240607  # of when and whom to kill; a failure is found again by it


def checkpoints(run):
    return sorted(glob.glob(run + "/checkpoints/*.safetensors"))


def kill_loop(t, config, whole):
    """Kills at random moments, from before the first checkpoint on, until ROUNDS are done. The
    last of a run's starts is left alone, if chance has let none come to its end."""
    choice = random.Random(SEED)
    kills = resumes = runs = 0
    while kills < ROUNDS:
        run = f"killed{runs}"
        runs += 1
        for start in range(STARTS):
            begun = os.path.exists(run + "/identity")
            process = t.start("train", config, "--run-dir", run, "--replicas",
                              str(choice.choice([1, 2, 3, 5])), *(["--resume"] if begun else []))
            limit = choice.random()
            lines = []
            if start == STARTS - 1:
                lines += [line.rstrip() for line in process.lines()]
                process.wait()
            elif limit < 0.2:
                time.sleep(limit * 0.2)  # while it starts
            else:
                wanted = choice.randrange(1, 120)
                for line in process.lines():
                    lines.append(line.rstrip())
                    if len(lines) >= wanted:
                        break
            process.kill()
            output, error = process.communicate()
            lines += output.splitlines()
            resumes += any(line.startswith("weights of step") for line in lines)
            if process.returncode == -signal.SIGKILL:
                kills += 1
                continue
            t.check(process.returncode == 0, f"{run}: it ended by itself", error)
            break
        t.check(value(lines, "digest"), f"{run}: came to its end")
        t.check(result(lines) == whole, f"{run}: digest and state hash", result(lines), whole)
    t.check(resumes > 0, "some were resumed")
    print(f"{kills} kills in {runs} runs, {resumes} resumed from a checkpoint")


def stop(t, config, whole, number, code):
    run = f"stopped{code}"
    process = t.start("train", config, "--run-dir", run, "--replicas", "2")
    for line in process.lines():
        if line.startswith("loss = ") and "step = 33 " in line:
            process.send_signal(number)
            break
    output, error = process.communicate()
    lines = output.splitlines()
    t.check(process.returncode == code, f"exit {process.returncode}, wanted {code}", error)
    t.check("go on with --resume" in output, "it says how to go on", output[-300:])
    saved = value(lines, "checkpoint step").split()
    stopped = value(lines, "stopped after step")
    t.check(saved and stopped.startswith(saved[0]), "saved at the step where it stopped", saved,
            stopped)
    t.check(error == "", "no error message", error)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", run, "--resume", "--replicas", "3")
    t.check(result(lines) == whole, "stopped and resumed", result(lines), whole)


def stop_twice(t, whole):
    """The first Ctrl-C waits for what is being computed, an evaluation that nobody waits for; the
    second, unless it is the first heard twice, for nothing."""
    test_set = {"made_up": {"first": 1000, "count": 300000, "height": 10, "width": 10}}
    config = t.write("long.json", {"checkpoint.every_steps": 20, "checkpoint.keep_max": 0,
                                   "data.test": test_set})
    process = t.start("train", config, "--run-dir", "twice", "--replicas", "1",
                      "--kernels", "reference", "--set", "steps=20")
    for line in process.lines():
        if line.startswith("checkpoint step 20 "):
            break
    for signals, wait in ((2, 0.1), (1, 0.8)):
        time.sleep(wait)
        t.check(process.poll() is None, "the evaluation goes on", process.returncode)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
    begin = time.monotonic()
    output, error = finish([process])[0][1:]
    t.check(process.returncode == 130 and time.monotonic() - begin < 2, "ended at once",
            process.returncode, error, output[-300:])
    t.check(error.startswith("lockstep: interrupted again: ended at once") and
            error.count("\n") == 1, "it says so", error)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "twice", "--resume", "--set",
                           "data.test.made_up.count=16")
    t.check(result(lines) == whole, "nothing is lost", result(lines), whole)


def damage(path, at=-10):
    with open(path, "r+b") as f:
        f.seek(at, os.SEEK_END)
        byte = f.read(1)
        f.seek(at, os.SEEK_END)
        f.write(bytes([byte[0] ^ 1]))


def damaged(t, config, whole):
    t.expect(0, "train", config, "--run-dir", "damaged", "--set", "steps=120")
    before = len(checkpoints("damaged"))
    t.check(before >= 2, "several checkpoints", before)
    newest = checkpoints("damaged")[-1]
    damage(newest)
    shutil.copytree("damaged", "all_damaged")
    shutil.copytree("damaged", "cut")
    with open(checkpoints("cut")[-1], "r+b") as f:
        f.truncate(100)
    for run in ("damaged", "cut"):
        code, lines, error = t.expect(0, "train", config, "--run-dir", run, "--resume")
        passed = "WARNING: damaged checkpoint passed over: "
        t.check(passed in error and os.path.basename(newest) in error, "it is named on stderr",
                error)
        t.check(any(passed in line for line in lines), "and on stdout")
        t.check(error.count(newest[len("damaged"):]) == 1, "once", error)
        t.check(value(lines, "weights of step").startswith("100 "), "the one before serves",
                value(lines, "weights of step"))
        t.check(result(lines) == whole, f"{run}: ends as the others", result(lines), whole)
    for path in checkpoints("all_damaged")[:-1]:
        damage(path)
    code, lines, error = t.expect(65, "train", config, "--run-dir", "all_damaged", "--resume")
    t.check(not any(line.startswith("loss") for line in lines), "it did not start from step 0")
    t.check(error.splitlines()[-1].startswith("lockstep: "), "an error", error)


def refused(t, config, whole):
    process = t.start("train", config, "--run-dir", "held", "--set", "steps=100000")
    for line in process.lines():
        if line.startswith("loss"):
            break
    for more in ("--resume", "--fresh"):
        code, _, error = t.expect(69, "train", config, "--run-dir", "held", more)
        t.check(str(process.pid) in error and error.count("\n") == 1, "the holder is named", error)
    process.kill()
    process.communicate()
    code, _, error = t.expect(64, "train", config, "--run-dir", "held")
    t.check("held" in error and error.count("\n") == 1, "not empty: what to do", error)
    os.mkdir("notes")
    with open("notes/poem.txt", "w", encoding="utf-8") as f:
        f.write("mine")
    for more in ([], ["--fresh"]):
        t.expect(64, "train", config, "--run-dir", "notes", *more)
    t.check(os.listdir("notes") == ["poem.txt"], "nothing of a stranger's is touched",
            os.listdir("notes"))
    code, _, error = t.expect(78, "train", config, "--run-dir", "held", "--resume",
                              "--set", "seed=8")
    with open("held/identity", encoding="utf-8") as f:
        t.check(f.read().strip() in error and len(re.findall("[0-9a-f]{64}", error)) == 2,
                "foreign: both identities", error)
    t.expect(66, "train", config, "--run-dir", "nowhere", "--resume")
    # A checkpoint of another run among ours is never loaded.
    t.expect(0, "train", config, "--run-dir", "foreign", "--set", "seed=8", "--set", "steps=300")
    t.expect(0, "train", config, "--run-dir", "mixed", "--set", "steps=40")
    shutil.copy(checkpoints("foreign")[-1], "mixed/checkpoints")
    code, lines, error = t.run("train", config, "--run-dir", "mixed", "--resume")
    t.check(code != 0 or result(lines) == whole, "a foreign checkpoint is refused or passed over",
            code, error)


def main():
    t = Test()
    config = t.write("crash.json", {"checkpoint.every_steps": 20, "checkpoint.keep_max": 0})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "whole", "--replicas", "1")
    whole = result(lines)
    t.check(all(len(h) == 64 for h in whole), "two hashes", whole)
    kill_loop(t, config, whole)
    stop(t, config, whole, signal.SIGINT, 130)
    stop(t, config, whole, signal.SIGTERM, 143)
    stop_twice(t, whole)
    damaged(t, config, whole)
    refused(t, config, whole)
    t.finish()


if __name__ == "__main__":
    main()
