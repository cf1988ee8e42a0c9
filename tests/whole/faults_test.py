#!/usr/bin/env python3
"""faults_test - what can go wrong in the middle of a run: data cut short under the map, a run that
diverges, a full disk. One line of error, its own exit code, nothing half done."""
import glob
import os
import re
import resource
import signal
import struct
import subprocess
import sys

from program import Test

KERNELS = ["reference", "portable", "avx2", "avx512", "neon"]


def one_line(t, error, *parts):
    t.check(error.startswith("lockstep: ") and error.count("\n") == 1 and
            all(part in error for part in parts), f"one line with {parts}", error)


def cut_short(t):
    for replicas in ("1", "3"):
        shards = f"{t.work}/shards{replicas}"
        t.expect(0, "data", "shard", "--made-up", "4000", "--height", "28", "--width", "28",
                 "--shards", "2", "--to", shards)
        config = t.write("cut.json", {
            "model.input": [28, 28, 1], "steps": 1000000,
            "data": {"train": {"manifest": shards + "/manifest.json"}}})
        process = t.start("train", config, "--run-dir", f"cut{replicas}", "--replicas", replicas)
        for line in process.lines():
            if line.startswith("loss"):
                break
        victim = sorted(glob.glob(shards + "/images-00001*"))[0]
        os.truncate(victim, 5000)
        _, error = process.communicate(timeout=120)
        t.check(process.returncode == 74, f"{replicas} replicas: 74", process.returncode)
        one_line(t, error, os.path.basename(victim), "cut short", "--resume")
        t.check(not glob.glob(f"cut{replicas}/checkpoints/*"), "nothing was saved")
        # Cut short before the start: refused with the file's name, before any step.
        code, lines, error = t.expect(65, "train", config, "--run-dir", "never")
        one_line(t, error, os.path.basename(victim))
        t.check(not os.path.exists("never/checkpoints") or not os.listdir("never/checkpoints"),
                "no run began")


def cut_short_outside(t):
    """While a command other than a run reads a file; a large one, so that it is still at it."""
    count = 400_000
    with open("many-images", "wb") as images, open("many-labels", "wb") as labels:
        images.write(struct.pack(">4I", 0x803, count, 28, 28))
        images.truncate(16 + count * 784)
        labels.write(struct.pack(">2I", 0x801, count))
        labels.truncate(8 + count)
    process = t.start("data", "verify", "--images", "many-images", "--labels", "many-labels")
    while process.poll() is None:
        with open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as maps:
            if "many-images" in maps.read():
                break
    os.truncate("many-images", 5000)
    _, error = process.communicate(timeout=120)
    t.check(process.returncode == 74, "data verify: 74", process.returncode, error)
    one_line(t, error, "many-images", "cut short")
    os.remove("many-labels")


def diverge(t):
    config = t.write("diverge.json", {"optimizer.learning_rate": 1e30, "checkpoint.every_steps": 1})
    told, saved = {}, {}
    for kernels in KERNELS:
        if t.run("plan", config, "--kernels", kernels)[0] != 0:
            print(f"no {kernels} here")
            continue
        for replicas in ("1", "3"):
            run = f"diverge-{kernels}-{replicas}"
            code, lines, error = t.expect(80, "train", config, "--run-dir", run,
                                          "--kernels", kernels, "--replicas", replicas)
            told[run] = error
            one_line(t, error, "step ", "is not finite", "learning_rate")
            saved[run] = sorted(os.listdir(run + "/checkpoints"))
            t.check(not any(line.startswith(("digest", "state_hash")) for line in lines),
                    "no state is printed", lines[-3:])
    t.check(len(set(told.values())) == 1, "the same words from all kernels and replicas", told)
    t.check(len({str(s) for s in saved.values()}) == 1, "the same checkpoints before it", saved)
    error = next(iter(told.values()))
    step = int(error.split("step ")[1].split(":")[0])
    names = next(iter(saved.values()))
    newest = max([int(re.search(r"step-(\d+)", name).group(1)) for name in names], default=0)
    t.check(newest == step - 1, "all before the step that diverged, counted from 1", names, error)
    t.check(any(name in error for name in ("conv", "dense", "logits", "loss")),
            "the tensor is named", error)
    print(error.strip())
    # What was saved before is whole, and a smaller rate is another run.
    if names:
        t.expect(0, "checkpoint", "verify", "diverge-reference-1")


def diverge_in_evaluation(t):
    """One step whose loss is finite makes weights that are, and whose outputs are not: the
    evaluation sees it first, in the midst of a run and at its end."""
    test = {"data.test": {"made_up": {"first": 1000, "count": 64, "height": 10, "width": 10}},
            "optimizer.learning_rate": 1e30, "replicas": 2}
    for name, changes in (("end", {"steps": 1}), ("midst", {"evaluate_every_steps": 1})):
        config = t.write(f"evaluated-{name}.json", {**test, **changes})
        _, lines, error = t.expect(80, "train", config, "--run-dir", f"evaluated-{name}")
        one_line(t, error, "evaluation after step 1", "is not finite")
        t.check(not any(line.startswith(("digest", "state_hash")) for line in lines),
                "no state is printed", lines[-3:])
        with open(f"evaluated-{name}/metrics.jsonl", encoding="utf-8") as f:
            found = f.read()
        t.check('"train"' in found and '"test"' not in found, "no such line is logged", found)


def limited(t, bytes_, *arguments):
    """As run(), with no file larger than that. The signal is as in a process just started."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))
    return subprocess.run([t.program, *arguments], capture_output=True, text=True,
                          preexec_fn=limit, check=False)


def full_disk(t):
    """A disk that is full, in the shape of a limit on the size of a file."""
    # The limit is for files in memory, too, which a full disk leaves alone.
    config = t.write("full.json", {"checkpoint.every_steps": 5, "checkpoint.hot_steps": 0})
    done = limited(t, 4096, "train", config, "--run-dir", "full")
    t.check(done.returncode == 74, f"exit {done.returncode}, wanted 74", done.stderr)
    one_line(t, done.stderr, "full/")
    t.check(not [n for n in os.listdir("full/checkpoints") if n.endswith(".safetensors")],
            "no half checkpoint under a checkpoint's name")
    t.expect(0, "train", config, "--run-dir", "full", "--resume")
    # The last line of the last file is of the run, too.
    config = t.write("last.json", {"steps": 600, "checkpoint.hot_steps": 0, "data.test": {
        "made_up": {"first": 1000, "count": 16, "height": 10, "width": 10}}})
    t.expect(0, "train", config, "--run-dir", "whole")
    most = max(os.path.getsize(path) for path in glob.glob("whole/checkpoints/*"))
    bytes_ = os.path.getsize("whole/metrics.jsonl")
    t.check(bytes_ - 1 > most, "the metrics are the largest file", bytes_, most)
    done = limited(t, bytes_ - 1, "train", config, "--run-dir", "last")
    t.check(done.returncode == 74, f"exit {done.returncode}, wanted 74", done.stderr)
    one_line(t, done.stderr, "last/metrics.jsonl: cannot write")


def main():
    t = Test()
    cut_short(t)
    cut_short_outside(t)
    diverge(t)
    diverge_in_evaluation(t)
    full_disk(t)
    t.finish()


if __name__ == "__main__":
    sys.exit(main())
