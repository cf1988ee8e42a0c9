#!/usr/bin/env python3
"""trace_test - train --trace: the steps that were asked for, a lane for each replica, without a gap
and adding up to the step's time to a microsecond; the digest is that of a run without.

   trace_test.py PROGRAM WORK_DIR
"""
import glob
import json
import os

from program import Test, finish, free_port, result, start, tf_config

# Ends are rounded to the nanosecond, lengths are their differences.
BOUND_US = 0.001


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def lanes_of(t, path, rank, steps, replicas, names):
    """Judges the file; returns {step: {lane: [(name, kind, us)]}}"""
    document = load(path)
    events = document["traceEvents"]
    t.check(len(document["otherData"]["run_identity"]) == 64, "of which run")
    t.check({e["pid"] for e in events} == {rank}, path + ": its rank")
    found = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    t.check(found == {0: "steps", **{i + 1: f"replica {n}" for i, n in enumerate(names)}},
            path + ": lanes", found)
    spans = [e for e in events if e["ph"] == "X"]
    t.check([e["args"]["step"] for e in spans if e["tid"] == 0] == steps, path + ": its steps",
            [e["args"]["step"] for e in spans if e["tid"] == 0])
    out = {}
    for whole in (e for e in spans if e["tid"] == 0):
        step = whole["args"]["step"]
        t.check(whole["dur"] > 0, "a step takes time")
        for lane in range(1, replicas + 1):
            mine = [e for e in spans if e["tid"] == lane and e["args"]["step"] == step]
            at = whole["ts"]
            for e in mine:
                t.check(abs(e["ts"] - at) <= BOUND_US, path + ": no gap", step, lane, e, at)
                at = e["ts"] + e["dur"]
            total = sum(e["dur"] for e in mine)
            t.check(abs(total - whole["dur"]) <= BOUND_US * (len(mine) + 1),
                    path + ": they add up", step, lane, total, whole["dur"])
            out.setdefault(step, {})[lane] = [(e["name"], e["cat"], e["dur"]) for e in mine]
    return out


# Floating-point operations for an example, a gradient that comes through the pool from one pixel
# of four.
DENSE, LOGITS, CONV = 2 * 100 * 16, 2 * 16 * 10, 2 * 9 * 4 * 100
EACH = {"dense dense": DENSE, "dense_input_gradient dense": DENSE,
        "dense_weight_gradient dense": DENSE, "dense logits": LOGITS,
        "dense_input_gradient logits": LOGITS, "dense_weight_gradient logits": LOGITS,
        "conv2d+pool": CONV, "conv2d+pool_weight_gradient": CONV // 4}


def check_flop(t, path, each):
    """What the ops of a step do together is said of them, and of no other."""
    steps = {}
    for e in load(path)["traceEvents"]:
        if e["ph"] == "X" and "flop" in e["args"]:
            name = e["name"].split()[0] if e["name"].startswith("conv2d") else e["name"]
            of = steps.setdefault(e["args"]["step"], {})
            of[name] = of.get(name, 0) + e["args"]["flop"]
    t.check(steps, path + ": operations are counted")
    for step, found in steps.items():
        examples = 232 if step % 4 == 0 else 256
        t.check(found == {name: flop * examples for name, flop in each.items()},
                path + ": operations", step, found)


def alone(t):
    config = t.write("alone.json", {"steps": 40, "checkpoint.every_steps": 5,
                                    "model.layers.0.name": "a \"conv\" <b>\\"})
    _, plain, _ = t.expect(0, "train", config, "--run-dir", "plain", "--replicas", "3")
    _, traced, _ = t.expect(0, "train", config, "--run-dir", "traced", "--replicas", "3", "--trace",
                            "a \"trace\".json")
    t.check(result(plain) == result(traced), "the same run", plain[-2:], traced[-2:])
    lanes = lanes_of(t, "a \"trace\".json", 0, list(range(11, 21)), 3, range(3))
    for step in lanes.values():
        for lane in step.values():
            ops = [e for e in lane if e[1] != "lap"]
            t.check([e[1] for e in ops] == sorted((e[1] for e in ops), key=(
                "load", "forward", "backward").index), "phases in their order", ops)
            t.check(ops[0][0] == "load" and any(e[0].endswith("a \"conv\" <b>\\") for e in ops),
                    "ops and their layers", ops)
            t.check([e[0] for e in lane if e[1] == "lap"] ==
                    ["computing", "waiting", "updating", "waiting"], "laps", lane)
    check_flop(t, "a \"trace\".json", EACH)
    # Microbatches, replicas without a grain, one step.
    _, small, _ = t.expect(0, "train", config, "--run-dir", "small", "--replicas", "5", "--set",
                           "layout.wave_examples=16", "--trace", "small.json", "--set",
                           "trace.first_step=4", "--set", "trace.steps=1")
    t.check(result(small) == result(plain), "in microbatches", small[-2:])
    lanes = lanes_of(t, "small.json", 0, [4], 5, range(5))
    loads = [sum(e[0] == "load" for e in lane) for lane in lanes[4].values()]
    t.check(sum(loads) == 15, "each grain of the short step once", loads)
    check_flop(t, "small.json", EACH)
    t.expect(0, "train", config, "--run-dir", "owned", "--replicas", "3", "--trace", "owned.json",
             "--set", "layout.reduce=operands")
    check_flop(t, "owned.json", {name: EACH[name] for name in EACH if not any(
        name.startswith("dense_weight_gradient " + layer) for layer in ("dense", "logits"))})
    # A run that ends before all of them, and one that ends before the first.
    t.expect(0, "train", config, "--run-dir", "early", "--trace", "early.json", "--replicas", "1",
             "--set", "steps=13")
    lanes_of(t, "early.json", 0, [11, 12, 13], 1, [0])
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "none", "--trace", "none.json",
                           "--set", "steps=3")
    t.check(not os.path.exists("none.json") and
            any(line.startswith("trace: ") and "11" in line for line in lines), "it says so", lines)


def workers(t):
    config = t.write("workers.json", {"steps": 20, "trace.first_step": 5, "trace.steps": 6})
    _, plain, _ = t.expect(0, "train", config, "--run-dir", "one")
    for how in ("window", "messages"):
        port = free_port()
        ends = finish([start(t, tf_config(2, r, port), "train", config, "--run-dir", how,
                             "--replicas", "2", "--collective", how, "--set",
                             "layout.overlap=on", "--set", "layout.exchange_floats=256", "--trace",
                             how + ".json") for r in range(2)])
        if ends[0][0] == 69 and "has no MPI" in ends[0][2]:
            print("not done with workers: this build has no MPI")
            return
        t.check([e[0] for e in ends] == [0, 0], how, ends)
        t.check(result(ends[0][1].splitlines()) == result(plain), how + ": the same run")
        for rank, name in enumerate((how + ".json", how + ".json.1")):
            lanes_of(t, name, rank, list(range(5, 11)), 2, range(2 * rank, 2 * rank + 2))


def objectives(t):
    """A step's names are those of its own objective, whose ops may be more than the first one's."""
    rate = {"type": "sgd", "learning_rate": 0.01}
    config = t.write("gan.json", {"global_batch": 32, "model": {
        "input": [6, 6, 1], "input_range": "signed", "gan": {
            "noise": {"type": "normal", "shape": [4]},
            "generator": [{"type": "dense", "units": 36, "name": "maker"},
                          {"type": "reshape", "target_shape": [6, 6, 1]}],
            "discriminator": [{"type": "flatten"}, {"type": "dense", "units": 8, "name": "judge"},
                              *({"type": "tanh", "name": f"t{i}"} for i in range(9)),
                              {"type": "dense", "units": 1, "name": "score"}],
            "loss": "hinge", "generator_optimizer": rate, "discriminator_optimizer": rate}},
        "steps": 24, "data.train": {"made_up": {"count": 64, "height": 6, "width": 6}}},
                     ["optimizer"])
    _, plain, _ = t.expect(0, "train", config, "--run-dir", "gan", "--replicas", "2")
    _, traced, _ = t.expect(0, "train", config, "--run-dir", "gan2", "--replicas", "2", "--trace",
                            "gan.trace")
    t.check(result(plain) == result(traced), "the same run", plain[-2:], traced[-2:])
    lanes = lanes_of(t, "gan.trace", 0, list(range(11, 21)), 2, range(2))
    trained = ({"maker"}, {"judge", "score"})
    for step, found in lanes.items():
        names = [name for name, _, _ in found[1]]
        of = {name.split()[-1] for name in names if name.startswith("dense_weight_gradient ")}
        t.check({name.rpartition(".")[2] for name in of} == trained[(step + 1) % 2],
                "whose weights a step trains", step, names)


def refused(t):
    config = t.write("refused.json")
    os.mkdir("directory")
    for name, more in (("directory", "no plain file"), ("missing/t.json", "no directory missing"),
                       ("x" * 2000, "--trace")):
        code, _, error = t.run("train", config, "--run-dir", "refused", "--trace", name)
        t.check(code == 64 and more in error and error.count("\n") == 1, name[:20], code, error)
    t.check(not os.path.exists("refused"), "nothing was begun")
    plan = json.loads("\n".join(t.expect(0, "plan", config, "--json", "--set", "trace.file=t.json",
                                         "--replicas", "2")[1]))
    names = [r["name"] for r in plan["regions"]]
    t.check("trace records" in names and "trace lanes" in names, "it is in the plan", names)
    # A file of somebody else that is called like a temporary one.
    with open("full.json.tmp", "w", encoding="utf-8") as f:
        f.write("of somebody else")
    code, lines, error = t.run("train", config, "--run-dir", "full", "--trace", "full.json",
                               "--set", "steps=15")
    with open("full.json.tmp", encoding="utf-8") as f:
        t.check(code == 0 and f.read() == "of somebody else", "others' files stay", code, error)
    t.check(sorted(glob.glob("full.json*")) == ["full.json", "full.json.tmp"], "no more is left")


def main():
    t = Test()
    alone(t)
    workers(t)
    objectives(t)
    refused(t)
    t.finish()


if __name__ == "__main__":
    main()
