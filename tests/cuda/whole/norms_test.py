#!/usr/bin/env python3
"""norms_test - updates that want norms of the whole gradient first, kernels divided by their norms,
regularizers, weights of classes, averages of weights, images that a step moves, mirrors, adjusts,
cuts and takes parts of, inputs of floats, and a transducer, on GPUs: the golden digests of one GPU,
of several that exchange by themselves, and of workers whose hosts exchange. GPUs and NCCL are
played by the host execution layer.

   norms_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../whole")]
import world  # noqa: E402
from floats_test import as_floats  # noqa: E402
from program import Test, golden, result  # noqa: E402
from world import end, gpu, shown, threads  # noqa: E402

MATRIX, GOLDEN = (os.path.abspath(a) for a in sys.argv[3:5])
RUNS = os.path.dirname(MATRIX)
LAYERS = ["--set", "layout.exchange_floats=1"]  # each layer travels alone

NAMES = ["norms", "clipped", "augmented", "cropped", "averaged", "regularized",
         "weighted", "transducer", "spectral"]
RESIDENT = "layout.resident=true"  # of which the host takes no parts of images, nor makes strips

# Step 4 is a short one.
ROWS = [["--replicas", "1"], ["--set", RESIDENT], ["--replicas", "3"],
        ["--gpus", "2", "--replicas", "3", *LAYERS]]
MIXES = [[threads(2), gpu()], [gpu(2), gpu()]]


def check(name, lines, *what):
    wanted = golden(GOLDEN, 4, name)
    T.check(result(lines) == wanted, name, *what, result(lines), wanted)


def arguments(name):
    return [os.path.join(RUNS, name + ".json"), "--run-dir", "run", "--fresh", "--set", "steps=4"]


def one_process():
    for name in NAMES:
        for number, row in enumerate(ROWS):
            if name in ("cropped", "transducer") and RESIDENT in row:
                continue
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number + 1)
            check(name, T.expect(0, "train", *arguments(name), "--kernels", "cuda", *row)[1], *row)
        os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")


def floats():
    """Floats with the values of bytes: made up, in the machine's order; of a file, in the other;
    streamed and resident."""
    T.expect(0, "data", "shard", "--made-up", "1000", "--height", "10", "--width", "8", "--shards",
             "1", "--to", "bytes")
    as_floats("bytes/images-00000.idx", "floats.idx")
    pair = '{"images": "floats.idx", "labels": "bytes/labels-00000.idx"}'
    for data in ([], ["--set", "data.train=" + pair]):
        for resident in ("true", "false"):
            row = ["--set", "model.input_type=f32", "--set", "layout.resident=" + resident, *data]
            check("clipped", T.expect(0, "train", *arguments("clipped"), "--kernels", "cuda",
                                      *row)[1], *row)


def divided():
    """Evaluations and made-up images of divided kernels, beside a processor's, and what is said of
    a kernel whose squares are infinite. A GPU makes a picture of what a processor trained."""
    config = os.path.join(RUNS, "spectral.json")
    tests = ["--set", 'data.test={"made_up":{"first":5000,"count":150,"height":10,"width":8}}']
    said = {}
    for kernels in ("portable", "cuda"):
        lines = T.expect(0, "train", config, "--run-dir", "run", "--fresh", "--set", "steps=5",
                         "--set", "evaluate_every_steps=2", *tests, "--kernels", kernels)[1]
        said[kernels] = [line.split(", after")[0] for line in lines if "_loss " in line]
        said[kernels] += result(lines)
        T.expect(0, "generate", config, "--run-dir", "run", "--count", "30", "--output",
                 kernels + ".npy", "--kernels", kernels)
        T.expect(0, "generate", config, "--run-dir", "run", "--count", "30", "--output",
                 "other.npy", "--kernels", {"portable": "cuda", "cuda": "portable"}[kernels])
        T.check(world.read(kernels + ".npy") == world.read("other.npy"), "images", kernels)
    T.check(said["cuda"] == said["portable"], "evaluations", said)
    T.check(len(said["cuda"]) == 7, "evaluations of", said)
    steep = T.write("steep.json", {"steps": 3, "model.layers.0.spectral_normalization": True,
                                   "optimizer.learning_rate": 1e25})
    errors = [T.expect(80, "train", steep, "--run-dir", "run", "--fresh", "--kernels",
                       kernels)[2].splitlines()[0] for kernels in ("portable", "cuda")]
    T.check(errors[0] == errors[1] and "not finite" in errors[0], "how it ends", *errors)


def by_way_of_hosts():
    for name in NAMES:
        for mix in MIXES:
            code, lines, error = end(start(mix, [*arguments(name), "--collective", "mpi"]))
            T.check(code == 0, shown(mix), f"exit {code}, wanted 0", *error[-8:])
            check(name, lines, shown(mix))


def start(mix, words):
    return world.start(T, mix, words)


T = Test()
os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "2"
one_process()
floats()
divided()
world.main(T, start, MATRIX, 2, by_way_of_hosts)
