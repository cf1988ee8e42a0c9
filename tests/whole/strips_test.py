#!/usr/bin/env python3
"""strips_test - examples that are made at LOAD: strips of images side by side.

   strips_test.py PROGRAM WORK_DIR

Which images make which strip is computed here once more, from ARITHMETIC.md alone. So the strips of
an epoch and of a test set can be written as files of sequences, and a run on those must come to the
digest and the loss of the run on strips: in bytes and in floats, normalised and brightened, on any
replicas, workers, microbatches and kernels, resumed, in both orders. Standard library only.
"""
import json
import random
import shutil
import struct

from program import Test, finish, free_port, result, start, tf_config, value

COUNT, HEIGHT, WIDTH, CHANNELS, CLASSES = 50, 4, 6, 2, 4  # of the images
SEED, LEAST, MOST, STRIPS, TESTS = 6, 1, 3, 34, 21
FIXED = 1 << 63
MASK = (1 << 32) - 1
ADD = {"data.normalize": {"mean": [0.25, 0.5], "deviation": [0.5, 2]},
       "data.augment": {"brightness": 0.25, "shift": [0, 1], "cutout": [5, 1]}}


# --- ARITHMETIC.md 8 and 10 -----------------------------------------------------------------------

def philox(seed, purpose, *counter):
    c, k0, k1 = list(counter), seed & MASK, (seed >> 32) ^ purpose
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & MASK, (p0 >> 32) ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c


def permuted(epoch, count, position, shard=0):
    half = 1
    while 1 << 2 * half < count:
        half += 1
    x = position
    while True:
        left, right = x >> half, x & ((1 << half) - 1)
        for turn in range(6):
            word = philox(SEED, 2, right, 8 * shard + turn, epoch & MASK, epoch >> 32)[0]
            left, right = right, left ^ (word & ((1 << half) - 1))
        x = left << half | right
        if x < count:
            return x


def strip(epoch, position, images=COUNT, strips=STRIPS, at=None, shard=0):
    word = philox(SEED, 8, position & MASK, position >> 32, epoch & MASK, epoch >> 32)[0]
    rounds = 1 if epoch >= FIXED else -(-strips * MOST // images)
    slots = [MOST * (position if at is None else at) + i
             for i in range(LEAST + (word * (MOST - LEAST + 1) >> 32))]
    return [permuted(epoch * rounds + q // images, images, q % images, shard) for q in slots]


# --- files ----------------------------------------------------------------------------------------

def write_images(name, images, labels, kind="B"):
    with open(name + "-images", "wb") as f:
        f.write(struct.pack(">HBB4I", 0, 8 if kind == "B" else 13, 4, len(images), HEIGHT, WIDTH,
                            CHANNELS))
        for image in images:
            f.write(struct.pack(f">{len(image)}{kind}", *image))
    with open(name + "-labels", "wb") as f:
        f.write(struct.pack(">2I", 0x801, len(labels)) + bytes(labels))


def write_strips(name, images, labels, strips, kind="B"):
    """As sequences, the columns of the images being the frames. Frames behind are no zeros."""
    with open(name + "-images", "wb") as f:
        f.write(struct.pack(">HBB4I", 0, 8 if kind == "B" else 13, 4, len(strips), MOST * WIDTH,
                            HEIGHT, CHANNELS))
        for one in strips:
            row = [images[i][(y * WIDTH + x) * CHANNELS + c] for i in one for x in range(WIDTH)
                   for y in range(HEIGHT) for c in range(CHANNELS)]
            row += [7] * (MOST * WIDTH * HEIGHT * CHANNELS - len(row))
            f.write(struct.pack(f">{len(row)}{kind}", *row))
    with open(name + "-labels", "wb") as f:
        f.write(struct.pack(">4I", 0x802, len(strips), 2 + MOST, 0)[:12])
        for one in strips:
            row = [labels[i] + 1 for i in one]
            f.write(struct.pack(">H", len(one) * WIDTH) + bytes(row + [0] * (MOST - len(row))))


def files(name):
    return {"images": name + "-images", "labels": name + "-labels"}


def configuration(t, name, data, **more):
    # The second reshape stacks 4 frames of 6: a stack may hold frames behind an example's own.
    return t.write(name, {
        "seed": SEED, "global_batch": 12, "grain": 2, "steps": 7, "hash_every_steps": 1,
        "model": {"input": [MOST * WIDTH, HEIGHT, CHANNELS], "classes": CLASSES + 1,
                  "labels": MOST, "loss": "transducer", "layers": [
                      {"type": "conv2d", "name": "conv", "filters": 3, "kernel_size": 3,
                       "padding": "same"},
                      {"type": "reshape", "name": "times", "target_shape": [18, 12]},
                      {"type": "reshape", "name": "stack", "target_shape": [9, 24]},
                      {"type": "lstm", "name": "encoder", "units": 5, "return_sequences": True},
                      {"type": "label_embedding", "name": "said", "units": 3, "inputs": []},
                      {"type": "lstm", "name": "prediction", "units": 5, "return_sequences": True},
                      {"type": "joint", "name": "joint", "units": CLASSES + 1,
                       "inputs": ["encoder", "prediction"]}]},
        "optimizer": {"type": "adam_keras", "learning_rate": 0.01}, "data": data, **more})


def strips(train, test="test", **more):
    return {"train": files(train), "test": files(test),
            "strips": {"min": LEAST, "max": MOST, "test_count": TESTS, **more}}


def trained(t, config, name, *arguments):
    lines = t.expect(0, "train", config, "--fresh", "--run-dir", name, *arguments)[1]
    return (*result(lines), value(lines, "test_loss"))


# --- what is checked ------------------------------------------------------------------------------

def as_files(t, images, labels):
    """One epoch of strips, and its test set, are the run on files that hold those strips."""
    places = {permuted(0, STRIPS, p): p for p in range(STRIPS)}
    epoch = [strip(0, places[i]) for i in range(STRIPS)]
    tests = [strip(FIXED, i, images=30, strips=TESTS) for i in range(TESTS)]
    t.check(len({tuple(one) for one in epoch}) > STRIPS // 2, "strips are drawn", epoch)
    for kind, word in (("B", "u8"), ("f", "f32")):
        write_images("train" + word, images, labels, kind)
        write_images("test" + word, images[20:], labels[20:], kind)
        write_strips("made" + word, images, labels, epoch, kind)
        write_strips("madetest" + word, images[20:], labels[20:], tests, kind)
        for more in ({}, ADD):
            more = {"model.input_type": word, "steps": 3, **more}
            one = configuration(t, "strips.json", strips("train" + word, "test" + word,
                                                         train_count=STRIPS), **more)
            other = configuration(t, "files.json", {"train": files("made" + word),
                                                    "test": files("madetest" + word)}, **more)
            found = trained(t, one, "one"), trained(t, other, "other")
            t.check(found[0] == found[1] and all(found[0]), f"{word}, {more}", *found)


def same_bits(t, config, name):
    wanted = trained(t, config, "alone", "--replicas", "1")
    t.check(all(wanted), name, wanted)
    for arguments in (["--replicas", "3"], ["--replicas", "2", "--set", "layout.wave_examples=2"],
                      ["--replicas", "1", "--kernels", "portable", "--set", "layout.fuse=false"],
                      ["--replicas", "2", "--kernels", "reference", "--set", "layout.guards=true"],
                      ["--replicas", "4", "--set", "layout.reduce=operands"],
                      ["--replicas", "2", "--set", "events.images=3"]):
        t.check(trained(t, config, "again", *arguments) == wanted, name, arguments)
    t.expect(0, "train", config, "--fresh", "--run-dir", "part", "--set", "steps=4")
    lines = t.expect(0, "train", config, "--resume", "--run-dir", "part")[1]
    t.check((*result(lines), value(lines, "test_loss")) == wanted, name, "resumed")
    lines = t.expect(0, "eval", config, "--run-dir", "part")[1]
    t.check(any(wanted[2] in line for line in lines), name, "evaluated", lines)
    shutil.rmtree("workers", ignore_errors=True)
    port = free_port()
    ends = finish([start(t, tf_config(3, rank, port), "train", config, "--run-dir", "workers",
                         "--replicas", str(1 + rank % 2)) for rank in range(3)])
    t.check([end[0] for end in ends] == [0, 0, 0], name, "workers", ends)
    lines = ends[0][1].splitlines()
    t.check((*result(lines), value(lines, "test_loss")) == wanted, name, "workers", *lines[-3:])


def given(t, config):
    """predict --images: whole strips as the model takes them, of all frames, without labels."""
    t.expect(0, "train", config, "--fresh", "--run-dir", "run", "--set", "steps=2")
    with open("madeu8-labels", "rb") as f:
        labels = f.read()
    with open("whole-labels", "wb") as f:
        row = struct.pack(">H", MOST * WIDTH) + bytes(MOST)
        f.write(labels[:-len(row) * STRIPS] + row * STRIPS)
    found, sets = [], {"train": files("madeu8"),
                       "test": {"images": "madeu8-images", "labels": "whole-labels"}}
    for more in (["--images", "madeu8-images"], ["--set", "data=" + json.dumps(sets)]):
        lines = t.expect(0, "predict", config, "--run-dir", "run", "--output", "p.npy", *more)[1]
        t.check(f"labels p.npy ({STRIPS}, {MOST})" in lines, "a row of each", more, lines)
        with open("p.npy", "rb") as f:
            found.append(f.read())
    t.check(found[0] == found[1], "predict --images")
    error = t.expect(78, "predict", config, "--run-dir", "run", "--output", "p.npy", "--images",
                     "trainu8-images")[2]
    t.check("given set: its images are 4 x 6 x 2, but model.input is 18 x 4 x 2" in error, error)


def disagreement(t, config):
    """Workers that evaluate other strips do not begin."""
    port = free_port()
    ends = finish([start(t, tf_config(2, rank, port), "train", config, "--run-dir", "apart",
                         "--replicas", "1", "--set", f"data.strips.test_count={20 + rank}")
                   for rank in range(2)])
    t.check([end[0] for end in ends] == [76, 76] and any(
        "the number of test examples is 20 on the one" in end[2] for end in ends),
        "workers of other strips", *ends)


def uses(t, place, *more):
    return json.loads(t.expect(0, "ledger", place, "--json", *more)[1][0])["uses"]


def ledger(t, config):
    """Which images a strip has; and in which strips an image is."""
    per, places = -(-STRIPS // 12), {}
    for step in range(1, 8):
        epoch, first = divmod(step - 1, per)
        for use in uses(t, config, "--step", str(step)):
            one = strip(epoch, first * 12 + use["position"])
            t.check(use["images"] == one and use["epoch"] == epoch, f"step {step}", use, one)
            for image in one:
                places.setdefault(image, []).append((step, use["position"]))
    for image in (0, 13, 49):
        found = [(use["step"], use["position"]) for use in uses(t, config, "--example", str(image))]
        t.check(sorted(found) == sorted(places[image]), f"image {image}", found, places[image])
    lines = t.expect(0, "ledger", config, "--step", "2")[1]
    t.check("strip of images " in lines[0], "in words", lines[0])
    t.check("wanted a number from 0 to 49" in t.expect(64, "ledger", config, "--example", "50")[2],
            "images are numbered")


def sharded(t):
    """Each grain's strips are of its own shard's images."""
    t.expect(0, "data", "shard", "--images", "trainu8-images", "--labels", "trainu8-labels",
             "--shards", "3", "--to", "shards")
    data = {"train": {"manifest": "shards/manifest.json"}, "test": files("testu8"),
            "strips": {"min": LEAST, "max": MOST, "test_count": TESTS}}
    config = configuration(t, "global.json", data)
    plain = configuration(t, "plain.json", {**strips("trainu8", "testu8")})
    t.check(trained(t, config, "one") == trained(t, plain, "other"), "shards in order global")
    config = configuration(t, "sharded.json", {**data, "order": "sharded"})
    same_bits(t, config, "sharded")
    sizes, begins = (17, 17, 16), (0, 17, 34)
    for use in uses(t, config, "--step", "7"):  # the second of epoch 1, which has 5 steps
        k, at = use["position"] // 4, 4 + use["position"] % 4
        one = [begins[k] + i for i in strip(1, 12 + use["position"], sizes[k], sizes[k], at, k)]
        t.check(use["epoch"] == 1 and use["images"] == one, "of its own shard", use, one)
    error = t.expect(78, "train", config, "--set", "data.strips.train_count=20")[2]
    t.check("data.strips.train_count: found 20, but order \"sharded\"" in error, "count", error)


def identities(t, config):
    def of(setting):
        t.expect(0, "train", config, "--fresh", "--run-dir", "i", "--set", "steps=1", *setting)
        with open("i/identity", encoding="utf-8") as f:
            return f.read()
    own = of([])
    t.check(of(["--set", "data.strips.test_count=5"]) == own, "test strips change no bit")
    for key, count in (("min", 2), ("train_count", 33)):
        t.check(of(["--set", f"data.strips.{key}={count}"]) != own, key + " decides bits")
    t.check(of(["--set", "data.strips.max=2", "--set", "data.strips.min=2",
                "--set", "model.input=[12,4,2]",  # the same in all else but its length
                "--set", "model.layers=" + json.dumps(shorter(config))]) != own, "max decides bits")


def shorter(config):
    with open(config, encoding="utf-8") as f:
        layers = json.load(f)["model"]["layers"]
    layers[1]["target_shape"], layers[2]["target_shape"] = [12, 12], [6, 24]
    return layers


def ready(t):
    """rnnt-strips, with images that need no files: a wave is one block of 16 bits, or several."""
    data = json.dumps({"train": {"made_up": {"count": 64}}, "strips": {"max": 5}})
    seen = []
    for way in (["--replicas", "1"], ["--replicas", "8"],
                ["--replicas", "2", "--set", "replica_batch=4", "--set", "accumulate=4"]):
        lines = t.expect(0, "train", "rnnt-strips", "--set", "data=" + data, "--run-dir", "ready",
                         "--fresh", "--set", "steps=3", *way)[1]
        t.check("strips: each of 1 to 5 of 64 images" in lines and all(result(lines)), "it trains",
                way, lines)
        seen.append(result(lines))
    t.check(all(one == seen[0] for one in seen), "equal results", seen)


def reduced(t, config):
    """Frames of a time_reduction are those of a reshape; behind the last ones there are zeros."""
    with open(config, encoding="utf-8") as f:
        layers = json.load(f)["model"]["layers"]

    def of(*instead):
        those = layers[:2] + [dict(layer, name=f"at_{i}") for i, layer in enumerate(instead)]
        return trained(t, config, "i", "--set", "model.layers=" + json.dumps(those + layers[3:]))
    shapes = [{"type": "reshape", "target_shape": [9, 24]}], [
        {"type": "zero_padding2d", "padding": [[0, 2], [0, 0]]},
        {"type": "reshape", "target_shape": [5, 48]}]
    for factor, shape in zip((2, 4), shapes):
        found = of({"type": "time_reduction", "factor": factor}), of(*shape)
        t.check(found[0] == found[1] and all(found[0]), "fewer frames", factor, *found)


def refusals(t, config):
    for code, text, *arguments in (
            (78, "wanted one label, and model.input [24, 4, 2]", "data.strips.max=4",
             "model.labels=4", "model.input=[36,2,2]"),
            (78, "data.strips: found 1 to 4 images", "data.strips.max=4"),
            (78, "data.strips: found 3 to 2 images", "data.strips.min=3", "data.strips.max=2"),
            (78, "data.strips: found 1 to 3 images, model.labels 2", "model.labels=2"),
            (78, "data.strips: the required key \"max\" is missing", "data.strips={}"),
            (78, "data.augment.shift: found 1 rows", "data.augment.shift=1"),
            (65, "label 3: found 3, wanted 0 to 2 (3 classes)", "model.classes=4")):
        options = [word for setting in arguments for word in ("--set", setting)]
        error = t.expect(code, "train", config, "--fresh", "--run-dir", "no", *options)[2]
        t.check(text in error and error.count("\n") == 1, text, error)
    error = t.expect(78, "plan", config, "--set", "data.train=" + json.dumps(
        {"made_up": {"count": 9, "classes": CLASSES + 1}}))[2]
    t.check("wanted at most 4, which is model.classes without the blank" in error, "made up", error)
    error = t.expect(69, "plan", config, "--show-shards")[2]
    t.check("data.strips: which images make a strip is drawn" in error, "shards", error)


def main():
    t = Test()
    random.seed(4)
    images = [[random.randrange(256) for _ in range(HEIGHT * WIDTH * CHANNELS)]
              for _ in range(COUNT)]
    labels = [i % CLASSES for i in range(COUNT)]
    as_files(t, images, labels)
    config = configuration(t, "strips.json", strips("trainu8", "testu8", train_count=STRIPS))
    same_bits(t, config, "global")
    given(t, config)
    disagreement(t, config)
    ledger(t, config)
    sharded(t)
    identities(t, config)
    reduced(t, config)
    refusals(t, config)
    ready(t)
    plan = t.expect(0, "plan", config)[1]
    t.check(any("u8   (144)  strip" in line for line in plan), "its bytes are planned", *plan[-40:])
    t.finish()


if __name__ == "__main__":
    main()
