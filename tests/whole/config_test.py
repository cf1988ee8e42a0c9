#!/usr/bin/env python3
"""config_test - lockstep help keys, config show and config schema, which come from the table of
keys by which configurations are read.

   config_test.py PROGRAM WORK_DIR SOURCE_DIR

Does the table say truly which keys decide bits? Does what config show prints mean the same run? Do
the schema and the program refuse the same documents? Do the documents list the same keys?
"""
import copy
import glob
import importlib
import json
import os
import random
import re
import subprocess
import sys

from program import SMALL, Test

SOURCE = os.path.abspath(sys.argv[3])
# Refused by the program, not by the schema: what a schema cannot say.
ONLY_READ = [
    (r"found real ", "1.0 is an integer to a schema; here it is written as one"),
    (r"its name \".*\" is that of layer", "names must differ"),
    (r"no layer before this one is called", "names of earlier layers"),
    (r"no training set is named", "--data DIRECTORY would name one"),
    (r"replica_batch \d+ x replicas|is more than 2\^30", "the product of the factors"),
    (r"there is no .*(of that name|earlier value)", "names of networks, values, objectives"),
    (r"is the name of entry|names must differ", "names must differ"),
    (r"its name with its network's", "bytes of two names together"),
    (r"\"images\" are those of the data", "no value's name"),
    (r"\.inputs: found an array of", "as many inputs as the network has"),
    (r"inputs\" is missing|missing.*\"inputs\"", "as many inputs as the network has"),
    (r"schedule\" is missing|missing.*\"schedule\"", "a schedule of several objectives"),
    (r"made_up\.classes: found|made-up data:", "classes and bytes of made-up data"),
    (r"data\.(order|train_examples): found", "an order that wants shards"),
    (r"required key \"classes\" is missing", "a loss that takes labels, of another mistake"),
    (r"wanted a number .* fits fp32", "a number that is not 0 in fp32"),
    (r"string \".*bytes", "a text's bytes, not its characters"),
]
# A value of every key that changes no bit, other than SMALL's.
OTHERS = {
    "name": "other", "model.layers[].name": "other", "data.cache": "cache",
    "data.test.made_up.seed": 5, "data.test.made_up.first": 5, "data.test.made_up.count": 7,
    "data.test.made_up.classes": 9, "replica_batch": 128, "replicas": 2, "accumulate": 2,
    "epochs": 3, "layout.wave_examples": 64, "layout.joint_tile": 512, "layout.fuse": False,
    "layout.overlay": False, "layout.guards": True, "layout.reduce": "operands",
    "layout.kernels": "portable",
    "layout.resident": True, "layout.gpus": 1, "layout.gpu": 0, "layout.exchange_floats": 1000,
    "layout.overlap": "off", "layout.persistent": "auto", "layout.dependent_launches": True,
    "log_every_steps": 2,
    "hash_every_steps": 1, "steps": 2, "evaluate_every_steps": 1, "checkpoint.every_steps": 1,
    "checkpoint.every_seconds": 5,
    "checkpoint.keep_max": 1, "checkpoint.on_error": "stop", "checkpoint.hot_steps": 1,
    "on_start": "resume_or_start", "$schema": "config.schema.json", "events.scalars": True,
    "events.images": 2, "events.histograms": True, "trace.file": "trace.json",
    "trace.first_step": 3, "trace.steps": 2, "early_stopping.patience": 2,
    "samples.count": 9, "judge": "none", "early_stopping.min_delta": 0.5,
}
# .. and of keys that decide them.
DECIDERS = {
    "precision": "mixed_bfloat16", "model.layers.3.dtype": "float32",
    "model.loss": {"type": "sparse_categorical_crossentropy", "class_weight": {"1": 2}},
    "model.layers.0.filters": 5, "model.layers.0.kernel_size": [3, 1],
    "model.layers.0.padding": "valid", "model.layers.0.strides": 2,
    "model.layers.0.activation": "linear", "model.layers.0.use_bias": False,
    "model.layers.0.kernel_initializer": "he_uniform",
    "model.layers.0.kernel_regularizer": {"l2": 0.5}, "model.layers.1.strides": 1,
    "model.layers.0.spectral_normalization": True,
    "model.layers.3.units": 17, "optimizer.learning_rate": 0.06, "optimizer.momentum": 0.8,
    "optimizer.nesterov": True, "optimizer.clipvalue": 0.5,
    "optimizer.learning_rate_schedule": {"type": "cosine", "steps": 9},
    "optimizer.clipnorm": 0.5, "optimizer.global_clipnorm": 0.5,
    "data.train.made_up.seed": 2, "data.train.made_up.first": 1,
    "data.train.made_up.count": 999, "data.train_examples": 500, "seed": 8, "global_batch": 128,
    "grain": 8, "drop_remainder": True, "data.augment.shift": [1, 0],
    "data.augment.padding": "edge", "data.augment.flip": "horizontal", "data.augment.cutout": 2,
    "data.augment.brightness": 0.1, "data.augment.contrast": 0.1,
    "data.normalize": {"mean": [0.5], "deviation": [0.25]},
}


def identity(t, name, *arguments):
    t.expect(0, "train", name, "--run-dir", "r", "--fresh", "--quiet", "--set", "steps=1",
             *arguments)
    with open("r/identity", encoding="utf-8") as f:
        return f.read()


def help_keys(t):
    """[(decides, path, type, value, default)]"""
    _, lines, _ = t.expect(0, "help", "keys")
    t.check(all(len(line) <= 100 for line in lines), "lines fit", max(lines, key=len))
    lines = "\n".join(lines).replace(" |\n        ", " | ").split("\n")  # a long list goes on
    found = []
    for line in lines[lines.index("") + 1::2]:
        m = re.fullmatch(r"([* ]) (\S+?)(?: \((\w+)\))?:(?: (.*?))??(?: \(([^()]*)\))?", line)
        if t.check(m, "a line of help keys", line):
            found.append((m[1] == "*", m[2], m[3], m[4] or "", m[5] or ""))
    for line in lines[lines.index("") + 2::2]:
        t.check(re.match(r"      \S", line), "every key has a meaning", line)
    return found


SCALES = {"type": "static", "initial": 4, "growth_steps": 3, "growth_factor": 4,
          "backoff_factor": 0.25, "floor": 2, "on_overflow": "replay", "skips_max": 7}


def explains(t, keys):
    """What is no number is not said to have bounds; of each `type` its own words."""
    said = {}
    for _, path, type_, value, default in keys:
        said[path, type_] = value, default
        low, _, high = value.partition(" to ")
        t.check(not (low.isdigit() and high.isdigit()) or int(low) <= int(high), "bounds", path,
                value)
    for path, value in (("loss_scale.type", "dynamic | static"),
                        ("model.objectives[].values[].noise", "object"),
                        ("model.objectives[].values[].noise.type",
                         "normal | truncated_normal | uniform"),
                        ("model.loss.inputs", "array of names"),
                        ("model.gan.noise.type", "normal | truncated_normal | uniform"),
                        ("model.gan.generator", "array of objects"),
                        ("model.gan.loss.kind",
                         "wasserstein | minimax | modified | least_squares | hinge"),
                        ("model.gan.weight_clip", "0 to 1e+06")):
        t.check(said.get((path, None), ("none",))[0] == value, path, said.get((path, None)))
    t.check(said["optimizer.learning_rate_schedule.boundaries", "piecewise"][0] ==
            "[1 or more, ...], up to 16", "boundaries")


# --- which keys decide bits ----------------------------------------------------------------------

def decides(t, keys):
    own = identity(t, t.write("own.json"))
    for path, value in OTHERS.items():
        changes = {path.replace("[]", ".0"): value}
        if path.startswith("data.test."):
            changes = {"data.test.made_up": {"count": 9, "height": 10, "width": 10},
                       **changes}
        if path == "accumulate":
            changes.update(replica_batch=128)
        if path in ("replicas", "replica_batch"):
            changes.update(replicas=2, replica_batch=128)
        t.check(identity(t, t.write("c.json", changes)) == own, path + " changes no bit")
    for path, value in DECIDERS.items():
        if value is None:  # there is one loss only
            continue
        t.check(identity(t, t.write("c.json", {path: value})) != own, path + " decides bits")
    mixed = {"precision": "mixed_float16"}
    own = identity(t, t.write("own.json", mixed))
    for path, value in SCALES.items():
        same = identity(t, t.write("c.json", {**mixed, "loss_scale." + path: value})) == own
        t.check(same == (path == "skips_max"), path + " of the loss scale decides bits")
    free = {path for star, path, _, value, _ in keys if not star and value != "object"}
    left = {path for path in free - set(OTHERS)
            if not re.match(r"loss_scale\.skips_max$|data\.test\.(images|labels|manifest)$|"
                            r"cycles$|model\.(networks|objectives)\[\].*name$|"  # objectives_test
                            r"early_stopping\.metric$|checkpoint\.best$|"  # best_test.py
                            r"samples\.every_steps$|"  # generate_test.py
                            r"data\.strips\.test_count$|"  # strips_test.py
                            r"data\.test\.made_up\.(height|width|channels)$", path)}
    t.check(not left, "every key that is said to change no bit was tried", left)
    starred = {path for star, path, *_ in keys if star}
    for path in DECIDERS:
        t.check(re.sub(r"\.\d+", "[]", path) in starred, path + " has its star")


def explained(t):
    """Of two configurations that differ, the keys that decide bits are named, and no other."""
    t.expect(0, "train", t.write("c.json"), "--run-dir", "e", "--set", "steps=1")
    _, _, error = t.expect(78, "train", "c.json", "--run-dir", "e", "--resume", "--set", "seed=8",
                           "--set", "on_start=resume_or_start", "--set", "layout.fuse=false",
                           "--set", "model.layers[0].name=other")
    t.check("seed (7 there, 8 here)" in error, "the key that differs", error)
    for free in ("on_start", "fuse", "name"):
        t.check(free + " (" not in error, free + " is not named", error)


# --- config show ---------------------------------------------------------------------------------

def show(t, *arguments):
    _, lines, _ = t.expect(0, "config", "show", *arguments)
    return "\n".join(lines) + "\n"


def get(document, path):
    for key in path.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def shows(t, keys, ready):
    for path in [*ready, t.write("small.json"),
                 t.write("factors.json", {"replica_batch": 64, "replicas": 2, "accumulate": 2},
                         ["global_batch", "grain", "steps"])]:
        text = show(t, path)
        with open("shown.json", "w", encoding="utf-8") as f:
            f.write(text)
        t.check(show(t, "shown.json") == text, path + ": what is shown shows itself")
        document = json.loads(text)
        for _, key, type_, value, default in keys:
            if type_ or key.startswith(("data.t", "data.augment.", "data.normalize.",
                                        "data.strips.", "loss_scale.", "model.gan.",
                                        "model.layers", "model.networks[", "model.objectives[")) \
                    or value in ("text", "object"):
                continue
            there = get(document, key)
            with open(path, encoding="utf-8") as f:
                said = get(json.load(f), key)
            written = json.dumps(there).strip('"')
            if said is not None:
                t.check(there == said, f"{path}: {key} is as it was said", there, said)
            elif re.fullmatch(r"\d+|true|false|auto|global|strict|new|continue", default) and \
                    key != "layout.exchange_floats":
                t.check(written == default, f"{path}: {key} has its default", written, default)
    for name in ("small.json", "factors.json"):
        with open("shown.json", "w", encoding="utf-8") as f:
            f.write(show(t, name))
        t.check(identity(t, "shown.json") == identity(t, name), name + ": the same identity")
    # With what stands on the command line.
    shown = json.loads(show(t, "mnist-cnn", "--data", "/nowhere", "--seed", "9", "--epochs", "3",
                            "--replicas", "2", "--examples", "100", "--kernels", "portable",
                            "--set", "optimizer={\"type\": \"momentum\", \"learning_rate\": 0.1}"))
    for key, value in {"data.directory": "/nowhere", "data.set": None, "seed": 9, "epochs": 3,
                       "replicas": 2, "data.train_examples": 100, "layout.kernels": "portable",
                       "optimizer.momentum": 0.9, "optimizer.nesterov": False, "grain": 16}.items():
        t.check(get(shown, key) == value, key + " of the command line", get(shown, key), value)
    t.check(shown["model"]["layers"][1]["strides"] == 2, "strides are the pool's size")
    t.check(shown["model"]["layers"][1]["inputs"] == ["conv"], "inputs are the layer before")
    # What takes no layer has no inputs.
    with open(SOURCE + "/apps/configs/rnnt-strips.json", encoding="utf-8") as f:
        strips = json.load(f)
    one = next(x for x in strips["model"]["layers"] if x["type"] == "label_embedding")
    one.pop("inputs", None)
    with open("strips.json", "w", encoding="utf-8") as f:
        json.dump(strips, f)
    with open("shown.json", "w", encoding="utf-8") as f:
        f.write(show(t, "strips.json"))
    t.check(show(t, "shown.json") == open("shown.json", encoding="utf-8").read(),
            "a label_embedding without inputs")
    one["inputs"] = ["input"]
    with open("strips.json", "w", encoding="utf-8") as f:
        json.dump(strips, f)
    _, _, error = t.expect(78, "config", "show", "strips.json")
    t.check("leave it empty, [], or leave the key out" in error, "what to do", error)
    t.expect(78, "config", "show", "small.json", "--set", "sead=3")
    t.expect(66, "config", "show", "no-such.json")
    t.expect(64, "config", "shwo", "small.json")


# --- config schema -------------------------------------------------------------------------------

def validator(schema):
    """jsonschema's, else from PyPI into this test's folder; None where it cannot be had."""
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        try:
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", "pypi",
                            "jsonschema==4.*"], check=True, timeout=200, capture_output=True)
            sys.path.insert(0, os.path.abspath("pypi"))
            importlib.invalidate_caches()
            jsonschema = importlib.import_module("jsonschema")
        except (subprocess.SubprocessError, OSError, ImportError):
            return None
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def places(value, at=()):
    """Paths of all that is in a document."""
    inner = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield at + (key,)
        yield from places(below, at + (key,))


def disturb(rng, document, keys):
    """One or two changes at random places."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2))):
        *path, last = rng.choice(list(places(document)))
        at = document
        for key in path:
            at = at[key]
        kind = rng.randrange(4)
        if kind == 0:
            del at[last]
        elif kind == 1 and isinstance(at, dict):
            at[rng.choice(keys)] = rng.choice((1, "auto", True, {}, []))
        else:
            at[last] = rng.choice((0, 1, 2, -1, 1.0, 0.5, 1e-60, 2**31, 2**40, 2**40 + 1, 2**62,
                                   300, "", "auto", "a/b", "relu", "dense", "strict", "fast",
                                   "x" * 70, None, True, [], [1, 1], {}, "\u00e4" * 40))
    return document


def schema_agrees(t, keys, ready):
    _, lines, _ = t.expect(0, "config", "schema")
    check = validator(json.loads("\n".join(lines)))
    if check is None:
        print("the schema was not tried: no package jsonschema here, nor from PyPI")
        return
    shown = json.loads(show(t, t.write("small.json")))
    documents = [shown]
    with open(SOURCE + "/tests/matrix/objectives.json", encoding="utf-8") as f:
        objectives = json.load(f)
    with open("objectives.json", "w", encoding="utf-8") as f:
        json.dump(objectives, f)
    documents += [objectives, json.loads(show(t, "objectives.json"))]
    for path in ready:
        with open(path, encoding="utf-8") as f:
            documents.append(json.load(f))
        documents.append(json.loads(show(t, path)))
    for document in documents:
        t.check(check.is_valid(document), "a right one", document.get("name"),
                [e.message for e in check.iter_errors(document)][:1])
    rng, names, both, only = random.Random(18), sorted({k[1].split(".")[-1] for k in keys}), 0, 0
    for case in range(500):
        document = disturb(rng, rng.choice([SMALL, shown, *documents[1:3]]), names)
        with open("c.json", "w", encoding="utf-8") as f:
            json.dump(document, f)
        code, _, error = t.run("config", "show", "c.json")
        wrong = [e.message for e in check.iter_errors(document)]
        if code == 0 or wrong:
            both += bool(wrong)
            t.check((code == 78) == bool(wrong), f"case {case}: the same answer", code, error,
                    wrong[:1])
            continue
        only += 1
        t.check(code == 78 and any(re.search(p, error) for p, _ in ONLY_READ),
                f"case {case}: the schema says nothing, and cannot", code, error)
    t.check(both > 200 and only > 3, "cases of each kind", both, only)
    gans_agree(t, check)


GAN = {"noise": {"type": "normal", "shape": [4], "stddev": 2}, "weight_clip": 0.5,
       "loss": {"kind": "modified", "label_smoothing": 0.5}, "generator_steps": 2,
       "discriminator_steps": 1,
       "generator": [{"type": "dense", "units": 100}, {"type": "reshape",
                                                       "target_shape": [10, 10, 1]}],
       "discriminator": [{"type": "flatten"}, {"type": "dense", "units": 1}],
       "generator_optimizer": {"type": "sgd", "learning_rate": 0.1},
       "discriminator_optimizer": {"type": "sgd", "learning_rate": 0.1}}


def gans_agree(t, check):
    """The short form of two networks: what is in it is judged, a key beside its keys refused."""
    t.write("gan.json", {"model.gan": GAN}, ("model.layers", "model.classes", "optimizer"))
    with open("gan.json", encoding="utf-8") as f:
        right = json.load(f)
    t.check(check.is_valid(right), "a GAN", [e.message for e in check.iter_errors(right)][:1])
    t.expect(0, "config", "show", "gan.json")
    changes = [(key, None) for key in GAN] + \
        [(key, value) for key in (*GAN, "gradient_penalty") for value in (-1, "x", [])] + \
        [("generator_stesp", 1), ("noise.type", "uniform"), ("noise.shape", [4, 4]),
         ("noise.low", 0), ("noise.stdev", 1), ("loss", "hinge"), ("loss.kind", None),
         ("loss.type", "gan_generator"), ("loss.inputs", ["real", "fake"]),
         ("loss.label_smoothing", 2), ("generator.0.unit", 3), ("discriminator.1.units", 0),
         ("generator_optimizer.momentum", 0.9), ("generator_steps", 0), ("weight_clip", 0),
         ("discriminator_steps", 2**31)]
    for path, value in changes:
        wrong = copy.deepcopy(right)
        at, *below = [int(key) if key.isdigit() else key for key in path.split(".")][::-1]
        inner = wrong["model"]["gan"]
        for key in below[::-1]:
            inner = inner[key]
        if value is None:
            del inner[at]
        else:
            inner[at] = value
        with open("c.json", "w", encoding="utf-8") as f:
            json.dump(wrong, f)
        code, _, error = t.run("config", "show", "c.json")
        t.check((code == 78) == (not check.is_valid(wrong)), f"gan.{path}: the same answer", value,
                code, error, [e.message for e in check.iter_errors(wrong)][:1])


# --- the documents -------------------------------------------------------------------------------

# Heads of the tables of keys, and what their keys begin with.
HEADS = (("key", ""), ("key of `data`", "data."), ("key of `data.augment`", "data.augment."),
         ("key of `data.strips`", "data.strips."),
         ("key of `data.normalize`", "data.normalize."), ("key of `layout`", "layout."),
         ("`type`", None))


def table(t):
    """The rows of the list of keys: (first cell, second cell)."""
    for name in ("apps/README.md", "README.md"):
        path = os.path.join(SOURCE, name)
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as f:
            text = f.read()
        rows = []
        for head, prefix in HEADS:
            start = rf"\| {re.escape(head)} \| \w+ \|\n\|---\|---\|\n"
            for part in re.split(start, text)[1:]:
                for row in part.split("\n\n")[0].splitlines():
                    first, _, second = row.strip("| ").partition(" | ")
                    if prefix is None:  # of a layer or an optimizer
                        first = "`model.layers[]`, `optimizer`"
                    name = r"`\g<1>`" if prefix is None else rf"`{prefix}\g<1>`"
                    rows.append((re.sub(r"`([^`]+)`", name, first), second))
        if rows:
            return rows
    t.check(False, "a table of keys in README.md or apps/README.md")
    return []


def documented(t, keys):
    rows = table(t)
    paths = {re.sub(r"\[\]", "", k[1]) for k in keys}
    for first, _ in rows:
        for name in re.findall(r"`([^`]+)`", first):
            t.check(name.replace("[]", "") in paths, "the table's key is a key", name)
    for _, path, _, value, default in keys:
        path = path.replace("[]", "")
        # Layers of networks are as the others.
        path = path.replace("model.networks.layers.", "model.layers.")
        # As data.train's; objects whose keys have rows of their own; what the text says.
        if path.startswith("data.test.") or path in ("model", "checkpoint", "optimizer.type",
                    "optimizer.learning_rate_schedule.type") or \
                path in ("model.layers.type", "model.layers.name", "model.layers.inputs",
                         "model.layers.trainable", "model.layers.dtype"):
            continue
        parent, _, leaf = path.rpartition(".")
        own = [second for first, second in rows if f"`{path}`" in first.replace("[]", "")]
        above = [second for first, second in rows if any(
            f"`{up}`" in first.replace("[]", "") for up in
            [".".join(parent.split(".")[:n + 1]) for n in range(parent.count(".") + 1)] if up)
            and re.search(rf"[`\"]{re.escape(leaf)}[`\"]", second)]
        if not t.check(own or above, "the table has it", path):
            continue
        # A number after the name, in brackets, is the default.
        said = [found[1].strip("`") for row in above if (found := re.search(
            rf"[`\"]{re.escape(leaf)}[`\"] \((\d[\d.]*|true|false|(?:the )?`\w+`)", row))]
        said = [value.removeprefix("the `") for value in said]
        if said and value != "text" and re.fullmatch(r"[\w.]+", default):
            t.check(default in said, path + " has that default", said, default)


def has_kernels(t, ready):
    """What ships runs on fast kernels alone: plan marks every op that runs by its reference."""
    mark = "(by its reference"
    for path in ready:
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        if "set" in config.get("data", {}):  # of its shape; plan looks at no image
            shape = dict(zip(("height", "width", "channels"), config["model"]["input"]))
            config["data"] = {"train": {"made_up": {"count": 1000, **shape}}}
        with open("ready.json", "w", encoding="utf-8") as f:
            json.dump(config, f)
        _, lines, _ = t.expect(0, "plan", "ready.json")
        t.check(any("conv2d" in line or "dense" in line for line in lines), "plan lists ops", path)
        t.check(not any(mark in line for line in lines), "an op without a fast kernel", path,
                [line for line in lines if mark in line])
        if config["name"] == "mnist-gan":  # TF-GAN's networks
            t.check(lines[0].endswith(f" {6667297 + 6557889} parameters"), "its size", lines[0])


def main():
    t = Test()
    ready = sorted(glob.glob(SOURCE + "/apps/**/configs/**/*.json", recursive=True))
    ready = [path for path in ready if os.path.basename(path) != "digests.json"]
    t.check(len(ready) >= 8, "ready configurations", ready)
    keys = help_keys(t)
    t.check(len(keys) > 80, "keys", len(keys))
    documented(t, keys)
    explains(t, keys)
    shows(t, keys, ready)
    decides(t, keys)
    explained(t)
    schema_agrees(t, keys, ready)
    has_kernels(t, ready)
    t.finish()


if __name__ == "__main__":
    main()
