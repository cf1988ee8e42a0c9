#!/usr/bin/env python3
"""generate_test - images of a run's generator: as a picture and as an array, by weights, seed and
number alone; the pictures of a training, which are those of its checkpoints; refusals.

   generate_test.py PROGRAM WORK_DIR GAN_JSON
"""
import ast
import json
import os
import shutil
import struct
import sys
import zlib

from program import Test, result

H, W = 10, 8


def array(path):
    """An .npy file of bytes: its shape and its rows."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<H", data[8:10])[0]
    head = ast.literal_eval(data[10:10 + size].decode())
    assert data[:8] == b"\x93NUMPY\x01\x00" and head["descr"] == "|u1", head
    assert not head["fortran_order"], head
    count, row = head["shape"][0], len(data[10 + size:]) // max(head["shape"][0], 1)
    return head["shape"], [data[10 + size + i * row:10 + size + (i + 1) * row]
                           for i in range(count)]


def pixels(path):
    """A grey PNG without filters: rows of bytes."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body, width, height = 8, b"", 0, 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        inside = data[at + 8:at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(
            kind + inside)
        if kind == b"IHDR":
            width, height = struct.unpack(">II", inside[:8])
        if kind == b"IDAT":
            body += inside
        at += 12 + size
    body = zlib.decompress(body)
    return [body[y * (width + 1) + 1:(y + 1) * (width + 1)] for y in range(height)]


def cut(rows, columns, count):
    """The images of a grid, and whether what is left over is grey."""
    images = []
    for n in range(count):
        y, x = n // columns * H, n % columns * W
        images.append(b"".join(row[x:x + W] for row in rows[y:y + H]))
    rest = [row[x:x + W] for n in range(count, len(rows) // H * columns)
            for row in rows[n // columns * H:n // columns * H + H]
            for x in [n % columns * W]]
    return images, all(row == b"\x80" * W for row in rest)


def one_run(t, config):
    """What `generate` makes of its newest weights."""
    code, lines, error = t.run("generate", config, "--run-dir", "run", "--count", "7", "--output",
                               "seven.npy")
    t.check(code == 0 and "images 7" in lines, "an array", code, lines, error)
    shape, seven = array("seven.npy")
    t.check(shape == (7, H, W, 1) and len(set(seven)) == 7, "seven images that differ", shape)
    t.expect(0, "generate", config, "--run-dir", "run", "--count", "7", "--output", "seven.png")
    images, grey = cut(pixels("seven.png"), 3, 7)
    t.check(images == seven and grey and len(pixels("seven.png")) == 3 * H, "a picture of them")
    # A number's image is its own, however many there are, in whatever microbatches and kernels.
    for more in (["--count", "64"], ["--count", "300", "--set", "layout.wave_examples=32"],
                 ["--count", "40", "--kernels", "reference"],
                 ["--count", "9", "--set", "layout.guards=true"], []):
        t.expect(0, "generate", config, "--run-dir", "run", "--output", "more.npy", *more)
        shape, many = array("more.npy")
        t.check(many[:7] == seven and shape[0] == int(more[1] if more else 64), "the same", more,
                shape)
        t.check(len(set(many)) == shape[0], "and each its own", more, len(set(many)))
    t.expect(0, "generate", config, "--run-dir", "run", "--count", "7", "--output", "other.npy",
             "--seed", "5")
    t.check(not set(array("other.npy")[1]) & set(seven), "another seed, other images")
    t.expect(0, "generate", config, "--run-dir", "run", "--count", "5", "--output", "way.npy",
             "--between", "2,6")
    way = array("way.npy")[1]
    t.check(way[0] == seven[2] and way[4] == seven[6] and len(set(way)) == 5,
            "on the way from one to another")
    checkpoints = sorted(os.listdir("run/checkpoints"))
    t.expect(0, "generate", config, "--checkpoint", "run/checkpoints/" + checkpoints[0],
             "--count", "4", "--output", "first.npy")
    t.check(array("first.npy")[1] != seven[:4], "other weights, other images")
    return checkpoints


def pictures(t, config, checkpoints):
    """Those of a training are those of the checkpoint of that step."""
    found = sorted(f for f in os.listdir("run") if f.endswith(".png"))
    t.check(found == [f"samples-{n:010}.png" for n in (20, 40, 60)], "a picture every 20 steps",
            found)
    t.check(len(checkpoints) == 3, "and three checkpoints", checkpoints)
    for name, picture in zip(checkpoints, found):
        t.expect(0, "generate", config, "--checkpoint", "run/checkpoints/" + name, "--count", "10",
                 "--output", "again.png")
        with open("again.png", "rb") as a, open("run/" + picture, "rb") as b:
            t.check(a.read() == b.read(), "the same picture", name, picture)


def runs(t, config):
    """Pictures change no bit, whoever makes them; --fresh removes them."""
    train = ("train", config, "--set", "samples.every_steps=20", "--set", "samples.count=10",
             "--set", "checkpoint.every_steps=20", "--set", "steps=60")
    _, lines, _ = t.expect(0, *train, "--run-dir", "run", "--seal")
    _, plain, _ = t.expect(0, "train", config, "--set", "steps=60", "--run-dir", "plain")
    t.check(result(lines)[0] == result(plain)[0], "the same digest", lines, plain)
    _, guarded, _ = t.expect(0, *train, "--run-dir", "guarded", "--replicas", "3", "--set",
                             "layout.guards=true", "--set", "events.images=1")
    t.check(result(guarded)[0] == result(plain)[0], "with guards, too", guarded)
    for name in sorted(f for f in os.listdir("run") if f.endswith(".png")):
        with open("run/" + name, "rb") as a, open("guarded/" + name, "rb") as b:
            png = a.read()
            t.check(png == b.read(), "the same picture of three replicas", name)
        events = [f for f in os.listdir("guarded") if f.startswith("events.")]
        with open("guarded/" + events[0], "rb") as f:
            t.check(png in f.read(), "it is in the event file", name)
    for collective in ("window", "messages"):
        code, lines, error = t.run("launch", "--workers", "2", "--replicas", "2", *train,
                                   "--run-dir", "workers", "--fresh", "--quiet", "--collective",
                                   collective)
        if code == 69 and "has no MPI" in error:
            print("not done with workers: this build has no MPI")
            break
        lines = [line.partition("] ")[2] for line in lines]
        t.check(code == 0 and result(lines)[0] == result(plain)[0], "of two workers", collective,
                lines, error)
        with open("run/samples-0000000060.png", "rb") as a, \
                open("workers/samples-0000000060.png", "rb") as b:
            t.check(a.read() == b.read(), "the same picture of two workers", collective)
    t.expect(0, *train, "--run-dir", "guarded", "--fresh", "--set", "samples.every_steps=50")
    t.check([f for f in os.listdir("guarded") if f.endswith(".png")] ==
            ["samples-0000000050.png"], "the old ones are gone", os.listdir("guarded"))


def channels(t):
    """A picture of two channels shows the first, and who makes it says so."""
    optimizer = {"type": "sgd", "learning_rate": 0.1}
    config = t.write("two.json", {
        "global_batch": 16, "grain": 8, "cycles": 2, "samples": {"every_steps": 2, "count": 4},
        "model": {"input": [H, W, 2], "gan": {
            "noise": {"type": "normal", "shape": [3]},
            "generator": [{"type": "dense", "units": H * W * 2},
                          {"type": "reshape", "target_shape": [H, W, 2]}],
            "discriminator": [{"type": "flatten"}, {"type": "dense", "units": 1}],
            "loss": "hinge", "generator_optimizer": optimizer,
            "discriminator_optimizer": optimizer}},
        "data": {"train": {"made_up": {"count": 32, "height": H, "width": W, "channels": 2}}}},
        ["optimizer", "steps"])
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "two")
    t.check("samples: of 2 channels pictures show the first" in lines, "of samples", lines)
    for name in ("two.png", "two.npy"):
        _, lines, _ = t.expect(0, "generate", config, "--run-dir", "two", "--count", "4",
                               "--output", name)
        said = "of 2 channels the picture shows the first; all are in --output FILE.npy" in lines
        t.check(said == name.endswith("png"), "of generate", name, lines)
    shape, images = array("two.npy")
    t.check(shape == (4, H, W, 2), "all channels", shape)
    found, _ = cut(pixels("two.png"), 2, 4)
    t.check(found == [image[::2] for image in images], "the first channel")


def refusals(t, config):
    small = t.write("small.json")
    for code, words, arguments in (
            (64, "wanted weights", ["generate", config, "--output", "x.png"]),
            (64, "wanted FILE.png or FILE.npy", ["generate", config, "--run-dir", "run"]),
            (64, "wanted FILE.png or FILE.npy",
             ["generate", config, "--run-dir", "run", "--output", "x.jpg"]),
            (64, "--between: found \"1\"",
             ["generate", config, "--run-dir", "run", "--output", "x.png", "--between", "1"]),
            (64, "has more than 1048576 pixels",
             ["generate", config, "--run-dir", "run", "--output", "x.png", "--count", "90000"]),
            (66, "none", ["generate", config, "--run-dir", "none", "--output", "x.png"]),
            (78, "wanted one: a generator of images",
             ["generate", small, "--run-dir", "run", "--output", "x.png"]),
            (78, "samples.every_steps: found no value",
             ["train", small, "--run-dir", "no", "--set", "samples.every_steps=1"]),
            (78, "samples.count: found 90000 images",
             ["train", config, "--run-dir", "no", "--set", "samples.every_steps=1", "--set",
              "samples.count=90000"])):
        found, lines, error = t.run(*arguments)
        t.check(found == code and words in error, "refused", arguments, found, lines, error)
    t.check(not os.path.exists("x.png") and not os.path.exists("no"), "and nothing is written")


def main():
    t = Test()
    with open(sys.argv[3], encoding="utf-8") as f:
        document = json.load(f)
    with open("gan.json", "w", encoding="utf-8") as f:
        json.dump(document, f)
    runs(t, "gan.json")
    checkpoints = one_run(t, "gan.json")
    pictures(t, "gan.json", checkpoints)
    channels(t)
    refusals(t, "gan.json")
    shutil.rmtree("plain")
    return t.finish()


if __name__ == "__main__":
    sys.exit(main())
