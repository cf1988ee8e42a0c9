#!/usr/bin/env python3
"""mixed_test - runs in mixed precision: one state hash for replicas, workers and ways to travel,
with overflows that are skipped or computed again; killed and gone on with; logs, ends, refusals.

   mixed_test.py PROGRAM WORK_DIR
"""
import glob
import json
import os
import shutil
import struct

from program import SMALL, Test, log_of, result, value

# The scale begins where every step overflows, and grows until one does again.
SCALE = {"initial": 2 ** 24, "growth_steps": 3}
MODES = {
    "skip": {"precision": "mixed_float16", "loss_scale": SCALE},
    "replay": {"precision": "mixed_float16", "loss_scale": {**SCALE, "on_overflow": "replay"}},
    "bfloat16": {"precision": "mixed_bfloat16"},
}
STEPS = 24
# Messages by many buckets.
BUCKETS = ["--set", "layout.overlap=on", "--set", "layout.exchange_floats=1"]


def lines_of(run):
    with open(run + "/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line)["train"] for line in f]


def everywhere(t, name, config):
    """Replicas, workers in a window and by messages, in one bucket or many: one result and log."""
    wanted = result(t.expect(0, "train", config, "--run-dir", name, "--replicas", "1")[1])
    t.check(all(wanted), name, wanted)
    log = log_of(name)
    ways = [["train", config, "--replicas", str(r)] for r in (3, 8)]
    ways += [["launch", "--workers", w, "--replicas", r, "train", config, *more]
             for w, r, more in (("2", "1", []), ("3", "2", ["--collective", "messages"]),
                                ("2", "1", ["--collective", "messages", *BUCKETS]))]
    t.same_everywhere(name, ways, wanted, log)
    return wanted


def gone_on(t, name, config, wanted):
    """Stopped after each of some steps, skipped ones among them, and gone on with by others."""
    for steps in (1, 5, 10, STEPS - 1):
        t.expect(0, "train", config, "--run-dir", "on", "--fresh", "--replicas", "2", "--set",
                 f"steps={steps}", "--kernels", "portable")
        lines = t.expect(0, "train", config, "--run-dir", "on", "--resume", "--replicas", "3")[1]
        t.check(result(lines) == wanted, f"{name}: gone on with after {steps}", result(lines),
                wanted)


def killed(t, name, config, wanted):
    """Killed in one step or another; overflow_test does it while a step is computed again."""
    for seen in (1, 4, 9):
        shutil.rmtree("killed", ignore_errors=True)
        process = t.start("train", config, "--run-dir", "killed", "--replicas", "2", "--set",
                          "checkpoint.every_steps=1")
        for line in process.lines():
            seen -= line.startswith("loss = ")
            if seen <= 0:
                break
        process.kill()
        process.communicate()
        begun = glob.glob("killed/checkpoints/*.safetensors")
        lines = t.expect(0, "train", config, "--run-dir", "killed", "--resume" if begun else
                         "--fresh", "--set", "checkpoint.every_steps=1")[1]
        t.check(result(lines) == wanted, name + ": killed", result(lines), wanted)


def logs(t):
    """Every step says the scale after it, and what was skipped and computed again so far."""
    skip, replay = lines_of("skip"), lines_of("replay")
    t.check(len(skip) == len(replay) == STEPS, "a line each", len(skip), len(replay))
    scale, good, skipped = SCALE["initial"], 0, 0
    for line in skip:
        over = line["skipped"] - skipped
        skipped += over
        good = 0 if over else good + 1
        scale = max(scale // 2, 1) if over else scale * 2 if good == 3 else scale
        good %= 3
        t.check((line["loss_scale"], line["replayed"]) == (scale, 0), "skip", line, scale)
    t.check(skip[0]["skipped"] == 1 and 0 < skip[-1]["skipped"] < STEPS - 6, "skipped", skip[-1])
    t.check(all(line["skipped"] == 0 for line in replay), "replay skips nothing")
    t.check(replay[0]["replayed"] >= 6 and replay[-1]["replayed"] > replay[0]["replayed"],
            "replayed", replay[0], replay[-1])
    t.check("loss_scale" not in lines_of("bfloat16")[0], "bfloat16 has no scale")
    # A skipped step is a step and no update: the weights are those of before it.
    steps = [result(t.expect(0, "train", "skip.json", "--run-dir", "few", "--fresh", "--set",
                             f"steps={n}")[1]) for n in (1, 2)]
    fresh = value(t.expect(0, "train", "skip.json", "--run-dir", "few", "--fresh", "--set",
                           "steps=1", "--set", "loss_scale.initial=1048576")[1], "digest")
    t.check(steps[0][0] == steps[1][0] == fresh and steps[0][1] != steps[1][1],
            "nothing moves but the scale", steps, fresh)


def plan(t):
    """Half the bytes of activations and their gradients."""
    found = {}
    for precision in ("float32", "mixed_float16"):
        said = json.loads("\n".join(t.expect(
            0, "plan", "bfloat16.json", "--json", "--set", f"precision={precision}", "--set",
            "layout.overlay=false", "--replicas", "1")[1]))
        found[precision] = {x["name"]: (x["dtype"], x["bytes"]) for x in said["tensors"]}
    for name in ("input", "conv", "dense", "conv/gradient", "dense/gradient", "logits/gradient"):
        wide, half = found["float32"].get(name), found["mixed_float16"].get(name)
        if not t.check(wide and half, "planned", name, sorted(found["mixed_float16"])):
            continue
        t.check((wide[0], half[0], half[1] * 2) == ("f32", "f16", wide[1]), name, wide, half)
    t.check(found["mixed_float16"]["logits"][0] == "f32", "logits stay in fp32")
    t.check("dense/kernel/rounded" in found["mixed_float16"], "rounded weights")


# More than one block of examples in a wave, and a last batch whose last grain has few of its own.
NORMS = [
    {"type": "conv2d", "filters": 48, "kernel_size": 3, "padding": "same", "use_bias": False},
    {"type": "batch_normalization"}, {"type": "relu"}, {"type": "layer_normalization"},
    {"type": "depthwise_conv2d", "kernel_size": 3, "strides": 3}, {"type": "flatten"},
    {"type": "dense", "units": 10}]


def equal_norms(t, config):
    wanted = None
    for replicas, *more in ((1,), (3,), (1, "wave_examples=8"), (2, "wave_examples=24"),
                            (1, "fuse=false"), (2, "kernels=portable")):
        options = [word for key in more for word in ("--set", "layout." + key)]
        found = result(t.expect(0, "train", config, "--run-dir", "norms", "--fresh", "--replicas",
                                str(replicas), *options)[1])
        wanted = wanted or found
        t.check(all(found) and found == wanted, "norms", config, replicas, more, found, wanted)


def norms(t):
    changes = {"steps": 9, "global_batch": 128, "grain": 8, "model.layers": NORMS,
               **MODES["bfloat16"]}
    config = t.write("norms.json", {**changes, "data.train.made_up.count": 1003})
    equal_norms(t, config)
    t.expect(0, "data", "shard", "--made-up", "1003", "--height", "10", "--width", "10",
             "--shards", "4", "--to", "cut")
    equal_norms(t, t.write("parts.json", {**changes, "data": {
        "order": "sharded", "train": {"manifest": "cut/manifest.json"}}}))
    for layer in ("batch_normalization", "layer_normalization"):
        large = {"type": "dense", "units": 9, "kernel_initializer": "random_normal",
                 "kernel_initializer_value": 1e6}
        layers = [{"type": "flatten"}, large, large, large, large,
                  {"type": layer, "name": "norm"}, {"type": "dense", "units": 10}]
        error = t.expect(80, "train", config, "--run-dir", "norms", "--fresh", "--set",
                         "model.layers=" + json.dumps(layers))[2]
        t.check("norm is not finite" in error, "a variance beyond fp32", layer, error)


def ends(t):
    """No scale is left, or none helps: exit code 80, and what is there stays."""
    for more, text in (
            (["loss_scale.skips_max=4"], "loss_scale.skips_max steps were skipped one after"),
            (['loss_scale={"initial": 1073741824, "type": "static", "skips_max": 2}'],
             "logits/gradient is not finite at loss scale 1073741824:"),
            (['loss_scale={"initial": 1073741824, "type": "static", "skips_max": 2}'],
             "; try a smaller loss_scale.initial, loss_scale.type dynamic, a smaller "),
            (['loss_scale={"initial": 1073741824, "skips_max": 2}'],
             "; try a smaller loss_scale.initial, a larger loss_scale.skips_max, a smaller"),
            (['loss_scale={"initial": 16777216, "floor": 8388608, "on_overflow": "replay"}'],
             "8388608: loss_scale.floor allows no smaller one, and the run saves nothing more; "
             "there is no checkpoint yet; try a lower loss_scale.floor, a smaller learning_rate"),
            (['optimizer={"type": "sgd", "learning_rate": 1e6}', "loss_scale.initial=16",
              "loss_scale.on_overflow=replay"],
             "16: no smaller one helps, and the run saves nothing more"),
            (['optimizer={"type": "sgd", "learning_rate": 1e6}', "loss_scale.initial=1",
              "loss_scale.on_overflow=replay"], "16")):
        options = [word for key in more for word in ("--set", key)]
        error = t.expect(80, "train", "skip.json", "--run-dir", "ends", "--fresh", *options)[2]
        t.check(text in error and error.startswith("lockstep: step "), "how it ends", text, error)
        t.check(not glob.glob("ends/checkpoints/*.safetensors"), "nothing is saved")


def skipped(t):
    """A run that skipped all of its steps says so, and one that did not, what it skipped."""
    scale = ["--set", 'loss_scale={"initial": 1073741824, "type": "static"}']
    _, lines, error = t.expect(0, "train", "skip.json", "--run-dir", "skipped", "--fresh", *scale,
                               "--set", "steps=5", "--quiet")
    words = "all 5 steps were skipped and nothing was trained"
    t.check(words in error, words, error)
    _, lines, error = t.expect(0, "train", "skip.json", "--run-dir", "skipped", "--fresh")
    last = lines_of("skipped")[-1]
    line = f"loss_scale {last['loss_scale']}, skipped {last['skipped']}, replayed 0"
    t.check(line in lines and last["skipped"] and words[-20:] not in error, line, lines, error)


def write_row(row):
    """Images that are black but for one row."""
    with open("images", "wb") as f:
        image = bytes(255 if i // 6 == row else 0 for i in range(36))
        f.write(struct.pack(">4B3I", 0, 0, 8, 3, 32, 6, 6) + 32 * image)
    with open("labels", "wb") as f:
        f.write(struct.pack(">4BI", 0, 0, 8, 1, 32) + bytes(i % 10 for i in range(32)))
    return {"images": "images", "labels": "labels"}


def odd(t, *kernels):
    """What a 2x2 pool drops, an odd last row, may overflow; any other may not. Fused or not."""
    conv = {"type": "conv2d", "filters": 3, "kernel_size": 2, "kernel_initializer": "constant",
            "kernel_initializer_value": 60000}
    pool, relu = {"type": "max_pool2d", "pool_size": 2}, {"type": "relu"}
    for row, skipped in ((5, 0), (4, 3)):  # of 6; rows 3 and 4 of 5 overflow
        data = write_row(row)
        for layers in ([{**conv, "activation": "relu"}, pool], [conv, relu, pool], [conv, pool]):
            config = t.write("odd.json", {
                "steps": 3, "global_batch": 16, "grain": 8, "model.input": [6, 6, 1],
                "model.layers": [*layers, {"type": "flatten"}, {"type": "dense", "units": 10}],
                "optimizer": {"type": "sgd", "learning_rate": 1e-6},
                "precision": "mixed_float16", "loss_scale": {"initial": 16},
                "data": {"train": data}})
            for who in kernels:
                for fuse in ("true", "false"):
                    t.expect(0, "train", config, "--run-dir", "odd", "--fresh", "--kernels", who,
                             "--set", "layout.fuse=" + fuse)
                    found = lines_of("odd")[-1]["skipped"]
                    t.check(found == skipped, "odd", row, layers, who, fuse, found, skipped)


def hidden(t, *kernels):
    """A sum of a layer in fp32 is looked at before its ReLU, which makes +0 of -infinity."""
    def dense(value, **more):
        return {"type": "dense", "units": 4, "kernel_initializer": "constant",
                "kernel_initializer_value": value, **more}

    last = dense(-1e6, dtype="float32", activation="relu", name="hides")
    config = t.write("hidden.json", {
        "steps": 1, "global_batch": 16, "grain": 8, "model.input": [6, 6, 1],
        "model.layers": [{"type": "flatten"}, *5 * [dense(1e6)], last,
                         {"type": "dense", "units": 10}],
        "precision": "mixed_bfloat16", "data": {"train": write_row(5)}})
    for who in kernels:
        error = t.expect(80, "train", config, "--run-dir", "hidden", "--fresh", "--kernels", who)[2]
        t.check("step 1: hides is not finite" in error, "hidden", who, error)


def unscaled(t):
    """Where all layers are in fp32 the loss is scaled, too: powers of two, which change no bit."""
    found = []
    layers = [layer if layer["type"] == "flatten" else {**layer, "dtype": "float32"}
              for layer in SMALL["model"]["layers"]]
    for initial in (1, 2 ** 15):
        config = t.write("wide.json", {"steps": 5, "precision": "mixed_float16", "model.layers":
                                       layers, "loss_scale": {"type": "static",
                                                              "initial": initial}})
        found.append(result(t.expect(0, "train", config, "--run-dir", "wide", "--fresh")[1])[0])
    t.check(found[0] == found[1], "a scale in fp32", found)


def refusals(t):
    for code, text, *more in (
            (78, "a loss is scaled in precision \"mixed_float16\", and in arithmetic", "--set",
             "precision=float32"),
            (78, "loss_scale.initial: wanted a power of two", "--set", "loss_scale.initial=3"),
            (78, "skip.json: an initial value of logits/kernel is infinite in 16 bits, "
             "wanted all below 65520: mixed_float16; its initializer is \"constant\"", "--set",
             'model.layers[4].kernel_initializer="constant"', "--set",
             "model.layers[4].kernel_initializer_value=65520"),
            (78, "found \"replay\" with a static scale", "--set", "loss_scale.type=static", "--set",
             "loss_scale.on_overflow=replay"),
            (78, "in \"fast\" set fast_precision to \"fp16\" instead", "--set", "arithmetic=fast"),
            (78, "wanted one of \"float32\", \"mixed_float16\", \"mixed_bfloat16\"", "--set",
             "precision=bf16"),
            (78, "so does another layer, which wants 16 bits", "--set",
             'model.layers=[{"type": "flatten"}, {"type": "dense", "units": 10, "name": "a"},'
             ' {"type": "dense", "units": 10}, {"type": "add", "inputs": ["a", "dense_2"]}]',
             "--set", 'model.loss={"type": "mean_squared_error", "inputs": ["a", "add_3"]}')):
        error = t.expect(code, "train", "skip.json", "--run-dir", "refused", "--fresh", *more)[2]
        t.check(text in error, "refused", text, error)
    error = t.expect(69, "plan", "skip.json", "--kernels", "cuda")[2]
    t.check("GPU" in error or "cuda" in error, "cuda", error)


def main():
    t = Test()
    for name, changes in MODES.items():
        config = t.write(name + ".json", {"steps": STEPS, "global_batch": 128, **changes})
        wanted = everywhere(t, name, config)
        gone_on(t, name, config, wanted)
        if name == "replay":
            killed(t, name, config, wanted)
    logs(t)
    plan(t)
    norms(t)
    odd(t, "reference", "auto")
    hidden(t, "reference", "auto")
    unscaled(t)
    ends(t)
    skipped(t)
    refusals(t)
    t.finish()


if __name__ == "__main__":
    main()
