#!/usr/bin/env python3
"""order_test - the two orders of examples: what an epoch reads, and that order "sharded" gives the
same bits wherever its shards lie and however workers and replicas are cut.

   order_test.py PROGRAM WORK_DIR
"""
import json
import os
import re
import shutil
import subprocess
import sys

from program import Test, result, value

# Examples and shards; a step has 16 grains of 16. 1,000 over 16: shards of 63 and 62, each a grain.
# 1,000 over 4: 58 are left for 4 grains of a last step. 788 over 4: 5 are left, in 1 of 4 grains.
SETS = [(1000, 16), (1000, 4), (788, 4)]
CUTS = [[1, 1], [3, 1, 2], [1, 1, 1, 1]]
LAYOUTS = [["--replicas", "1"], ["--replicas", "5", "--set", "layout.reduce=operands"],
           ["--replicas", "3", "--set", "layout.wave_examples=32", "--kernels", "portable"],
           ["--replicas", "2", "--kernels", "reference", "--set", "layout.fuse=false",
            "--set", "layout.guards=true", "--set", "layout.reduce=partials"]]


def shard(t, count, shards, to, size=10):
    t.expect(0, "data", "shard", "--made-up", str(count), "--height", str(size), "--width",
             str(size), "--shards", str(shards), "--to", to)


def sharded(folder, order="sharded"):
    return ["--set", "data=" + json.dumps({
        "order": order, "train": {"manifest": folder + "/manifest.json"},
        "test": {"made_up": {"count": 300, "first": 1000, "height": 10, "width": 10}}})]


def workers(t, cut, arguments, own):
    """mpiexec; `own` has the arguments of each worker."""
    command = ["mpiexec"]
    for w, replicas in enumerate(cut):
        command += [":"] * (w > 0) + ["-n", "1", t.program, *arguments, *own[w],
                                      "--replicas", str(replicas)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    return done.returncode, done.stdout.splitlines(), done.stderr


def spread(folder, cut, shards):
    """A directory for each worker, with the manifest and the shards of its own grains only."""
    own, before, everywhere = [], 0, sum(cut)
    for w, replicas in enumerate(cut):
        first, end = 16 * before // everywhere, 16 * (before + replicas) // everywhere
        before += replicas
        to = f"node{w}"
        shutil.rmtree(to, ignore_errors=True)
        os.mkdir(to)
        shutil.copy(folder + "/manifest.json", to)
        for k in sorted({grain * shards // 16 for grain in range(first, end)}):
            for name in (f"images-{k:05}.idx", f"labels-{k:05}.idx"):
                shutil.copy(f"{folder}/{name}", to)
        own.append(sharded(to))
    return own


def coverage(t):
    """60,000 examples, 60,000 distinct, 0 missing, 0 twice."""
    shard(t, 60000, 8, "large", size=2)
    config = t.write("large.json", {"model.input": [2, 2, 1], "model.layers": [
        {"type": "flatten"}, {"type": "dense", "units": 10}]})
    for order in ("global", "sharded"):
        if order == "sharded":  # the manifest says it all
            for name in os.listdir("large"):
                if name.endswith(".idx"):
                    os.remove("large/" + name)
        for count in (1, 3, 8):
            lines = t.expect(0, "plan", config, "--replicas", "1", "--workers", str(count),
                             "--show-shards", *sharded("large", order))[1]
            t.check("epoch 0: 60000 examples read, 60000 distinct, 0 missing, 0 twice, 0 dropped"
                    in lines, f"{order}, {count} workers", lines[-12:])
            read = [re.match(r"worker \d+: .* shards (\d+) .. (\d+): (\d+) examples", line)
                    for line in lines if re.match(r"worker \d", line)]
            t.check(len(read) == count and sum(int(m[3]) for m in read) == 60000, order, lines)
            if order == "sharded" and count == 8:
                t.check([(m[1], m[2], m[3]) for m in read] ==
                        [(str(w), str(w), "7500") for w in range(8)], "a shard each", lines)


def same_bits(t, config, with_workers):
    identities, digests = set(), set()
    for examples, shards in SETS:
        folder = f"set{examples}-{shards}"
        shard(t, examples, shards, folder)
        run = ["train", config, "--fresh", "--run-dir", "run"]
        told = set()
        for layout in LAYOUTS:
            lines = t.expect(0, *run, *sharded(folder), *layout)[1]
            told.add((*result(lines), value(lines, "test_loss"), value(lines, "run_identity")))
        wanted = told.pop()
        t.check(not told, f"{folder}: layouts differ", wanted, told)
        for cut in CUTS if with_workers else []:
            code, lines, error = workers(t, cut, run, spread(folder, cut, shards))
            found = (*result(lines), value(lines, "test_loss"), value(lines, "run_identity"))
            print(f"{folder:10} {'+'.join(map(str, cut)):8} {found[0][:12]:12} "
                  f"{'equal' if found == wanted else 'DIFFERS'}", flush=True)
            t.check(code == 0 and found == wanted, f"{folder}, {cut}", code, found, wanted, error)
        lines = t.expect(0, *run, *sharded(folder, "global"), "--replicas", "2")[1]
        identities |= {wanted[3], value(lines, "run_identity")}
        digests |= {wanted[0], result(lines)[0]}
    # Two sets in global order, and three cuts of them.
    t.check(len(identities) == 5 and len(digests) == 5, "orders and cuts are different runs",
            identities, digests)


def resumed(t, config):
    """Begun by three workers, each with its shards; gone on with by one that has all, and back."""
    wanted = result(t.expect(0, "train", config, "--run-dir", "whole", "--replicas", "2",
                             *sharded("set1000-16"))[1])
    own = spread("set1000-16", [3, 1, 2], 16)
    run = ["train", config, "--run-dir", "moved"]
    for steps in (6, 20):
        code, _, error = workers(t, [3, 1, 2], run + ["--set", f"steps={steps}"], own)
        t.check(code == 0, "three workers", code, error)
        run += ["--resume"] * ("--resume" not in run)
        t.expect(0, *run, "--set", f"steps={steps + 5}", *sharded("set1000-16"))
    lines = t.expect(0, *run, *sharded("set1000-16"))[1]
    t.check(result(lines) == wanted, "resumed elsewhere", result(lines), wanted)


def ties(t):
    """A position without an example is of label 0, which wins a tie: it counts nowhere."""
    # All logits of the first step are +0: right are the examples of label 0, and no others.
    config = t.write("ties.json", {
        "steps": 4, "log_every_steps": 1, "optimizer.learning_rate": 0.0,
        "model.layers": [{"type": "flatten"},
                         {"type": "dense", "units": 10, "kernel_initializer": "zeros"}]})
    zeros = 0
    for name in sorted(os.listdir("set788-4")):  # 3 whole steps of 256, and one of 20 in 4 grains
        if name.startswith("labels-"):
            with open("set788-4/" + name, "rb") as f:
                zeros += f.read()[8:].count(0)
    for kernels in ("auto", "reference"):
        shutil.rmtree("ties", ignore_errors=True)
        t.expect(0, "train", config, "--run-dir", "ties", "--kernels", kernels,
                 *sharded("set788-4"))
        with open("ties/metrics.jsonl", encoding="ascii") as f:
            steps = [json.loads(line)["train"] for line in f if '"train"' in line]
        t.check(sum(step["examples"] for step in steps) == 788 and
                sum(step["correct"] for step in steps) == zeros, "ties, " + kernels, steps, zeros)


def missing_add_nothing(t):
    """One step over all of 100 examples. In 4 shards of 25, of which a step would read 64 each, 156
    positions have none: but for the order of sums it is the step of the other order."""
    shard(t, 100, 4, "few")
    config = t.write("few.json", {"steps": 1, "log_every_steps": 1})
    for order in ("global", "sharded"):
        t.expect(0, "train", config, "--run-dir", order, "--replicas", "2",
                 *sharded("few", order))
    _, lines, _ = t.expect(0, "diff", "global", "sharded", "--tolerance", "1e-5")
    t.check(any(line.startswith("within 1e-05: ") for line in lines), "within 1e-5", lines)
    # At the first step all logits of zeros are equal: not one of the missing is right.
    correct = [m for line in lines if (m := re.match(r"train accuracy.*A (\S+), B (\S+)", line))]
    t.check(len(correct) == 1 and correct[0][1] == correct[0][2], "as many are right", lines)


def refusals(t, config, with_workers):
    run = ["train", config, "--run-dir", "refused"]
    shard(t, 1000, 7, "seven")
    for extra, code, *parts in (
            (sharded("seven"), 78, "found 7 shards and 16 grains", "--shards 4"),
            (["--set", "data.order=sharded"], 78, "data.order", "lockstep data shard"),
            (["--set", "data.order=shard"], 78, "data.order", "sharded"),
            (sharded("set1000-4") + ["--examples", "500"], 78, "train_examples", "whole shards"),
            (sharded("set1000-4") + ["--set", "global_batch=176"], 78, "--shards 1"),
            (sharded("set1000-4") + ["--set", "global_batch=100"], 78, "grain: found 16", "as 4")):
        error = t.expect(code, *run, *extra)[2]
        t.check(all(part in error for part in parts), " ".join(extra), error)
    if not with_workers:
        return
    own = spread("set1000-4", [1, 1], 4)
    os.remove("node1/labels-00003.idx")
    code, _, error = workers(t, [1, 1], run, own)
    t.check(code == 66 and error.count("lockstep:") == 1 and "rank 1 reads shards 2 .. 3 (grains "
            "8 .. 15): shard 3 of 4: node1/labels-00003.idx" in error, "a missing shard", code,
            error)
    own = spread("set1000-4", [1, 1], 4)
    with open("node0/images-00001.idx", "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\xa5")
    code, _, error = workers(t, [1, 1], run, own)
    t.check(code == 65 and "rank 0" in error and "images-00001.idx: found SHA-256" in error,
            "a damaged shard", code, error)
    own = spread("set1000-4", [1, 1], 4)
    with open("node1/manifest.json", encoding="ascii") as f:
        manifest = json.load(f)
    manifest["shards"][0]["labels_sha256"] = "0" * 64  # of the other's
    with open("node1/manifest.json", "w", encoding="ascii") as f:
        json.dump(manifest, f)
    code, _, error = workers(t, [1, 1], run, own)
    t.check(code == 76 and "the hash of the manifest's shards" in error, "another manifest", code,
            error)
    t.check(not os.path.exists("refused"), "nothing was written")


def main():
    t = Test()
    config = t.write("small.json", {"steps": 30, "log_every_steps": 10})
    probe = workers(t, [1, 1], ["train", config, "--run-dir", "probe", "--set", "steps=1"],
                    [[], []]) if shutil.which("mpiexec") else (69, [], "no mpiexec")
    with_workers = probe[0] == 0
    if not with_workers:
        print("without workers:", probe[2].strip().splitlines()[-1:])
    coverage(t)
    same_bits(t, config, with_workers)
    ties(t)
    missing_add_nothing(t)
    refusals(t, config, with_workers)
    if with_workers:
        resumed(t, config)
    t.finish()


if __name__ == "__main__":
    main()
