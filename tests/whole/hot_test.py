#!/usr/bin/env python3
"""hot_test - hot state: a run is killed in every phase, every rank of one, two or three workers;
one or both copies are torn, old, cut, held by another, or gone as after a power cut. What goes on
is at most one unfinished step behind (or as many as hot_steps says), ends with the bits, the logs
and the checkpoints of a run that was left alone, and leaves nothing in memory.

   hot_test.py PROGRAM WORK_DIR STRIKE_PROGRAM [all]

With `all` at least 1,000 faults, otherwise a choice of more than 60.
"""
import fcntl
import filecmp
import glob
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from program import Process, Test, finish, free_port, result, tf_config, value

STRIKE, ALL = os.path.abspath(sys.argv[3]), sys.argv[4:] == ["all"]
STEPS, EVALUATE, SAVE = 40, 15, 10
PHASES = ["load", "forward", "backward", "reduce", "apply"]
TURNS = ["boxes", "sums"]
SAVING = ["create", "write", "sync", "rename", "directory"]
KEEPING = ["keep", "copy", "kept"]
START_UP = ["start", "meet", "window", "agree", "connect"]


def least_step(place, step, every):
    """The step that must not be lost."""
    if place in KEEPING:
        kept = -(-step // every) * every
        return kept if place == "kept" else kept - every
    if place == "evaluation":
        step = -(-step // EVALUATE) * EVALUATE
    elif place in SAVING:
        step = -(-step // SAVE) * SAVE
    return step // every * every


class Case:
    """One fault, in a run directory and a place for hot state of its own."""

    def __init__(self, t, number, what):
        self.t, self.what = t, what
        self.run = f"run{number}"
        self.hot = os.path.join(t.hot, str(number))
        os.mkdir(self.hot)
        self.failures = t.failures

    def check(self, holds, what, *more):
        return self.t.check(holds, f"{self.what}: {what}", *more)

    def call(self, program, *arguments, environment=None):
        env = {**os.environ, "LOCKSTEP_HOT_DIRECTORY": self.hot, **(environment or {})}
        done = subprocess.run([program, *arguments], capture_output=True, text=True,
                              errors="replace", env=env, timeout=300, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def file(self):
        files = glob.glob(self.hot + "/lockstep-hot-*")
        return files[0] if len(files) == 1 else None

    def judge(self, end, wanted, least=0, exact=None, same_files=True):
        """Of the process that brought the run to its end."""
        code, out, error = end
        lines = [re.sub(r"^\[\d+\] ", "", line) for line in out.splitlines()]
        self.check(code == 0 and result(lines) == wanted, "the same bits", code, error,
                   *lines[-12:])
        began = value(lines, "weights of step").split(" ")[0]
        began = int(began) if began else 0
        if exact is not None:
            self.check(began == exact, f"goes on from step {began}, wanted {exact}", error,
                       *lines[:12])
        self.check(began >= least, f"goes on from step {began}, wanted {least}", error, *lines[:12])
        for name in ("metrics.jsonl", "hashes.jsonl"):
            equal = filecmp.cmp(f"{self.run}/{name}", f"alone/{name}", False)
            self.check(equal, f"{name} is equal")
        if same_files:
            ours, theirs = [{os.path.basename(p): open(p, "rb").read()
                             for p in glob.glob(run + "/checkpoints/*")}
                            for run in (self.run, "alone")]
            self.check(ours == theirs, "the same checkpoints", sorted(ours), sorted(theirs))
        self.check(os.listdir(self.hot) == [], "nothing stays in memory", os.listdir(self.hot))
        return out, error

    def end(self):
        survived = self.t.failures == self.failures
        shutil.rmtree(self.hot)
        if survived:
            shutil.rmtree(self.run)
        return survived


def settings(every):
    return ["--set", f"checkpoint.hot_steps={every}"]


def strike_alone(case, place, step, every, config):
    """A process alone is killed; it leaves its hot state."""
    code, _, error = case.call(STRIKE, "train", config, "--run-dir", case.run, "--replicas", "2",
                               *settings(every), environment={"STRIKE": f"kill@{place}:{step}"})
    case.check(code == -signal.SIGKILL, "it was struck", code, error)


def lose_alone(t, number, fault, config, wanted):
    _, place, step, every = fault
    case = Case(t, number, f"alone, {place} {step}, every {every}")
    strike_alone(case, place, step, every, config)
    if place == "copy" and step > every:
        _, out, error = end = case.call(t.program, "train", config, "--run-dir", case.run,
                                        "--resume", "--replicas", "3", *settings(every))
        case.check("WARNING: hot state passed over: a copy of rank 0's host is torn" in error,
                   "it is said", error)
    else:
        end = case.call(t.program, "train", config, "--run-dir", case.run, "--resume",
                        "--replicas", "3", *settings(every))
    case.judge(end, wanted, least_step(place, step, every))
    return case.end()


def lose_worker(t, number, fault, config, wanted):
    """One of several, under launch, which starts them again: all, or those that are left."""
    how, place, step, every, world, victim, collective, elastic = fault
    case = Case(t, number, f"{how} {place} {step}, rank {victim} of {world}, {collective}, every "
                f"{every}{', elastic' if elastic else ''}")
    environment = {"STRIKE": f"{how}@{place}:{step}", "STRIKE_RANK": str(victim),
                   "STRIKE_ONCE": f"{t.work}/{case.run}.struck"}
    if collective == "messages":
        environment["UCX_TLS"] = "tcp,self"
    more = ["--elastic", "1", "--rejoin", "600"] if elastic else ["--restarts", "1"]
    soon = ["--step-timeout", "2"] if how in ("stop", "wait") else []
    end = case.call(STRIKE, "launch", "--workers", str(world), "--replicas", "1", *more, "train",
                    config, "--run-dir", case.run, "--collective", collective if world > 1 else
                    "auto", *soon, *settings(every), environment=environment)
    case.check(os.path.exists(case.run + ".struck"), "it was struck", end[2])
    least = 0 if place in START_UP else STEPS if place == "end" else least_step(place, step, every)
    if collective == "messages" and least:  # what it gave last may be lost with it
        least = (least - 1) // every * every
    case.judge(end, wanted, least)
    said = f"goes on with {world - 1} of {world} workers" if elastic else "restart 1 of 1"
    case.check(said in end[2], "it says so", end[2])
    if soon:
        case.check(re.search(rf"rank {victim} of {world} \(process \d+\) failed first: it was "
                             "stopped or silent", end[2]), "who did not go on", end[2])
    return case.end()


# --- what is found is not as it was left ---------------------------------------------------------

def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes([byte[0] ^ 4]))


def damage(case, kind):
    """Spoils what a killed run has left. Returns what stays open until it has gone on."""
    path = case.file()
    size = os.path.getsize(path) // 2
    with open(path, "rb") as f:
        whole = f.read()
    steps = [struct.unpack_from("<Q", whole, c * size + 40)[0] for c in (0, 1)]
    newest = steps.index(max(steps))
    older, newest = (1 - newest) * size, newest * size
    checkpoints = sorted(glob.glob(case.run + "/checkpoints/*.safetensors"))
    if kind in ("newest", "both", "nothing left"):
        flip(path, newest + 4096 + 77)
    if kind in ("older", "both", "nothing left"):
        flip(path, older + size - 4096 + 3)
    if kind == "head":
        flip(path, newest + 41)
    if kind == "power cut":
        os.remove(path)
    if kind == "short":
        os.truncate(path, size)
    if kind == "checkpoints damaged":
        for checkpoint in checkpoints:
            flip(checkpoint, os.path.getsize(checkpoint) - 9)
    if kind == "nothing left" and checkpoints:
        flip(checkpoints[-1], os.path.getsize(checkpoints[-1]) - 9)
    if kind == "open":
        os.chmod(path, 0o644)
    if kind == "link":
        shutil.move(path, path + ".precious")
        os.symlink(path + ".precious", path)
    if kind == "logs":
        with open(case.run + "/metrics.jsonl", "rb+") as f:
            lines = f.read().splitlines(True)
            f.truncate(len(b"".join(lines[:-1])))
    if kind == "held":
        held = open(path, "rb")
        fcntl.flock(held, fcntl.LOCK_EX)
        return held
    return None


def expected(kind, step):
    disk = step // SAVE * SAVE
    torn = max(step - 1, disk)
    return {"none": step, "newest": torn, "older": step, "head": torn,
            "checkpoints damaged": step, "nothing left": max(disk - SAVE, 0)}.get(kind, disk)


def spoil(t, number, fault, config, wanted):
    _, kind, step, workers = fault
    case = Case(t, number, f"{kind} {step}, gone on with by {workers}")
    strike_alone(case, "forward", step, 1, config)
    held = damage(case, kind)
    train = ["train", config, "--run-dir", case.run, "--resume", *settings(1)]
    if workers > 1:
        train = ["launch", "--workers", str(workers), "--replicas", "1", *train]
    end = case.call(t.program, *train)
    if held:
        held.close()
        os.remove(held.name)
    if kind == "link":
        with open(glob.glob(case.hot + "/*.precious")[0], "rb") as f:
            case.check(f.read(4) == b"LKHO", "what the link names is not touched")
    if kind in ("link", "open"):
        for path in glob.glob(case.hot + "/*"):
            os.remove(path)
    step = expected(kind, step)
    same_files = kind not in ("checkpoints damaged", "nothing left")
    case.judge(end, wanted, exact=step, same_files=same_files)
    loud = {"newest": "is torn", "older": "is torn", "both": "is torn", "head": "is torn",
            "logs": "the logs end before it", "link": "is a link", "open": "is open to others",
            "held": "another process holds it",
            "nothing left": "damaged checkpoint passed over" if step else None}.get(kind)
    case.check(not loud or ("WARNING: " in end[2] and loud in end[2]), "it is said loudly", end[2])
    return case.end()


def stale(t, number, fault, config, wanted):
    """A copy of the file from before the last checkpoint comes back."""
    case = Case(t, number, "stale")
    strike_alone(case, "forward", 12, 1, config)
    shutil.copy(case.file(), "stale.hot")
    code, _, error = case.call(STRIKE, "train", config, "--run-dir", case.run, "--resume",
                               *settings(1), environment={"STRIKE": "kill@apply:27"})
    case.check(code == -signal.SIGKILL, "struck again", code, error)
    with open("stale.hot", "rb") as f, open(case.file(), "r+b") as g:
        g.write(f.read())
    end = case.call(t.program, "train", config, "--run-dir", case.run, "--resume", *settings(1))
    case.judge(end, wanted, exact=20)
    case.check("WARNING: hot state passed over: its step 12 is older than the checkpoint of step 20"
               in end[2], "it is said", end[2])
    return case.end()


# --- what must not stay, and the last step -------------------------------------------------------

def begun_anew(t, number, config, wanted):
    """--fresh takes the hot state of the run that it removes with it."""
    case = Case(t, number, "begun anew")
    strike_alone(case, "forward", 12, 1, config)
    end = case.call(t.program, "train", config, "--run-dir", case.run, "--fresh", *settings(1))
    case.judge(end, wanted)
    case.end()


def refused(t, number, config):
    """One that ends before its first step leaves no empty file."""
    case = Case(t, number, "refused")
    case.call(t.program, "train", config, "--run-dir", case.run, "--set", "steps=1")
    os.remove(case.run + "/metrics.jsonl")
    os.mkdir(case.run + "/metrics.jsonl")
    code, _, error = case.call(t.program, "train", config, "--run-dir", case.run, "--resume")
    case.check(code == 74 and "metrics.jsonl" in error, "it is refused", code, error)
    case.check(os.listdir(case.hot) == [], "nothing stays in memory", os.listdir(case.hot))
    case.end()


def last_step(t, number, config, wanted):
    """The last step is kept, whatever hot_steps says: the checkpoint after it may fail."""
    case = Case(t, number, "the last step")
    strike_alone(case, "create", STEPS - 1, 7, config)
    end = case.call(t.program, "train", config, "--run-dir", case.run, "--resume", *settings(7))
    case.judge(end, wanted, exact=STEPS)
    case.end()


def what_stands(t, number):
    """After the hot state was taken a run knows the checkpoint that it has on disk."""
    wide = t.write("wide.json", {"steps": STEPS, "checkpoint.every_steps": SAVE,
                                 "model.layers.3.units": 400})
    case = Case(t, number, "what stands")
    strike_alone(case, "create", STEPS - 1, 1, wide)
    code, out, error = case.call(
        "sh", "-c", 'ulimit -f 100; trap "" XFSZ; exec "$0" "$@"', t.program, "train", wide,
        "--run-dir", case.run, "--resume", *settings(1))
    case.check(code == 74 and "(the last one is that of step 30)" in error, "it cannot save", code,
               error)
    case.check("nothing to do: step 40 of 40 is already trained" in out, "nor says so", out)
    schedule = {"type": "piecewise", "boundaries": [26], "values": [1e30]}
    wild = t.write("wild.json", {"steps": STEPS, "checkpoint.every_steps": SAVE,
                                 "optimizer.learning_rate_schedule": schedule})
    shutil.rmtree(case.run)
    strike_alone(case, "forward", 25, 1, wild)
    code, _, error = case.call(t.program, "train", wild, "--run-dir", case.run, "--resume",
                               *settings(1))
    case.check(code == 80 and "the last checkpoint, of step 20, stands" in error, "it diverges",
               code, error)
    case.end()


# --- which ----------------------------------------------------------------------------------------

KINDS = ["none", "newest", "older", "both", "head", "power cut", "short", "checkpoints damaged",
         "nothing left", "open", "link", "logs", "held"]


def worker_cases():
    for world in (2, 3):
        for collective in ("window", "messages"):
            for place in START_UP + PHASES + TURNS + ["evaluation"] + SAVING + KEEPING + ["end"]:
                victims = range(world) if place not in SAVING + KEEPING else (0,)
                for victim in victims:
                    for how in ("kill", "exit"):
                        # One that has only to leave may do so as it likes.
                        if how == "exit" and place in KEEPING + ["end"]:
                            continue
                        yield (how, place, 25, 1, world, victim, collective, False)
                    if place not in START_UP + ["end"]:
                        yield ("kill", place, 25, 3, world, victim, collective, True)


def every_case():
    cases = [("alone", place, step, every) for every in (1, 2, 3, 7) for step in
             (0, 1, 2, 9, 14, 15, 20, 25, 29, 30, 33)
             for place in PHASES + ["evaluation"] + SAVING + KEEPING
             if not (place == "evaluation" and step > 30) and not (place in KEEPING and step == 0)]
    # Whose only checkpoint is damaged, too, has nothing left; nor does a log end before it.
    impossible = [("nothing left", 11), ("logs", 11), ("logs", 20), ("logs", 30)]
    cases += [("spoil", kind, step, workers) for kind in KINDS for step in (5, 11, 20, 25, 30, 38)
              for workers in (1, 2, 3) if (kind, step) not in impossible]
    cases += list(worker_cases())
    return cases + [("stale",)]


SOME = [("alone", place, step, every) for every, step in ((1, 25), (3, 29))
        for place in PHASES + ["evaluation"] + SAVING + KEEPING] + \
       [("spoil", kind, 25, 1) for kind in KINDS] + \
       [("spoil", "none", 11, 3), ("spoil", "both", 38, 2), ("stale",)] + \
       [("kill", place, 25, 1, world, victim, collective, elastic)
        for place, world, victim, collective, elastic in (
            ("meet", 2, 1, "window", False), ("connect", 3, 0, "messages", False),
            ("load", 2, 0, "window", True), ("forward", 3, 2, "window", True),
            ("backward", 2, 1, "messages", False), ("boxes", 3, 1, "window", False),
            ("reduce", 2, 0, "messages", True), ("apply", 3, 0, "window", False),
            ("apply", 2, 1, "window", True), ("sums", 2, 1, "window", False),
            ("evaluation", 3, 1, "window", False), ("write", 2, 0, "window", False),
            ("rename", 3, 0, "messages", True), ("copy", 2, 0, "window", False),
            ("copy", 3, 0, "messages", True), ("kept", 3, 0, "window", False),
            ("end", 2, 0, "window", False))] + \
       [("exit", "forward", 25, 1, 3, 0, "window", True),
        ("exit", "apply", 25, 1, 2, 1, "messages", False),
        ("stop", "forward", 25, 1, 2, 0, "window", True),
        ("stop", "apply", 25, 1, 3, 1, "messages", True),
        ("wait", "backward", 25, 1, 3, 2, "window", True)]


# --- two hosts ------------------------------------------------------------------------------------

def two_hosts(case, program, config, more, environment):
    """Names make two hosts of this machine. Of each worker: exit code, output, error."""
    port, processes = free_port(), []
    for rank, struck in enumerate((environment, {})):
        env = {"UCX_TLS": "tcp,self", "LOCKSTEP_HOT_DIRECTORY": case.hot,
               **tf_config(2, rank, port), **struck}
        processes.append(Process(
            ["unshare", "-u", "sh", "-c", f"hostname host{rank} && exec \"$0\" \"$@\"", program,
             "train", config, "--run-dir", case.run, "--replicas", "1", "--insecure",
             *settings(1), *more],
            env={**os.environ, **env}, stdin=subprocess.DEVNULL))
    return finish(processes)


def host_lost(t, number, config, wanted):
    """The leader's host comes back without its memory: the other one's is taken."""
    if subprocess.run(["unshare", "-u", "true"], capture_output=True, check=False).returncode:
        print("no second host here: unshare -u is refused")
        return
    case = Case(t, number, "the leader's host is lost")
    ends = two_hosts(case, STRIKE, config, [], {"STRIKE": "kill@forward:25"})
    case.check([e[0] for e in ends] == [-signal.SIGKILL, 75], "it was struck", ends)
    case.check(len(os.listdir(case.hot)) == 2, "each host keeps its own", os.listdir(case.hot))
    kept = re.search(r"hot state: every 1 step, \d+ bytes, (\S+)", ends[0][1])
    if case.check(kept, "it says where", ends[0][1]):
        os.remove(kept.group(1))
    ends = two_hosts(case, t.program, config, ["--resume"], {})
    case.check("from the hot state of rank 1's host" in ends[0][1], "the other's", ends)
    case.judge(ends[0], wanted, least=24)  # its last message may be lost with the leader
    case.end()


# --- taken in again, and how fast -----------------------------------------------------------------

def children(process):
    """Process numbers by rank."""
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
    return found


def lose_and_return(t):
    """launch --elastic: killed, fewer, and all again; seconds from the kill to the next step."""
    config = t.write("long.json", {"steps": 100000, "checkpoint.hot_steps": 1,
                                   "hash_every_steps": 1000})
    process = t.start("launch", "--workers", "3", "--replicas", "1", "--elastic", "1", "--rejoin",
                      "2", "train", config, "--run-dir", "elastic")
    error = open("elastic.error", "w+", encoding="utf-8")
    killed, seconds, worlds, before = 0.0, [], [], 0
    for line in process.lines():
        workers = re.search(r"(\d) workers?(?:, | x )", line)
        if workers:
            worlds.append(int(workers.group(1)))
        step = re.search(r"loss = .* step = (\d+)", line)
        if not step:
            continue
        if killed and int(step.group(1)) + 1 >= before and worlds[-1] == 2:
            seconds.append(time.monotonic() - killed)
            killed = 0.0
        if len(worlds) % 2 == 1 and len(seconds) < 3 and not killed and \
                int(step.group(1)) > before + 500:
            before = int(step.group(1))
            killed = time.monotonic()
            os.kill(children(process)[len(seconds)], signal.SIGKILL)
            # What is in the pipe was said before.
            for line in process.lines():
                if re.search(r"workers?(?:, | x )", line):
                    worlds.append(int(re.search(r"(\d) workers?(?:, | x )", line).group(1)))
                    break
                step = re.search(r"loss = .* step = (\d+)", line)
                before = int(step.group(1)) if step else before
        if len(worlds) >= 7:
            break
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    error.close()
    t.check(process.returncode == 143, "stopped and saved", process.returncode, said)
    t.check(worlds[:7] == [3, 2, 3, 2, 3, 2, 3], "fewer, and all again", worlds, said)
    t.check(said.count("goes on with 2 of 3 workers") == 3 and
            said.count("one that was lost is taken in again") == 3, "it says so", said)
    if t.check(len(seconds) == 3, "three times", seconds):
        print("from the kill of one of 3 workers to the next finished step: "
              f"{', '.join(f'{s:.2f}' for s in seconds)} s", flush=True)
        t.check(min(seconds) < 5, "it takes moments", seconds)


def main():
    t = Test()
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
                 "PMI_SIZE", "PMI_FD", "SLURM_STEP_ID", "LOCKSTEP_KEY_FILE"):
        os.environ.pop(name, None)
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0:handle_segv=0"
    test_set = {"made_up": {"count": 300, "first": 1000, "height": 10, "width": 10}}
    config = t.write("hot.json", {
        "steps": STEPS, "evaluate_every_steps": EVALUATE, "checkpoint.every_steps": SAVE,
        "hash_every_steps": 7, "log_every_steps": 4, "data.test": test_set})
    wanted = result(t.expect(0, "train", config, "--run-dir", "alone",
                             "--set", "checkpoint.hot_steps=0")[1])
    code, _, error = t.run("launch", "--workers", "2", "train", config, "--run-dir", "try",
                           "--set", "steps=1")
    mpi = not (code == 69 and "has no MPI" in error)
    several = lambda case: len(case) > 4 or (case[0] == "spoil" and case[3] > 1)
    cases = [c for c in (every_case() if ALL else SOME) if mpi or not several(c)]
    kinds = {"alone": lose_alone, "spoil": spoil, "stale": stale}
    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        survived = sum(pool.map(
            lambda n: kinds.get(cases[n][0], lose_worker)(t, n, cases[n], config, wanted),
            range(len(cases))))
    seconds = time.monotonic() - begin
    print(f"{survived} of {len(cases)} faults survived, {seconds:.0f} s", flush=True)
    t.check(survived == len(cases), "all faults are survived")
    t.check(len(cases) >= (1000 if ALL else 60) or not mpi, "as many as were promised", len(cases))
    begun_anew(t, len(cases) + 1, config, wanted)
    refused(t, len(cases) + 2, config)
    last_step(t, len(cases) + 3, config, wanted)
    what_stands(t, len(cases) + 4)
    if mpi:
        host_lost(t, len(cases), config, wanted)
        lose_and_return(t)
    t.finish()


if __name__ == "__main__":
    main()
