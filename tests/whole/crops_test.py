#!/usr/bin/env python3
"""crops_test - parts of larger images: another one in each step, the same for any layout, workers
and GPU, the middle where nothing is trained.

   crops_test.py PROGRAM WORK_DIR CUDA_PROGRAM

CUDA_PROGRAM is the program whose GPU is the processor. Standard library only.
"""
import json
import os
import struct
import sys

from program import Test, finish, free_port, result, start, tf_config, value

H, W, COUNT, TESTS = 15, 13, 300, 40  # what is left beside a middle is odd
FROM = {"data.augment": {"crop_from": [H, W], "flip": "horizontal"}, "steps": 12}


def idx(path, dims, values):
    with open(path, "wb") as f:
        f.write(struct.pack(f">HBB{len(dims)}I", 0, 8, len(dims), *dims) + bytes(values))


def write_sets():
    """The same images whole, and of the test set their middles alone."""
    pixels = [(7 * i * i + 13 * i) % 251 for i in range((COUNT + TESTS) * H * W)]
    labels = [i % 10 for i in range(COUNT + TESTS)]
    one = H * W
    idx("images", (COUNT, H, W), pixels[:COUNT * one])
    idx("labels", (COUNT,), labels[:COUNT])
    idx("test-images", (TESTS, H, W), pixels[COUNT * one:])
    idx("test-labels", (TESTS,), labels[COUNT:])
    top, left = (H - 10) // 2, (W - 10) // 2
    idx("middles", (TESTS, 10, 10),
        [pixels[(COUNT + n) * one + (top + y) * W + left + x]
         for n in range(TESTS) for y in range(10) for x in range(10)])


def data(images):
    return {"images": images, "labels": "labels" if images == "images" else "test-labels"}


def trained(t, config):
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "run")
    wanted, test = result(lines), value(lines, "test_loss")
    for more in (["--kernels", "reference", "--replicas", "1"],
                 ["--kernels", "portable", "--replicas", "3"],
                 ["--set", "layout.wave_examples=16"]):
        t.expect(0, "train", config, "--run-dir", "other", "--fresh", "--set", "steps=5", *more)
        _, lines, _ = t.expect(0, "train", config, "--run-dir", "other", "--resume")
        t.check(result(lines) == wanted, "another layout, resumed", more, lines[-2:])
    for key, other in (("flip", "none"), ("shift", 1)):
        _, lines, _ = t.expect(0, "train", config, "--run-dir", "else", "--fresh", "--set",
                               f"data.augment.{key}={json.dumps(other)}")
        t.check(result(lines) != wanted, "the rest does as ever", key)
    port = free_port()
    ends = finish([start(t, tf_config(2, r, port), "train", config, "--run-dir", "two",
                         "--replicas", "1", "--collective", "messages") for r in range(2)])
    if ends[0][0] != 69 or "has no MPI" not in ends[0][2]:
        t.check([e[0] for e in ends] == [0, 0] and result(ends[0][1].splitlines()) == wanted,
                "two workers", ends)
    t.program, here = os.path.abspath(sys.argv[3]), t.program
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "2"
    for more in (["--replicas", "1"], ["--gpus", "2", "--replicas", "2"]):
        code, lines, error = t.run("train", config, "--run-dir", "gpu", "--fresh", "--kernels",
                                   "cuda", *more)
        t.check(code == 0 and result(lines) == wanted and value(lines, "test_loss") == test,
                "on a GPU", more, error, lines[-4:])
    _, _, error = t.expect(78, "train", config, "--run-dir", "gpu", "--fresh", "--kernels", "cuda",
                           "--set", "layout.resident=true")
    t.check("data.augment.crop_from" in error and "layout.resident" in error, error)
    t.program = here
    return test


def evaluated(t, config, test):
    """The middle: what a run that knows no parts makes of the middles."""
    _, lines, _ = t.expect(0, "eval", config, "--run-dir", "run")
    t.check(value(lines, "test_loss") == test, "as at the end of the run", lines, test)
    plain = ["--set", "data.augment={}", "--set", "data.test.images=middles"]
    _, lines, _ = t.expect(0, "eval", config, "--checkpoint",
                           "run/checkpoints/step-0000000012.safetensors", *plain)
    t.check(value(lines, "test_loss") == test, "the middle", lines, test)
    found = []
    for more in ([], ["--images", "middles"]):  # images of model.input
        t.expect(0, "predict", config, "--run-dir", "run", "--output", "p.npy", *more)
        with open("p.npy", "rb") as f:
            found.append(f.read())
    t.check(found[0] == found[1], "predict --images", more)


def refused(t, config):
    for code, word, *options in (
            (78, "crop_from: found [9, 12]", "data.augment.crop_from=[9,12]"),
            (78, "crop_from: found [0, 12]", "data.augment.crop_from=[0,12]"),
            (78, "data.augment.crop_from is 14 x 12", "data.augment.crop_from=[14,12]"),
            (78, "but model.input is 10 x 10 x 1", "data.augment.crop_from=0"),
            (78, "data.augment.crop_from", "data.augment.crop_from=70000")):
        sets = [word for option in options for word in ("--set", option)]
        found, _, error = t.run("train", config, "--run-dir", "never", *sets)
        t.check(found == code and word in error and error.count("\n") == 1, word, found, error)
    t.check(not os.path.exists("never"), "nothing was begun")
    code, _, error = t.run("embed", config, "--to", "board.c")
    t.check(code != 0 and "data.augment" in error, "no board", code, error)


def main():
    t = Test()
    write_sets()
    config = t.write("config.json", {**FROM, "data.train": data("images"),
                                     "data.test": data("test-images")})
    evaluated(t, config, trained(t, config))
    refused(t, config)
    t.finish()


if __name__ == "__main__":
    main()
