#!/usr/bin/env python3
"""fast_test - the whole program in the fast arithmetic, its GPU played by the host execution layer
and cuBLAS by a recording stand-in: the same bits for any replicas, waves and resumes; the loss
scale of fp16, and its overflows; an accuracy like that of the strict arithmetic; what is taken, and
what is refused.

   fast_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON [few]
"""
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../whole"))
from program import Test, log_of, result, value  # noqa: E402

MATRIX = os.path.abspath(sys.argv[3])
FEW = sys.argv[5:] == ["few"]  # every way once
PRECISIONS = ("tf32", "bf16", "fp16")
DEVICE = re.compile(r"device: (\d+) allocations after the seal, (\d+) bytes")
PRODUCTS = re.compile(r"cuBLAS: (\d+) products, (\d+) of them captured, by (\d+) algorithms; "
                      r"(\d+) astray")
TEST_SET = ["--set", 'data.test={"made_up":{"first":5000,"count":150,"height":10,"width":8}}']

# Step 4 is a short one, of 232 examples: with grains of 16 its last has 8.
ROWS = [
    ["--replicas", "1"],
    ["--replicas", "4"],
    ["--replicas", "1", "--set", "layout.wave_examples=48", "--set", "layout.resident=true"],
    ["--replicas", "3", "--set", "layout.wave_examples=16", "--set", "layout.overlay=false"],
    ["--replicas", "2", "--set", "layout.fuse=false"],
]


def fast(precision, *more):
    return ["--kernels", "cuda", "--set", "arithmetic=fast", "--set", f"fast_precision={precision}",
            "--set", "grain=16", *more]


def train(t, directory, *arguments, steps=4, fresh=True, code=0):
    return t.expect(code, "train", MATRIX, "--set", f"steps={steps}", "--run-dir", directory,
                    "--fresh" if fresh else "--resume", *arguments)


def same_bits(t):
    seen = {}
    for precision in PRECISIONS:
        found = []
        for number, row in enumerate(ROWS[:2] if FEW else ROWS):
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number)
            _, lines, error = train(t, "bits", *fast(precision, *row, *TEST_SET))
            found.append((result(lines), value(lines, "test_loss"), value(lines, "run_identity")))
            device, products = DEVICE.search(error), PRODUCTS.search(error)
            if t.check(device and products, "counts", error):
                t.check(device.group(1) == "0", "allocations after the seal", error)
                t.check(products.group(4) == "0", "operands that are no tensors", error)
                t.check(0 < int(products.group(2)) < int(products.group(1)), "captured", error)
        os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
        t.check(len(set(found)) == 1, f"{precision}: bits of all rows", *found)
        lines = train(t, "halves", *fast(precision, *ROWS[1], *TEST_SET), steps=2)[1]
        lines = train(t, "halves", *fast(precision, *ROWS[2], *TEST_SET), fresh=False)[1]
        t.check(result(lines) == found[0][0], f"{precision}: resumed", result(lines), found[0])
        t.check("WARNING" not in "\n".join(lines), "a warning without cause", *lines)
        seen[precision] = found[0]
    lines = train(t, "strict", "--kernels", "cuda", *TEST_SET)[1]
    seen["strict"] = (result(lines), value(lines, "test_loss"), value(lines, "run_identity"))
    for what in range(3):
        t.check(len({str(s[what]) for s in seen.values()}) == 4, "four arithmetics", seen)


def pooled_config(name, filters, activation):
    """Two convolutions that pool: first odd rows and columns (9 x 7), then odd columns."""
    with open(MATRIX, encoding="utf-8") as f:
        document = json.load(f)
    conv = {"type": "conv2d", "kernel_size": 3, "padding": "same", **activation}
    document["model"]["layers"] = [
        {**conv, "filters": 4, "kernel_size": 2, "padding": "valid"},
        {"type": "max_pool2d", "pool_size": 2},
        {**conv, "filters": filters, "name": "second"},
        {"type": "max_pool2d", "pool_size": 2},
        {"type": "flatten"}, {"type": "dense", "units": 18, "activation": "relu"},
        {"type": "dense", "units": 10}]
    with open(name, "w", encoding="utf-8") as f:
        json.dump(document, f)
    return name


def pooled(t):
    """Convolutions that pool: by the strict kernels, whether or not one op does it all; in bf16
    the dense layer's input has 16 bits where its rows are whole lines of 16 bytes."""
    relu = {"activation": "relu"}
    for filters, activation, narrow in ((8, relu, True), (5, relu, False), (8, {}, True)):
        config = pooled_config("pooled.json", filters, activation)
        rows = ROWS if narrow and activation and not FEW else ROWS[3:]
        for precision in PRECISIONS:
            text = "\n".join(t.expect(0, "plan", config, *fast(precision))[1])
            dtype = {"bf16": "bf16", "fp16": "f16"}.get(precision, "f32") if narrow else "f32"
            t.check(re.search(rf"activation {dtype} +\(\d+, {2 * filters}\)  second ", text),
                    "what is stored", filters, precision, text)
            t.check(len(re.findall(r"forward +conv2d\+pool ", text)) == 2, "fused", text)
            found = []
            for number, row in enumerate(rows):
                os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number)
                _, lines, error = t.expect(0, "train", config, "--set", "steps=4", "--run-dir",
                                           "pooled", "--fresh", *fast(precision, *row, *TEST_SET))
                found.append((result(lines), value(lines, "test_loss"),
                              value(lines, "test_accuracy")))
                products = PRODUCTS.search(error)
                t.check(products and products.group(4) == "0", "operands", error)
            os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
            t.check(len(set(found)) == 1, f"{precision}: bits of pooled rows", *found)
        strict = t.expect(0, "train", config, "--set", "steps=4", "--run-dir", "strict", "--fresh",
                          "--kernels", "cuda", *TEST_SET)[1]
        t.check(abs(float(value(strict, "test_loss")) - float(found[0][1])) < 0.02,
                "loss of strict", value(strict, "test_loss"), found[0])


def networks(t):
    """Rows of a network that is used several times are gathered in fp32: what pools stays so."""
    with open(os.path.join(os.path.dirname(MATRIX), "objectives.json"), encoding="utf-8") as f:
        document = json.load(f)
    model = document["model"]
    model["networks"] = [one for one in model["networks"] if one["name"] != "pair"]
    model["objectives"][0].update(trains=["stem", "head"], values=[
        {"name": "x", "network": "stem"}, {"name": "logits", "network": "head"}])
    with open("networks.json", "w", encoding="utf-8") as f:
        json.dump(document, f)
    for precision, dtype in (("bf16", "bf16"), ("fp16", "f16")):
        text = "\n".join(t.expect(0, "plan", "networks.json", *fast(precision))[1])
        t.check("conv2d+pool " in text and f"activation {dtype}" not in text, "stored", text)
        found = {result(t.expect(0, "train", "networks.json", "--set", "steps=5", "--run-dir",
                                 "networks", "--fresh", *fast(precision, *row))[1])
                 for row in ROWS[3:]}
        t.check(len(found) == 1, "several networks", precision, *found)


def sharded(t):
    """Order "sharded", whose last step has positions without an example."""
    t.expect(0, "data", "shard", "--made-up", "1001", "--height", "10", "--width", "8", "--shards",
             "4", "--to", "shards")
    data = ["--set", 'data={"order":"sharded","train":{"manifest":"shards/manifest.json"}}']
    found = {result(train(t, "sharded", *fast("bf16", *row, *data))[1]) for row in ROWS[:3]}
    t.check(len(found) == 1, "sharded", *found)


def diverging(t):
    """A number that is not finite is found where it first comes up, with its step and tensor."""
    said = []
    for row in ROWS[:2]:
        error = train(t, "diverged", *fast("tf32", *row), "--set", "optimizer.learning_rate=1e20",
                      steps=50, code=80)[2]
        said.append([line for line in error.splitlines() if line.startswith("lockstep:")])
    t.check(len(said[0]) == 1 and said[0] == said[1] and "is not finite" in said[0][0],
            "diverging", *said)


# The first steps overflow; the scale grows after a few, until one does again.
SCALE = ["--set", "loss_scale.initial=268435456", "--set", "loss_scale.growth_steps=2"]


def scaled(t):
    """Overflows of fp16 are skipped, or computed again at a smaller scale: one verdict and one log
    for all replicas and GPUs, gone on with from between them."""
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "2"
    for way in ("skip", "replay"):
        same = [*fast("fp16"), *SCALE, "--set", f"loss_scale.on_overflow={way}", "--set",
                "log_every_steps=1", *TEST_SET]
        found, logs = [], []
        for row in (ROWS[0], ROWS[2], ["--gpus", "2", "--replicas", "3"])[FEW:]:
            lines = train(t, way, *same, *row, steps=12)[1]
            found.append((result(lines), value(lines, "test_loss"), value(lines, "run_identity")))
            logs.append(log_of(way))
        t.check(len(set(found)) == 1, f"{way}: one digest", *found)
        t.check(all(log == logs[0] for log in logs), f"{way}: one log", *logs)
        with open(f"{way}/metrics.jsonl", encoding="utf-8") as f:
            last = [line["train"] for line in map(json.loads, f) if "train" in line][-1]
        t.check((last["skipped"] > 2) == (way == "skip") and (last["replayed"] > 2) ==
                (way == "replay"), way, last)
        t.check(last["loss_scale"] < 268435456, "the scale fell", last)
        for steps in (1, 7)[FEW:]:
            train(t, "on", *same, *ROWS[1], steps=steps)
            lines = train(t, "on", *same, *ROWS[2], steps=12, fresh=False)[1]
            t.check(result(lines) == found[0][0], f"{way}: gone on with after {steps}", lines)
    os.environ.pop("LOCKSTEP_HOST_CUDA_DEVICES")
    for more, said in ((["loss_scale.skips_max=2"], "loss_scale.skips_max steps were skipped"),
                       (["loss_scale.floor=268435456", "loss_scale.on_overflow=replay"],
                        "loss_scale.floor allows no smaller one")):
        options = [word for key in more for word in ("--set", key)]
        error = train(t, "ends", *fast("fp16"), *SCALE, *options, steps=12, code=80)[2]
        t.check(said in error and "or fast_precision bf16 or tf32" in error, "how it ends", error)
    text = "\n".join(t.expect(0, "plan", MATRIX, *fast("fp16"))[1])
    t.check("run/loss_scale/state" in text and "run/steps/skipped" in text, "plan", text)


def accuracy(t):
    """A network learns as well as in the strict arithmetic; diff --tolerance says how far apart."""
    config = t.write("learns.json", {
        "log_every_steps": 20, "grain": 32, "optimizer.learning_rate": 0.1,
        "data.test": {"made_up": {"first": 5000, "count": 300, "height": 10, "width": 10}}})
    for precision, steps in (("tf32", 20), ("bf16", 80), ("fp16", 80)):
        length = ["--set", f"steps={steps}", "--fresh", "--run-dir"]
        strict = t.expect(0, "train", config, *length, "strict")[1]
        lines = t.expect(0, "train", config, *length, precision, "--kernels", "cuda", "--set",
                         "arithmetic=fast", "--set", f"fast_precision={precision}")[1]
        wanted, found = (float(value(out, "test_accuracy")) for out in (strict, lines))
        t.check(abs(wanted - found) < 5.0 and (steps < 80 or found > 25.0), "accuracy", wanted,
                found)
        text = "\n".join(t.run("diff", "strict", precision, "--tolerance", "1e-9")[1])
        apart = re.search(r"train loss: .* relative difference (\S+) ", text)
        t.check(apart and 1e-9 < float(apart.group(1)) < 0.05, "losses", text)
        t.check(f"step {steps}: A {wanted:.2f}%, B {found:.2f}%" in text, "accuracy of diff", text)


def what_is_said(t):
    """Arithmetic, precision, GPU and cuBLAS; and loudly where a resumed run may part."""
    lines = train(t, "said", *fast("bf16"), steps=2)[1]
    text = "\n".join(lines)
    t.check("arithmetic fast: products in bf16 by cuBLAS 13.1.0 on host execution layer" in text,
            "train", text)
    wanted = {"arithmetic": "fast", "precision": "bf16", "gpu": "host execution layer",
              "cublas": "13.1.0"}
    with open("said/arithmetic.json", encoding="utf-8") as f:
        t.check(json.load(f) == wanted, "arithmetic.json")
    text = "\n".join(t.expect(0, "checkpoint", "info",
                              "said/checkpoints/step-0000000002.safetensors")[1])
    for key, said in wanted.items():
        t.check(re.search(rf"{key}\W+{re.escape(said)}", text), "checkpoint", key, text)
    for name, other in (("LOCKSTEP_HOST_CUDA_NAME", "another GPU"),
                        ("LOCKSTEP_HOST_CUBLAS_VERSION", "130200")):
        os.environ[name] = other
        _, lines, error = train(t, "said", *fast("bf16"), steps=3, fresh=False)
        os.environ.pop(name)
        for text in ("\n".join(lines), error):
            t.check("WARNING: said/checkpoints/" in text and "may part" in text, name, text)
        train(t, "said", *fast("bf16"), steps=2)
    t.expect(78, "train", MATRIX, "--run-dir", "said", "--resume", "--set", "steps=4")
    train(t, "strict", "--kernels", "cuda", steps=2)
    for precision in PRECISIONS:
        error = train(t, "strict", *fast(precision), fresh=False, code=78)[2]
        t.check("holds run" in error, "a strict run resumed as fast", error)


def plan(t):
    lines = t.expect(0, "plan", MATRIX, *fast("bf16"))[1]
    text = "\n".join(lines)
    for wanted in ("cuBLAS workspace", "33554432 bytes x 2", "cuBLAS plans",
                   "arithmetic fast: products in bf16", "scratch    f32"):
        t.check(wanted in text, "plan", wanted, text)
    taken = DEVICE.search(train(t, "plan", *fast("bf16"), steps=1)[2]).group(2)
    said = json.loads("\n".join(t.expect(0, "plan", MATRIX, "--json", *fast("bf16"))[1]))
    planned = said["gpus"][0]["bytes"]
    t.check(int(taken) == planned, "planned and taken", planned, taken)
    # Without a grain in the configuration: large, but eight of them.
    for batch, grain in ((256, 32), (8192, 1024), (65536, 4096), (1000, 8), (24, 8), (7, 1)):
        document = json.load(open(MATRIX, encoding="utf-8"))
        document.pop("grain")
        document.update(global_batch=batch, arithmetic="fast")
        with open("grain.json", "w", encoding="utf-8") as f:
            json.dump(document, f)
        text = "\n".join(t.expect(0, "plan", "grain.json", "--kernels", "cuda")[1])
        t.check(f"grains of {grain};" in text, f"grain of {batch}", text)


def refused(t, code, text, *arguments, **environment):
    os.environ.update(environment)
    found, _, error = t.run("train", MATRIX, "--run-dir", "refused", "--fresh", *arguments)
    for name in environment:
        os.environ.pop(name)
    said = [line for line in error.splitlines() if not re.match("device: |cuBLAS: ", line)]
    t.check(found == code and len(said) == 1 and text in said[0], f"exit {found}, wanted {code}",
            f"wanted: {text}", *said)


def refusing(t):
    on_cuda = fast("tf32")
    for kernels in ("auto", "portable", "reference"):
        refused(t, 69, "matrix units of a GPU", "--set", "arithmetic=fast", "--kernels", kernels)
    refused(t, 69, "no GPU can be used here", *on_cuda, LOCKSTEP_HOST_CUDA_DEVICES="0")
    refused(t, 78, 'in "fast" set fast_precision to "fp16" instead, and take precision out',
            *fast("fp16"), "--set", "precision=mixed_float16")
    refused(t, 78, 'in fast_precision "fp16"; set that, or take loss_scale out', *fast("bf16"),
            "--set", "loss_scale.initial=1024")
    refused(t, 78, "loss_scale.initial: wanted a power of two", *fast("fp16"), "--set",
            "loss_scale.initial=3")
    refused(t, 78, "precision", "--set", "fast_precision=bf16")
    refused(t, 78, "arithmetic", "--set", "arithmetic=quick")
    refused(t, 69, "libcublasLt.so.13 cannot be loaded", *on_cuda, LOCKSTEP_HOST_CUDA_FAIL="dlopen")
    refused(t, 69, "libcublasLt.so.13 has no cublasLtMatmul", *on_cuda,
            LOCKSTEP_HOST_CUDA_FAIL="dlsym:16")
    refused(t, 69, "cuBLAS cannot be started", *on_cuda, LOCKSTEP_HOST_CUDA_FAIL="cublasLtCreate")
    refused(t, 69, "cuBLAS 13.1.0 has no algorithm", *on_cuda,
            LOCKSTEP_HOST_CUDA_FAIL="algorithm:5")
    refused(t, 69, "cuBLAS 13.1.0 has no algorithm", *on_cuda,
            LOCKSTEP_HOST_CUDA_FAIL="cublasLtMatmulAlgoGetHeuristic:2")
    for number in (1, 20, 30):  # at the rehearsal, and while a step is recorded
        refused(t, 70, "cuBLAS 13.1.0 failed", *on_cuda,
                LOCKSTEP_HOST_CUDA_FAIL=f"cublasLtMatmul:{number}")
    code, _, error = t.run("embed", MATRIX, *on_cuda, "--to", "run.c")
    t.check(code == 69 and "embed" in error and not os.path.exists("run.c"), "embed", code, error)


def main():
    t = Test()
    same_bits(t)
    pooled(t)
    networks(t)
    sharded(t)
    diverging(t)
    scaled(t)
    if not FEW:
        accuracy(t)
    what_is_said(t)
    plan(t)
    refusing(t)
    t.finish()


main()
