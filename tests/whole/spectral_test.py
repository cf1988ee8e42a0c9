#!/usr/bin/env python3
"""spectral_test - spectral_normalization is PyTorch's torch.nn.utils.spectral_norm, as it is in
TF-GAN: losses of three steps and of the model after them, kernels and vectors, of given ones,
against numbers that PyTorch computed in float64 (tests/golden/spectral.json). What is exported is
what layers take; whose vector moves when; a run of zeros; and who refuses it.

   spectral_test.py PROGRAM WORK_DIR
   spectral_test.py --make      with PyTorch installed: computes the numbers anew
"""
import json
import math
import os
import random
import struct
import sys

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/spectral.json")
EXAMPLES, CLASSES, STEPS = 6, 3, 3
# Of each layer with a kernel: the kernel's shape, and what of it is normalized.
KERNELS = {"conv": (2, 2, 1, 3), "wide": (2, 2, 2, 3), "hidden": (72, 5), "logits": (5, 3)}
SHAPES = {name + "/kernel": shape for name, shape in KERNELS.items()}
BIASES = {"conv": 3, "wide": 2, "hidden": 5, "logits": 3}
CASES = {"all": {"layers": ["conv", "wide", "hidden", "logits"]},
         "adam": {"layers": ["wide", "hidden"], "adam": True},
         "regularized": {"layers": ["conv", "hidden"], "l2": 0.125}}


def drawn():
    """The examples, and the weights and vectors that all begin with: exact in fp32."""
    r = random.Random(5)
    images = [[r.randrange(256) for _ in range(16)] for _ in range(EXAMPLES)]
    labels = [r.randrange(CLASSES) for _ in range(EXAMPLES)]
    weights = {}
    for name, shape in KERNELS.items():
        weights[name + "/kernel"] = [r.randrange(-64, 65) / 64 for _ in range(math.prod(shape))]
        weights[name + "/bias"] = [r.randrange(-64, 65) / 64 for _ in range(BIASES[name])]
        weights[name + "/vector_u"] = [r.randrange(1, 65) / 64 for _ in range(shape[-1])]
    return images, labels, weights


# --- PyTorch -------------------------------------------------------------------------------------

def torch_case(case):
    import torch
    from torch import nn
    images, labels, weights = drawn()
    x = torch.tensor(images, dtype=torch.float64).reshape(EXAMPLES, 1, 4, 4)
    x, y = x * float.fromhex("0x1.010102p-8"), torch.tensor(labels)

    class Rows(nn.Module):  # as Keras flattens
        def forward(self, x):
            return x.permute(0, 2, 3, 1).flatten(1)

    layers = {"conv": nn.Conv2d(1, 3, 2), "wide": nn.ConvTranspose2d(3, 2, 2, 2),
              "hidden": nn.Linear(72, 5), "logits": nn.Linear(5, CLASSES)}
    for name, layer in layers.items():
        layer.double()
        kernel = torch.tensor(weights[name + "/kernel"], dtype=torch.float64).reshape(
            KERNELS[name])
        turn = (3, 2, 0, 1) if len(KERNELS[name]) == 4 else (1, 0)  # of both kinds: the last first
        with torch.no_grad():
            layer.weight.copy_(kernel.permute(*turn))
            layer.bias.copy_(torch.tensor(weights[name + "/bias"]))
        if name in case["layers"]:
            nn.utils.spectral_norm(layer, n_power_iterations=1, eps=1e-300, dim=0)
            layer.weight_u.copy_(torch.tensor(weights[name + "/vector_u"]))
    model = nn.Sequential(layers["conv"], nn.Tanh(), layers["wide"], nn.Tanh(), Rows(),
                          layers["hidden"], nn.Tanh(), layers["logits"])

    def raw(name):
        return layers[name].weight_orig if name in case["layers"] else layers[name].weight

    def loss_now():
        added = case.get("l2", 0) * (raw("hidden") ** 2).sum()
        return nn.functional.cross_entropy(model(x), y) + added

    optimizer = torch.optim.Adam(model.parameters(), 0.05, eps=1e-8) if case.get("adam") else \
        torch.optim.SGD(model.parameters(), 0.5, momentum=0.5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_now()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found, taken = {}, {}
    for name, layer in layers.items():
        back = (2, 3, 1, 0) if len(KERNELS[name]) == 4 else (1, 0)
        found[name + "/kernel"] = raw(name).detach().permute(*back).flatten().tolist()
        found[name + "/bias"] = layer.bias.detach().tolist()
        if name in case["layers"]:
            found[name + "/vector_u"] = layer.weight_u.tolist()
    test_loss = loss_now().item()  # as the next step would, which moves vectors
    for name, layer in layers.items():
        back = (2, 3, 1, 0) if len(KERNELS[name]) == 4 else (1, 0)
        taken[name] = layer.weight.detach().permute(*back).flatten().tolist()

    def short(values):
        return [float(f"{v:.9g}") for v in values]
    return {"losses": losses, "test_loss": test_loss,
            "weights": {name: short(values) for name, values in found.items()},
            "taken": {name: short(values) for name, values in taken.items()}}


def make():
    import torch
    out = {"made by": f"PyTorch {torch.__version__}, float64"}
    out.update({name: torch_case(case) for name, case in CASES.items()})
    with open(GOLDEN, "w", encoding="ascii") as file:
        json.dump(out, file)
        file.write("\n")


if sys.argv[1:] == ["--make"]:
    make()
    sys.exit(0)

# --- the program ---------------------------------------------------------------------------------

from program import Test, result, value  # noqa: E402
from tensors import read_safetensors, write_idx, write_safetensors  # noqa: E402


def layer_of(case, kind, name, **more):
    if name in case["layers"]:
        more["spectral_normalization"] = True
    if name == "hidden" and case.get("l2"):
        more["kernel_regularizer"] = {"l2": case["l2"]}
    return {"type": kind, "name": name, **more}


def config_of(case):
    optimizer = {"type": "adam_torch", "learning_rate": 0.05} if case.get("adam") else \
        {"type": "momentum", "learning_rate": 0.5, "momentum": 0.5}
    data = {"images": "images.idx", "labels": "labels.idx"}
    model = {"input": [4, 4, 1], "classes": CLASSES, "layers": [
        layer_of(case, "conv2d", "conv", filters=3, kernel_size=2, activation="tanh"),
        layer_of(case, "conv2d_transpose", "wide", filters=2, kernel_size=2, strides=2,
                 activation="tanh"),
        {"type": "flatten"}, layer_of(case, "dense", "hidden", units=5, activation="tanh"),
        layer_of(case, "dense", "logits", units=CLASSES)]}
    return {"name": "spectral", "seed": 1, "global_batch": EXAMPLES, "grain": 2, "steps": STEPS,
            "log_every_steps": 1, "model": model, "optimizer": optimizer,
            "init": {"file": "start.safetensors"}, "data": {"train": data, "test": data}}


def near(name, found, wanted, bound=4e-6):
    worst = max(abs(a - b) / (1 + abs(b)) for a, b in zip(found, wanted))
    return T.check(len(found) == len(wanted) and worst < bound, name, worst, "found", found,
                   "wanted", wanted)


def saved(run_dir, step):
    return read_safetensors(f"{run_dir}/checkpoints/step-{step:010}.safetensors")[0]


def write_json(path, content):
    with open(path, "w", encoding="ascii") as file:
        json.dump(content, file)


def check_exports(name, wanted):
    """In each layout a kernel is what its layer takes, and there is no vector."""
    T.expect(0, "checkpoint", "export", "run", "--output", "out.safetensors")
    out, said = read_safetensors("out.safetensors")
    T.check(said["spectral_normalization"] == "applied" and not any("vector" in k for k in out),
            "an export of", said, list(out))
    for layer, values in wanted["taken"].items():
        near(f"{name}: {layer} taken", out[layer + "/kernel"], values)
    T.expect(0, "checkpoint", "export", "run", "--output", "torch.safetensors", "--layout", "torch")
    turned, _ = read_safetensors("torch.safetensors")
    T.check(sorted(turned["logits.weight"]) == sorted(out["logits/kernel"]) and
            not any("vector" in k for k in turned), "PyTorch's", list(turned))
    lines = T.expect(0, "checkpoint", "export", "run", "--output", "out.onnx", "--layout",
                     "onnx")[1]
    T.check(any("divided by" in line for line in lines), "an export that says nothing", lines)
    with open("out.onnx", "rb") as file:
        T.check(struct.pack(f"<{len(out['logits/kernel'])}f", *out["logits/kernel"])
                in file.read(), name, "an ONNX model of other weights")
    # A model without it, of these weights, is the same model.
    plain = config_of(dict(CASES[name], layers=[], l2=0))
    write_json("plain.json", plain)
    lines = T.expect(0, "eval", "plain.json", "--checkpoint", "out.safetensors")[1]
    return float(value(lines, "test_loss"))


def check_case(name, case, wanted):
    """One digest in four layouts; losses, weights, vectors near PyTorch's."""
    write_json("spectral.json", config_of(case))
    ends = set()
    for words in (["--replicas", "1"], ["--replicas", "3", "--set", "layout.wave_examples=2"],
                  ["--replicas", "2", "--set", 'layout.reduce="operands"'],
                  ["--replicas", "1", "--kernels", "reference", "--set", "layout.fuse=false"]):
        lines = T.expect(0, "train", "spectral.json", "--run-dir", "run", "--fresh", *words)[1]
        ends.add(result(lines))
    T.check(len(ends) == 1, name, "several results", *ends)
    with open("run/metrics.jsonl", encoding="ascii") as file:
        rows = [json.loads(line) for line in file]
    near(name + ": losses", [row["train"]["loss"] for row in rows if "train" in row],
         wanted["losses"])
    near(name + ": test loss", [row["test"]["loss"] for row in rows if "test" in row],
         [wanted["test_loss"]])
    out = saved("run", STEPS)
    for tensor, values in wanted["weights"].items():
        near(f"{name}: {tensor}", out[tensor], values)
    T.check({k for k in out if k.endswith("/vector_u")} ==
            {layer + "/vector_u" for layer in case["layers"]}, name, "vectors", list(out))
    again = float(value(T.expect(0, "eval", "spectral.json", "--run-dir", "run")[1],
                        "test_loss"))
    near(name + ": eval", [again], [wanted["test_loss"]])
    found = check_exports(name, wanted)
    if not case.get("l2"):
        near(name + ": exported", [found], [wanted["test_loss"]])


def gan():
    optimizer = {"type": "sgd", "learning_rate": 0.1}
    normal = {"spectral_normalization": True}
    data = {"images": "images.idx", "labels": "labels.idx"}
    return {"name": "gan", "seed": 1, "global_batch": 6, "grain": 2, "steps": 5,
            "checkpoint": {"every_steps": 1, "keep_max": 0},
            "model": {"input": [4, 4, 1], "gan": {
                "noise": {"type": "normal", "shape": [3]},
                "generator": [{"type": "dense", "name": "made", "units": 16, **normal},
                              {"type": "reshape", "target_shape": [4, 4, 1]}],
                "discriminator": [{"type": "flatten"},
                                  {"type": "dense", "name": "hidden", "units": 4, **normal},
                                  {"type": "dense", "name": "score", "units": 1, **normal}],
                "loss": "hinge", "generator_steps": 1, "discriminator_steps": 2,
                "generator_optimizer": optimizer, "discriminator_optimizer": optimizer}},
            "data": {"train": data, "test": data}}


def check_turns():
    """The vector of a kernel moves in the steps that train it, once, and in no other; evaluations,
    pictures and what is generated move none."""
    write_json("gan.json", gan())
    lines = T.expect(0, "train", "gan.json", "--run-dir", "gan", "--fresh")[1]
    steps = [saved("gan", n) for n in range(1, 6)]
    vectors = {"generator.made/vector_u": [1, 4], "discriminator.hidden/vector_u": [2, 3, 5],
               "discriminator.score/vector_u": [2, 3, 5]}
    for name, moved in vectors.items():
        found = [n for n in range(2, 6) if steps[n - 1][name] != steps[n - 2][name]]
        # Of one column it is 1 from its first step on.
        wanted = [n for n in moved if n > 1 and not (name.startswith("discriminator.s") and n > 2)]
        T.check(found == wanted, name, "moved in steps", found, "wanted", wanted)
        T.check(abs(sum(v * v for v in steps[4][name]) - 1) < 1e-5, name, "is no unit")
    T.expect(0, "generate", "gan.json", "--run-dir", "gan", "--count", "9", "--output", "a.npy")
    T.expect(0, "generate", "gan.json", "--run-dir", "gan", "--count", "9", "--output", "b.npy",
             "--replicas", "2")
    with open("a.npy", "rb") as a, open("b.npy", "rb") as b:
        T.check(a.read() == b.read(), "two ways to generate")
    # Workers in a window and by messages.
    for words in ("--workers 2 --replicas 1", "--workers 3 --replicas 1 messages"):
        more = ["--collective", "messages"] if words.endswith("messages") else []
        said = T.expect(0, "launch", *words.split()[:4], "train", "gan.json", "--run-dir", "other",
                        "--fresh", *more)[1]
        T.check(all(any(hash_ in line for line in said) for hash_ in result(lines)), words, said)
    # Stopped and resumed at every place of the cycle, on other replicas.
    for stop in range(1, 5):
        T.expect(0, "train", "gan.json", "--run-dir", "part", "--fresh", "--set", f"steps={stop}")
        resumed = T.expect(0, "train", "gan.json", "--run-dir", "part", "--resume",
                           "--replicas", "3")[1]
        T.check(result(resumed) == result(lines), "resumed at step", stop)


def check_exported_gan():
    """Exported kernels are w / sigma, and a GAN without the option makes the same images of them;
    a judge of exported kernels says the same scores."""
    out = T.expect(0, "checkpoint", "export", "gan", "--output", "gan.safetensors", "--json")[1]
    T.check('"normalized": 3' in " ".join(out), "a number of kernels", out)
    kernel = read_safetensors("gan.safetensors")[0]["generator.made/kernel"]
    raw, u = (saved("gan", 5)["generator.made/" + word] for word in ("kernel", "vector_u"))
    rows = [raw[r * 16:r * 16 + 16] for r in range(3)]
    v = [sum(a * b for a, b in zip(row, u)) for row in rows]
    length = math.sqrt(sum(a * a for a in v))
    b = [sum(v[r] / length * rows[r][c] for r in range(3)) for c in range(16)]
    sigma = math.sqrt(sum(a * a for a in b))
    near("an exported kernel", kernel, [w / sigma for w in raw])
    plain = gan()
    for side in ("generator", "discriminator"):
        for layer in plain["model"]["gan"][side]:
            layer.pop("spectral_normalization", None)
    write_json("plain_gan.json", plain)
    T.expect(0, "generate", "plain_gan.json", "--checkpoint", "gan.safetensors", "--count", "9",
             "--output", "c.npy")
    with open("a.npy", "rb") as a, open("c.npy", "rb") as c:
        worst = max(abs(x - y) for x, y in zip(a.read(), c.read()))
    T.check(worst <= 1, "images of exported kernels are others", worst)


def check_other_models():
    """An export that is not of the model: the first tensor that differs is named, and how."""
    fewer, wider = (json.loads(json.dumps(gan()).replace(', "spectral_normalization": true', ""))
                    for _ in range(2))
    fewer["model"]["gan"]["discriminator"].pop()
    wider["model"]["gan"]["discriminator"][1]["units"] = 5
    for config, said in (
            (gan(), "generator.made/vector_u is not there: an export has the divided kernels of "
             "spectral_normalization; evaluate it with a configuration without that key"),
            (fewer, "the model: discriminator.score/kernel is there, and not in the model;"),
            (wider, "the model: discriminator.hidden/kernel has another shape or type there;")):
        write_json("other.json", config)
        error = T.expect(65, "eval", "other.json", "--checkpoint", "gan.safetensors")[2]
        T.check(said in error, "another model", said, error)


def check_judge():
    """A judge whose kernels are normalized scores as one of the exported kernels does."""
    scores = {}
    for name, config in (("judge", config_of(CASES["all"])),
                         ("plain_judge", config_of({"layers": []}))):
        config["init"] = {"file": "judge.safetensors"} if name == "plain_judge" else {}
        config["optimizer"]["learning_rate"] = 1e-9 if name == "plain_judge" else 0.5
        config["steps"] = 1 if name == "plain_judge" else STEPS
        write_json(name + ".json", config)
        T.expect(0, "train", name + ".json", "--run-dir", name, "--fresh")
        T.expect(0, "checkpoint", "export", name, "--output", name + ".safetensors")
        lines = T.expect(0, "eval", "gan.json", "--run-dir", "gan", "--judge", name, "--count",
                         "6")[1]
        scores[name] = [float(line.split()[-1]) for line in lines if "score" in line or
                        "distance" in line]
    T.check(len(scores["judge"]) > 1, "no scores", scores)
    near("scores", scores["judge"], scores["plain_judge"], 1e-3)


def check_overflow():
    """A kernel whose squares are infinite ends the run, whatever else would become of it."""
    weights = drawn()[2]
    weights["hidden/kernel"] = [w * 2.0 ** 100 for w in weights["hidden/kernel"]]
    weights["hidden/vector_u"] = [w * 2.0 ** 20 for w in weights["hidden/vector_u"]]
    case = {"layers": ["hidden"]}
    write_safetensors("start.safetensors", {
        tensor: values for tensor, values in weights.items()
        if "vector" not in tensor or tensor.startswith("hidden")}, SHAPES)
    write_json("spectral.json", config_of(case))
    for more in ([], ["--replicas", "3"]):
        error = T.expect(80, "train", "spectral.json", "--run-dir", "no", "--fresh", *more)[2]
        T.check("hidden" in error and "not finite" in error, "an infinite norm", error)


def check_refusals():
    """Updates that want norms, averages; other layers do not have the key."""
    config = config_of(CASES["adam"])
    del config["init"]
    write_json("spectral.json", config)
    of = "spectral_normalization of wide/kernel: found "
    for words, said in (
            (["--set", "optimizer.clipnorm=1"], of + "an optimizer that wants norms"),
            (["--set", "optimizer.global_clipnorm=1"], of + "an optimizer that wants norms"),
            (["--set", "optimizer.weight_average=0.5"], of + "weight_average"),
            (["--set", "model.layers.0.spectral_normalization=2"], "spectral_normalization")):
        code, _, errors = T.run("train", "spectral.json", "--run-dir", "no", "--fresh", *words)
        T.check(code == 78 and said in errors, "refused", words, code, errors)


def main():
    images, labels, weights = drawn()
    write_idx("images.idx", 8, [EXAMPLES, 4, 4], bytes(v for image in images for v in image))
    write_idx("labels.idx", 8, [EXAMPLES], bytes(labels))
    with open(GOLDEN, encoding="ascii") as file:
        golden = json.load(file)
    for name, case in CASES.items():
        write_safetensors("start.safetensors", {
            tensor: values for tensor, values in weights.items()
            if "vector" not in tensor or tensor.split("/")[0] in case["layers"]}, SHAPES)
        check_case(name, case, golden[name])
    check_turns()
    check_exported_gan()
    check_other_models()
    check_judge()
    check_overflow()
    check_refusals()


T = Test()
main()
sys.exit(T.finish())
