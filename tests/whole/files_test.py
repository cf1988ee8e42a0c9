#!/usr/bin/env python3
"""files_test - what a run does to the file system, and what the file system may do to a run:
nothing of a stranger's is touched, the order of writes and syncs, saves that fail, and a fault at
every call.

   files_test.py PROGRAM WORK_DIR FILES [all]     FILES: the program linked with tests/whole/files.c

Without `all` the faults at every call are a sample.
"""
import glob
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

from program import Process, Test, finish, result, value

FILES, ALL = os.path.abspath(sys.argv[3]), "all" in sys.argv[4:]
SMALL_RUN = {"steps": 60, "log_every_steps": 5, "hash_every_steps": 10,
             "checkpoint.every_steps": 20, "checkpoint.keep_max": 2,
             "data.test": {"made_up": {"first": 1000, "count": 16, "height": 10, "width": 10}}}


def wished(t, *arguments, timeout=60, **wishes):
    """The program with FILES_* set: (exit code, lines, error)."""
    environment = {"FILES_" + name.upper(): str(text) for name, text in wishes.items()}
    done = subprocess.run([FILES, *arguments], capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, timeout=timeout, check=False,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout.splitlines(), done.stderr


def names(run):
    return sorted(os.path.basename(p) for p in glob.glob(run + "/checkpoints/*"))


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def logs(run):
    return [text_of(f"{run}/{name}.jsonl") for name in ("metrics", "hashes")]


def contents(place):
    """Every file and link below, with what would show that it was touched."""
    found = {}
    for path in [place] + glob.glob(place + "/**", recursive=True):
        info = os.lstat(path)
        found[path] = (info.st_ino, info.st_mtime_ns, info.st_size,
                       os.readlink(path) if os.path.islink(path) else "")
    return found


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def one_line(t, error, *parts):
    t.check(error.startswith("lockstep: ") and error.count("\n") == 1 and
            all(part in error for part in parts), f"one line with {parts}", error)


# --- strangers -----------------------------------------------------------------------------------

def refused_starts(t, config):
    """A start that is refused leaves what it found."""
    put("s1/lock", "precious\n")
    put("s1/other", "x")
    put("s2/lock", "precious\n")
    put("s3/other", "x")
    with open("target", "w", encoding="utf-8") as f:
        f.write("17\n")
    os.symlink("../target", "s3/lock")
    os.makedirs("s4")
    os.symlink("../target", "s4/lock")
    os.makedirs("s5/checkpoints")
    put("s5/checkpoints/step-0000000001.safetensors", "mine")
    before = contents(".")
    for place in ("s1", "s2", "s3", "s4", "s5"):
        for how in ([], ["--fresh"], ["--resume"], ["--resume-or-start"]):
            code, _, error = t.run("train", config, "--run-dir", place, *how)
            t.check(code in (64, 66), f"{place} {how}: refused", code, error)
            one_line(t, error, place)
    after = contents(".")
    for path in sorted(set(before) | set(after)):
        if path not in (".", "./cache") and not path.startswith("./cache/"):
            t.check(before.get(path) == after.get(path), "untouched: " + path, before.get(path),
                    after.get(path))


def fresh_and_links(t, config):
    """--fresh removes its own run, and nothing by way of a link."""
    t.expect(0, "train", config, "--run-dir", "others")
    t.expect(0, "train", config, "--run-dir", "linked")
    shutil.rmtree("linked/checkpoints")
    os.symlink("../others/checkpoints", "linked/checkpoints")
    before = contents("others"), contents("linked")
    for how in ("--fresh", "--resume", "--resume-or-start"):
        _, _, error = t.expect(64, "train", config, "--run-dir", "linked", how)
        one_line(t, error, "linked/checkpoints: is a link")
    t.check(before == (contents("others"), contents("linked")), "nothing was touched",
            names("others"))
    os.unlink("linked/checkpoints")
    t.expect(66, "train", config, "--run-dir", "linked", "--resume")
    t.expect(0, "train", config, "--run-dir", "linked", "--fresh")
    t.expect(0, "train", config, "--run-dir", "linked", "--resume")
    # More names than one call of the system lists.
    for step in range(1, 200):
        shutil.copy("others/checkpoints/" + names("others")[0],
                    f"others/checkpoints/step-{1000 + step:010d}.safetensors")
    t.expect(0, "train", config, "--run-dir", "others", "--fresh")
    t.check(names("others") == names("linked"), "all are gone", names("others"))


def moved(t, whole):
    """A run whose directory is moved goes on in it, and leaves alone what has its path then."""
    slow = {"steps": 100000, "checkpoint.every_steps": 50, "checkpoint.keep_max": 2}
    config = t.write("moved.json", slow)
    process = t.start("train", config, "--run-dir", "place")
    until(process, "checkpoint step 100 ")
    os.rename("place", "elsewhere")
    other = t.write("other.json", {"seed": 8, "steps": 60, "checkpoint.every_steps": 10,
                                   "checkpoint.keep_max": 0})
    _, lines, _ = t.expect(0, "train", other, "--run-dir", "place")
    before = contents("place")
    lines = until(process, "checkpoint step ") + until(process, "checkpoint step ") + \
        until(process, "checkpoint step ")
    last = value(lines, "checkpoint step").split()[0]
    process.send_signal(signal.SIGTERM)
    code, output, error = finish([process])[0]
    t.check(code == 143, "it goes on until it is asked to end", code, error)
    t.check(contents("place") == before, "the other run is untouched", names("place"))
    t.check(error.count("\n") == 1 and "the directory of this run was moved" in error and
            error.rstrip().endswith("/elsewhere"), "said once, with its new place", error)
    t.check(len(names("elsewhere")) == 2 and int(names("elsewhere")[-1][5:15]) >= int(last),
            "it saves and prunes in its own", names("elsewhere"), last)
    t.expect(0, "checkpoint", "verify", "elsewhere")
    # The same run, resumed there, is the one that nobody moved.
    steps = str(int(names("elsewhere")[-1][5:15]) + 10)
    _, one, _ = t.expect(0, "train", config, "--run-dir", "elsewhere", "--resume", "--set",
                         "steps=" + steps)
    _, two, _ = t.expect(0, "train", config, "--run-dir", "unmoved", "--set", "steps=" + steps)
    t.check(result(one) == result(two), "its bits are those of one that stayed", one[-2:], two[-2:])
    t.check(logs("elsewhere") == logs("unmoved"), "and its logs")
    lost_lock(t, config)


def lost_lock(t, config):
    """Without its lock a run may not be alone: it saves nothing more."""
    for replaced in (False, True):
        run = f"unlocked{replaced}"
        process = t.start("train", config, "--run-dir", run, "--set", "steps=5000")
        until(process, "checkpoint step 50 ")
        os.unlink(run + "/lock")
        if replaced:
            put(run + "/lock", "1\n")
        lines = [line.rstrip() for line in process.lines()]
        _, error = process.communicate()
        t.check(process.returncode == 69, "69", process.returncode, error)
        one_line(t, error, run, "\"lock\"", "go on with --resume")
        t.check(names(run) and all(int(n[5:15]) <= 1000 for n in names(run)), "it saves no more",
                names(run), lines[-1:])


def until(process, begin):
    lines = []
    for line in process.lines():
        lines.append(line.rstrip())
        if line.startswith(begin):
            break
    return lines


# --- resuming ------------------------------------------------------------------------------------

def lost_checkpoints(t, config, whole):
    t.expect(0, "train", config, "--run-dir", "gone")
    os.rename("gone/checkpoints", "kept")
    before = logs("gone")
    for how in ("--resume", "--resume-or-start"):
        _, _, error = t.expect(66, "train", config, "--run-dir", "gone", how)
        one_line(t, error, "\"checkpoints\" is gone", "--fresh")
        t.check(logs("gone") == before and not os.path.exists("gone/checkpoints"),
                "nothing was touched")
    os.rename("kept", "gone/checkpoints")
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "gone", "--resume")
    t.check(result(lines) == whole, "put back, it goes on", lines[-3:])
    # One that may not be read is not damaged, and no older one takes its place.
    code, lines, error = wished(t, "train", config, "--run-dir", "gone", "--resume",
                                fault="EACCES@openat:1-9", about="step-0000000060")
    t.check(code == 74, "74", code, error)
    one_line(t, error, "step-0000000060", "Permission denied", "who may read")
    # One that cannot be read is passed over, but not called damaged.
    code, lines, error = wished(t, "train", config, "--run-dir", "gone", "--resume",
                                fault="EIO@pread:1-1", about="step-0000000060")
    t.check(code == 0 and result(lines) == whole, "from the one before", code, error)
    t.check("unreadable checkpoint passed over" in error and "damaged" not in error,
            "called what it is", error)


def leftovers(t, config, whole):
    """What a save had begun is removed by the next start, also where no save will have its name."""
    wished(t, "train", config, "--run-dir", "left", fault="kill@renameat:1-1", about="/step-")
    t.check(names("left") == ["step-0000000020.safetensors.tmp"], "begun", names("left"))
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "left", "--resume", "--set",
                           "checkpoint.every_steps=30")
    t.check(result(lines) == whole and names("left") == ["step-0000000030.safetensors",
                                                         "step-0000000060.safetensors"],
            "nothing is left over", names("left"))


def small_stack(t, config):
    def limit(soft, hard):
        return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    for kib in (32, 64, 128, 256):
        bytes_ = kib * 1024
        for hard, code in ((bytes_, 69), (resource.RLIM_INFINITY, 0)):
            shutil.rmtree("stack", ignore_errors=True)
            done = subprocess.run([t.program, "train", config, "--run-dir", "stack"], text=True,
                                  capture_output=True, preexec_fn=limit(bytes_, hard), check=False)
            t.check(done.returncode == code, f"stack of {kib} KiB, hard {hard}", done.returncode,
                    done.stderr)
            if code:
                one_line(t, done.stderr, str(bytes_), "ulimit -s")


def finished(t, config, whole):
    """A run that is finished changes nothing, however often it is started."""
    t.expect(0, "train", config, "--run-dir", "done", "--resume-or-start")
    before, said = contents("done"), logs("done")
    for how in ("--resume", "--resume-or-start"):
        if os.path.exists("trace"):
            os.unlink("trace")
        code, lines, error = wished(t, "train", config, "--run-dir", "done", how,
                                    trace=t.work + "/trace")
        t.check(code == 0 and not error, how, code, error)
        t.check(any("nothing to do: step 60 of 60 is already saved" in line for line in lines),
                "it says so", lines[-4:])
        t.check(result(lines) == whole, "and what it came to")
        after = contents("done")
        changed = [p for p in set(before) | set(after)
                   if before.get(p) != after.get(p) and p != "done/lock"]
        t.check(not changed and logs("done") == said, "nothing has changed", changed)
        calls = [line.split()[1:] for line in text_of("trace").splitlines()]
        writes = [c for c in calls if c[0] in ("write", "renameat", "unlinkat", "mkdirat") and
                  not c[1].endswith("/lock") and c != ["mkdirat", calls[-1][1] + "/checkpoints"]]
        t.check(not [c for c in writes if c[0] != "mkdirat"], "nothing is written", writes)


# --- the order of what is done -------------------------------------------------------------------

def order_of_writes(t, config):
    """Nothing gets its name before its bytes are on the disk, no checkpoint is published before the
    logs are synced, and none is removed before the new one's name is."""
    if os.path.exists("trace"):
        os.unlink("trace")
    code, _, error = wished(t, "train", config, "--run-dir", "order", trace=t.work + "/trace")
    t.check(code == 0, "traced", error)
    dirty, renamed, saved, removed = set(), set(), 0, 0
    for line in text_of("trace").splitlines():
        _, call, path = line.split(" ", 2)
        place = os.path.dirname(path)
        if call == "write":
            dirty.add(path)
        elif call == "fsync":
            dirty.discard(path)
            renamed.discard(path)
        elif call == "renameat":
            t.check(path not in dirty, "synced before it gets its name", line)
            if place.endswith("/checkpoints"):
                logs_ = [p for p in dirty if p.endswith(".jsonl")]
                t.check(not logs_, "the logs are synced before a checkpoint", line, logs_)
                saved += 1
            renamed.add(place)
        elif call == "unlinkat":
            t.check(not renamed, "the new name is synced before an old one goes", line, renamed)
            removed += 1
    t.check(saved == 3 and removed == 1, "what is seen is the run", saved, removed)
    t.check(not renamed and not [p for p in dirty if not p.endswith("/lock")],
            "all is on the disk at the end", dirty, renamed)


# --- saves that fail -----------------------------------------------------------------------------

def failed_saves(t, config, whole):
    step = "step-00000000"
    whole_logs = logs("order")
    for how, call in (("EIO", "fsync"), ("ENOSPC", "write"), ("EIO", "renameat"), ("EIO", "pread"),
                      ("ENOSPC", "openat")):
        run = f"failed-{how}-{call}"
        code, lines, error = wished(t, "train", config, "--run-dir", run,
                                    fault=f"{how}@{call}:1-1", about=step + "40")
        t.check(code == 0 and result(lines) == whole, run + ": the run goes on", code, error)
        one_line(t, error, "WARNING: no checkpoint of step 40", "that of step 20", step + "40")
        t.check(names(run) == [step + "20.safetensors", step + "60.safetensors"], run, names(run))
        t.check(logs(run) == whole_logs, run + ": its logs are whole")
    # The last one failed once: again at the end.
    code, lines, error = wished(t, "train", config, "--run-dir", "last",
                                fault="EIO@fsync:1-1", about=step + "60")
    t.check(code == 0 and result(lines) == whole and names("last")[-1] == step + "60.safetensors",
            "the last save is tried again", code, error, names("last"))
    # Never well: what was computed is said, and the exit code is that of the disk.
    code, lines, error = wished(t, "train", config, "--run-dir", "never",
                                fault="ENOSPC@write:1-999", about="/step-")
    t.check(code == 74 and result(lines) == whole, "to its own end, then 74", code, error)
    t.check(error.count("\n") == 2 and "WARNING: no checkpoint of step 20 (the last one is none" in
            error and "No space left" in error.splitlines()[1], "two lines", error)
    t.check(len([line for line in lines if "WARNING: no checkpoint" in line]) == 4,
            "each on standard output", lines)
    t.check(not names("never"), "nothing half done", names("never"))
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "never", "--resume-or-start")
    t.check(result(lines) == whole and logs("never") == whole_logs, "and all can be done again")
    # As the configuration says: at once.
    code, lines, error = wished(t, "train", config, "--run-dir", "stop", "--set",
                                "checkpoint.on_error=\"stop\"", fault="EIO@fsync:1-1",
                                about=step + "40")
    t.check(code == 74 and not value(lines, "digest") and
            names("stop") == [step + "20.safetensors"], "stop: at once", code, lines[-3:],
            names("stop"))
    one_line(t, error, step + "40", "Input/output error")
    # The removal of an old one is not the failure of a new one.
    code, lines, error = wished(t, "train", config, "--run-dir", "unremoved",
                                fault="EIO@unlinkat:1-1", about=step + "20")
    t.check(code == 0 and result(lines) == whole and len(names("unremoved")) == 3, "kept", code)
    one_line(t, error, "WARNING: checkpoint step 60 stands, but", step + "20")
    # Asked to stop on a disk that fails: it could not save, and says so.
    process = Process([FILES, "train", config, "--run-dir", "asked", "--set", "steps=100000"],
                      env={**os.environ, "FILES_FAULT": "EIO@fsync:2-9999",
                           "FILES_ABOUT": "/step-"})
    until(process, "WARNING")
    process.send_signal(signal.SIGTERM)
    code, output, error = finish([process])[0]
    t.check(code == 74 and "stopped after" not in output, "stopped, not saved: 74", code, error)


def full_logs(t, config, whole):
    """Lines wait for room, none comes twice, and lost ones are counted."""
    whole_logs = logs("order")
    # Every copy of the hot state would try once more to write what waits.
    code, lines, error = wished(t, "train", config, "--run-dir", "waited", "--set",
                                "checkpoint.hot_steps=0",
                                fault="ENOSPC@write:1-6", about="/metrics.jsonl")
    t.check(code == 0 and logs("waited") == whole_logs, "nothing is missing", code, error)
    one_line(t, error, "WARNING: no checkpoint of step 20", "metrics.jsonl: cannot write")
    t.check(names("waited") == ["step-0000000040.safetensors", "step-0000000060.safetensors"],
            "saved when it could be", names("waited"))
    many = ["--set", "steps=3000", "--set", "checkpoint.every_steps=0", "--set",
            "log_every_steps=1"]
    code, lines, error = wished(t, "train", config, "--run-dir", "lost", *many,
                                fault="ENOSPC@write:1-1500", about="/metrics.jsonl")
    _, wanted, _ = t.expect(0, "train", config, "--run-dir", "kept-all", *many)
    missing = text_of("kept-all/metrics.jsonl").count("\n") - \
        text_of("lost/metrics.jsonl").count("\n")
    t.check(code == 74 and result(lines) == result(wanted), "the run goes on", code, error)
    one_line(t, error, f"metrics.jsonl: {missing} lines are missing")
    t.check(missing > 100 and set(text_of("lost/metrics.jsonl").splitlines()) <=
            set(text_of("kept-all/metrics.jsonl").splitlines()), "what is there is whole", missing)


def ahead_of_logs(t, config):
    """No copy of the hot state is of a step whose lines still wait: the ones before it stay."""
    more = ["--set", "checkpoint.hot_steps=1", "--set", "checkpoint.every_steps=0", "--set",
            "hash_every_steps=50", "--set", "log_every_steps=10"]
    process = Process([FILES, "train", config, "--run-dir", "ahead", "--set", "steps=100000000",
                       *more], env={**os.environ, "FILES_FAULT": "ENOSPC@write:1-99999999",
                                    "FILES_ABOUT": "/hashes.jsonl"})
    for line in process.lines():
        if re.search(r"step = (\d{3,})", line):
            break
    process.kill()
    _, _, error = finish([process])[0]
    t.check(not error, "it went on", error)
    _, lines, error = t.expect(0, "train", config, "--run-dir", "ahead", "--resume", "--set",
                               "steps=60", *more)
    t.check(any(line.startswith("weights of step 49 from the hot state") for line in lines) and
            not error, "from before the lines that wait", error, *lines[:12])


def little_room(t, config, whole):
    code, lines, error = wished(t, "train", config, "--run-dir", "room", free=100000)
    t.check(code == 0 and result(lines) == whole, "a warning is no end", code, error)
    one_line(t, error, "WARNING: ", "/room: the disk is almost full", "100000 are free")
    t.check(lines.index(next(line for line in lines if "almost full" in line)) <
            lines.index(next(line for line in lines if line.startswith("loss"))),
            "said before the first step")
    needed = int(re.search(r"takes (\d+) bytes", error).group(1))
    most = max(os.path.getsize(p) for p in glob.glob("room/checkpoints/*"))
    t.check(most < needed, "the next checkpoint, and logs", most, needed)
    code, _, error = wished(t, "train", config, "--run-dir", "enough", free=needed)
    t.check(code == 0 and not error, "just enough", error)


# --- a fault at every call -----------------------------------------------------------------------

def every_call(t, config, whole):
    """Killed before or after it, or it fails: the next start brings all to the same end."""
    calls = len(text_of("trace").splitlines())
    whole_logs, tried, begin = logs("order"), 0, time.monotonic()
    hows = ("kill", "after", "EIO", "ENOSPC", "EINTR")
    for number in range(1, calls + 1):
        for which, how in enumerate(hows):
            if not ALL and (number * len(hows) + which) % 8:
                continue
            tried += 1
            what = f"{how} at call {number}"
            shutil.rmtree("fault", ignore_errors=True)
            code, lines, error = wished(t, "train", config, "--run-dir", "fault",
                                        fault=f"{how}@any:{number}-{number}")
            if how in ("kill", "after"):
                t.check(code == -signal.SIGKILL, what, code, error)
            else:
                t.check(code in (0, 74), what, code, error)
                t.check(code == 0 or error.splitlines()[-1].startswith("lockstep: "), what, error)
            if code == 0:
                t.check(result(lines) == whole and logs("fault") == whole_logs,
                        what + ": whole", lines[-2:])
            code, lines, error = t.run("train", config, "--run-dir", "fault", "--resume-or-start")
            t.check(code == 0 and result(lines) == whole, what + ": gone on with", code, error)
            t.check(logs("fault") == whole_logs, what + ": the same logs")
            left = [p for p in glob.glob("fault/**", recursive=True) if p.endswith(".tmp")]
            # A finished run removes nothing: if the last removal was cut short, an old one stays.
            t.check(not left and names("fault")[-1:] == ["step-0000000060.safetensors"] and
                    len(names("fault")) <= 3, what + ": the same directory", left, names("fault"))
            t.check(not os.path.exists("fault") or set(os.listdir("fault")) ==
                    set(os.listdir("order")), what, os.listdir("fault"))
    print(f"{tried} faults at {calls} calls, {time.monotonic() - begin:.1f} s")


def main():
    t = Test()
    config = t.write("files.json", SMALL_RUN)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "whole", "--replicas", "1")
    whole = result(lines)
    t.check(all(len(h) == 64 for h in whole), "two hashes", whole)
    order_of_writes(t, config)
    every_call(t, config, whole)
    refused_starts(t, config)
    fresh_and_links(t, config)
    moved(t, whole)
    lost_checkpoints(t, config, whole)
    leftovers(t, config, whole)
    small_stack(t, config)
    failed_saves(t, config, whole)
    full_logs(t, config, whole)
    ahead_of_logs(t, config)
    little_room(t, config, whole)
    finished(t, config, whole)
    t.finish()


if __name__ == "__main__":
    main()
