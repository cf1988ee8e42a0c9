#!/usr/bin/env python3
"""launch_test - lockstep launch: the bits of one process, every line after its rank, how it ends
when a worker dies, is stopped or refuses, what --restarts does, and how fast all of it is.

   launch_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON
"""
import array
import ctypes
import fcntl
import mmap
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import termios
import time

from program import Process, Test, finish, golden, result, value

MATRIX, GOLDEN = os.path.abspath(sys.argv[3]), os.path.abspath(sys.argv[4])
STEPS = "50"
PTRACE_SEIZE = 0x4206


def plain(text, rank=0):
    """What this rank said."""
    begin = f"[{rank}] "
    return [line[len(begin):] for line in text.splitlines() if line.startswith(begin)]


def workers_of(process, count=0):
    """Process numbers of a launcher's workers by rank, once there are `count`."""
    while True:
        over = process.poll() is not None
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{name}/environ", "rb") as f:
                    rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", f.read())
            except OSError:
                continue
            if parent == process.pid and rank:
                found[int(rank.group(1))] = int(name)
        if len(found) >= count or over:
            return found
        time.sleep(0.002)


def until(process, begin):
    """Reads lines until one of rank 0 begins so; they are returned."""
    lines = []
    for line in process.lines():
        lines.append(line)
        if line.startswith("[0] " + begin):
            break
    return "".join(lines)


def end(process, seconds=60):
    """(exit code, rest of the output, error)"""
    return finish([process], seconds)[0]


def fresh(name="run"):
    """A directory that is gone: a killed launcher's workers save into it for a moment yet."""
    while os.path.lexists(name):
        shutil.rmtree(name, ignore_errors=True)
    return name


def same_bits(t):
    for more in (["--workers", "1"], ["--workers=2", "--replicas=2"],
                 ["--workers", "3", "--replicas", "1"]):
        _, lines, error = t.expect(0, "launch", *more, "train", MATRIX, "--run-dir", fresh(),
                                   "--set", "steps=" + STEPS)
        t.check(result(plain("\n".join(lines))) == golden(GOLDEN, STEPS),
                "the bits of one process", more, lines)
        t.check(all(line.startswith("[0] ") for line in lines) and not error, "the leader speaks",
                lines, error)


def listeners_of(processes):
    """TCP addresses, in the kernel's hexadecimal, at which these processes listen."""
    sockets = set()
    for process in processes:
        for name in os.listdir(f"/proc/{process}/fd"):
            try:
                sockets.add(os.readlink(f"/proc/{process}/fd/{name}"))
            except OSError:
                pass
    found = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}", encoding="ascii") as f:
            for line in f.readlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    found.append(words[1])
    return found


def no_strangers(t):
    """Once the workers have started nobody listens, not even MPI; and where TCP is asked for, at
    loopback only."""
    config = t.write("long.json", {"steps": 1000000})
    tcp = {"UCX_TLS": "tcp,self"}
    for collective, more in (("window", {}), ("messages", {}), ("messages", tcp)):
        environment = {**os.environ, **more}
        process = Process(
            [t.program, "launch", "--workers", "2", "--replicas", "1", "train", config,
             "--run-dir", fresh(), "--collective", collective], stdin=subprocess.DEVNULL,
            env=environment)
        said = until(process, "loss = ")
        found = listeners_of(workers_of(process, 2).values())
        process.kill()
        end(process)
        t.check(all(at.startswith("0100007F:") for at in found) if more else not found,
                "who listens", collective, more, found)
        t.check(("MPI listens at: 127.0.0.1:" if more else "MPI listens at: nothing\n") in said,
                "and says so", said)


def leftovers(t):
    """What MPI has left in /dev/shm is removed where nobody has it open any more, and only then."""
    config = t.write("one.json", {"steps": 1})
    command = ["launch", "--workers", "2", "--replicas", "1", "train", config, "--run-dir"]
    paths = [f"/dev/shm/{name}{os.getpid()}" for name in
             ("mpich_shar_tmp_dead", "mpich_shar_tmp_held", "ucx_shm_posix_dead", "others_")]
    link = paths[0] + "_link"
    try:
        for path in paths:
            with open(path, "wb") as f:
                f.truncate(4096)
        os.symlink(paths[3], link)
        with open(paths[1], "r+b") as f:
            held = mmap.mmap(f.fileno(), 4096)
        t.expect(0, *command, fresh())
        found = [os.path.exists(path) for path in [*paths, link]]
        t.check(found == [False, True, False, True, True], "leftovers", found)
        held.close()
        t.expect(0, *command, fresh())
        t.check(not os.path.exists(paths[1]), "nobody holds it any more")
    finally:
        for path in [*paths, link]:
            if os.path.lexists(path):
                os.remove(path)
    # Killed wherever it is in start-up.
    before = set(os.listdir("/dev/shm"))
    for number in range(12):
        process = t.start(*command, fresh())
        victim = workers_of(process, 2).get(number % 2)
        time.sleep(0.01 * number)
        if victim:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        end(process)
        left = {name for name in set(os.listdir("/dev/shm")) - before
                if name.startswith(("mpich_", "ucx_"))}
        for _ in range(30):  # other runs of this machine start, too
            left &= set(os.listdir("/dev/shm"))
            time.sleep(0.1 if left else 0)
        t.check(not left, "killed in start-up", number, left)


def paused(t):
    """All workers are stopped for longer than --step-timeout, and go on: nobody was silent."""
    config = t.write("paused.json", {"steps": 4000, "log_every_steps": 100})
    wanted = result(t.expect(0, "train", config, "--run-dir", fresh())[1])
    process = t.start("launch", "--workers", "3", "--replicas", "1", "train", config, "--run-dir",
                      fresh(), "--step-timeout", "1", "--start-timeout", "20")
    said = until(process, "loss = ")
    workers = workers_of(process, 3)
    for worker in workers.values():
        os.kill(worker, signal.SIGSTOP)
    time.sleep(3)
    for worker in workers.values():
        os.kill(worker, signal.SIGCONT)
    code, rest, error = end(process)
    t.check(code == 0 and result(plain(said + rest)) == wanted, "paused", code, error, rest[-300:])


def unread(t):
    """Nobody reads what rank 0 says, or launch does, for longer than --step-timeout: the run goes
    on, and its last lines are there at the end. Nobody is there to read any more: it ends soon,
    saves, and says so."""
    config = t.write("chatty.json", {"steps": 8000, "log_every_steps": 1, "model.layers": [
        {"type": "flatten", "name": "flatten"}, {"type": "dense", "name": "logits", "units": 10}]})
    wanted = result(t.expect(0, "train", config, "--run-dir", fresh())[1])
    process = t.start("launch", "--workers", "2", "--replicas", "1", "train", config, "--run-dir",
                      fresh(), "--step-timeout", "1")
    begin = time.monotonic()
    while time.monotonic() - begin < 60 and process.poll() is None and not os.path.exists(
            "run/checkpoints/step-0000008000.safetensors"):
        time.sleep(0.05)
    time.sleep(1.5)
    code, out, error = end(process)
    t.check(code == 0 and result(plain(out)) == wanted, "nobody reads", code, error, out[-300:])
    t.check(re.search(r"\[0\] \.\.\. \d+ lines are left out", out), "lines are left out",
            out[-3000:])
    process = t.start("launch", "--workers", "2", "--replicas", "1", "train", config, "--run-dir",
                      fresh(), "--set", "steps=100000000", "--set", "log_every_steps=100000000")
    until(process, "loss = ")
    process.stdout.close()
    begin = time.monotonic()
    code, error = process.wait(timeout=60), process.stderr.read()
    t.check(time.monotonic() - begin < 5, "soon", time.monotonic() - begin)
    t.check(code == 74 and re.fullmatch("lockstep: standard output: .* its reader is gone; .*\n",
            error), "nobody is there to read", code, error)
    t.check(os.listdir("run/checkpoints"), "it has saved")


def refusals(t):
    config = t.write("small.json")
    for code, what, *arguments in (
            (64, "wanted --workers N", "launch", "train", config),
            (64, "wanted --workers N", "launch", "--workers", "2"),
            (64, "found eval", "launch", "--workers", "2", "eval", config),
            (64, "did you mean \"--workers\"", "launch", "--worker", "2", "train", config),
            (64, "--elastic: found 3", "launch", "--workers", "2", "--elastic", "3", "train",
             config),
            (64, "--rejoin: found without --elastic", "launch", "--workers", "2", "--rejoin", "5",
             "train", config),
            (64, "--workers: found \"0\"", "launch", "--workers", "0", "train", config),
            (64, "leave --cluster away", "launch", "--workers", "2", "train", config, "--cluster",
             "nodes.json"),
            (64, "unknown option \"--resum2\"", "launch", "--workers", "2", "train", config,
             "--resum2"),
            (78, "optimizer.type", "launch", "--workers", "2", "train", config, "--set",
             "optimizer.type=sdg")):
        _, lines, error = t.expect(code, *arguments)
        t.check(what in error and error.count("\n") == 1 and not lines, "one line", error, lines)
    os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a:1", "b:1"]}, ' \
                              '"task": {"type": "worker", "index": 0}}'
    _, _, error = t.expect(78, "launch", "--workers", "2", "train", config)
    t.check("TF_CONFIG describes some already" in error, "two descriptions", error)
    del os.environ["TF_CONFIG"]
    # All find it; the one that says it is named, with what it said.
    _, _, error = t.expect(78, "launch", "--workers", "3", "train", config, "--run-dir", fresh(),
                           "--replicas", "9")
    t.check("[0] lockstep: " in error and "rank 0 of 3" in error and
            "failed first: it ended with exit code 78" in error and
            "the last lines of rank 0:\n  | lockstep: " in error, "who said it", error)
    for rank in (1, 2):
        t.check(not plain(error, rank), "the others are silent", error)


def long_run(t, *more):
    config = t.write("long.json", {"steps": 100000, "checkpoint.every_steps": 20,
                                   "checkpoint.keep_max": 3})
    return t.start("launch", "--workers", "4", "--replicas", "1", "train", config, "--run-dir",
                   fresh("lost"), *more)


def machine_seconds():
    """Seconds that all processors of this machine have worked, and those of them for this test."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = [int(n) for n in f.readline().split()[1:9]]
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return ((sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"),
            sum(r.ru_utime + r.ru_stime for r in own))


def diverged(t):
    """All find it at the same step: the leader says it, and its exit code is the launcher's."""
    config = t.write("diverge.json", {"optimizer.learning_rate": 1e30})
    _, _, error = t.expect(80, "launch", "--workers", "2", "--replicas", "1", "train", config,
                           "--run-dir", fresh())
    t.check(re.fullmatch(r"\[0\] lockstep: step \d+: .* is not finite: .*\n", error), "one line",
            error)


def one_asked(t):
    """One worker is asked to end, not the launcher: all save and end. What it said last is shown,
    though its line has no end."""
    process = long_run(t)
    until(process, "checkpoint step 20 ")
    pids = workers_of(process, 4)
    with open(f"/proc/{pids[1]}/fd/1", "w", encoding="ascii") as said:
        said.write("no end of a line")
    os.kill(pids[1], signal.SIGTERM)
    code, out, error = end(process)
    t.check(code == 143 and "[0] stopped after step " in out and not error, "one is asked", code,
            out[-300:], error)
    t.check("[1] no end of a line" in out, "the last bytes", out[-300:])


def killed(t):
    """The first that fails is named; how long both ends of the run take."""
    begins, ends = [], []
    began, (all_before, own_before) = time.monotonic(), machine_seconds()
    for victim in (1, 0, 3):
        begin = time.monotonic()
        process = long_run(t)
        until(process, "loss = ")
        begins.append(time.monotonic() - begin)
        until(process, "checkpoint step 40 ")
        pids = workers_of(process, 4)
        begin = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        code, _, error = end(process)
        ends.append(time.monotonic() - begin)
        t.check(code == 75 and f"rank {victim} of 4 (process {pids[victim]}) failed first: it was "
                "killed by signal 9 (Killed); go on with --resume" in error and
                f"the last lines of rank {victim}:" in error, "the first is named", code, error)
        t.check("\n  | " in error if victim == 0 else "it had none" in error, "its last lines",
                error)
        t.check(all(f"rank {r}: rank {victim} on " in error for r in range(4) if r != victim),
                "the others say it, too", error)
        t.check(not workers_of(process), "nobody is left")
    print(f"4 workers, start to first step: {min(begins):.2f} s (best of 3)\n"
          f"a worker is killed: all have ended after {max(ends):.2f} s", flush=True)
    # Where others work on this machine, too, it takes as long as they let it.
    all_after, own_after = machine_seconds()
    others = (all_after - all_before - own_after + own_before) / (time.monotonic() - began)
    most = 1.0 if others < 0.1 * os.cpu_count() else 10.0
    print(f"processors that others used meanwhile: {others:.1f}; bound {most:.0f} s", flush=True)
    t.check(min(begins) < most, "start of 4 workers to the first step, best of 3", begins)
    t.check(min(ends) < 2.0, "a killed worker is noticed, best of 3", ends)


def silent(t):
    """One that does not answer is killed, soon after another has given it up."""
    process = long_run(t, "--step-timeout", "1")
    until(process, "checkpoint step 20 ")
    victim = workers_of(process, 4)[2]
    os.kill(victim, signal.SIGSTOP)
    code, _, error = end(process)
    t.check(code == 75 and "rank 2 on " in error and "is silent for longer than --step-timeout"
            in error and f"rank 2 of 4 (process {victim}) failed first: it was stopped or silent"
            in error, "a stopped worker", code, error)
    t.check(not workers_of(process), "nobody is left")


def asked(t):
    """Ctrl-C and SIGTERM are passed on; a second one kills."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = long_run(t)
        until(process, "checkpoint step 20 ")
        process.send_signal(number)
        found, out, error = end(process)
        t.check(found == code and "[0] stopped after step " in out and not error,
                "it saves and ends", found, out, error)
    # One that is stopped goes on, or the others would wait for it and then give it up.
    process = long_run(t, "--step-timeout", "20")
    until(process, "checkpoint step 20 ")
    os.kill(workers_of(process, 4)[2], signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    found, out, error = end(process)
    t.check(found == 143 and "[0] stopped after step " in out and not error, "a stopped one hears",
            found, out[-300:], error)
    # What cannot be saved is said: the exit code is not that of a run that was.
    process = t.start("launch", "--workers", "4", "--replicas", "1", "train",
                      t.write("unsaved.json", {"steps": 100000}), "--run-dir", fresh("lost"))
    until(process, "loss = ")
    os.rename("lost/checkpoints", "lost/elsewhere")
    process.send_signal(signal.SIGINT)
    found, _, error = end(process)
    t.check(found == 74 and "rank 0 of 4" in error and "cannot" in error, "asked, and not saved",
            found, error)
    # In start-up there is nothing to save.
    process = long_run(t)
    workers_of(process, 4)
    process.send_signal(signal.SIGTERM)
    found, out, error = end(process)
    t.check(found == 143 and "failed" not in error, "asked early", found, error)
    # The leader trains on where nobody reads what it says, but cannot end: the second signal kills.
    process = long_run(t)
    unread = array.array("i", [0])
    while unread[0] < 60000 and process.poll() is None:
        fcntl.ioctl(process.stdout, termios.FIONREAD, unread)
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    t.check(process.poll() is None, "the first only asks")
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        t.check(False, "at once")
    found, _, error = end(process)
    t.check(found == 143 and "failed" not in error, "asked twice", found, error)
    t.check(not workers_of(process), "nobody is left")


def first_of_two(t):
    """Two are killed, one after the other, while nobody else can end: the first is the first."""
    for first, second in ((3, 1), (1, 3)):
        process = long_run(t)
        until(process, "checkpoint step 20 ")
        pids = workers_of(process, 4)
        for rank in (0, 2, second):
            os.kill(pids[rank], signal.SIGSTOP)
        for rank in (first, second):
            os.kill(pids[rank], signal.SIGKILL)
            time.sleep(0.3)
        code, _, error = end(process)
        t.check(code == 75 and f"rank {first} of 4 (process {pids[first]}) failed first: it was "
                "killed by signal 9" in error, "the first of two", first, second, code, error)


def asked_after_a_loss(t):
    """Whoever has asked the run to end wants no restart."""
    config = t.write("long.json", {"steps": 100000, "checkpoint.every_steps": 20})
    process = t.start("launch", "--workers", "3", "--replicas", "1", "--restarts", "3", "train",
                      config, "--run-dir", fresh("lost"))
    until(process, "checkpoint step 20 ")
    pids = workers_of(process, 3)
    for rank in (0, 2):
        os.kill(pids[rank], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, _, error = end(process)
    t.check(code in (75, 130) and "lockstep: restart" not in error, "no restart", code, error)
    t.check(not workers_of(process), "nobody is left")


def deaf(t):
    """One that hears nothing, not even SIGTERM and SIGCONT: it is killed in the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    process = long_run(t, "--step-timeout", "60")
    until(process, "checkpoint step 20 ")
    pids = workers_of(process, 4)
    if libc.ptrace(PTRACE_SEIZE, pids[2], 0, 0) != 0:
        print("not done: ptrace is not permitted here")
        process.kill()
        end(process)
        return
    os.kill(pids[2], signal.SIGSTOP)  # and nobody lets it hear any signal but SIGKILL
    time.sleep(0.1)
    os.kill(pids[1], signal.SIGKILL)
    begin = time.monotonic()
    process.stdout.close()
    ended = False
    while not ended and time.monotonic() - begin < 15:
        ended = process.poll() is not None
        try:
            os.waitpid(pids[2], os.WNOHANG)  # its end is told to its tracer first
        except ChildProcessError:
            pass
        time.sleep(0.05)
    t.check(ended and process.returncode == 75, "killed in the end", process.returncode,
            time.monotonic() - begin)
    if not ended:
        os.kill(pids[2], signal.SIGKILL)
        process.kill()
    process.wait()


def orphans(t):
    """Nobody is there to show what they say: the workers save and end."""
    process = long_run(t, "--set", "checkpoint.every_steps=0")
    until(process, "loss = ")
    pids = workers_of(process, 4)
    process.kill()
    end(process)
    for _ in range(500):
        if not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in pids.values()):
            break
        time.sleep(0.01)
    t.check(not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in pids.values()),
            "no worker is left behind", pids)
    for pid in pids.values():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    t.check(os.listdir("lost/checkpoints"), "what they had done is saved")


def restarts(t):
    """Killed again and again, in start-up and later: the digest of the run that was left alone."""
    config = t.write("again.json", {"steps": 1500, "checkpoint.every_steps": 100})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "alone", "--replicas", "2")
    wanted = result(lines)
    # What lies there from an earlier run is not what is gone on with.
    t.expect(0, "train", config, "--run-dir", "killed", "--set", "seed=9", "--set", "steps=100")
    process = t.start("launch", "--workers", "3", "--replicas", "1", "--restarts", "3", "train",
                      config, "--run-dir", "killed", "--fresh")
    first = workers_of(process, 3)
    os.kill(first[1], signal.SIGKILL)
    out = ""
    for step, victim in ((200, 0), (600, 2)):
        out += until(process, f"checkpoint step {step} ")
        os.kill(workers_of(process, 3)[victim], signal.SIGKILL)
    code, rest, error = end(process)
    lines = plain(out + rest)
    t.check(code == 0 and result(lines) == wanted, "restarted three times", code, error, lines)
    t.check([f"restart {n} of 3" in error for n in (1, 2, 3)] == [True] * 3 and
            error.count("failed first: it was killed by signal 9") == 3, "it says so", error)
    t.check(value(lines, "weights of step").split()[0] >= "600", "it went on from a checkpoint",
            lines)
    # And not more often than it may, nor after what will happen again.
    config = t.write("short.json", {"steps": 100000, "checkpoint.every_steps": 50})
    process = t.start("launch", "--workers", "2", "--replicas", "1", "--restarts", "1", "train",
                      config, "--run-dir", fresh("twice"))
    for _ in range(2):
        until(process, "checkpoint step ")
        os.kill(workers_of(process, 2)[1], signal.SIGKILL)
    code, _, error = end(process)
    t.check(code == 75 and error.count("lockstep: restart ") == 1 and
            error.count("failed first") == 2, "only once", code, error)
    _, _, error = t.expect(64, "launch", "--workers", "2", "--restarts", "5", "train", config,
                           "--run-dir", "twice", "--replicas", "1")
    t.check("restart " not in error and "go on with --resume, begin anew with --fresh, or name"
            in error, "a mistake is not made again", error)


def main():
    t = Test()
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
                 "PMI_SIZE", "SLURM_STEP_ID", "LOCKSTEP_KEY_FILE"):
        os.environ.pop(name, None)
    code, _, error = t.run("launch", "--workers", "2", "train", t.write("try.json", {"steps": 1}))
    if code == 69 and "has no MPI" in error:
        print("skipped: this build has no MPI")
        sys.exit(77)
    same_bits(t)
    no_strangers(t)
    leftovers(t)
    paused(t)
    unread(t)
    refusals(t)
    diverged(t)
    one_asked(t)
    killed(t)
    silent(t)
    asked(t)
    first_of_two(t)
    asked_after_a_loss(t)
    deaf(t)
    orphans(t)
    restarts(t)
    t.finish()


if __name__ == "__main__":
    main()
