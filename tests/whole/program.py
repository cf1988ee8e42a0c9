"""program.py - what the whole-program tests share: start lockstep, judge how it ends. Standard
library only.

A test is called as  NAME_test.py PROGRAM WORK_DIR  and works in WORK_DIR, made empty first.
"""
import atexit
import copy
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

TIMEOUT_S = 300

SMALL = {
    "name": "small", "seed": 7, "global_batch": 256, "grain": 16, "steps": 200,
    "log_every_steps": 1, "hash_every_steps": 100,
    "checkpoint": {"every_steps": 0, "every_seconds": 0},
    "model": {"input": [10, 10, 1], "classes": 10, "layers": [
        {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": 3, "padding": "same",
         "activation": "relu"},
        {"type": "max_pool2d", "name": "pool", "pool_size": 2},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "dense", "units": 16, "activation": "relu"},
        {"type": "dense", "name": "logits", "units": 10}]},
    "optimizer": {"type": "momentum", "learning_rate": 0.05, "momentum": 0.9},
    "data": {"train": {"made_up": {"count": 1000, "height": 10, "width": 10}}},
}


class Process(subprocess.Popen):
    """A process whose output may be read by lines() first and the rest by communicate(). Popen's
    own way to iterate over stdout reads ahead, and its communicate() leaves that out."""
    ahead = b""

    def __init__(self, command, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        super().__init__(command, text=True, errors="replace", **options)

    def lines(self):
        while True:
            line, newline, rest = self.ahead.partition(b"\n")
            if newline:
                self.ahead = rest
                yield line.decode(errors="replace") + "\n"
                continue
            more = os.read(self.stdout.fileno(), 65536)
            if not more:
                return
            self.ahead += more

    def communicate(self, *arguments, **options):
        out, error = super().communicate(*arguments, **options)
        ahead, self.ahead = self.ahead, b""
        return ahead.decode(errors="replace") + (out or ""), error


class Test:
    """Counts checks; finish() gives the exit code."""

    def __init__(self):
        self.program = os.path.abspath(sys.argv[1])
        self.work = os.path.abspath(sys.argv[2])
        self.checks = self.failures = 0
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.work)
        os.chdir(self.work)
        os.environ.update(LC_ALL="C", HOME=self.work, XDG_CACHE_HOME=self.work + "/cache")
        for name in ("LOCKSTEP_DATA", "LOCKSTEP_CONFIGS"):
            os.environ.pop(name, None)
        # What killed runs leave in memory goes with the test.
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.hot = tempfile.mkdtemp(prefix="lockstep-test-", dir=shared)
        os.environ["LOCKSTEP_HOT_DIRECTORY"] = self.hot
        atexit.register(shutil.rmtree, self.hot, ignore_errors=True)

    def check(self, holds, what, *more):
        self.checks += 1
        if not holds:
            self.failures += 1
            print("FAILED:", what, *more, sep="\n  ", flush=True)
        return bool(holds)

    def write(self, name, changes=None, without=()):
        """A configuration: SMALL with {"a.b": value} changed and keys "a.b" taken out."""
        document = copy.deepcopy(SMALL)
        for path, value in (changes or {}).items():
            at, keys = document, path.split(".")
            for key in keys[:-1]:
                at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
            if isinstance(at, list):
                at[int(keys[-1])] = value
            else:
                at[keys[-1]] = value
        for path in without:
            at, keys = document, path.split(".")
            for key in keys[:-1]:
                at = at[int(key)] if isinstance(at, list) else at[key]
            del at[keys[-1]]
        with open(name, "w", encoding="utf-8") as f:
            json.dump(document, f)
        return name

    def start(self, *arguments):
        return Process([self.program, *arguments])

    def run(self, *arguments):
        """(exit code, lines of output, text of the error)"""
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True,
                              errors="replace", timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout.splitlines(), done.stderr

    def expect(self, code, *arguments):
        """As run(), and the exit code must be `code`."""
        result = self.run(*arguments)
        self.check(result[0] == code, "lockstep " + " ".join(arguments),
                   f"exit {result[0]}, wanted {code}", result[2].strip())
        return result

    def same_everywhere(self, what, ways, wanted, log):
        """Each of `ways`, commands that train, ends with this result and this metrics.jsonl. One
        that launches is left out where the build has no MPI."""
        for way in ways:
            code, lines, error = self.run(*way, "--run-dir", "way", "--fresh")
            if code == 69 and way[0] == "launch":
                continue
            found = result([line.removeprefix("[0] ") for line in lines])
            self.check(code == 0 and found == wanted, what, way, code, found, wanted, error)
            self.check(log_of("way") == log, what + ": the log", way)

    def finish(self):
        print(f"{self.checks} checks, {self.failures} failed")
        sys.exit(1 if self.failures or not self.checks else 0)


def value(lines, key):
    """The rest of the last line that starts with `key` and a space; "" without one."""
    found = [line[len(key) + 1:] for line in lines if line.startswith(key + " ")]
    return found[-1] if found else ""


def model_of(matrix, run):
    """Options that make the run of matrix.json another one beside it."""
    with open(os.path.join(os.path.dirname(matrix), run + ".json"), encoding="utf-8") as f:
        document = json.load(f)
    return [option for key in ("model", "optimizer", "seed")
            for option in ("--set", f"{key}={json.dumps(document[key])}")]


def log_of(run):
    with open(run + "/metrics.jsonl", encoding="utf-8") as f:
        return f.read()


def result(lines):
    return value(lines, "digest"), value(lines, "state_hash")


# Several processes at a time.
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tf_config(world, rank, port, chief=False, host="localhost"):
    """Only rank 0's address is used; the others must be different from it."""
    addresses = [f"{host}:{port if r == 0 else 1 + r}" for r in range(world)]
    cluster = {"worker": addresses}
    task = {"type": "worker", "index": rank}
    if chief:
        cluster = {"chief": addresses[:1], "worker": addresses[1:]}
        task = {"type": "chief", "index": 0} if rank == 0 else {"type": "worker", "index": rank - 1}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def start(t, environment, *arguments, before=()):
    return Process([*before, t.program, *arguments], stdin=subprocess.DEVNULL,
                   env={**os.environ, **environment})


def golden(path, steps, run="matrix"):
    """(digest, state hash) of a run after so many steps, as published in the file."""
    with open(path, encoding="utf-8") as f:
        entry = json.load(f)[run][str(steps)]
    return entry["digest"], entry["state_hash"]


def finish(processes, seconds=60):
    """Of each: (exit code, output, error)."""
    ends = []
    for process in processes:
        try:
            out, error = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
            error += "\nit hangs"
        ends.append((process.returncode, out, error))
    return ends
