#!/usr/bin/env python3
"""training_torch_test - three steps of random networks beside PyTorch in float64: what each step
reports, an evaluation, and behind the last step all weights, slots, averages and moving statistics.

   training_torch_test.py PROGRAM WORK_DIR [MODELS [PYTHON]]

Networks are those of random_models.py, with images, labels and weights of this test, in float32. In
an environment that is thrown away, or as PYTHON has it; skipped (77) where it cannot be had.

Left out, since our own random words decide them: dropout (the layers stay, with a rate of 0),
augmentation, crops and noise, and so GANs; initializers, since weights are given. Also early
stopping; mixed precision and the fast arithmetic, which are no float32; transducers, which
whole_transducer_torch judges.

A tensor's error may be a share of how far it has moved, and some last places of its numbers; and as
large as some errors of PyTorch in float32 by the same formulas. The last makes room where a
gradient is zero but for rounding, as that of a bias before a norm: Adam makes steps of such noise.
A network with norms has no epsilon of Adam or LAMB below 1e-4, or all else would follow the noise.
Tensors for which that makes much room are called vague, counted, and must be few.
"""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys

from judges import python_of
from program import Test
from tensors import write_idx, write_safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE + "/../matrix", HERE + "/../ops"]
import random_models  # noqa: E402
from arithmetic_judge import perm  # noqa: E402

MODELS, STEPS, TEST_EXAMPLES = 300, 3, 7
# Of a tensor's way; of the last place of its largest number; of PyTorch's own error in float32.
MOVED, PLACES, FLOAT32 = 3e-5, 4 * 2**-24, 16
LOSS = 5e-6
# More than this of a tensor's way tells nothing of its gradient: so few may be so.
VAGUE, VAGUE_SHARE = 0.02, 0.03


# --- cases ---------------------------------------------------------------------------------------

def drawn(number):
    """A model of random_models.py, less what cannot be judged."""
    config = random_models.classifier(number)
    r = random.Random(f"judged {number}")
    for change in ("sequences", "other_loss", "initialized", "averaged", "regularized",
                   "normalized", "weighted"):
        config = getattr(random_models, change)(config)
    optimizer = config["optimizer"]
    if optimizer["type"].startswith(("adam", "lamb")) and any(
            "normalization" in layer["type"] for layer in config["model"]["layers"]):
        optimizer["epsilon"] = r.choice([1e-4, 1e-3])
    # Otherwise the last place of a weight would be much of a step.
    optimizer["learning_rate"] *= {"rmsprop_tf1": 10, "sgd": 4, "momentum": 4,
                                   "momentum_keras": 4}.get(optimizer["type"], 1)
    for key in ("early_stopping", "evaluate_every_steps"):
        config.pop(key, None)
    model, data = config["model"], config["data"]
    config.update(steps=STEPS, log_every_steps=1, checkpoint={"every_steps": 0, "every_seconds": 0})
    model["input_range"] = r.choice(["unit", "unit", "signed"])
    if r.random() < 0.25:
        del model["input_range"]
        model["input_type"] = "f32"
    for n, layer in enumerate(model["layers"]):
        layer["name"] = f"{layer['type']}_{n}"
    last = [layer for layer in model["layers"] if layer["type"] in random_models.KERNELS][-1]
    for layer in model["layers"]:
        if layer["type"] == "dropout":
            layer["rate"] = 0.0
        elif layer["type"] in random_models.KERNELS and layer is not last and \
                r.random() < 0.07:
            layer["trainable"] = False
        elif layer["type"] == "gelu":
            layer["approximate"] = r.random() < 0.5
        elif layer["type"] == "elu":
            layer["alpha"] = r.choice([1.0, 0.5])
        elif layer["type"] == "leaky_relu":
            layer["negative_slope"] = r.choice([0.3, 0.1])
    count = data["train"]["made_up"]["count"]
    write_data(r, model, "train", count)
    write_data(r, model, "test", TEST_EXAMPLES)
    config["data"] = {part: {"images": f"{part}-images", "labels": f"{part}-labels"}
                      for part in ("train", "test")}
    if "normalize" in data:
        config["data"]["normalize"] = data["normalize"]
    return config, order_of(config, count)


def write_data(r, model, part, count):
    size = count * math.prod(model["input"])
    floats = model.get("input_type") == "f32"
    data = struct.pack(f">{size}f", *(r.gauss(0, 1) for _ in range(size))) if floats else \
        bytes(r.randrange(256) for _ in range(size))
    write_idx(f"{part}-images", 13 if floats else 8, [count, *model["input"]], data)
    write_idx(f"{part}-labels", 8, [count],
              bytes(r.randrange(model.get("classes", 2)) for _ in range(count)))


def order_of(config, count):
    """The examples of each step."""
    batch, steps = config["global_batch"], []
    an_epoch = count // batch if config["drop_remainder"] else -(-count // batch)
    for step in range(STEPS):
        epoch, first = step // an_epoch, step % an_epoch * batch
        steps.append([perm(config["seed"], epoch, count, position)
                      for position in range(first, min(first + batch, count))])
    return steps


def begin(r, name, shape):
    """Values that a tensor begins with: none is what its initializer makes."""
    count, what = math.prod(shape), name.split("/")[1]
    low, high = {"gamma": (0.5, 1.5), "moving_variance": (0.5, 1.5)}.get(what, (-0.3, 0.3))
    if "kernel" in what:
        high = math.sqrt(4 / (count // shape[-1]))
        low = -high
    return [r.uniform(low, high) for _ in range(count)]


def shapes_of(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return {name: t["shape"] for name, t in header.items()
            if name != "__metadata__" and name.count("/") == 1}


def run(t, number):
    """Has a model trained in its folder, from weights of this test's."""
    folder = f"model-{number}"
    os.mkdir(folder)
    os.chdir(folder)
    config, order = drawn(number)
    for name, value in (("config", config), ("order", order)):
        with open(name + ".json", "w", encoding="ascii") as f:
            json.dump(value, f)
    t.expect(0, "train", "config.json", "--run-dir", "shapes", "--set", "steps=1")
    shapes = shapes_of("shapes/checkpoints/step-0000000001.safetensors")
    r = random.Random(f"begin {number}")
    write_safetensors("start.safetensors",
                      {name: begin(r, name, shape) for name, shape in shapes.items()}, shapes)
    t.expect(0, "train", "config.json", "--run-dir", "run", "--init", "start.safetensors")
    os.chdir("..")
    return folder, (config, order)


# --- what the cases have, all together -----------------------------------------------------------

ACTIVATIONS = set(random_models.ACTIVATIONS)
WANTED = ACTIVATIONS | {f"activation {name}" for name in ACTIVATIONS} | {
    "add", "average_pool2d", "batch_normalization", "concatenate", "conv2d", "conv2d_transpose",
    "dense", "depthwise_conv2d", "flatten", "global_average_pool2d", "gru", "layer_normalization",
    "lstm", "max_pool2d", "reshape", "time_reduction", "zero_padding2d"} | {
    "frozen batch_normalization", "frozen conv2d", "frozen dense", "frozen layer_normalization",
    "batch_normalization of several grains", "dilation_rate", "groups", "kernel_regularizer",
    "return_sequences", "spectral_normalization"} | {
    "sparse_categorical_crossentropy", "binary_crossentropy", "mean_squared_error", "mean",
    "class_weight", "label_smoothing", "scale"} | {
    "adam_keras", "adam_tf1", "adam_torch", "adamw_torch", "lamb_keras", "lars_tf", "momentum",
    "momentum_keras", "rmsprop_keras", "rmsprop_tf1", "sgd", "amsgrad", "centered", "clipnorm",
    "clipvalue", "global_clipnorm", "nesterov", "weight_average", "weight_decay"} | {
    f"schedule {name}" for name in ("constant", "cosine", "cosine_restarts", "exponential",
                                    "piecewise", "polynomial", "staircase", "warmup_steps")} | {
    "f32", "signed", "unit", "normalize", "a short step", "two epochs"}


def features(config, order):
    model, optimizer = config["model"], config["optimizer"]
    loss = model.get("loss", "sparse_categorical_crossentropy")
    schedule = optimizer.get("learning_rate_schedule", {})
    found = {loss} if isinstance(loss, str) else {loss["type"], *(k for k in loss if loss[k])}
    found |= {optimizer["type"], *(key for key in optimizer if optimizer[key])}
    found |= {f"schedule {schedule.get('type')}", *(f"schedule {k}" for k in schedule
                                                    if schedule[k])}
    found |= {model.get("input_range", ""), model.get("input_type", ""), *config["data"]}
    for layer in model["layers"]:
        kind = layer["type"]
        found |= {kind, f"activation {layer.get('activation')}"}
        found |= {key for key in layer if layer[key] is True or layer[key] not in (False, 1)}
        if layer.get("trainable") is False:
            found.add(f"frozen {kind}")
        elif kind == "batch_normalization" and len(order[0]) > config["grain"]:
            found.add("batch_normalization of several grains")
    if len({len(step) for step in order}) > 1:
        found.add("a short step")
    if any(set(order[0]) & set(step) for step in order[1:]):
        found.add("two epochs")
    return found


# --- the judgement -------------------------------------------------------------------------------

def check_told(t, name, case):
    """What steps and evaluation report; the largest difference of a mean."""
    worst = 0.0
    t.check(len(case["said"]) == len(case["told"]) == STEPS + 1, name, "as many reports")
    for step, (said, told, own) in enumerate(zip(case["said"], case["told"], case["float32"])):
        for key, wanted in told.items():
            error = abs(said[key] - wanted)
            if key != "correct":
                worst = max(worst, error / (1 + abs(wanted)))
            bound = LOSS * (1 + abs(wanted)) + FLOAT32 * own[key]
            t.check(error <= bound, f"{name}: {key} of report {step}", said[key], wanted, bound)
    return worst


NONE = {"any weight": (0.0, ""), "weight": (0.0, ""), "slot": (0.0, "")}


def check_tensors(t, name, case):
    """The largest error of a weight, and as shares of their tensor's way those of a weight and of a
    slot; how many of the tensors are vague."""
    worst, vague = dict(NONE), 0
    for tensor, found in case["tensors"].items():
        if not t.check(found, f"{name}: {tensor} is in the checkpoint and here"):
            continue
        error, moved = found["error"], found["moved"]
        bound = MOVED * moved + PLACES * found["size"] + FLOAT32 * found["float32"]
        t.check(error <= bound, f"{name}: {tensor}", f"error {error:.3g}, bound {bound:.3g}", found)
        kind = "weight" if tensor.count("/") == 1 or tensor.endswith("/average") else "slot"
        vague += 0 < moved < bound / VAGUE
        here = {kind: error / moved} if moved > bound / VAGUE else {}
        if kind == "weight" and "moving" not in tensor:
            here["any weight"] = error
        worst.update({k: max(worst[k], (e, f"{name} {tensor}")) for k, e in here.items()})
    return worst, vague


def judge(t, cases, judged):
    vague = tensors = moving = 0
    loss, all_worst = (0.0, ""), dict(NONE)
    for name, case in judged["cases"].items():
        config = cases[name][0]
        told = check_told(t, name, case)
        worst, here = check_tensors(t, name, case)
        vague, tensors, loss = vague + here, tensors + len(case["tensors"]), max(loss, (told, name))
        moving += worst["weight"][0] > 0
        all_worst = {kind: max(all_worst[kind], worst[kind]) for kind in worst}
        off, weights, slots = (worst[kind][0] for kind in ("any weight", "weight", "slot"))
        print(f"{name} {config['optimizer']['type']}: losses {told:.1e}, weights {off:.1e}, of "
              f"their way {weights:.1e}, slots {slots:.1e} of theirs; {here} of "
              f"{len(case['tensors'])} tensors vague")
    t.check(moving >= 0.9 * len(cases), "networks whose weights move", moving)
    t.check(vague <= VAGUE_SHARE * tensors, "vague tensors", vague, tensors)
    print(f"{len(cases)} networks, {STEPS} steps each, beside {judged['judge']} in float64; "
          f"{tensors} tensors, {vague} of them vague")
    print(f"largest error of a loss: {loss[0]:.1e} ({loss[1]})")
    for kind, share in (("any weight", ""), ("weight", " of its way"), ("slot", " of its way")):
        error, tensor = all_worst[kind]
        print(f"largest error of {'a ' * bool(share)}{kind}: {error:.1e}{share} ({tensor})")


def main():
    t, count = Test(), int(sys.argv[3]) if len(sys.argv) > 3 else MODELS
    try:
        python = sys.argv[4] if len(sys.argv) > 4 else python_of("torch", [])
        cases = dict(run(t, number) for number in range(count))
        missing = WANTED - set().union(*(features(*case) for case in cases.values()))
        t.check(not missing or count < MODELS, "in no network", sorted(missing))
        done = subprocess.run([python, os.path.join(HERE, "training_judge.py"), "judged.json",
                               *cases], check=False)
    finally:
        shutil.rmtree("environment", ignore_errors=True)
    if t.check(done.returncode == 0, "PyTorch computes them"):
        with open("judged.json", encoding="utf-8") as f:
            judge(t, cases, json.load(f))
    t.finish()


if __name__ == "__main__":
    main()
