#!/usr/bin/env python3
"""gan_torch_test - GANs of every loss beside PyTorch in float64 (gan_judge.py), which has the same
weights, images and noise: each step's loss and mean score; behind the last one every parameter,
slot, moving statistic and vector, and an evaluation by these.

   gan_torch_test.py PROGRAM WORK_DIR [PYTHON]

Noise and order of the images are those of ops/ARITHMETIC.md, by tests/ops/arithmetic_judge.py,
which was written from that page alone. PyTorch is in an environment that is thrown away, or as
PYTHON has it; skipped (77) where it cannot be had.
"""
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
from fractions import Fraction

from judges import python_of
from program import Test
from tensors import read_safetensors, shapes_of, write_idx, write_safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(HERE, "../ops"))
sys.dont_write_bytecode = True
from arithmetic_judge import block, fma, normal_pair, perm, rounded, sub  # noqa: E402

# An epoch is of batches of 16, 16 and 12, and the last one's second grain is short.
SEED, EXAMPLES, BATCH, GRAIN, CYCLES = 2 ** 33 + 11, 44, 16, 8, 4
INPUT = [10, 8, 1]
FILES = {"images": "images", "labels": "labels"}
# A few roundings of fp32, of numbers of the size of 1. The largest difference that was seen is a
# quarter of it; grains of 4 and 2 rows have five times more, since a batch norm divides the
# rounding of its input by their small deviation.
TOLERANCE = 2e-6

# Adam and RMSProp divide by the size of a gradient: with an epsilon as small as their own the
# rounding of a gradient near zero is a whole step of the weight.
OPTIMIZERS = {
    "sgd": [{"type": "sgd", "learning_rate": 0.05}, {"type": "sgd", "learning_rate": 0.1}],
    "adam": [{"type": "adam_tf1", "learning_rate": 0.01, "beta_1": 0.5, "beta_2": 0.999,
              "epsilon": 0.01},
             {"type": "adam_tf1", "learning_rate": 0.004, "beta_1": 0.9, "beta_2": 0.99,
              "epsilon": 0.02}],
    "rmsprop": [{"type": "rmsprop_tf1", "learning_rate": 0.02, "rho": 0.9, "epsilon": 0.01},
                {"type": "rmsprop_tf1", "learning_rate": 0.01, "rho": 0.8, "epsilon": 0.02,
                 "momentum": 0.5, "centered": True}]}
LOSSES = [{"kind": "wasserstein"}, {"kind": "minimax"}, {"kind": "modified", "label_smoothing": 0},
          {"kind": "modified"}, {"kind": "modified", "label_smoothing": 0.5},
          {"kind": "least_squares"}, {"kind": "hinge"}]
SCHEDULES = [(1, 1), (2, 1), (1, 2)]  # generator : discriminator


def layer(kind, name, **keys):
    return {"type": kind, "name": name, **keys}


def norm(name):
    return layer("batch_normalization", name, momentum=0.9, epsilon=0.001)


def dense_nets(**more):
    """As TF-GAN's of MNIST, small. A layer in front of a batch norm has no bias, whose gradient is
    nothing but rounding. `more` is said of the discriminator's kernels, and of one of the other."""
    maker = [
        layer("dense", "seed", units=60, use_bias=False), norm("seed_norm"),
        layer("leaky_relu", "seed_leaky", negative_slope=0.1),
        layer("reshape", "image", target_shape=[5, 4, 3]),
        layer("conv2d_transpose", "wide", filters=3, kernel_size=4, strides=2, padding="same",
              use_bias=False), norm("wide_norm"), layer("relu", "wide_relu"),
        layer("conv2d", "made", filters=1, kernel_size=3, padding="same", activation="tanh",
              **more)]
    scorer = [
        layer("conv2d", "half", filters=4, kernel_size=3, strides=2, padding="same",
              activation="leaky_relu", **more),
        layer("conv2d", "inner", filters=3, kernel_size=[3, 2], strides=[1, 2], padding="valid",
              use_bias=False), norm("inner_norm"),
        layer("leaky_relu", "inner_leaky", negative_slope=0.01), layer("flatten", "flatten"),
        layer("dense", "hidden", units=6, use_bias=False, **more), norm("hidden_norm"),
        layer("leaky_relu", "hidden_leaky", negative_slope=0.2), layer("dense", "score", units=1)]
    return {"noise": {"type": "normal", "shape": [6]}, "generator": maker, "discriminator": scorer}


def patch_nets():
    """Noise that is an image, and scores of parts of one: three of each example, without norms."""
    return {
        "noise": {"type": "uniform", "shape": [5, 4, 2], "low": -1.5, "high": 1},
        "generator": [
            layer("conv2d_transpose", "wide", filters=4, kernel_size=[3, 4], strides=2,
                  padding="same", activation="leaky_relu"), norm("wide_norm"),
            layer("conv2d_transpose", "made", filters=1, kernel_size=3, padding="same",
                  activation="tanh")],
        "discriminator": [
            layer("conv2d", "half", filters=3, kernel_size=[4, 3], strides=2, padding="same",
                  activation="tanh"),
            layer("flatten", "flatten"), layer("dense", "score", units=3)]}


NETS = [dense_nets(), patch_nets(), dense_nets(spectral_normalization=True),
        dense_nets(kernel_regularizer={"l2": 0.01})]


def cases():
    """Each loss with each optimizer; schedules and networks change from one to the next."""
    for number, (loss, how) in enumerate(itertools.product(LOSSES, OPTIMIZERS)):
        nets, schedule = NETS[number % len(NETS)], SCHEDULES[(number + number // 3) % 3]
        gan = {**nets, "loss": loss, "generator_steps": schedule[0],
               "discriminator_steps": schedule[1], "generator_optimizer": OPTIMIZERS[how][0],
               "discriminator_optimizer": OPTIMIZERS[how][1]}
        if number % 5 == 2 and gan["noise"]["type"] == "normal":
            gan["noise"] = {"type": "truncated_normal", "shape": [6], "mean": 0.25, "stddev": 1.5}
        if loss["kind"] == "wasserstein":
            gan["weight_clip"] = 0.25
        yield f"{number:02}-{loss['kind']}-{how}-{schedule[0]}-{schedule[1]}", {
            "name": "gan", "seed": SEED + number, "global_batch": BATCH, "grain": GRAIN,
            "cycles": CYCLES, "log_every_steps": 1,
            "checkpoint": {"every_steps": 0, "every_seconds": 0},
            "model": {"input": INPUT, "input_range": "signed", "gan": gan},
            "data": {"train": FILES, "test": FILES}}


# --- what a step draws ----------------------------------------------------------------------------

def noise(config, step, number, place, purpose=5):
    """Section 10 of the page: the values of one example."""
    said = config["model"]["gan"]["noise"]

    def key(name, default):
        return rounded(Fraction(str(said.get(name, default))))

    def words(i, turn=0):
        return block(config["seed"], purpose, i // 4 + (turn << 29), place, step, number)

    def normal(i, turn=0):
        return normal_pair(*words(i, turn)[i % 4 // 2 * 2:][:2])[i % 2]

    def truncated(i):
        return next(d for d in (normal(i, turn) for turn in range(8)) if abs(d) <= 2)
    wanted = range(math.prod(said["shape"]))
    if said["type"] == "uniform":
        size = sub(key("high", 1), key("low", 0))
        return [fma(size, rounded(Fraction(words(i)[i % 4] >> 8, 1 << 24)), key("low", 0))
                for i in wanted]
    one = truncated if said["type"] == "truncated_normal" else normal
    return [fma(key("stddev", 1), one(i), key("mean", 0)) for i in wanted]


def draws(config):
    """Of each step, and of an evaluation by both objectives: the noise, and the numbers of the
    images. In the full form of a GAN noise is value 0 of objective 0, and value 1 of objective 1,
    behind the scores of the images."""
    gan, batches, steps = config["model"]["gan"], 0, []
    for step in range(CYCLES * (gan["generator_steps"] + gan["discriminator_steps"])):
        at = step % (gan["generator_steps"] + gan["discriminator_steps"])
        if at < gan["generator_steps"]:
            steps.append({"noise": [noise(config, step, 0, g) for g in range(BATCH)]})
            continue
        epoch, first = divmod(batches * BATCH, -(-EXAMPLES // BATCH) * BATCH)
        batches += 1
        positions = range(first, min(first + BATCH, EXAMPLES))
        steps.append({"images": [perm(config["seed"], epoch, EXAMPLES, p) for p in positions],
                      "noise": [noise(config, step, 257, g) for g in range(len(positions))]})
    everyone = range(EXAMPLES)
    unseen = [[noise(config, 0, number, g, purpose=6) for g in everyone] for number in (257, 0)]
    return {"steps": steps, "evaluation": [{"images": list(everyone), "noise": unseen[0]},
                                           {"noise": unseen[1]}]}


# --- a case ---------------------------------------------------------------------------------------

def checkpoint(folder):
    name, = os.listdir(folder + "/run/checkpoints")
    return f"{folder}/run/checkpoints/{name}"


def start_weights(r, shapes):
    """Of parameters and states; slots are not read. Kernels so that sums are of the size of 1."""
    tensors = {}
    for name, shape in shapes.items():
        word, size = name.split("/")[1], math.prod(shape)
        if name.count("/") > 1:
            continue
        reach = math.sqrt(3 * shape[-1] / size) if word == "kernel" else 0.5
        middle = 1 if word in ("gamma", "moving_variance", "vector_u") else 0
        tensors[name] = [middle + r.uniform(-reach, reach) for _ in range(size)]
    return tensors


def train(t, number, folder, config):
    """Once for the names and shapes of all that there is, and from weights that are drawn."""
    os.mkdir(folder)
    with open(folder + "/c.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    with open(folder + "/draws.json", "w", encoding="utf-8") as f:
        json.dump(draws(config), f)
    way = ["train", folder + "/c.json", "--run-dir", folder + "/run", "--fresh"]
    t.expect(0, *way, "--set", "cycles=1")
    shapes = shapes_of(checkpoint(folder))
    write_safetensors(folder + "/start.safetensors", start_weights(random.Random(number), shapes),
                      shapes)
    t.expect(0, *way, "--init", folder + "/start.safetensors")


def compare(t, folder):
    """The largest differences: of losses and scores, of parameters, of the rest."""
    with open(folder + "/judged.json", encoding="utf-8") as f:
        judged = json.load(f)
    with open(folder + "/run/metrics.jsonl", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    ours, = ([line["test"][key] for key in ("loss", "real", "generator_loss", "fake")]
             for line in lines if "test" in line)
    worst = [max(abs(a - b) / (1 + abs(b)) for a, b in zip(ours, judged["evaluation"])), 0.0, 0.0]
    t.check(worst[0] <= TOLERANCE, "an evaluation", folder, ours, judged["evaluation"])
    lines = [(line["step"], line["train"]) for line in lines if "train" in line]
    for step, said in lines:
        ours = said["loss"], said["real" if said["objective"] == "discriminator" else "fake"]
        worst[0] = max([worst[0]] + [abs(a - b) / (1 + abs(b))
                                     for a, b in zip(ours, judged["steps"][step - 1])])
    found = read_safetensors(checkpoint(folder))[0]
    t.check(len(lines) >= 2 * CYCLES and lines[-1][0] == len(judged["steps"]),
            "logged steps", folder, lines)
    t.check(found.keys() == judged["tensors"].keys(), "what there is", folder, sorted(found),
            sorted(judged["tensors"]))
    for name, values in judged["tensors"].items():
        kind = 1 if name.split("/")[1:] in (["kernel"], ["bias"], ["gamma"], ["beta"]) else 2
        off = max(abs(a - b) / (1 + abs(b)) for a, b in zip(found[name], values)) \
            if len(found[name]) == len(values) else math.inf
        worst[kind] = max(worst[kind], off)
        t.check(off <= TOLERANCE, "a tensor", folder, name, off)
    t.check(worst[0] <= TOLERANCE, "losses and scores", folder, worst[0], lines, judged["steps"])
    return worst


def main():
    t, r = Test(), random.Random(1)
    write_idx("images", 8, [EXAMPLES, *INPUT[:2]],
              bytes(r.randrange(256) for _ in range(EXAMPLES * math.prod(INPUT))))
    write_idx("labels", 8, [EXAMPLES], bytes(EXAMPLES))
    folders = []
    try:
        python = sys.argv[3] if len(sys.argv) > 3 else python_of("torch", [])
        for number, (folder, config) in enumerate(cases()):
            train(t, number, folder, config)
            folders.append(folder)
        done = subprocess.run([python, os.path.join(HERE, "gan_judge.py"), *folders], check=False)
    finally:
        shutil.rmtree("environment", ignore_errors=True)
    if t.check(done.returncode == 0, "PyTorch computes them"):
        worst = []
        for folder in folders:
            worst.append(compare(t, folder))
            print(folder, *(f"{off:.1e}" for off in worst[-1]))
        print(f"{len(folders)} GANs, largest difference of a loss or score, of a parameter, of a "
              "slot or state:", *(f"{max(column):.1e}" for column in zip(*worst)))
    t.finish()


if __name__ == "__main__":
    main()
