#!/usr/bin/env python3
"""mixed_gan_test - mixed precision of several networks and objectives: generators and
discriminators of every loss, told in many ways; a loss scale for each objective; gone on with in
every position of a cycle; evaluations, images, bytes, refusals.

   mixed_gan_test.py PROGRAM WORK_DIR
"""
import json
import os

from program import Test, log_of, result

# Overflows at first, and again after some updates. Of least squares the slopes are other ones.
SCALE = {"initial": 2 ** 20, "growth_steps": 3}
MODES = {
    "skip": {"precision": "mixed_float16", "loss_scale": SCALE},
    "replay": {"precision": "mixed_float16", "loss_scale": {**SCALE, "on_overflow": "replay"}},
    "bfloat16": {"precision": "mixed_bfloat16"},
}
OF_MODE = {"wasserstein": "skip", "minimax": "bfloat16", "modified": "replay",
           "least_squares": "skip", "hinge": "replay"}
ADAM = {"type": "adam_keras", "learning_rate": 0.002, "beta_1": 0.5}
MAKER = [
    {"type": "dense", "name": "seed", "units": 50, "use_bias": False},
    {"type": "batch_normalization", "name": "norm"}, {"type": "relu", "name": "positive"},
    {"type": "reshape", "name": "image", "target_shape": [5, 5, 2]},
    {"type": "conv2d_transpose", "name": "whole", "filters": 1, "kernel_size": 4, "strides": 2,
     "padding": "same", "activation": "tanh"}]
SCORES = [
    {"type": "conv2d", "name": "half", "filters": 3, "kernel_size": 4, "strides": 2,
     "padding": "same", "activation": "leaky_relu"},
    {"type": "flatten", "name": "flatten"},
    {"type": "dense", "name": "hidden", "units": 12, "activation": "relu"},
    {"type": "dense", "name": "score", "units": 1}]
WIDE = [*MAKER[:-1], {**MAKER[-1], "dtype": "float32"}]
CYCLES, CYCLE = 4, 5


def gan(t, name, kind="wasserstein", maker=None, mode="skip", **more):
    model = {"input": [10, 10, 1], "input_range": "signed", "gan": {
        "noise": {"type": "normal", "shape": [6]}, "generator": maker or WIDE,
        "discriminator": SCORES, "loss": kind, "generator_steps": 3, "discriminator_steps": 2,
        "weight_clip": 0.1, "generator_optimizer": ADAM, "discriminator_optimizer": ADAM}}
    changes = {"steps": CYCLES * CYCLE, "global_batch": 64, "grain": 8, "model": model,
               "data.train.made_up.count": 140, **MODES[mode], **more}
    return t.write(name + ".json", changes, ["optimizer"])


def lines_of(run):
    with open(run + "/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line)["train"] for line in f if "train" in json.loads(line)]


def everywhere(t, name, config, workers=False):
    """Replicas, kernels, fusion, waves, guards; workers in a window and by messages."""
    wanted = result(t.expect(0, "train", config, "--run-dir", name, "--fresh", "--replicas",
                             "1")[1])
    t.check(all(wanted), name, wanted)
    log = log_of(name)
    ways = [["train", config, *more.split()] for more in (
        "--replicas 3 --set layout.guards=true", "--replicas 8 --kernels portable",
        "--replicas 2 --set layout.fuse=false --set layout.wave_examples=8",
        "--replicas 1 --set layout.wave_examples=24 --set layout.overlay=false")]
    if workers:
        ways += [["launch", "--workers", "2", "--replicas", "1", "train", config],
                 ["launch", "--workers", "3", "--replicas", "2", "train", config, "--collective",
                  "messages"]]
    t.same_everywhere(name, ways, wanted, log)
    return wanted


def gone_on(t, name, config, wanted):
    """Stopped after every step of two cycles, and gone on with by others."""
    for steps in range(1, 2 * CYCLE + 1):
        t.expect(0, "train", config, "--run-dir", "on", "--fresh", "--replicas", "2", "--set",
                 f"steps={steps}", "--kernels", "portable")
        lines = t.expect(0, "train", config, "--run-dir", "on", "--resume", "--replicas", "3")[1]
        t.check(result(lines) == wanted, f"{name}: gone on with after {steps}", result(lines),
                wanted)


def scales(t):
    """Each objective's scale follows its own steps: from one step to the next only its own."""
    config, seen = gan(t, "scales", steps=1), {}
    for steps in range(1, 21):
        t.expect(0, "train", config, "--run-dir", "scales", "--fresh" if steps == 1 else "--resume",
                 "--set", f"steps={steps}")
        line = lines_of("scales")[-1]
        name, now = line["objective"], (line["loss_scale"], line["skipped"])
        t.check(name == ("generator" if (steps - 1) % CYCLE < 3 else "discriminator"), steps, line)
        before, good = seen.get(name, ((SCALE["initial"], 0), 0))
        over = now[1] - before[1]
        good = 0 if over else good + 1
        scale = before[0] // 2 if over else before[0] * 2 if good == 3 else before[0]
        t.check(over in (0, 1) and now[0] == scale, "the scale of " + name, steps, line, before)
        seen[name] = (now, good % 3)
    t.check(all(now[1] >= 3 for now, _ in seen.values()), "both skip", seen)
    t.check(seen["generator"][0] != seen["discriminator"][0], "by themselves", seen)
    replay = lines_of("modified")
    t.check(all(line["skipped"] == 0 for line in replay), "replay skips nothing")
    t.check({line["objective"] for line in replay if line["replayed"]} ==
            {"generator", "discriminator"}, "both replay", replay[-2:])


def value(name, network, taken):
    return {"name": name, "network": network, "inputs": [taken]}


def graph_of(maker, head=None, middle=None):
    """Uses of one network whose inputs have 16 bits here and 32 there, first or last, three of
    them, of narrow layers and of one in fp32; objectives that train two networks."""
    scorer = [{**SCORES[0], **(head or {})}, *SCORES[1:]]
    again = [{"type": "conv2d", "name": "same", "filters": 1, "kernel_size": 3, "padding": "same",
              **(middle or {})}]
    noise = {"name": "z", "noise": {"type": "uniform", "shape": [6], "low": -1, "high": 1}}
    made = [noise, value("made", "maker", "z")]
    return {
        "input": [10, 10, 1], "input_range": "signed",
        "networks": [{"name": "maker", "inputs": [[6]], "layers": maker},
                     {"name": "scorer", "layers": scorer}, {"name": "again", "layers": again}],
        "objectives": [
            {"name": "make", "trains": ["maker", "again"], "optimizer": ADAM,
             "values": [*made, value("once", "again", "made"), value("twice", "again", "once"),
                        value("thrice", "again", "twice"), value("fake", "scorer", "thrice")],
             "loss": {"type": "gan_generator", "kind": "hinge"}},
            {"name": "judge", "trains": ["scorer", "again"], "optimizer": ADAM,
             "values": [*made, value("fake", "scorer", "made"), value("seen", "again", "images"),
                        value("more", "again", "seen"), value("real", "scorer", "more")],
             "loss": {"type": "gan_discriminator", "kind": "hinge", "inputs": ["real", "fake"]}}],
        "schedule": [["make", 1], ["judge", 2]]}


def write_graph(t, model, **more):
    return t.write("graph.json", {
        "steps": 9, "global_batch": 64, "grain": 8, "model": model,
        "data.train.made_up.count": 140, **MODES["skip"], **more}, ["optimizer"])


def other_graphs(t):
    fp32 = {"dtype": "float32"}
    for networks in ((WIDE,), (WIDE, fp32), (MAKER, None, fp32)):
        everywhere(t, "graph", write_graph(t, graph_of(*networks)))


def shards(t):
    """Positions of the last step that have no example: noise, scores and flags leave them out."""
    t.expect(0, "data", "shard", "--made-up", "141", "--height", "10", "--width", "10", "--shards",
             "4", "--to", "cut")
    data = {"order": "sharded", "train": {"manifest": "cut/manifest.json"}}
    for mode in MODES:
        everywhere(t, "shards", gan(t, "shards", "modified", mode=mode, data=data))


def looked_at(t):
    """An evaluation says what the training said; images are the same however they are made."""
    test = {"data.test": {"made_up": {"count": 50, "height": 10, "width": 10, "first": 1000}},
            "samples.every_steps": 10, "samples.count": 6}
    judge = t.write("judge.json", {"steps": 5})
    t.expect(0, "train", judge, "--run-dir", "judge")
    for mode, maker in (("skip", MAKER), ("bfloat16", WIDE)):
        config = gan(t, "look", "modified", maker, mode, **test)
        t.expect(0, "train", config, "--run-dir", "look", "--fresh", "--replicas", "2")
        with open("look/metrics.jsonl", encoding="utf-8") as f:
            said = json.loads(f.read().splitlines()[-1])["test"]
        for more in ([], ["--replicas", "3", "--kernels", "portable"]):
            found = json.loads("".join(t.expect(0, "eval", config, "--run-dir", "look", "--json",
                                                *more)[1]))
            t.check(all(found["test_" + key] == said[key] for key in
                        ("loss", "real", "generator_loss", "fake")), "eval", found, said)
        scores = {"".join(t.expect(0, "eval", config, "--run-dir", "look", "--json", "--judge",
                                   "judge", "--count", "20", *more)[1])
                  for more in ([], ["--kernels", "portable", "--set", "layout.wave_examples=8"])}
        t.check(len(scores) == 1, "one score", scores)
        images = []
        for more in ([], ["--kernels", "reference"],
                     ["--set", "layout.wave_examples=8", "--set", "layout.guards=true"]):
            t.expect(0, "generate", config, "--run-dir", "look", "--count", "6", "--output",
                     "six.png", *more)
            with open("six.png", "rb") as f:
                images.append(f.read())
        with open("look/samples-0000000020.png", "rb") as f:
            images.append(f.read())
        t.check(len(set(images)) == 1, "one picture", mode, [len(i) for i in images])
        t.expect(0, "generate", config, "--run-dir", "look", "--count", "3", "--between", "0,5",
                 "--output", "way.npy")
        t.expect(0, "generate", config, "--run-dir", "look", "--count", "6", "--output", "six.npy")
        with open("way.npy", "rb") as way, open("six.npy", "rb") as six:
            way, six = way.read()[-300:], six.read()[-600:]
        t.check((way[:100], way[-100:]) == (six[:100], six[-100:]) and way[100:200] not in six,
                "between two noises")


def by_dtype(tensors, region):
    """As `plan` says it."""
    sums = {dtype: sum(x["bytes"] for x in tensors
                       if (x["dtype"], x["region"]) == (dtype, region))
            for dtype in ("f32", "u8", "u16", "u32", "f16", "bf16")}
    return ", ".join(f"{dtype} {count}" for dtype, count in sums.items() if count)


def plan(t):
    """Half the bytes; the scores of both uses stay fp32."""
    found, model = {}, graph_of(MAKER)
    model.update(objectives=model["objectives"][1:], schedule=[["judge", 1]])
    for precision in ("float32", "mixed_float16"):
        config = write_graph(t, model, loss_scale={}, precision=precision) \
            if precision != "float32" else t.write("wide.json", {
                "global_batch": 64, "grain": 8, "model": model}, ["optimizer"])
        said = json.loads("\n".join(t.expect(
            0, "plan", config, "--json", "--replicas", "1", "--set", "layout.overlay=false")[1]))
        found[precision] = {x["name"]: (x["dtype"], x["bytes"]) for x in said["tensors"]}
    for name in ("input", "z", "maker.seed", "maker.whole/tanh", "again.same:1",
                 "scorer.half/leaky_relu", "scorer.half:1/leaky_relu", "scorer.hidden:1/gradient",
                 "scorer.score/gradient", "scorer.score:1/gradient"):
        wide, half = (found[p].get(name) for p in ("float32", "mixed_float16"))
        if t.check(wide and half, "planned", name, sorted(found["mixed_float16"])):
            t.check((wide[0], half[0], half[1] * 2) == ("f32", "f16", wide[1]), name, wide, half)
    for name in ("scorer.score", "scorer.score:1"):
        t.check(found["mixed_float16"][name][0] == "f32", name + " stays in fp32")
    said = json.loads("".join(t.expect(0, "plan", gan(t, "plan"), "--json")[1]))
    states = [x for x in said["tensors"] if x["name"] == "run/loss_scale/state"]
    t.check([x["bytes"] for x in states] == [40], "a scale for each objective", states)
    _, lines, _ = t.expect(0, "plan", "plan.json")
    lines = [line.partition("by dtype: ")[2] for line in lines if "by dtype: " in line]
    t.check(len(lines) == 3 and lines[0] == by_dtype(said["tensors"], "device") and
            lines[1] == by_dtype(said["tensors"], "replica") != lines[2], "by dtype", lines)
    _, lines, _ = t.expect(0, "plan", "wide.json")
    t.check(not any("by dtype" in line for line in lines), "of fp32 nothing is said")


def ends(t):
    """The run ends where one objective's scale is of no use any more, whatever the other's is."""
    for more, text in ((["loss_scale.skips_max=2"], "loss_scale.skips_max steps were skipped"),
                       (["loss_scale.floor=524288", "loss_scale.on_overflow=replay"],
                        "at loss scale 524288: loss_scale.floor allows no smaller one")):
        options = [word for key in more for word in ("--set", key)]
        error = t.expect(80, "train", gan(t, "ends"), "--run-dir", "ends", "--fresh", *options)[2]
        t.check(text in error and "gradient is not finite" in error, "how it ends", text, error)
        t.check(not os.listdir("ends/checkpoints") if os.path.isdir("ends/checkpoints") else True,
                "nothing is saved")


def refusals(t):
    """A score of the loss is fp32, which a layer of another network would want in 16 bits."""
    model = graph_of(WIDE)
    model["networks"].append({"name": "past", "inputs": [[1]], "layers": [
        {"type": "dense", "name": "d", "units": 1}]})
    judge = model["objectives"][1]
    judge["values"] += [value("later", "past", "fake")]
    judge["loss"]["inputs"] = ["later", "fake"]
    judge["values"] = [v for v in judge["values"] if v["name"] not in ("real", "seen", "more")]
    judge["trains"] = ["scorer", "past"]
    error = t.expect(78, "train", write_graph(t, model), "--run-dir", "refused")[2]
    t.check("layer scorer.score: the loss takes its output, which stays in float32, and so does "
            "another layer" in error, "refused", error)


def main():
    t = Test()
    for kind, mode in OF_MODE.items():
        config = gan(t, kind, kind, WIDE if kind != "minimax" else MAKER, mode)
        wanted = everywhere(t, kind, config, workers=kind in ("wasserstein", "modified"))
        if kind in ("wasserstein", "modified"):
            gone_on(t, kind, config, wanted)
    scales(t)
    other_graphs(t)
    shards(t)
    looked_at(t)
    plan(t)
    ends(t)
    refusals(t)
    t.finish()


if __name__ == "__main__":
    main()
