#!/usr/bin/env python3
"""events_test - what a run writes for people beside its logs: times.jsonl and TensorBoard's event
files. They say what metrics.jsonl says, a step once, also after a kill and a resume; they change
neither the digest nor metrics.jsonl.

   events_test.py PROGRAM WORK_DIR [tensorboard [PYTHON]]

Standard library only: a reader of TFRecords and of the messages in them. With `tensorboard` that
package reads the files, in an environment that is thrown away, or as PYTHON has it; skipped (77)
where it cannot be had.
"""
import glob
import json
import os
import random
import struct
import subprocess
import sys
import time
import zlib

from program import Test, result

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ops"))
sys.dont_write_bytecode = True
from arithmetic_judge import block

ALL = ["--tensorboard", "--set", "events.images=3", "--set", "events.histograms=true"]
READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
def read(run):
    a = EventAccumulator(run, size_guidance={"scalars": 0, "images": 0, "histograms": 0})
    a.Reload()
    tags = a.Tags()
    return {
    "scalars": {t: [[e.step, e.value, e.wall_time] for e in a.Scalars(t)] for t in tags["scalars"]},
    "images": {t: [[e.step, e.width, e.height, len(e.encoded_image_string)] for e in a.Images(t)]
               for t in tags["images"]},
    "histograms": {t: [[e.step, e.histogram_value.num, e.histogram_value.min,
                        list(e.histogram_value.bucket)] for e in a.Histograms(t)]
                   for t in tags["histograms"]}}
print(json.dumps([read(run) for run in sys.argv[1:]]))
"""


# --- a reader ------------------------------------------------------------------------------------

def make_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82f63b78 if n & 1 else 0)
        table.append(n)
    return table


TABLE = make_table()


def masked(data):
    crc = 0xffffffff
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(data):
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert masked(data[at:at + 8]) == crc, "the length's checksum"
        body = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), "the checksum"
        yield body
        at += 16 + length
    assert at == len(data)


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def fields(data):
    """(number, value) of a message: int, float of 64 or 32 bits, or bytes."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        yield tag >> 3, value


def files_of(run):
    return sorted(glob.glob(run + "/events.out.tfevents.*"))


def read(run):
    """Of all files: {"scalars": {tag: [(step, value, wall)]}, "images": .., "histograms": ..}"""
    out = {"scalars": {}, "images": {}, "histograms": {}, "starts": []}
    kinds = {2: "scalars", 4: "images", 5: "histograms"}
    for path in files_of(run):
        with open(path, "rb") as f:
            events = [list(fields(body)) for body in records(f.read())]
        assert dict(events[0])[3] == b"brain.Event:2"
        for event in events[1:]:
            step, wall = dict(event)[2], dict(event)[1]
            if 7 in dict(event):
                out["starts"].append(step)
            for summary in (v for n, v in event if n == 5):
                for value in (dict(fields(v)) for n, v in fields(summary) if n == 1):
                    kind = next(k for k in kinds if k in value)
                    out[kinds[kind]].setdefault(value[1].decode(), []).append(
                        (step, value[kind], wall))
    return out


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    assert lines.pop() == ""
    for line in lines:
        body, _, rest = line.encode().rpartition(b',"crc32":"')
        assert zlib.crc32(body) == int(rest[:8], 16)
    return [json.loads(line) for line in lines]


# --- what is checked -----------------------------------------------------------------------------

def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def wanted_scalars(run, log="metrics.jsonl"):
    out = {}
    for line in lines_of(f"{run}/{log}"):
        for kind in ("train", "test"):
            if kind in line:
                values = line[kind]
                for name, value in (("loss", values["loss"]),
                                    ("accuracy", values["correct"] / values["examples"])):
                    out.setdefault(f"{kind}/{name}", []).append((line["step"], f32(value)))
    return out


def same_as_metrics(t, run, what):
    """Every line of metrics.jsonl once, and nothing else; times.jsonl line by line beside it."""
    found = read(run)["scalars"]
    for tag, values in wanted_scalars(run).items():
        t.check([v[:2] for v in found.get(tag, [])] == values, f"{what}: {tag}",
                [v[0] for v in found.get(tag, [])], [v[0] for v in values])
    keys = [(line["step"], kind) for line in lines_of(run + "/metrics.jsonl")
            for kind in ("train", "test") if kind in line]
    times = [(line["step"], kind, line[kind]) for line in lines_of(run + "/times.jsonl")
             for kind in ("train", "test") if kind in line]
    t.check([k[:2] for k in times] == keys, f"{what}: times.jsonl", times[:3])
    walls = [k[2]["wall_time"] for k in times]
    t.check(walls == sorted(walls) and abs(walls[-1] - time.time()) < 300, f"{what}: wall time")
    for step, _, values in times:  # 1,000 examples: 3 steps of 256 and one of 232
        seen = step // 4 * 1000 + step % 4 * 256
        t.check(values["examples_seen"] == seen and abs(values["epoch"] - step / 4) < 1e-4 * step,
                f"{what}: examples seen", step, values)


def write_set(count, seed):
    noise = random.Random(seed)
    images = [noise.randbytes(10 * 12 * 3) for _ in range(count)]
    with open("images", "wb") as f:
        f.write(struct.pack(">5I", 0x804, count, 10, 12, 3) + b"".join(images))
    with open("labels", "wb") as f:
        f.write(struct.pack(">2I", 0x801, count) + bytes(i % 10 for i in range(count)))
    return images


def pixels(png):
    """(width, height, colour type, bytes) of a PNG without filters."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts, head = 8, b"", None
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8:at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(kind + body)
        head = body if kind == b"IHDR" else head
        parts += body if kind == b"IDAT" else b""
        at += 12 + length
    width, height, _, colour = struct.unpack_from(">IIBB", head)
    raw, row = zlib.decompress(parts), 1 + width * (3 if colour == 2 else 1)
    assert len(raw) == height * row and not any(raw[y * row] for y in range(height))
    return width, height, colour, b"".join(raw[y * row + 1:(y + 1) * row] for y in range(height))


def pictures_and_histograms(t):
    images = write_set(300, 5)
    config = t.write("pictures.json", {
        "steps": 8, "global_batch": 64, "model.input": [10, 12, 3], "evaluate_every_steps": 4,
        "data": {"train": {"images": "images", "labels": "labels"},
                 "test": {"images": "images", "labels": "labels"}}})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "pictures", "--replicas", "2", *ALL)
    _, plain, _ = t.expect(0, "train", config, "--run-dir", "without", "--replicas", "2")
    t.check(result(lines) == result(plain), "the same run", lines[-2:], plain[-2:])
    t.check(lines_of("pictures/metrics.jsonl") == lines_of("without/metrics.jsonl"), "its metrics")
    t.check(not files_of("without") and os.path.exists("without/times.jsonl"), "none are asked for")
    found = read("pictures")
    t.check(sorted(found["images"]) == ["inputs/00", "inputs/01", "inputs/02"], "three pictures",
            sorted(found["images"]))
    for shown in found["images"].values():
        t.check([s[0] for s in shown] == [1, 4, 8], "when", [s[0] for s in shown])
        for _, value, _ in shown:
            value = dict(fields(value))
            width, height, colour, data = pixels(value[4])
            t.check((width, height, colour, value[1], value[2], value[3]) == (12, 10, 2, 10, 12, 3)
                    and data in images, "an example, as it is")
    with open(sorted(glob.glob("pictures/checkpoints/*"))[-1], "rb") as f:
        data = f.read()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    for tag, shown in found["histograms"].items():
        begin, end = header[tag]["data_offsets"]
        values = struct.unpack_from(f"<{(end - begin) // 4}f", data, 8 + length + begin)
        value = dict(fields(shown[-1][1]))
        limits = struct.unpack(f"<{len(value[6]) // 8}d", value[6])
        buckets = struct.unpack(f"<{len(value[7]) // 8}d", value[7])
        t.check([s[0] for s in shown] == [1, 4, 8], tag + ": when")
        t.check((value[1], value[2], value[3]) == (min(values), max(values), len(values)) and
                abs(value[4] - sum(values)) < 1e-6 and
                abs(value[5] - sum(v * v for v in values)) < 1e-6, tag, value[1], value[2])
        t.check(sum(buckets) == len(values) and len(limits) == len(buckets) and
                list(limits) == sorted(limits) and limits[-1] == max(values) and
                buckets[-1] >= 1, tag + ": buckets")
        for i in (0, len(buckets) // 2):
            below = sum(v < limits[i] for v in values)
            t.check(abs(sum(buckets[:i + 1]) - below) <= 1, tag + f": bucket {i}")
    t.check(len(found["histograms"]) == 6, "all parameters", sorted(found["histograms"]))


def seen_by(how, seed, step, place, image, mean):
    """The bytes of an image of 10 x 12 x 3 as LOAD made it, by ARITHMETIC.md 3 in real numbers."""
    h, w = 10, 12
    words = [v for b in (0, 1) for v in block(seed, 7, b, place, step, 0)]
    around = [(v >> 8) / (1 << 23) - 1 for v in words]
    dy, dx = ((words[i] * 5 >> 32) - 2 if "shift" in how else 0 for i in (0, 1))
    top, left = ((words[5 + i] * (h, w)[i] >> 32) - 1 for i in (0, 1))
    flips = "flip" in how and words[2] >> 31
    contrast = 1 + how.get("contrast", 0) * around[3]
    offset = 0.5 - 0.5 * contrast + how.get("brightness", 0) * around[4]
    out = []
    for y in range(h):
        for x in range(w):
            sy, sx = y + dy, (w - 1 - x if flips else x) + dx
            inside = 0 <= sy < h and 0 <= sx < w
            cut = "cutout" in how and 0 <= y - top < 3 and 0 <= x - left < 3
            for c in range(3):
                v = (image[(sy * w + sx) * 3 + c] / 255 if inside else 0) * contrast + offset
                out.append(255 * min(max(mean[c] if cut else v, 0), 1))
    return out


def augmented(t):
    """Pictures of what a step saw: of the same examples as without, each by its own draw; and what
    normalisation has done is undone."""
    move = {"shift": 2, "flip": "horizontal", "cutout": 3}
    plain, mean = read("pictures")["images"], [0.25, 0.5, 0.75]
    normalize = {"mean": mean, "deviation": [0.125, 0.25, 0.5]}
    steps, digests = (1, 4, 8), {}
    for name, how, means, most in (
            ("normal", {}, normalize, 0), ("signed", {}, None, 0), ("moved", move, None, 0),
            ("all", {**move, "brightness": 0.2, "contrast": 0.3}, normalize, 1)):
        more = ["--set", "data.augment=" + json.dumps(how)] if how else []
        more += ["--set", "data.normalize=" + json.dumps(means)] if means else []
        more += ["--set", "model.input_range=signed"] if name == "signed" else []
        train = ["train", "pictures.json", "--replicas", "2", *more]
        _, lines, _ = t.expect(0, *train, "--run-dir", name, *ALL)
        digests[name] = result(lines)
        images = read(name)["images"]
        t.check(len(images) == 3, name, sorted(images))
        for place, (tag, shown) in enumerate(sorted(images.items())):
            for i, step in enumerate(steps):
                found = pixels(dict(fields(shown[i][1]))[4])[3]
                original = pixels(dict(fields(plain[tag][i][1]))[4])[3]
                wanted = seen_by(how, 7, step - 1, place, original,
                                 mean if means else [0.0] * 3)
                worst = max(abs(a - b) for a, b in zip(found, wanted))
                t.check(shown[i][0] == step and worst < most + 0.51, f"{name}: {tag}, step {step}",
                        worst)
                t.check((found == original) == (not how), f"{name}: {tag}: something was done")
    _, lines, _ = t.expect(0, "train", "pictures.json", "--replicas", "1", "--run-dir", "unseen",
                           "--set", "data.augment=" + json.dumps(move))
    t.check(result(lines) == digests["moved"] and len(set(digests.values())) == 4,
            "the same bits without", digests)


def large_histogram(t):
    """Of many values: the ends of all, and the rest of every 13th."""
    config = t.write("large.json", {"steps": 1, "model.layers.0.filters": 32,
                                    "model.layers.3.units": 251})
    t.expect(0, "train", config, "--run-dir", "large", "--set", "events.histograms=true")
    with open(sorted(glob.glob("large/checkpoints/*"))[-1], "rb") as f:
        data = f.read()
    length = struct.unpack_from("<Q", data)[0]
    begin, end = json.loads(data[8:8 + length])["dense/kernel"]["data_offsets"]
    values = struct.unpack_from(f"<{(end - begin) // 4}f", data, 8 + length + begin)
    t.check(len(values) == 200800, "as many as were wanted", len(values))
    value = dict(fields(read("large")["histograms"]["dense/kernel"][0][1]))
    sample = values[::13]  # 200,800 / 16,384, and odd
    t.check((value[1], value[2], value[3]) == (min(values), max(values), len(sample)), "ends",
            value[1], value[2], value[3])
    t.check(abs(value[5] - sum(v * v for v in sample)) < 1e-4 * value[5], "squares", value[5])
    limits = struct.unpack(f"<{len(value[6]) // 8}d", value[6])
    buckets = struct.unpack(f"<{len(value[7]) // 8}d", value[7])
    for i in range(len(limits)):
        below = sum(v < limits[i] for v in sample)
        t.check(abs(sum(buckets[:i + 1]) - below) <= 2, f"bucket {i}", sum(buckets[:i + 1]), below)


def killed(t):
    """Killed and resumed: each step once."""
    config = t.write("killed.json", {
        "steps": 120, "checkpoint.every_steps": 25, "evaluate_every_steps": 10,
        "checkpoint.hot_steps": 0, "data.test": {"made_up": {"count": 50, "first": 1000,
                                                           "height": 10, "width": 10}}})
    _, whole, _ = t.expect(0, "train", config, "--run-dir", "undisturbed", *ALL)
    same_as_metrics(t, "undisturbed", "undisturbed")
    for n in (1, 2):
        process = t.start("train", config, "--run-dir", "killed", "--resume-or-start", *ALL)
        for line in process.lines():
            if line.startswith(f"evaluation step {40 * n}:"):
                break
        process.kill()
        process.communicate()
        # A record that the kill has torn, and one whose bytes have rotted.
        with open(files_of("killed")[-1], "ab") as f:
            f.write(b"\x18\0\0\0\0\0\0\0torn")
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "killed", "--resume", *ALL)
    t.check(result(lines) == result(whole), "the same run", lines[-2:], whole[-2:])
    same_as_metrics(t, "killed", "killed")
    starts = read("killed")["starts"]
    t.check(len(files_of("killed")) == len(starts) == 3 and starts[0] == 1 and
            starts == sorted(starts) and all(s % 25 == 1 for s in starts), "each its file", starts)
    with open("killed/metrics.jsonl", "rb") as a, open("undisturbed/metrics.jsonl", "rb") as b:
        t.check(a.read() == b.read(), "and its metrics")
    before = [(p, os.path.getsize(p)) for p in files_of("killed")]
    t.expect(0, "train", config, "--run-dir", "killed", "--resume", *ALL)
    t.check(before == [(p, os.path.getsize(p)) for p in files_of("killed")],
            "a finished run changes nothing")
    # Somebody else's files beside ours: not cut, and not of a run.
    others = ["killed/events.out.tfevents.1700000000.host.12.0.v2", "killed/events.out.tfevents.x",
              "killed/events.out.tfevents.1700000000.lockstep.1.old"]
    for path in others:
        with open(path, "wb") as f:
            f.write(b"of others")
    t.expect(0, "train", config, "--run-dir", "killed", "--resume", *ALL)
    for path in others:
        with open(path, "rb") as f:
            t.check(f.read() == b"of others", path, os.listdir("killed"))
        _, _, error = t.expect(64, "train", config, "--run-dir", "killed", "--fresh")
        t.check("nothing was removed" in error and len(files_of("killed")) > len(starts), error)
        os.unlink(path)
    t.expect(0, "train", config, "--run-dir", "killed", "--fresh", "--set", "steps=3")
    t.check(not files_of("killed"), "--fresh removes them", os.listdir("killed"))


def damaged(t):
    """An event file is cut where it is damaged, and that is said; where a kill has torn it, it is
    not."""
    config = t.write("damaged.json", {"steps": 20})
    _, whole, _ = t.expect(0, "train", config, "--run-dir", "rotten", *ALL)
    path = files_of("rotten")[0]
    with open(path, "rb") as f:
        content = f.read()
    at = content.index(b"train/loss")
    for end, said in ((content[:at] + b"T" + content[at + 1:], True), (content[:-3], False),
                      (content[:20], False)):
        with open(path, "wb") as f:
            f.write(end)
        _, lines, error = t.expect(0, "train", config, "--run-dir", "rotten", "--resume", *ALL)
        left = os.path.getsize(path) if os.path.exists(path) else 0
        wanted = f"{path}: byte {left}: a record's checksum is wrong" if said else ""
        t.check(result(lines) == result(whole) and left < len(end) and
                wanted in error and error.count("\n") == said, "cut, and said", said, left, error)
        t.check(not said or f"the {len(end) - left} bytes from there on" in error, "how much",
                error)


def plans(t):
    """What is asked for is in the plan, to the byte."""
    config = t.write("plan.json")
    sizes = []
    for more in ([], ["--set", "events.scalars=true"], ["--set", "events.images=1"]):
        plan = json.loads("\n".join(t.expect(0, "plan", config, "--json", *more)[1]))
        sizes.append(next(r["bytes"] for r in plan["regions"] if r["name"] == "journal buffer"))
    t.check(0 < sizes[0] < sizes[1] <= sizes[2], "the journal buffer", sizes)


# --- the real one --------------------------------------------------------------------------------

def tensorboard(t, python):
    if not python:
        made = subprocess.run([sys.executable, "-m", "venv", "environment"], capture_output=True)
        got = made.returncode == 0 and subprocess.run(
            ["environment/bin/pip", "install", "-q", "--retries", "1", "tensorboard"],
            capture_output=True, timeout=300).returncode == 0
        if not got:
            print("skipped: tensorboard cannot be installed here")
            sys.exit(77)
        python = "environment/bin/python"
    killed_first(t)
    os.environ["TF_CONFIG"] = json.dumps({
        "cluster": {"worker": ["localhost:1"], "evaluator": ["localhost:2"]},
        "task": {"type": "evaluator", "index": 0}})
    t.expect(0, "train", "pictures.json", "--run-dir", "pictures", *ALL)
    del os.environ["TF_CONFIG"]
    runs = ("pictures", "cut", "pictures/evaluator")
    done = subprocess.run([python, "-c", READER, *runs], capture_output=True, text=True)
    if not t.check(done.returncode == 0, "tensorboard reads it", done.stderr[-2000:]):
        return
    for run, seen in zip(runs, json.loads(done.stdout)):
        ours = read(run)
        apart = os.path.dirname(run)
        wanted = wanted_scalars(apart, "evaluations.jsonl") if apart else wanted_scalars(run)
        for tag, values in wanted.items():
            t.check([tuple(v[:2]) for v in seen["scalars"][tag]] == values, f"{run}: {tag}")
        t.check({k: len(v) for k, v in seen["scalars"].items()} ==
                {k: len(v) for k, v in ours["scalars"].items()}, run + ": all scalars")
        t.check({k: [i[0] for i in v] for k, v in seen["images"].items()} ==
                {k: [i[0] for i in v] for k, v in ours["images"].items()}, run + ": images")
        t.check(all(i[1:3] == [12, 10] for v in seen["images"].values() for i in v) or
                run != "pictures", "their sizes", seen["images"])
        t.check(bool(wanted) and bool(ours["images"]) != bool(apart), run + ": something", wanted)
        t.check(set(seen["histograms"]) == set(ours["histograms"]), run + ": histograms")
        print(run, {k: len(v) for k, v in seen.items()})


def killed_first(t):
    config = t.write("cut.json", {"steps": 60, "checkpoint.every_steps": 20,
                                  "checkpoint.hot_steps": 0})
    process = t.start("train", config, "--run-dir", "cut", *ALL, "--set", "steps=100000")
    for line in process.lines():
        if ", step = 50 " in line:
            break
    process.kill()
    process.communicate()
    keep = sorted(os.listdir("cut/checkpoints"))
    for name in keep[2:]:
        os.unlink("cut/checkpoints/" + name)
    t.expect(0, "train", config, "--run-dir", "cut", "--resume", *ALL)
    same_as_metrics(t, "cut", "cut")


def main():
    t = Test()
    pictures_and_histograms(t)
    large_histogram(t)
    if len(sys.argv) > 3:
        tensorboard(t, sys.argv[4] if len(sys.argv) > 4 else None)
    else:
        augmented(t)
        killed(t)
        damaged(t)
        plans(t)
    t.finish()


if __name__ == "__main__":
    main()
