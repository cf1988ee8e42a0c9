"""world.py - what tests of several GPU workers share: one process for each worker of a world under
mpiexec, how they end and what they say. Standard library only.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import time

from program import Process

COUNTS = re.compile(r"device: (\d+) allocations after the seal, (\d+) bytes, (\d+) launches, "
                    r"(\d+) graph launches")
LAYERS = ["--set", "layout.exchange_floats=1"]  # every layer is a part of its own


def threads(replicas=1, *more):
    return ["--kernels", "portable", "--replicas", str(replicas), *more]


def gpu(replicas=1, *more):
    return ["--kernels", "cuda", "--replicas", str(replicas), *more]


def gpus(count, replicas, *more):
    return [*gpu(replicas), "--gpus", str(count), *more]


def shown(mix):
    return " + ".join(" ".join(worker) for worker in mix)


def start(t, mix, arguments, environment=None, options=()):
    """One worker for each of the mix. Each leaves its exit code in a file. An item NAME=VALUE of a
    worker is of its environment."""
    for name in glob.glob("exit.*"):
        os.remove(name)
    script = 'trap : USR1; "$0" "$@"; code=$?; echo $code > exit.$PMI_RANK; exit $code'
    command = ["mpiexec", *options]
    for i, worker in enumerate(mix):
        own = [item for item in worker if re.match(r"[A-Z_]+=", item)]
        worker = [item for item in worker if item not in own]
        command += [":"] * (i > 0) + ["-n", "1", "env", *own, "sh", "-c", script, t.program,
                                      "train", *arguments, *worker]
    return Process(command, stdin=subprocess.DEVNULL,
                   env={**os.environ, **(environment or {})})


def end(process, seconds=120):
    """(exit code, lines of output, lines of error)"""
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        error += "\nit hangs"
    return process.returncode, out.splitlines(), error.splitlines()


def read(path):
    with open(path, "rb") as f:
        return f.read()


def said(error):
    return [line for line in error if line.startswith("lockstep:")]


def exit_codes():
    codes = {}
    for name in glob.glob("exit.*"):
        with open(name, encoding="ascii") as f:
            text = f.read()
        if text.endswith("\n"):  # not yet, while it is being written
            codes[int(name.split(".")[1])] = int(text)
    return codes


def process_of(t, rank):
    """The process of a rank of this test's workers."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/exe") != os.path.realpath(t.program):
                continue
            with open(f"/proc/{process}/environ", "rb") as f:
                text = f.read().decode(errors="replace")
        except OSError:
            continue
        if f"\0PMI_RANK={rank}\0" in "\0" + text and f"\0HOME={t.work}\0" in "\0" + text:
            return int(process)
    return None


def reads_until(t, process, text):
    for line in process.lines():
        if line.startswith(text):
            return True
    return t.check(False, f"the run ended before it said {text}")


def main(t, start, matrix, gpus_here, *parts):
    """Runs the parts, or those that the command line names, where there is an MPI."""
    if not shutil.which("mpiexec"):
        print("skipped: no mpiexec; install mpich")
        sys.exit(77)
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = str(gpus_here)
    _, _, error = end(start([threads()] * 2, [matrix, "--run-dir", "first", "--set", "steps=1"]))
    if any("has no MPI" in line for line in error):
        print("skipped: this build has no MPI")
        sys.exit(77)
    for part in parts:
        if sys.argv[6:] and part.__name__ not in sys.argv[6:]:
            continue
        begin = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    t.finish()
