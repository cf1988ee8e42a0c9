#!/usr/bin/env python3
"""objectives_test - runs of several networks and objectives, from a configuration: one digest for
every cut and every kernel, saved and killed at each place of the schedule; noise, losses of two
values, metrics of each objective; checkpoints, plan, config show; refusals.

   objectives_test.py PROGRAM WORK_DIR
"""
import copy
import itertools
import json
import os
import signal
import struct
import time

import events_test
from program import Test, result, value

DENSE = {"type": "dense", "units": 24, "activation": "relu"}
# `body` is trained by the first objective alone, `twice` by both: once it is applied two times and
# meets itself, once it is on the way to `other`.
MODEL = {
    "input": [10, 10, 1], "classes": 10,
    "networks": [
        {"name": "body", "layers": [
            {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": 3,
             "activation": "relu"},
            {"type": "max_pool2d", "pool_size": 2}, {"type": "flatten"}, DENSE]},
        {"name": "twice", "inputs": [[24]], "layers": [{**DENSE, "name": "dense"}]},
        {"name": "sum", "inputs": [[24], [24]],
         "layers": [{"type": "add", "inputs": ["input", "input_2"]}]},
        {"name": "head", "inputs": [[24]], "layers": [{"type": "dense", "units": 10}]},
        {"name": "other", "inputs": [[24]], "layers": [
            {"type": "dense", "units": 16, "activation": "tanh"},
            {"type": "dense", "units": 10}]}],
    "objectives": [
        {"name": "first", "values": [
            {"name": "x", "network": "body"}, {"name": "y", "network": "twice"},
            {"name": "z", "network": "twice"},
            {"name": "s", "network": "sum", "inputs": ["z", "x"]},
            {"name": "logits", "network": "head"}],
         "trains": ["body", "twice", "head"],
         "optimizer": {"type": "momentum", "learning_rate": 0.05}},
        {"name": "second", "values": [
            {"name": "x", "network": "body"}, {"name": "y", "network": "twice"},
            {"name": "logits", "network": "other"}],
         "trains": ["twice", "other"],
         "optimizer": {"type": "momentum", "learning_rate": 0.1, "nesterov": True}}],
    "schedule": [["first", 2], ["second", 1]]}
# Three objectives that share networks: of noise alone, of two values, of labels.
DREAMS = {
    "input": [10, 10, 1], "classes": 10, "input_range": "signed",
    "networks": [
        {"name": "maker", "inputs": [[7]], "layers": [
            {"type": "dense", "units": 24, "use_bias": False, "activation": "leaky_relu"},
            {"type": "dense", "units": 100, "activation": "tanh"}]},
        {"name": "flat", "layers": [{"type": "flatten"}]},
        {"name": "coder", "inputs": [[100]], "layers": [
            {"type": "dense", "units": 20, "activation": "relu"}, {"type": "dense", "units": 8}]},
        {"name": "head", "inputs": [[8]], "layers": [{"type": "dense", "units": 10}]}],
    "objectives": [
        {"name": "dream", "values": [
            {"name": "z", "noise": {"type": "truncated_normal", "shape": [7]}},
            {"name": "made", "network": "maker"}, {"name": "code", "network": "coder"}],
         "trains": ["maker"], "loss": {"type": "mean", "scale": -1},
         "optimizer": {"type": "sgd", "learning_rate": 0.1}},
        {"name": "match", "values": [
            {"name": "x", "network": "flat"}, {"name": "a", "network": "coder"},
            {"name": "z", "noise": {"type": "uniform", "shape": [7], "low": -1}},
            {"name": "made", "network": "maker"}, {"name": "b", "network": "coder"}],
         "trains": ["coder", "maker"],
         "loss": {"type": "mean_squared_error", "inputs": ["b", "a"]},
         "optimizer": {"type": "momentum", "learning_rate": 0.05}},
        {"name": "label", "values": [
            {"name": "x", "network": "flat"}, {"name": "a", "network": "coder"},
            {"name": "logits", "network": "head"}],
         "trains": ["coder", "head"],
         "optimizer": {"type": "adam_keras", "learning_rate": 0.01}}],
    "schedule": [["dream", 4], ["match", 1], ["label", 2]]}
TEST = {"made_up": {"count": 100, "first": 1000, "height": 10, "width": 10}}
STEPS = 25  # of batches of 64: an epoch of 280 has five, the last with 24 examples


def configuration(t, name="two.json", model=None, **more):
    keys = {"model": model or MODEL, "global_batch": 64, "grain": 8, "steps": STEPS,
            "data.train.made_up.count": 280, "data.test": TEST, **more}
    unsaid = [key for key in keys if keys[key] is None]
    return t.write(name, keys, ["optimizer", *unsaid])


def changed(path, new, of=None):
    """MODEL with one value changed: "objectives.0.trains"; None takes it out."""
    model = copy.deepcopy(of or MODEL)
    at, keys = model, [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in keys[:-1]:
        at = at[key]
    if new is None:
        del at[keys[-1]]
    else:
        at[keys[-1]] = new
    return model


def identity(t, config):
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "one", "--fresh", "--quiet", "--set",
                           "steps=1")
    return value(lines, "run_identity")


def train(t, config, to, *arguments):
    _, lines, _ = t.expect(0, "train", config, "--run-dir", to, "--fresh", "--quiet", *arguments)
    return result(lines)


# --- one digest ----------------------------------------------------------------------------------

def cuts(t, golden):
    kernels = ["reference", "portable", "auto"]
    for n, (replicas, kernel) in enumerate(itertools.product((1, 2, 3), kernels)):
        found = train(t, "two.json", "cut", "--replicas", str(replicas), "--kernels", kernel,
                      "--set", f"layout.wave_examples={(64, 16, 8)[n % 3]}",
                      "--set", f"layout.fuse={('true', 'false')[n % 2]}",
                      "--set", f"layout.reduce={('auto', 'partials', 'operands')[n // 3]}",
                      "--set", f"layout.guards={('false', 'true')[n % 2]}",
                      "--set", "evaluate_every_steps=4")
        t.check(found == golden, f"{replicas} replicas, {kernel}", found, golden)
    found = train(t, "two.json", "cut", "--set", "layout.overlay=false")
    t.check(found == golden, "no overlay", found, golden)
    workers(t, "two.json", golden)


EARLY = ["--set", "layout.overlap=on", "--set", "layout.exchange_floats=1"]


def workers(t, config, golden):
    for count, replicas, collective, more in (
            (2, 1, "window", []), (2, 2, "window", []), (2, 2, "messages", []),
            (3, 1, "messages", EARLY)):
        _, lines, _ = t.expect(
            0, "launch", "--workers", str(count), "--replicas", str(replicas), "train", config,
            "--run-dir", "workers", "--fresh", "--quiet", "--collective", collective, *more)
        found = result([line.partition("] ")[2] for line in lines])
        t.check(found == golden, f"{count} workers of {replicas}, {collective}", found, golden)


def schedule_decides(t, golden):
    for path, new in (("schedule", [["first", 1], ["second", 1]]),
                      ("objectives.0.trains", ["body", "head"]),
                      ("objectives.1.optimizer.learning_rate", 0.2)):
        other = train(t, configuration(t, "other.json", changed(path, new)), "other")
        t.check(other[0] != golden[0], path + " decides bits")
        t.check(identity(t, "other.json") != identity(t, "two.json"), path + " is in the identity")
    model = copy.deepcopy(MODEL)
    for part in ("networks", "objectives"):
        for entry in model[part]:
            entry["name"] = "my_" + entry["name"]
    model["networks"][0]["layers"][0]["name"] = "my_conv"
    model["objectives"][1]["values"][1]["name"] = "my_y"
    for objective in model["objectives"]:
        objective["trains"] = ["my_" + name for name in objective["trains"]]
        for use in objective["values"]:
            use["network"] = "my_" + use["network"]
    model["schedule"] = [["my_" + name, steps] for name, steps in model["schedule"]]
    other = train(t, configuration(t, "other.json", model), "other")
    t.check(other == golden, "names change no bit", other, golden)
    t.check(identity(t, "other.json") == identity(t, "two.json"), "nor are they in the identity")


def one_is_the_short_form(t):
    """One network and one objective: the bits of the short form."""
    layers = MODEL["networks"][0]["layers"] + MODEL["networks"][3]["layers"]
    optimizer = {"type": "momentum", "learning_rate": 0.05}
    short = t.write("short.json", {"model.layers": layers, "optimizer": optimizer, "steps": 9})
    full = t.write("full.json", {
        "model": {"input": [10, 10, 1], "classes": 10,
                  "networks": [{"name": "n", "layers": layers}],
                  "objectives": [{"name": "o", "values": [{"name": "y", "network": "n"}],
                                  "trains": ["n"], "optimizer": optimizer}]},
        "steps": 9}, ["optimizer"])
    t.check(train(t, short, "short") == train(t, full, "full"), "the short form's bits")


def summed(layers, of, apart):
    """MODEL, whose first objective has these `layers` in "sum", `of` these values; `apart`: one of
    them, "b", comes from a network of its own."""
    model = copy.deepcopy(MODEL)
    values = model["objectives"][0]["values"]
    values[3]["inputs"] = of
    model["networks"][2]["layers"] = layers
    if apart:
        values.insert(3, {"name": "b", "network": "bend", "inputs": ["x"]})
        model["networks"].append({"name": "bend", "inputs": [[24]], "layers": [{"type": "tanh"}]})
    return model


def inputs_by_name(t):
    """A layer takes the value whose name it says, of two inputs and a layer: the same sum, its
    parts from two networks, the other way round, and from one."""
    add = [{"type": "add", "inputs": ["input", "input_2"]}]
    bend = [{"type": "tanh", "name": "bent", "inputs": ["input_2"]},
            {"type": "add", "inputs": ["input", "bent"]}]
    found = [train(t, configuration(t, "sum.json", summed(*how)), "sum") for how in (
        (add, ["z", "b"], True), (add, ["b", "z"], True), (bend, ["z", "x"], False))]
    t.check(found[0] == found[1] == found[2], "inputs by name", found)


# --- noise, two values, metrics ------------------------------------------------------------------

def dreams(t):
    config = configuration(t, "dreams.json", DREAMS, steps=None, cycles=6, log_every_steps=10)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "dreams", "--replicas", "1",
                        "--tensorboard", "--set", "events.images=1",
                           "--kernels", "reference")
    golden = result(lines)
    t.check("a cycle: 7 steps (dream 4, match 1, label 2); it reads 3 batches of images and draws "
            "noise 5 times" in lines, "the cycle", lines)
    t.check("length: 42 steps, of 6 cycles" in lines, "cycles are a length", lines)
    for n, (replicas, kernel) in enumerate(itertools.product((2, 3, 8), ("portable", "auto"))):
        found = train(t, config, "cut", "--replicas", str(replicas), "--kernels", kernel,
                      "--set", f"layout.wave_examples={(64, 16, 8)[n % 3]}",
                      "--set", f"layout.fuse={('true', 'false')[n % 2]}",
                      "--set", f"layout.guards={('false', 'true')[n % 2]}")
        t.check(found == golden, f"dreams, {replicas} replicas, {kernel}", found, golden)
    workers(t, config, golden)
    # Of 280 images: their fifth batch is read in step 13, the second cycle's last but one.
    epoch = configuration(t, "epoch.json", DREAMS, steps=None, epochs=1)
    lines = t.expect(0, "train", epoch, "--run-dir", "epoch")[1]
    t.check("length: 13 steps (1 epoch)" in lines, "an epoch of images", lines)
    t.check(result(lines) == train(t, config, "cut", "--set", "steps=13"), "ends there", lines)
    for cycles in (1, 3):
        train(t, config, "stop", "--set", f"cycles={cycles}", "--set", f"steps={cycles * 7 - 2}")
        _, lines, _ = t.expect(0, "train", config, "--run-dir", "stop", "--resume", "--quiet")
        t.check(result(lines) == golden, f"resumed in cycle {cycles}", result(lines), golden)
    return config


def logged(run):
    with open(run + "/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def metrics_of_each(t):
    """The last steps of all objectives in the cycles of steps 1, 10, 20, 30, 40; the last one."""
    wanted = [(1, "dream", 1)] + [
        (7 * (cycle - 1) + at, name, cycle) for cycle in (2, 3, 5, 6)
        for at, name in ((4, "dream"), (5, "match"), (7, "label"))]
    lines, resumed_lines = logged("dreams"), logged("stop")
    found = [(line["step"], line["train"]["objective"], line["train"]["cycle"])
             for line in lines if "train" in line]
    t.check(found == wanted, "logged steps", found, wanted)
    names = {"dream": {"loss"}, "match": {"loss", "mean_absolute_error"},
             "label": {"loss", "correct"}}
    for line in lines[:-1]:
        keys = set(line["train"]) - {"objective", "cycle", "examples"}
        t.check(keys == names[line["train"]["objective"]], "metrics by name", line)
    t.check(lines[-1]["test"]["objective"] == "match" and "cycle" not in lines[-1]["test"],
            "the test set, by the first objective that reads images", lines[-1])
    t.check(resumed_lines[-4:] == lines[-4:], "the same lines after a stop", resumed_lines[-4:])
    events(t, lines)


def events(t, lines):
    """Event files: a curve for each metric of each objective; the last images that were read."""
    found, wanted = events_test.read("dreams"), {}
    for line in lines:
        for kind, values in ((kind, line[kind]) for kind in ("train", "test") if kind in line):
            shares = {"accuracy": values["correct"] / values["examples"]
                      } if "correct" in values else {}
            for name in ("loss", "mean_absolute_error"):
                shares.update({name: values[name]} if name in values else {})
            for name, number in shares.items():
                wanted.setdefault(f"{kind}/{values['objective']}/{name}", []).append(
                    (line["step"], events_test.f32(number)))
    rates = [f"train/{name}/learning_rate" for name in ("dream", "match", "label")]
    curves = {tag: [v[:2] for v in values] for tag, values in found["scalars"].items()}
    t.check({tag: values for tag, values in curves.items() if tag in wanted} == wanted and
            set(curves) - set(wanted) - {"speed/steps_per_second", "speed/images_per_second"} ==
            {"train/epoch", *rates}, "curves of each objective", curves)
    t.check([curves[tag][0][1] for tag in rates] == [events_test.f32(r) for r in (0.1, 0.05, 0.01)],
            "their rates", rates)
    # Of 42 steps 18 have read images, of five batches an epoch.
    t.check(curves["train/epoch"][-1] == (42, events_test.f32(3.6)), "epochs of images",
            curves["train/epoch"])
    plain = t.write("plain.json", {"global_batch": 64, "grain": 8, "steps": 18, "events.images": 1,
                                   "data.train.made_up.count": 280, "data.test": TEST})
    t.expect(0, "train", plain, "--run-dir", "plain", "--quiet")
    pictures = [events_test.read(run)["images"]["inputs/00"] for run in ("dreams", "plain")]
    t.check([p[0] for p in pictures[0]] == [42] and [p[0] for p in pictures[1]] == [1, 18] and
            pictures[0][0][1] == pictures[1][1][1] != pictures[1][0][1],
            "the batch that was read last", [[p[0] for p in shown] for shown in pictures])


def noise_decides(t, config):
    noise = "objectives.0.values.0.noise"
    for new, same in (({"type": "truncated_normal", "shape": [7], "stddev": 1.0}, True),
                      ({"type": "normal", "shape": [7]}, False),
                      ({"type": "truncated_normal", "shape": [7], "mean": 0.5}, False)):
        other = configuration(t, "other.json", changed(noise, new, DREAMS), steps=None, cycles=6)
        t.check((identity(t, other) == identity(t, config)) == same, f"identity of {new}")
        t.check((train(t, other, "other") == result_of("dreams")) == same, f"bits of {new}")
    _, lines, _ = t.expect(0, "config", "show", config)
    with open("shown.json", "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    shown_noise = json.loads("\n".join(lines))["model"]["objectives"][1]["values"][2]["noise"]
    t.check(shown_noise == {"type": "uniform", "shape": [7], "low": -1.0, "high": 1.0},
            "defaults of noise", shown_noise)
    t.check(identity(t, "shown.json") == identity(t, config), "what is shown is the same run")
    longer = configuration(t, "other.json", DREAMS, steps=None, cycles=7)
    t.check(identity(t, longer) == identity(t, config), "the length is not in the identity")
    other = configuration(t, "other.json", {**DREAMS, "input_range": "unit"}, steps=None, cycles=6)
    t.check(identity(t, other) != identity(t, config), "the input range is in the identity")


def result_of(run):
    newest = sorted(os.listdir(run + "/checkpoints"))[-1]
    with open(f"{run}/checkpoints/{newest}", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return header["__metadata__"]["digest"], header["__metadata__"]["state_hash"]


# --- a generator and a discriminator -------------------------------------------------------------

ADAM = {"type": "adam_keras", "learning_rate": 0.002, "beta_1": 0.5}
SCORES = [{"type": "flatten"}, {"type": "dense", "units": 12, "activation": "leaky_relu"},
          {"type": "dense", "units": 1}]
MAKER = [{"type": "dense", "units": 100, "use_bias": False, "activation": "tanh"},
         {"type": "reshape", "target_shape": [10, 10, 1]}]
LATENT = {"type": "normal", "shape": [6]}
GAN = {"input": [10, 10, 1], "input_range": "signed", "gan": {
    "noise": LATENT, "generator": MAKER, "discriminator": SCORES,
    "loss": {"kind": "modified", "label_smoothing": 0.5},
    "generator_steps": 10, "discriminator_steps": 1,
    "generator_optimizer": ADAM, "discriminator_optimizer": ADAM}}


def full_form():
    """What GAN is short for."""
    real = {"name": "real", "network": "discriminator"}
    made = [{"name": "z", "noise": LATENT}, {"name": "made", "network": "generator"},
            {"name": "fake", "network": "discriminator"}]
    return {
        "input": [10, 10, 1], "input_range": "signed",
        "networks": [{"name": "generator", "inputs": [[6]], "layers": MAKER},
                     {"name": "discriminator", "layers": SCORES}],
        "objectives": [
            {"name": "generator", "values": made, "trains": ["generator"],
             "loss": {"type": "gan_generator", "kind": "modified"}, "optimizer": ADAM},
            {"name": "discriminator", "values": [real, *made], "trains": ["discriminator"],
             "loss": {"type": "gan_discriminator", "kind": "modified", "label_smoothing": 0.5,
                      "inputs": ["real", "fake"]}, "optimizer": ADAM}],
        "schedule": [["generator", 10], ["discriminator", 1]]}


def gan(t):
    """Three cycles of ten to one: 30 and 3 updates, 33 times noise, 3 batches of images."""
    config = configuration(t, "gan.json", GAN, steps=None, cycles=3, log_every_steps=1)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "gan")
    golden = result(lines)
    t.check("length: 33 steps, of 3 cycles" in lines, "three cycles", lines)
    t.check("a cycle: 11 steps (generator 10, discriminator 1); it reads 1 batch of images and "
            "draws noise 11 times" in lines, "ten to one", lines)
    found = [(line["step"], line["train"]["objective"]) for line in logged("gan")[:-1]]
    wanted = [(1, "generator")] + [(11 * cycle + at, name) for cycle in range(3)
                                   for at, name in ((10, "generator"), (11, "discriminator"))]
    t.check(found == wanted, "what is logged", found)
    names = [set(line["train"]) - {"objective", "cycle", "examples"} for line in logged("gan")[:3]]
    t.check(names == [{"loss", "fake"}, {"loss", "fake"}, {"loss", "real"}], "metrics", names)
    _, lines, _ = t.expect(0, "ledger", config, "--step", "33")
    t.check(len([line for line in lines if "epoch 0" in line]) == 64, "the third batch", lines[:5])
    full = configuration(t, "full.json", full_form(), steps=None, cycles=3)
    t.check(identity(t, full) == identity(t, config), "the full form's identity")
    t.check(train(t, full, "full") == golden, "the full form's bits")
    workers(t, config, golden)
    for step in (4, 10, 11, 12, 21, 22):
        train(t, config, "stop", "--set", f"steps={step}", "--replicas", "3")
        _, lines, _ = t.expect(0, "train", config, "--run-dir", "stop", "--resume", "--quiet",
                               "--replicas", "2", "--kernels", "portable")
        t.check(result(lines) == golden, f"resumed after step {step}", result(lines), golden)
    for kind in ("wasserstein", "minimax", "least_squares", "hinge"):
        other = configuration(t, "other.json", changed("gan.loss", kind, GAN), steps=None, cycles=3)
        t.check(identity(t, other) != identity(t, config), f"{kind} is in the identity")
        t.check(train(t, other, "other") != golden, f"{kind} decides bits")
    clipped = configuration(t, "other.json", changed("gan.weight_clip", 0.01, GAN), steps=None,
                            cycles=3)
    t.check(identity(t, clipped) != identity(t, config), "the clip is in the identity")
    t.check(train(t, clipped, "clipped") != golden, "the clip decides bits")
    within_the_clip(t)


def within_the_clip(t):
    newest = sorted(os.listdir("clipped/checkpoints"))[-1]
    with open("clipped/checkpoints/" + newest, "rb") as f:
        bytes_ = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(bytes_)), f.read()
    greatest = {}
    for name, tensor in header.items():
        if name.count("/") != 1 or name.startswith("__"):
            continue
        begin, end = tensor["data_offsets"]
        values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        greatest[name] = max(map(abs, values))
    limit = struct.unpack("<f", struct.pack("<f", 0.01))[0]
    for name, most in greatest.items():
        t.check((most <= limit) == name.startswith("discriminator"), "the clip of " + name, most)


REFUSED_GANS = [
    ("gan.gradient_penalty", 10, "the gradient penalty wants a second derivative"),
    ("gan.loss", {"kind": "wasserstein", "gradient_penalty": 10}, "the gradient penalty wants"),
    ("gan.loss", "pink", "one of \"wasserstein\", \"minimax\", \"modified\""),
    ("gan.loss", 3, "wanted a name, or an object"),
    ("gan.loss", {"label_smoothing": 0.5}, 'model.gan.loss: the required key "kind" is missing'),
    ("gan.loss", {"kind": "hinge", "type": "mean"},
     'unknown key "type" at model.gan.loss; remove it, or use one of "kind", "label_smoothing"'),
    ("gan.loss", {"kind": "hinge", "inputs": ["fake"]}, 'unknown key "inputs" at model.gan.loss'),
    ("gan.loss", {"kind": "hinges"}, "model.gan.loss.kind: found"),
    ("gan.generator_steps", 0, "generator_steps"),
    ("gan.noise", None, "noise"),
    ("gan.noise.type", "pink", "model.gan.noise.type: found"),
    ("gan.noise.shape", [2, 3], "model.gan.noise.shape: found"),
    ("gan.generator", None, "generator"),
    ("gan.generator.0.unitz", 3, 'unknown key "unitz" at model.gan.generator[0];'),
    ("gan.discriminator.1.units", 0, "model.gan.discriminator[1].units: found"),
    ("gan.weight_clip", -1, "model.gan.weight_clip: found"),
    ("gan.critic", [], 'discriminator_optimizer", "weight_clip"\n'),
    ("gan.generator_optimizer", None, "generator_optimizer"),
    ("gan.generator_optimizer.type", "adam", "model.gan.generator_optimizer.type: found"),
    ("gan.discriminator_optimizer", {**ADAM, "beta_3": 1},
     'unknown key "beta_3" at model.gan.discriminator_optimizer;'),
    ("schedule", [["generator", 1]], "with \"gan\", which stands for it"),
]


def two_gans(t):
    """Beside a discriminator its own generator is evaluated, not that of another one before it."""
    model = full_form()
    for network in copy.deepcopy(model["networks"]):
        model["networks"].append({**network, "name": "other_" + network["name"][:3]})
    others = []
    for objective in model["objectives"]:
        objective["loss"] = {**objective["loss"], "kind": "wasserstein"}
        other = copy.deepcopy(objective)
        other["name"] = "other_" + other["name"][:3]
        other["loss"]["kind"] = "least_squares"
        for use in other["values"]:
            if "network" in use:
                use["network"] = "other_" + use["network"][:3]
        other["trains"] = ["other_" + network[:3] for network in other["trains"]]
        others.append(other)
    model["objectives"] = [others[0], *model["objectives"], others[1]]
    model["schedule"] = [[objective["name"], 1] for objective in model["objectives"]]
    train(t, configuration(t, "gans.json", model, steps=None, cycles=2), "gans")
    tested = [line["test"] for line in logged("gans") if "test" in line][-1]
    t.check(tested["generator_loss"] == -tested["fake"], "its own generator", tested)


def long_names(t):
    """What names itself is called by its number where its type's name would be too long."""
    layers = [SCORES[0], {"type": "batch_normalization"}, *SCORES[1:]]
    config = configuration(t, "long.json", changed("gan.discriminator", layers, GAN), steps=None,
                           cycles=1)
    train(t, config, "long")
    newest = "long/checkpoints/" + sorted(os.listdir("long/checkpoints"))[-1]
    _, lines, _ = t.expect(0, "checkpoint", "info", newest)
    text = "\n".join(lines)
    for name in ("discriminator.layer_1/gamma", "discriminator.dense_2/kernel"):
        t.check(name in text, name, text)
    full = full_form()
    full["networks"][1]["layers"] = layers
    for network, name in (("nine_byte", "batch_normalization_1"), ("ten_bytes_", "layer_1")):
        model = json.loads(json.dumps(full).replace('"discriminator"', f'"{network}"'))
        config = configuration(t, "long.json", model, steps=None, cycles=1)
        text = "\n".join(t.expect(0, "plan", config, "--json")[1])
        t.check(f'"{network}.{name}/gamma"' in text, "31 bytes are a name", network, name)


# --- saved and resumed ---------------------------------------------------------------------------

def saved_steps(run):
    there = os.listdir(run + "/checkpoints") if os.path.isdir(run + "/checkpoints") else []
    return sorted(int(name[len("step-"):-len(".safetensors")]) for name in there
                  if name.startswith("step-") and name.endswith(".safetensors"))


def resumed(t, golden):
    """At every place of a cycle, by other kernels and replicas; then killed wherever it is."""
    for step in range(1, 7):
        train(t, "two.json", "stop", "--set", f"steps={step}", "--replicas", "3")
        _, lines, _ = t.expect(0, "train", "two.json", "--run-dir", "stop", "--resume", "--quiet",
                               "--replicas", "2", "--kernels", "portable")
        t.check(result(lines) == golden, f"resumed after step {step}", result(lines), golden)
    for after in (0.05, 0.1, 0.2):
        run = f"killed{after}"
        child = t.start("train", "two.json", "--run-dir", run, "--quiet", "--set", "steps=200000",
                        "--set", "checkpoint.every_steps=1", "--set", "checkpoint.hot_steps=0")
        saved, end = [], time.monotonic() + 60
        while not saved and time.monotonic() < end and child.poll() is None:
            saved = saved_steps(run)
            time.sleep(0.01)
        time.sleep(after)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        steps = saved_steps(run)[-1] + 4
        _, lines, _ = t.expect(0, "train", "two.json", "--run-dir", run, "--resume", "--quiet",
                               "--set", f"steps={steps}")
        whole = train(t, "two.json", "whole", "--set", f"steps={steps}")
        t.check(result(lines) == whole, f"killed, resumed to step {steps}", result(lines), whole)


def checkpoint_names(t):
    newest = sorted(os.listdir("whole/checkpoints"))[-1]
    with open("whole/checkpoints/" + newest, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    names = set(header) - {"__metadata__"}
    slots = {name for name in names if name.count("/") == 2}
    wanted = {"body.conv/kernel", "twice.dense/kernel", "head.dense_0/bias",
              "other.dense_1/kernel"}
    t.check(wanted <= names - slots, "parameters of all networks", sorted(names))
    t.check({"twice.dense/kernel/first.momentum", "twice.dense/kernel/second.momentum",
             "body.conv/bias/momentum"} <= slots, "slots of both objectives", sorted(slots))
    t.check(len(slots) == 8 + 6 and len(names) == 12 + 8 + 6, "and no other", sorted(names))
    t.expect(0, "checkpoint", "verify", "whole/checkpoints/" + newest)
    t.expect(0, "eval", "two.json", "--run-dir", "whole")


# --- what is shown -------------------------------------------------------------------------------

def shown(t):
    _, lines, _ = t.expect(0, "config", "show", "two.json")
    with open("shown.json", "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    document = json.loads("\n".join(lines))["model"]
    t.check(document["objectives"][0]["values"][2]["inputs"] == ["y"] and
            document["networks"][0]["inputs"] == [[10, 10, 1]] and
            document["networks"][0]["layers"][1]["name"] == "max_pool2d_1" and
            document["objectives"][0]["loss"] == "sparse_categorical_crossentropy",
            "defaults are filled in", document)
    ends = [identity(t, name) for name in ("two.json", "shown.json")]
    t.check(ends[0] == ends[1], "what is shown is the same run", ends)
    _, lines, _ = t.expect(0, "plan", "two.json")
    text = "\n".join(lines)
    t.check("objective first: 2 of 3 steps" in text and "objective second: 1 of 3 steps" in text,
            "plan names both")
    _, lines, _ = t.expect(0, "plan", "two.json", "--json")
    plan = json.loads("\n".join(lines))
    bytes_of = [max(tensor["offset"] + tensor["bytes"] for tensor in objective["tensors"]
                    if tensor["region"] == "replica") for objective in plan["objectives"]]
    region = plan["replica_region_bytes"]
    t.check(max(bytes_of) <= region < sum(bytes_of), "their regions overlay", bytes_of, region)
    _, lines, _ = t.expect(0, "plan", "two.json", "--show-shards")
    t.check(any("280 distinct, 0 missing" in line for line in lines), "an epoch is whole", lines)
    _, lines, _ = t.expect(0, "ledger", "two.json", "--step", "7", "--set", "epochs=2")
    t.check(len([line for line in lines if "epoch 1" in line]) == 64, "the seventh batch", lines)


def most_alive(tensors):
    """Bytes, of a replica's tensors that live at one op: no layout can take less."""
    return max(sum(-(-other["bytes"] // 64) * 64 for other in tensors
                   if other["first_op"] <= tensor["first_op"] and
                   (other["last_op"] is None or tensor["first_op"] <= other["last_op"]))
               for tensor in tensors)


def planned_gans(t):
    """Parameters and slots lie there once, whichever objective has them; what each objective
    computes lies over the other's; and no region is more than 5% above its lower bound."""
    of_data = {"train": {"made_up": {"count": 60000, "height": 28, "width": 28}}}
    ways = [["--replicas", "1"], ["--replicas", "2"], ["--replicas", "2", "--kernels", "portable"],
            ["--replicas", "2", "--set", "layout.fuse=false"],
            ["--workers", "2", "--replicas", "1"]]
    mixed = ["--replicas", "2", "--set", "precision=mixed_float16"]
    for config, way in [("mnist-gan", mixed), *itertools.product(
            ("mnist-gan", "mnist-gan-rmsprop", "mnist-gan-small"), ways)]:
        _, lines, _ = t.expect(0, "plan", config, "--json", "--set",
                               f"data={json.dumps(of_data)}", *way)
        plan = json.loads("\n".join(lines))
        kept, bounds, own = [], [], []
        for objective in plan["objectives"]:
            on_device, of_replica = ([tensor for tensor in objective["tensors"]
                                      if tensor["region"] == region]
                                     for region in ("device", "replica"))
            kept.append([(tensor["name"], tensor["offset"], tensor["bytes"])
                         for tensor in on_device])
            bounds.append(most_alive(of_replica))
            own.append(max(tensor["offset"] + tensor["bytes"] for tensor in of_replica))
        t.check(len(kept) == 2 and kept[0] == kept[1] and
                len({name for name, _, _ in kept[0]}) == len(kept[0]),
                "one set of parameters and slots", config, way)
        t.check(plan["device_region_bytes"] ==
                sum(-(-each // 64) * 64 for _, _, each in kept[0]), "each once", config, way)
        region, bound = plan["replica_region_bytes"], plan["replica_lower_bound_bytes"]
        t.check(bound == max(bounds), "the lower bound", config, way, bound, bounds)
        t.check(bound <= region <= 1.05 * bound, "5% above it", config, way, region, bound)
        t.check(max(own) <= region < sum(own), "objectives overlay", config, way, region, own)


REFUSED = [
    ("objectives.1.loss", {"type": "sparse_categorical_crossentropy", "class_weight": [1, 2]},
     "model.objectives[1].loss.class_weight: found numbers for 2 classes, wanted"),
    ("networks.0.layers", [], "wanted an array of 1 to 4096"),
    ("networks.1.name", "body", "names must differ"),
    ("networks.1.name", "a.b", "is empty or has"),
    ("networks.1.inputs", [[2, 3]], "wanted [height, width, channels] or [values]"),
    ("networks.1.inputs", [[23]], "network twice gets 1 x 1 x 24 (flat), but its input is"),
    ("networks.0.layers.0.name", "a_name_of_thirty_characters_is_", 'shorten its key "name"'),
    ("networks.3.layers.0.units", 9, "wanted 10 logits"),
    ("objectives", None, "objectives"),
    ("objectives.1.name", "first", "names must differ"),
    ("objectives.0.values.1.network", "nobody", "there is no network of that name; wanted one of: "
     "body, twice, sum, head, other"),
    ("objectives.0.values.3.inputs", ["z", "logits"], "there is no earlier value of that name; "
     "wanted one of: x, y, z"),
    ("objectives.1.values.2.inputs", ["x"], "value y is of no use to the loss; take it out"),
    ("objectives.0.trains", ["other"], "it trains network other, which none of its values uses"),
    ("objectives.0.trains", [], "wanted"),
    ("objectives.0.optimizer", None, "optimizer"),
    ("objectives.0.loss", "hinge", "sparse_categorical_crossentropy"),
    ("objectives.0.loss", "gan_generator",
     'found string "gan_generator", which has a required key, "kind"; wanted an object'),
    ("objectives.0.loss", {"type": "gan_generator"}, 'loss: the required key "kind" is missing'),
    ("schedule", None, "schedule"),
    ("schedule", [["first", 1]], "no entry is of objective second"),
    ("schedule", [["first", 0], ["second", 1]], "wanted"),
    ("schedule", [["third", 1]], "there is no objective of that name; wanted one of: first, "
     "second"),
    ("layers", [], "each network has its own layers"),
    ("loss", "sparse_categorical_crossentropy", "each objective has its own"),
]


NOISE = {"type": "normal", "shape": [7]}
REFUSED_DREAMS = [
    ("objectives.0.values.0", {"name": "z"}, 'wanted the name of one, or "noise"'),
    ("objectives.0.values.0", {"name": "z", "noise": NOISE, "network": "maker"}, "takes nothing"),
    ("objectives.0.values.0.noise", {"type": "normal"}, "shape"),
    ("objectives.0.values.0.noise.type", "pink",
     'wanted one of "normal", "truncated_normal", "uniform"'),
    ("objectives.0.values.0.noise.stddev", 1e7, "stddev"),
    ("objectives.0.values.0.noise.shape", [8], "network maker gets 1 x 1 x 8 (flat)"),
    ("objectives.1.values.2.noise.low", 2, "from low to a high below it"),
    ("objectives.1.loss.inputs", ["b"], "wanted an array of exactly 2"),
    ("objectives.1.loss.inputs", ["b", "c"], "there is no value of that name; wanted one of: x,"),
    ("objectives.1.loss.inputs", ["b", "images"], "value a is of no use to the loss"),
]


def refusals(t):
    for path, new, words in REFUSED:
        name = configuration(t, "bad.json", changed(path, new))
        _, _, error = t.expect(78, "plan", name)
        t.check(words in error and error.count("\n") == 1, path, error)
    name = t.write("bad.json", {"model": MODEL})
    _, _, error = t.expect(78, "plan", name)
    t.check("each of which has its own" in error, "two optimizers", error)
    name = t.write("bad.json", {"model.schedule": [["a", 1]]})
    _, _, error = t.expect(78, "plan", name)
    t.check('without "networks"' in error, "a schedule of nothing", error)
    _, _, error = t.expect(78, "embed", "two.json", "--to", "run.c")
    t.check("one network and one objective" in error and not os.path.exists("run.c"), "embed",
            error)
    t.expect(0, "plan", "two.json", "--workers", "2")
    for path, new, words in REFUSED_DREAMS:
        name = configuration(t, "bad.json", changed(path, new, DREAMS), steps=None, cycles=6)
        _, _, error = t.expect(78, "plan", name)
        t.check(words in error and error.count("\n") == 1, path, error)
    for path, new, words in REFUSED_GANS:
        name = configuration(t, "bad.json", changed(path, new, GAN), steps=None, cycles=3)
        _, _, error = t.expect(78, "plan", name)
        t.check(words in error and error.count("\n") == 1, path, error)
    name = t.write("bad.json", {"cycles": 3})
    _, _, error = t.expect(78, "plan", name)
    t.check("whose schedule it counts" in error, "cycles of nothing", error)
    blind = {**DREAMS, "objectives": DREAMS["objectives"][:1], "schedule": [["dream", 1]],
             "networks": [DREAMS["networks"][0], DREAMS["networks"][2]]}
    _, _, error = t.expect(78, "plan", configuration(t, "bad.json", blind, steps=None, epochs=2))
    t.check("no objective reads images" in error, "epochs of nothing", error)
    lines = t.expect(0, "train", configuration(t, "blind.json", blind), "--run-dir", "blind")[1]
    t.check("global batch 64 = 8 grains of 8; no objective reads images" in lines, "blind", lines)
    lines = t.expect(0, "train", "blind.json", "--run-dir", "blind", "--fresh", "--set",
                     "epochs=2", "--set", "steps=12")[1]
    t.check("length: 12 steps" in lines, "epochs that never end", lines)


def main():
    t = Test()
    os.environ["UCX_TLS"] = "tcp,self"  # of messages on one machine
    configuration(t)
    golden = train(t, "two.json", "golden", "--replicas", "1", "--kernels", "reference")
    cuts(t, golden)
    schedule_decides(t, golden)
    one_is_the_short_form(t)
    inputs_by_name(t)
    resumed(t, golden)
    checkpoint_names(t)
    config = dreams(t)
    metrics_of_each(t)
    noise_decides(t, config)
    gan(t)
    two_gans(t)
    long_names(t)
    shown(t)
    planned_gans(t)
    refusals(t)
    t.finish()


main()
