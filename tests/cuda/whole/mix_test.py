#!/usr/bin/env python3
"""mix_test - workers that compute with threads and workers that compute with GPUs in one world:
the golden digests for every mix and on every way, one that goes on with another, what all of them
say when a step is not finite, when one dies or is told to stop, and what is refused. The GPUs are
played by the host execution layer.

   mix_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON few|all [PART ..]
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../whole")]
import world  # noqa: E402
from program import Process, Test, golden, model_of, result, value  # noqa: E402
from world import (COUNTS, LAYERS, end, exit_codes, gpu, gpus, process_of,  # noqa: E402
                   reads_until, said, shown, threads)

MATRIX, GOLDEN = (os.path.abspath(a) for a in sys.argv[3:5])
FEW, ALL = sys.argv[5] == "few", sys.argv[5] == "all"
TEST_SET = ["--set", 'data.test={"made_up":{"first":5000,"count":150,"height":10,"width":8}}']
RESIDENT = ["--set", "layout.resident=true"]
WAVE = ["--set", "layout.wave_examples=16"]
TCP = {"UCX_TLS": "tcp,self"}


# The workers of each world. Step 4 is a short one: 232 of 256 examples, 15 of 16 grains.
MIXES = [
    [threads(), gpu()],
    [gpu(), gpu(1, *LAYERS)],
    [gpus(2, 2), gpus(2, 3, *LAYERS)],
    [threads(2), gpu()],
    [gpus(3, 5, *RESIDENT), threads(3), gpu(2, *WAVE)],
]
MORE_MIXES = [
    [gpu(3), threads()],
    [threads(), gpu(16 - 2, *WAVE), threads()],
    [gpu(), gpus(4, 4), threads(2), gpu(3, *LAYERS, *RESIDENT)],
    [gpu()] * 4,
    [threads(1, "--set", "layout.wave_examples=32"), gpus(2, 2, "--set", "layout.overlay=false")],
]


def start(mix, arguments, environment=None, options=()):
    """By way of the hosts, where nothing else is said."""
    if "--collective" not in arguments:
        arguments = [*arguments, "--collective", "mpi"]
    return world.start(T, mix, arguments, environment, options)


def run(mix, *arguments, code=0, directory="run", fresh=True, environment=None):
    arguments = [MATRIX, "--run-dir", directory, "--fresh" if fresh else "--resume", *arguments]
    found, lines, error = end(start(mix, arguments, environment))
    T.check(found == code, shown(mix), f"exit {found}, wanted {code}", *arguments, *error[-8:])
    return lines, error


# --- the same bits -------------------------------------------------------------------------------


def check_golden(mix, steps, lines, *more):
    equal = result(lines) == golden(GOLDEN, steps)
    print(f"{shown(mix)} {' '.join(more)}: {'equal' if equal else 'DIFFERS'}", flush=True)
    T.check(equal, shown(mix), *more, result(lines), golden(GOLDEN, steps))


def same_bits():
    mixes = MIXES[2:3] + MIXES[4:] if FEW else MIXES + MORE_MIXES * ALL
    for number, mix in enumerate(mixes):
        ways = ("window", "messages") if ALL else (("window", "messages")[number % 2],)
        for way in ways:
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number + 1)
            lines, error = run(mix, "--set", "steps=4", "--collective", way,
                               environment=TCP if way == "messages" else {})
            check_golden(mix, 4, lines, way)
            counts = COUNTS.findall("\n".join(error))
            T.check(len(counts) == len(mix) and all(c[0] == "0" for c in counts),
                    "allocations after the seal", counts)
            # Two halves of each step, on each GPU.
            wanted = sorted(8 * number_of_gpus(worker) for worker in mix)
            T.check(sorted(int(c[3]) for c in counts) == wanted, "graphs", counts, wanted)
    del os.environ["LOCKSTEP_HOST_CUDA_SEED"]
    if ALL:
        for mix in MIXES:
            check_golden(mix, 50, run(mix, "--set", "steps=50")[0])
        two_hosts = {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1", **TCP}  # MPICH pretends
        for mix in (MIXES[4], [gpu(), threads(2), threads(), gpus(2, 2)]):
            lines, _ = run(mix, "--set", "steps=4", environment=two_hosts)
            check_golden(mix, 4, lines, "two hosts")
            T.check(any("messages between hosts" in line for line in lines), "two hosts", *lines)


def sharded():
    """Order "sharded" of data that lie on GPUs: each worker keeps its own shards alone."""
    T.expect(0, "data", "shard", "--made-up", "1001", "--height", "10", "--width", "8", "--shards",
             "4", "--to", "cut")
    more = ["--set", "steps=4", "--set",
            'data={"order":"sharded","train":{"manifest":"cut/manifest.json"}}']
    wanted = T.expect(0, "train", MATRIX, "--run-dir", "whole", "--fresh", *threads(2), *more)[1]
    for mix in ([gpu(1, *RESIDENT)] * 2, [threads(), gpus(2, 2, *RESIDENT)])[:1 if FEW else 2]:
        lines, _ = run(mix, *more)
        T.check(result(lines) == result(wanted), shown(mix), result(lines), result(wanted))


def number_of_gpus(worker):
    if "cuda" not in worker:
        return 0
    return int(worker[worker.index("--gpus") + 1]) if "--gpus" in worker else 1


def going_on():
    """Each part of a run by other workers, and the files of one by threads alone."""
    alone = T.expect(0, "train", MATRIX, "--run-dir", "alone", "--fresh", *threads(2), *TEST_SET,
                     *LOGGED, "--set", "steps=4")[1]
    T.check(result(alone) == golden(GOLDEN, 4), "alone", result(alone))
    parts = [MIXES[0], MIXES[2], [gpu(2)], MIXES[4]]
    if FEW:
        parts = [MIXES[0], None, None, [gpu(), threads()]]
    for step, mix in enumerate(parts, 1):
        if not mix:
            continue
        lines, _ = run(mix, *TEST_SET, *LOGGED, "--set", f"steps={step}", directory="parts",
                       fresh=step == 1)
    T.check(result(lines) == result(alone), "parts", result(lines), result(alone))
    for key in ("test_loss", "test_accuracy"):
        T.check(value(lines, key) == value(alone, key), key, value(lines, key), value(alone, key))
    for name in ("hashes.jsonl", "checkpoints/step-0000000004.safetensors"):
        found = []
        for directory in ("parts", "alone"):
            with open(f"{directory}/{name}", "rb") as f:
                found.append(f.read())
        T.check(found[0] == found[1], name, found[0][-400:], found[1][-400:])


LOGGED = ["--set", "log_every_steps=1", "--set", "hash_every_steps=1"]


def evaluating():
    """Every line of the logs, also of evaluations in mid-run, and order "sharded"."""
    T.expect(0, "data", "shard", "--made-up", "1001", "--height", "10", "--width", "8", "--shards",
             "4", "--to", "shards")
    data = ["--set", 'data={"order":"sharded","train":{"manifest":"shards/manifest.json"},'
            '"test":{"made_up":{"first":5000,"count":150,"height":10,"width":8}}}']
    more = [*data, *LOGGED, "--set", "steps=4", "--set", "evaluate_every_steps=1"]
    T.expect(0, "train", MATRIX, "--run-dir", "one", "--fresh", *threads(2), *more)
    for mix in (MIXES[4:] if FEW else MIXES[2:] if ALL else MIXES[3:]):
        run(mix, *more, directory="several")
        for name in ("metrics.jsonl", "hashes.jsonl"):
            found = []
            for directory in ("one", "several"):
                with open(f"{directory}/{name}", encoding="ascii") as f:
                    found.append(f.read())
            T.check(found[0] == found[1] and found[0].count("\n") >= 4, name, shown(mix), *found)
    two_sums(more)


def two_sums(more):
    """A loss that reports two means, and none of the labels."""
    model = model_of(MATRIX, "autoencoder")
    T.expect(0, "train", MATRIX, "--run-dir", "one", "--fresh", *threads(2), *model, *more)
    run(MIXES[-1], *model, *more, directory="several")
    found = []
    for directory in ("one", "several"):
        with open(f"{directory}/metrics.jsonl", encoding="ascii") as f:
            found.append(f.read())
    T.check(found[0] == found[1] and found[0].count("mean_absolute_error") == 8, *found)


def fast():
    """GPUs alone, and of one kind: the bits of one."""
    more = ["--set", "grain=16", "--set", "steps=4", *TEST_SET]
    bf16, tf32 = (["--set", "arithmetic=fast", "--set", f"fast_precision={precision}"]
                  for precision in ("bf16", "tf32"))
    one = T.expect(0, "train", MATRIX, "--run-dir", "fast", "--fresh", *gpu(), *bf16,
                   *more)[1]
    for mix in ([gpu(2), gpu()], [gpus(2, 3), gpu(), gpu()])[:1 if FEW else 2]:
        lines, _ = run(mix, *bf16, *more)
        T.check(result(lines) == result(one) and result(one)[0], "fast", shown(mix), result(lines),
                result(one))
        T.check(value(lines, "test_loss") == value(one, "test_loss"), "fast test_loss", shown(mix))
    # The first step overflows, and is computed again, by those where it did not as well.
    fp16 = ["--set", "arithmetic=fast", "--set", "fast_precision=fp16", "--set",
            "loss_scale.initial=268435456", "--set", "loss_scale.on_overflow=replay"]
    one = T.expect(0, "train", MATRIX, "--run-dir", "fast", "--fresh", *gpu(), *fp16, *more)[1]
    lines, _ = run([gpu(2), gpu()], *fp16, *more)
    T.check(result(lines) == result(one) and result(one)[0], "fast fp16", result(lines),
            result(one))
    both = r"rank 0 on \S+ and rank 1 on \S+ do not run the same: "
    one = gpu(1, *bf16)
    refused([one, gpu(1, *tf32)], 76, both + "the arithmetic is fast, bf16 on .* fast, tf32", *more)
    refused([one, threads()], 76, both + "the arithmetic is fast, bf16 on the one and strict on",
            *more)
    refused([gpu(), threads(1, *bf16)], 69, 'rank 1: .*arithmetic "fast" is what the matrix',
            *more)
    refused([one, one], 76, both + r".* computed by is host execution layer with cuBLAS \S+ on the "
            "one and Other GPU with cuBLAS", *more, names=("", "Other GPU"))


# --- what goes wrong -----------------------------------------------------------------------------


def refused(mix, code, text, *arguments, names=()):
    mix = [list(worker) for worker in mix]
    process = start_named(mix, names, [MATRIX, "--run-dir", "refused", "--fresh", *arguments])
    found, _, error = end(process)
    lines = said(error)
    T.check(found == code and len(lines) == 1 and re.search(text, lines[0]),
            f"{shown(mix)}: exit {found}, wanted {code}", f"wanted: {text}", *error)
    T.check(not os.path.exists("refused"), "something was written", shown(mix))


def start_named(mix, names, arguments):
    """As start(); the GPUs of worker i are called names[i]."""
    if not names:
        return start(mix, arguments)
    command = ["mpiexec"]
    for i, worker in enumerate(mix):
        named = ["env", f"LOCKSTEP_HOST_CUDA_NAME={names[i]}"] if names[i] else []
        command += [":"] * (i > 0) + ["-n", "1", *named, T.program, "train", *arguments, *worker]
    return Process(command, stdin=subprocess.DEVNULL)


def refusing():
    mix = MIXES[0]
    refused([mix[0], [*mix[1], "--set", "seed=5"]], 76, "the run identity is")
    refused([mix[0], [*mix[1], "--set", "layout.fuse=false"]], 76, "the digest of the plan is")
    refused([mix[0], [*mix[1], "--collective", "messages"]], 76,
            "how sums travel is by shared-memory window on the one and by messages on the other")
    refused([gpu(), [*gpu(), "--gpu", "9"]], 69, "GPU 9 is wanted, and this process sees 4")
    refused([threads(), gpus(3, 2)], 78, "3 GPUs for 2 replicas")
    refused([threads(15), gpu(2)], 78, "found 17 in all, wanted 1 to 16")
    refused([gpu(), gpu()], 64, "--collective threads: found 2 workers", "--collective", "threads")


def diverging():
    for rate in ("3e38",) if FEW else ("1e9", "3e38"):
        arguments = ["--set", "steps=50", "--set", f"optimizer.learning_rate={rate}"]
        _, _, error = T.run("train", MATRIX, "--run-dir", "run", "--fresh", *threads(), *arguments)
        wanted = said(error.splitlines())
        T.check(len(wanted) == 1 and "is not finite" in wanted[0], "alone", *wanted)
        for mix in MIXES[:2] if FEW else [MIXES[0], MIXES[2], [gpu(), threads()]]:
            _, error = run(mix, *arguments, code=80)
            T.check(said(error) == wanted, shown(mix), *said(error), *wanted)
            T.check(set(exit_codes().values()) == {80}, "all of them", exit_codes())


LONG = ["--set", "steps=100000", "--set", "checkpoint.every_steps=4", "--set", "log_every_steps=1"]


def losing():
    """A worker is killed in mid-run: the others end with 75 and say who it was."""
    cases = [(MIXES[0], 1, "window"), ([gpu(), threads(), gpu()], 1, "messages")]
    for mix, victim, way in cases[:1] if FEW else cases + [(MIXES[2], 0, "window")] * ALL:
        process = start(mix, [MATRIX, "--run-dir", "lost", "--fresh", "--collective", way, *LONG,
                              "--step-timeout", "20"], options=["-disable-auto-cleanup"])
        if not reads_until(T, process, "checkpoint step 8 "):
            continue
        number, begin = process_of(T, victim), time.monotonic()
        os.kill(number, signal.SIGKILL)
        others = [r for r in range(len(mix)) if r != victim]
        while not all(r in exit_codes() for r in others) and time.monotonic() - begin < 20:
            time.sleep(0.02)
        seconds, codes = time.monotonic() - begin, exit_codes()
        process.terminate()
        _, _, error = end(process)
        print(f"SIGKILL of rank {victim} of {shown(mix)}, {way}: {seconds:.2f} s", flush=True)
        T.check(all(codes.get(r) == 75 for r in others), "exit codes", codes, *error)
        T.check(re.search(rf"rank \d: rank {victim} on \S+ \(process {number}\) .* at step \d+ in "
                          r"phase", "\n".join(error)), "who it was", *error)
        T.check(seconds < 10, f"noticed after {seconds:.1f} s")


def hanging():
    """A GPU that does not finish a step: its worker says so, the others that it is silent."""
    mix = [gpu(), threads()]
    process = start(mix, [MATRIX, "--run-dir", "hangs", "--fresh", *LONG, "--step-timeout", "2"],
                    {"LOCKSTEP_HOST_CUDA_STUCK": "11"}, ["-disable-auto-cleanup"])
    _, _, error = end(process, 30)
    own = [line for line in said(error) if re.search(
        r"rank 0 on \S+: the GPUs do not answer any more: one is silent for longer than "
        r"--step-timeout \(2 s\), noticed at step 3 ", line)]
    T.check(len(own) == 1 and exit_codes() == {0: 75, 1: 75}, "a GPU that hangs", exit_codes(),
            *error)


def stopping():
    """A signal to one worker stops all after the same step, and the run goes on elsewhere."""
    mix = [threads(), gpu()]
    process = start(mix, [MATRIX, "--run-dir", "stopped", "--fresh", *LONG])
    if not reads_until(T, process, "checkpoint step 4 "):
        return
    os.kill(process_of(T, 1), signal.SIGINT)
    code, lines, error = end(process)
    stop = re.search(r"stopped after step (\d+); go on", "\n".join(lines))
    T.check(stop and exit_codes() == {0: 130, 1: 130}, "SIGINT of rank 1", code, exit_codes(),
            *lines[-3:], *error)
    if not stop:
        return
    steps = ["--set", f"steps={int(stop.group(1)) + 2}"]
    wanted = T.expect(0, "train", MATRIX, "--run-dir", "run", "--fresh", *threads(2), *steps)[1]
    lines, _ = run([gpu(), gpu(2)], *steps, directory="stopped", fresh=False)
    T.check(result(lines) == result(wanted), "stopped and gone on", result(lines), result(wanted))


# --- memory and places ---------------------------------------------------------------------------


def memory():
    """What `plan` says of a worker of each kind is what it takes."""
    for worker in (gpus(2, 2), threads(2)):
        lines = T.expect(0, "plan", MATRIX, "--json", "--workers", "3", *worker)[1]
        plan = json.loads("\n".join(line for line in lines if not line.startswith("device: ")))
        planned = sum(g["bytes"] for g in plan.get("gpus", []))
        T.check((plan.get("gpu_staged_bytes", 0) > 0) == (worker[1] == "cuda"), "staged", worker)
        mix = [worker, threads(2) if worker[1] == "cuda" else gpus(2, 2), threads(2)]
        lines, error = run(mix, "--set", "steps=1")
        arena = int(value(lines, "arena").split()[0])
        T.check(arena == plan["arena_bytes"], "arena", worker, arena, plan["arena_bytes"])
        T.check(f"window {plan['window_bytes']} bytes" in value(lines, "transport:"), "window",
                value(lines, "transport:"), plan["window_bytes"])
        taken = [int(c[1]) for c in COUNTS.findall("\n".join(error))]
        T.check(worker[1] != "cuda" or max(taken) == planned, "GPUs", taken, planned)
        kinds = [line for line in lines if line.startswith("worker ")]
        T.check(len(kinds) == 3 and sum("GPU" in kind for kind in kinds) == 1, "kinds", *kinds)


def places():
    """Without --gpu, the workers of a host take its GPUs in turn."""
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "3"
    _, error = run([gpu()] * 4, "--set", "steps=1")
    used = sorted(re.findall(r"from GPU (\d) on", "\n".join(error)))
    T.check(used == ["0", "0", "1", "2"], "four workers and three GPUs", *error)
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "4"
    _, error = run([gpus(2, 2)] * 2 + [[*gpu(), "--gpu", "3"]], "--set", "steps=1")
    used = sorted(re.findall(r"from GPU (\d) on", "\n".join(error)))
    # Whoever is told comes first; five lanes on four GPUs share one.
    T.check(used == ["0", "1", "3"], "two workers of two GPUs and one that is told", *error)


T = Test()
world.main(T, start, MATRIX, 4, same_bits, sharded, going_on, evaluating, fast, refusing,
           diverging, losing, hanging, stopping, memory, places)
