#!/usr/bin/env python3
"""nccl_workers_test - the GPUs of several processes exchange over NCCL: the golden digests for
every cut, the calls of all ranks, when this way is chosen and when not, and what all of them say
when the ranks differ, when one dies, errs, is silent or is told to stop. GPUs and NCCL are played
by the host execution layer.

   nccl_workers_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON few|some|all [PART ..]
"""
import json
import os
import re
import signal
import sys
import time
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../whole")]
import world  # noqa: E402
from program import Test, golden, result, value  # noqa: E402
from world import (COUNTS, LAYERS, end, exit_codes, gpu, gpus, process_of,  # noqa: E402
                   reads_until, said, shown, threads)

MATRIX, GOLDEN = (os.path.abspath(a) for a in sys.argv[3:5])
FEW, ALL = sys.argv[5] == "few", sys.argv[5] == "all"
TEST_SET = ["--set", 'data.test={"made_up":{"first":5000,"count":150,"height":10,"width":8}}']
LOGGED = ["--set", "log_every_steps=1", "--set", "hash_every_steps=1"]
LONG = ["--set", "steps=100000", "--set", "checkpoint.every_steps=4", "--set", "log_every_steps=1"]
WAVE = ["--set", "layout.wave_examples=16"]
RESIDENT = ["--set", "layout.resident=true"]
TCP = {"UCX_TLS": "tcp,self"}

# Step 4 is a short one: 232 of 256 examples, 15 of 16 grains.
CUTS = [[gpu(), gpu(2)], [gpus(2, 2), gpus(2, 3)], [gpu()] * 4]
MORE_CUTS = [[gpus(2, 3, *RESIDENT), gpus(2, 2), gpus(2, 2, *WAVE), gpus(2, 4)],
             [gpus(3, 3), gpu(2, "--gpu", "3"), gpus(2, 5, "--gpu", "4")],
             [gpu(1, *WAVE), gpu(15)], [gpu(2)] * 8]
PAIR = [gpu(), gpu()]


def start(mix, arguments, environment=None, options=()):
    return world.start(T, mix, arguments, environment, options)


def run(mix, *arguments, code=0, directory="run", fresh=True, environment=None):
    arguments = [MATRIX, "--run-dir", directory, "--fresh" if fresh else "--resume", *arguments]
    found, lines, error = end(start(mix, arguments, environment))
    T.check(found == code, shown(mix), f"exit {found}, wanted {code}", *arguments, *error[-8:])
    return lines, error


def check_golden(mix, steps, lines, *more):
    equal = result(lines) == golden(GOLDEN, steps)
    print(f"{shown(mix)} {' '.join(more)}: {'equal' if equal else 'DIFFERS'}", flush=True)
    T.check(equal, shown(mix), *more, result(lines), golden(GOLDEN, steps))


def count_of(worker):
    return int(worker[worker.index("--gpus") + 1]) if "--gpus" in worker else 1


# --- the same bits -------------------------------------------------------------------------------


def same_bits():
    for number, mix in enumerate(CUTS[1:2] if FEW else CUTS + MORE_CUTS * ALL):
        ways = ({}, TCP) if ALL else ((TCP, {})[number % 2],)
        for seed, way in enumerate(ways):
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(10 * number + seed + 1)
            lines, error = run(mix, *LAYERS, "--set", "steps=4", environment=way)
            check_golden(mix, 4, lines, *way)
            check_banner(mix, lines, error)
    del os.environ["LOCKSTEP_HOST_CUDA_SEED"]
    if ALL:
        for mix in CUTS:
            check_golden(mix, 50, run(mix, "--set", "steps=50")[0])
        two_hosts = {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1", **TCP}  # MPICH pretends
        mix = [gpu(1, "--gpu", str(i)) for i in range(3)]
        check_golden(mix, 4, run(mix, "--set", "steps=4", environment=two_hosts)[0], "two hosts")


def check_banner(mix, lines, error):
    """One graph for each step of each GPU, and nothing allocated; NCCL's memory is said."""
    counts = COUNTS.findall("\n".join(error))
    T.check(len(counts) == len(mix) and all(c[0] == "0" for c in counts),
            "allocations after the seal", counts)
    T.check(sorted(int(c[3]) for c in counts) == sorted(4 * count_of(w) for w in mix), "graphs",
            counts)
    T.check(value(lines, "collective:") == "nccl (auto: all workers have GPUs of their own)",
            value(lines, "collective:"))
    total = sum(count_of(w) for w in mix)
    said_of = value(lines, f"between {total} GPUs:")
    T.check(re.search(r"^NCCL 2.28.9 moves \d+ bytes a step in 4 buckets, .*; "
                      r"external 41943040 bytes of a GPU are NCCL's$", said_of), "NCCL", said_of)


def turns():
    """Workers of a host that ask for unequal numbers of GPUs, and threads between them, take GPUs
    that no other has, beside those that one is told to take: so these exchange by themselves."""
    for mix in ([gpu(), gpus(3, 3), gpus(2, 2)], [gpus(3, 3), gpu(), gpus(4, 4)],
                [gpus(2, 2), gpu(1, "--gpu", "2"), gpus(3, 3), gpu()]):
        lines, _ = run(mix, "--set", "steps=4")
        check_golden(mix, 4, lines)
        T.check(value(lines, "collective:") == "nccl (auto: all workers have GPUs of their own)",
                shown(mix), value(lines, "collective:"))
    # More than there are: two share one, and say so.
    lines, _ = run([gpus(5, 5), gpus(4, 4)], "--set", "steps=4")
    T.check("share a GPU" in value(lines, "collective:"), value(lines, "collective:"))


def launched():
    """Workers that find each other by themselves, as `lockstep launch` starts them."""
    code, lines, error = T.run("launch", "--workers", "2", "train", MATRIX, "--run-dir", "run",
                               "--fresh", "--set", "steps=4", "--collective", "nccl",
                               *gpus(2, 2, *LAYERS))
    lines = [re.sub(r"^\[?0\]?[:|]? *", "", line) for line in lines]
    T.check(code == 0 and result(lines) == golden(GOLDEN, 4), "lockstep launch", code, *lines[-3:],
            error[-800:])


def going_on():
    """A run that goes from GPUs over NCCL to a mixed world and back; its files are those of one."""
    alone = T.expect(0, "train", MATRIX, "--run-dir", "alone", "--fresh", *threads(2), *TEST_SET,
                     *LOGGED, "--set", "steps=4", "--set", "evaluate_every_steps=1")[1]
    T.check(result(alone) == golden(GOLDEN, 4), "alone", result(alone))
    for step, mix in ((1, CUTS[0]), (2, [threads(), gpu()]), (4, CUTS[1])):
        lines, _ = run(mix, *TEST_SET, *LOGGED, "--set", f"steps={step}", "--set",
                       "evaluate_every_steps=1", "--set", "checkpoint.every_seconds=1",
                       directory="parts", fresh=step == 1)
    T.check(result(lines) == result(alone), "parts", result(lines), result(alone))
    for key in ("test_loss", "test_accuracy"):
        T.check(value(lines, key) == value(alone, key), key, value(lines, key), value(alone, key))
    for name in ("hashes.jsonl", "checkpoints/step-0000000004.safetensors"):
        found = []
        for directory in ("parts", "alone"):
            with open(f"{directory}/{name}", "rb") as f:
                found.append(f.read())
        T.check(found[0] == found[1], name)


def fast():
    """The fast arithmetic of several workers is that of one GPU."""
    more = ["--set", "grain=16", "--set", "steps=4", "--set", "arithmetic=fast", "--set",
            "fast_precision=bf16", *TEST_SET]
    one = T.expect(0, "train", MATRIX, "--run-dir", "fast", "--fresh", *gpu(), *more)[1]
    lines, _ = run([gpus(2, 3), gpu()], *more)
    T.check(result(lines) == result(one) and result(one)[0], "fast", result(lines), result(one))
    T.check(value(lines, "test_loss") == value(one, "test_loss"), "fast test_loss")


def every_call():
    """What each rank sends another is what that one receives, in this order, whoever it is."""
    mix = CUTS[1]
    open("calls", "w", encoding="ascii").close()
    run(mix, *LAYERS, "--set", "steps=1", environment={"LOCKSTEP_HOST_NCCL_LOG": "calls"})
    ends = {kind: {"send": defaultdict(list), "recv": defaultdict(list)} for kind in
            ("now", "graph")}
    with open("calls", encoding="ascii") as f:
        for line in f:
            rank, _, kind, peer, count, _, _, _, when = line.split()
            pair = (rank, peer) if kind == "send" else (peer, rank)
            ends[when][kind][pair].append(count)
    for when, both in ends.items():
        T.check(both["send"] == both["recv"], "sends and receives", when)
        T.check(len(both["send"]) == 4 * 3, "every pair", when, len(both["send"]))


def memory():
    """What `plan` says is what a run takes, and its schedule."""
    mix = [gpus(2, 2)] * 2
    lines = T.expect(0, "plan", MATRIX, "--json", "--workers", "2", "--collective", "nccl",
                     *mix[0])[1]
    plan = json.loads("\n".join(line for line in lines if not line.startswith("device: ")))
    lines, error = run(mix, "--set", "steps=1")
    T.check(int(value(lines, "arena").split()[0]) == plan["arena_bytes"], "arena")
    T.check(f"window {plan['window_bytes']} bytes" in value(lines, "transport:"), "window")
    T.check(f"moves {plan['gpu_exchange_bytes']} bytes a step" in value(lines, "between 4 GPUs:"),
            "bytes a step", plan["gpu_exchange_bytes"])
    T.check(len(plan["gpu_schedule"]) == 64 and not plan["gpu_staged_bytes"], "schedule")
    taken = [int(c[1]) for c in COUNTS.findall("\n".join(error))]
    planned = sum(g["bytes"] for g in plan["gpus"])
    T.check(planned in taken, "GPUs", taken, planned)
    T.expect(78, "plan", MATRIX, "--workers", "2", "--collective", "nccl", *threads(2))
    T.expect(64, "plan", MATRIX, "--workers", "2", "--collective", "nccl", "--bandwidth", "10",
             *mix[0])


# --- the way -------------------------------------------------------------------------------------


def choosing():
    """Where GPUs cannot exchange by themselves, auto goes by way of the hosts and says why."""
    cases = [(PAIR, "ranks 0 and 1 share a GPU", {"LOCKSTEP_HOST_CUDA_DEVICES": "1"}),
             ([gpu(), gpu(1, "LOCKSTEP_HOST_CUDA_FAIL=ncclGetVersion:1")], "rank 1 has no NCCL",
              {}),
             ([threads(), gpu()], "rank 0 works on no GPU", {})]
    for mix, why, environment in cases[:1] if FEW else cases:
        lines, _ = run(mix, "--set", "steps=4", environment=environment)
        check_golden(mix, 4, lines, why)
        T.check(value(lines, "collective:") == f"mpi (auto: not nccl, {why})", why,
                value(lines, "collective:"))
        refused(mix, 69, "--collective nccl: " + (why if mix != cases[2][0] else "found 0 GPUs"),
                "--collective", "nccl", environment=environment)
    lines, _ = run(PAIR, "--set", "steps=4", "--collective", "mpi")
    T.check(value(lines, "collective:") == "mpi (asked for mpi)", value(lines, "collective:"))
    check_golden(PAIR, 4, lines, "mpi")


def refused(mix, code, text, *arguments, environment=None):
    process = start(mix, [MATRIX, "--run-dir", "refused", "--fresh", *arguments], environment)
    found, _, error = end(process)
    lines = said(error)
    T.check(found == code and len(lines) == 1 and re.search(text, lines[0]),
            f"{shown(mix)}: exit {found}, wanted {code}", f"wanted: {text}", *error)
    T.check(not os.path.exists("refused"), "something was written", shown(mix))


def disagreeing():
    both = r"rank 0 on \S+ and rank 1 on \S+ do not run the same: "
    hashed = r"by NCCL, schedule [0-9a-f]{32}"
    refused([gpu(), gpu(1, *LAYERS)], 76, both + f"how sums travel is {hashed} .* and {hashed} ")
    refused([gpu(), gpu(1, "--collective", "mpi")], 76,
            both + "--collective is auto on the one and mpi on the other")
    # One that fails alone says why; the others, who wait in NCCL, hear of its end at once.
    failing = gpu(1, "LOCKSTEP_HOST_CUDA_FAIL=ncclCommInitRankConfig:1")
    for mix, victim in (([gpu(), failing], 1), ([gpu(), gpu(), failing], 2)):
        begin = time.monotonic()
        code, _, error = end(start(mix, [MATRIX, "--run-dir", "alone", "--fresh",
                                         "--start-timeout", "60"],
                                   options=["-disable-auto-cleanup"]))
        seconds, lines = time.monotonic() - begin, said(error)
        T.check(code and len(lines) == len(mix)
                and sum("NCCL: joining the world: " in line for line in lines) == 1
                and sum(f": rank {victim} on " in line and " has died during start-up" in line and
                        "waiting for NCCL to connect the GPUs" in line for line in lines)
                == len(mix) - 1, code, seconds, *error)
        T.check(seconds < 20, "soon", seconds)


# --- what goes wrong -----------------------------------------------------------------------------


def diverging():
    arguments = ["--set", "steps=50", "--set", "optimizer.learning_rate=3e38"]
    _, _, error = T.run("train", MATRIX, "--run-dir", "run", "--fresh", *threads(), *arguments)
    wanted = said(error.splitlines())
    T.check(len(wanted) == 1 and "is not finite" in wanted[0], "alone", *wanted)
    for mix in CUTS[:1] if FEW else CUTS[:2]:
        _, error = run(mix, *arguments, code=80)
        T.check(said(error) == wanted, shown(mix), *said(error), *wanted)
        T.check(set(exit_codes().values()) == {80}, "all of them", exit_codes())


def lost(mix, survivors, what, seconds_max, how, *arguments, environment=None,
         until="checkpoint step 8 "):
    """The survivors end with 75, each with one line that says `what`; `how` is done to them."""
    process = start(mix, [MATRIX, "--run-dir", "lost", "--fresh", *LONG, *arguments],
                    environment, options=["-disable-auto-cleanup"])
    number = 0
    if how:
        if not reads_until(T, process, until):
            return
        time.sleep(0 if until.startswith("checkpoint") else 1)
        number = process_of(T, how[0])
        os.kill(number, how[1])
    begin = time.monotonic()
    while not all(r in exit_codes() for r in survivors) and time.monotonic() - begin < 30:
        time.sleep(0.02)
    seconds, codes = time.monotonic() - begin, exit_codes()
    if how and how[1] == signal.SIGSTOP:
        os.kill(number, signal.SIGKILL)
    process.terminate()
    _, _, error = end(process)
    print(f"{what}: {seconds:.2f} s", flush=True)
    T.check(all(codes.get(r) == 75 for r in survivors), "exit codes", codes, *error)
    lines = said(error)
    for rank in survivors:
        T.check(sum(line.startswith(f"lockstep: rank {rank}") for line in lines) == 1,
                f"a line of rank {rank}", *lines)
    T.check(any(re.search(what.replace("NUMBER", str(number)), line) for line in lines),
            "wanted: " + what, *lines)
    T.check(not how or seconds < seconds_max, f"noticed after {seconds:.1f} s")


def losing():
    at = r"noticed at step \d+ in phase reduce; the last checkpoint stands, go on with --resume"
    killed = r"rank \d: rank 1 on \S+ \(process NUMBER\) .*" + at
    lost(CUTS[0], [0], killed, 5, (1, signal.SIGKILL), "--step-timeout", "20")
    faults = [("error:1:40", r"rank [01] on \S+: the GPUs do not hear .*: GPU [01] of 2: remote "
               r"process exited .*" + at)]
    # Nobody looks at a result: the round notices, and NCCL never would.
    lost(CUTS[0], [0], killed, 8, (1, signal.SIGKILL), "--step-timeout", "20", "--set",
         "log_every_steps=100000", "--set", "hash_every_steps=100000", "--set",
         "checkpoint.every_steps=100000", environment={"LOCKSTEP_HOST_NCCL_FAIL": "deaf"},
         until="loss = ")
    if not FEW:
        lost([gpu()] * 3, [0, 2], killed, 5, (1, signal.SIGKILL), "--step-timeout", "20",
             environment={"LOCKSTEP_HOST_NCCL_FAIL": "deaf"})
        lost(PAIR, [0], "is silent for longer than --step-timeout", 6, (1, signal.SIGSTOP),
             "--step-timeout", "2")
        faults += [("dead:1:60", r"is silent for longer than --step-timeout .*" + at),
                   ("dead:1:0", "is silent for longer than|has died")]
    for fault, what in faults:
        lost(PAIR, [0, 1], what, 10, None, "--step-timeout", "2", *LAYERS,
             environment={"LOCKSTEP_HOST_NCCL_FAIL": fault})


def stopping():
    """A signal to one worker stops all after the same step, and the run goes on elsewhere. Before,
    all wait for their GPUs only where the leader's clock says that it is time to save."""
    process = start(CUTS[0], [MATRIX, "--run-dir", "stopped", "--fresh", "--set", "steps=100000",
                              "--set", "checkpoint.every_seconds=1", "--set",
                              "log_every_steps=100000", "--set", "hash_every_steps=100000"])
    if not reads_until(T, process, "checkpoint step "):
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
    lines, _ = run(CUTS[1], *steps, directory="stopped", fresh=False)
    T.check(result(lines) == result(wanted), "stopped and gone on", result(lines), result(wanted))


T = Test()
world.main(T, start, MATRIX, 8, same_bits, turns, launched, going_on, fast, every_call, memory,
           choosing, disagreeing, diverging, losing, stopping)
