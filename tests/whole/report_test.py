#!/usr/bin/env python3
"""report_test - lockstep report and plan --svg: pages that a strict parser takes, that hold what
the run's own files and lockstep predict say, that name nothing outside themselves, and in which no
name becomes markup.

   report_test.py PROGRAM WORK_DIR [chromium]

Standard library only. With `chromium` a headless browser shows the pages, without a word of
complaint and with nothing wider than its window; skipped (77) where there is none.
"""
import base64
import html
import html.parser
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree

from program import Test, value

HOSTILE = "</pre><script>alert('x')</script>&amp;\"\u202e\x07"
VOID = {"meta", "img", "br", "link"}
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "pre", "code", "table",
        "tr", "th", "td", "section", "div", "span", "figure", "figcaption", "img", "br", "svg",
        "rect", "line", "text", "polyline", "circle", "details", "summary"}


class Page(html.parser.HTMLParser):
    """Every tag closed by its own, no unknown one, and the text of each table and section."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.images, self.links = [], [], [], []
        self.tables, self.text, self.titles = [], [], []
        self.feed(text)
        self.close()
        if self.open:
            self.wrong.append(("not closed", self.open))

    def handle_starttag(self, tag, attrs):
        if tag not in TAGS:
            self.wrong.append(("a tag", tag))
        for key, text in attrs:
            if key.startswith("on") or key in ("href", "srcset", "action", "data"):
                self.wrong.append(("an attribute", key, text))
            if key == "src" and not text.startswith("data:image/png;base64,"):
                self.wrong.append(("from elsewhere", text))
            if key == "src":
                self.images.append(base64.b64decode(text.split(",", 1)[1], validate=True))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(("closed", tag))

    def handle_data(self, data):
        self.text.append(data)
        if {"th", "td"} & set(self.open) and self.tables:
            self.tables[-1][-1][-1] += data
        if self.open and self.open[-1] in ("h1", "h2"):
            self.titles.append(data)


def page(t, path):
    with open(path, "rb") as f:
        text = f.read().decode("utf-8")
    p = Page(text)
    t.check(not p.wrong, path + ": every tag in its place", p.wrong[:5])
    t.check(not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(
        r"http://www.w3.org/2000/svg", "", text)), path + ": nothing from elsewhere")
    t.check("<script" not in text.lower() and "\u202e" not in text and "\x07" not in text,
            path + ": nothing of a name is markup")
    return p, text


def logits(path):
    with open(path, "rb") as f:
        data = f.read()
    rows, columns = map(int, re.search(rb"'shape': \((\d+), (\d+)\)", data).groups())
    values = struct.unpack(f"<{rows * columns}f", data[128:])
    return [values[i * columns:(i + 1) * columns] for i in range(rows)]


def data_set(name, count, seed):
    """Learnable: a bright row for each class; some labels are wrong."""
    import random
    noise = random.Random(seed)
    labels = [noise.randrange(10) for _ in range(count)]
    images = []
    for label in labels:
        pixels = bytearray(noise.randrange(60) for _ in range(100))
        pixels[label * 10:label * 10 + 10] = bytes([200] * 10)
        images.append(bytes(pixels))
    shown = [(label + 1) % 10 if i % 9 == 0 else label for i, label in enumerate(labels)]
    with open(name + "-images", "wb") as f:
        f.write(struct.pack(">4I", 0x803, count, 10, 10) + b"".join(images))
    with open(name + "-labels", "wb") as f:
        f.write(struct.pack(">2I", 0x801, count) + bytes(shown))
    return images, shown


def sigmoids(t):
    """Of one alone: which side of a half it is on, as training counts."""
    made = {"count": 200, "height": 10, "width": 10, "classes": 2}
    config = t.write("two.json", {
        "name": "two", "steps": 20, "evaluate_every_steps": 20, "model.classes": 2,
        "model.loss": "binary_crossentropy", "model.layers.4.units": 1,
        "data": {"train": {"made_up": made}, "test": {"made_up": {**made, "first": 200}}}})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "two")
    right = round(2 * float(value(lines, "test_accuracy")))
    t.expect(0, "report", "two")
    _, text = page(t, "two/report.html")
    t.check(0 < right < 200 and f"{right} of 200 are right" in text, "of one sigmoid", right)


def networks(t):
    """Of several networks and objectives: whose loss is whose, and no answers where there are
    none, whatever model.classes says."""
    made = {"count": 200, "height": 10, "width": 10, "classes": 2}
    data = {"train": {"made_up": made}, "test": {"made_up": {**made, "first": 200}}}
    adam = {"type": "adam_keras", "learning_rate": 0.01}
    dense = [{"type": "flatten"}, {"type": "dense", "units": 1}]
    without = ("model.layers", "optimizer", "steps")
    gan = {"noise": {"type": "normal", "shape": [4]}, "loss": "wasserstein", "weight_clip": 0.05,
           "generator": [{"type": "dense", "units": 100, "activation": "tanh"},
                         {"type": "reshape", "target_shape": [10, 10, 1]}],
           "discriminator": dense, "generator_steps": 1, "discriminator_steps": 2,
           "generator_optimizer": adam, "discriminator_optimizer": adam}
    config = t.write("gan.json", {"model.gan": gan, "cycles": 4, "data": data}, without)
    for classes in (10, 65536):
        t.expect(0, "train", config, "--run-dir", "gan", "--fresh", "--set",
                 f"model.classes={classes}")
        t.expect(0, "report", "gan")
        p, text = page(t, "gan/report.html")
        t.check("Predictions" in p.titles and "takes no labels" in text and
                "Confusion matrix" not in p.titles, "no answers", p.titles)
    facts = {row[0]: row[1] for row in p.tables[0]}
    t.check(facts["last step logged, generator"].startswith("10, loss ") and
            facts["last step logged, discriminator"].startswith("12, loss ") and
            "test set, discriminator" in facts, "whose loss", facts)
    t.check(text.count("<polyline") == 3 and ">training, generator<" in text and
            ">training, discriminator<" in text and ">test, discriminator<" in text,
            "a curve of each")
    points = [len(re.findall(r"[\d.]+,", line)) for line in re.findall(r'points="(.*)"', text)]
    with open("gan/metrics.jsonl", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    t.check(points == [sum(line.get(kind, {}).get("objective") == name for line in lines)
                       for kind, name in (("train", "generator"), ("train", "discriminator"),
                                          ("test", "discriminator"))], "its points", points)

    def entry(name):
        return {"name": name, "values": [{"name": "y", "network": "body"}], "trains": ["body"],
                "loss": "binary_crossentropy", "optimizer": adam}
    names = [f"<b>{i:02}" for i in range(12)]
    config = t.write("many.json", {
        "model.classes": 2, "model.networks": [{"name": "body", "layers": dense}],
        "model.objectives": [entry(name) for name in names],
        "model.schedule": [[name, 1] for name in names], "cycles": 2, "data": data}, without)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "many")
    right = round(2 * float(value(lines, "test_accuracy")))
    t.expect(0, "report", "many", "gan", "--output", "many.html")
    p, text = page(t, "many.html")
    t.check(0 < right < 200 and f"{right} of 200 are right" in text, "of one sigmoid", right)
    t.check(all(f">A, training, &lt;b&gt;{i:02}<" in text for i in range(12)) and
            ">B, training, generator<" in text, "all names")
    picture = re.search(r'<svg class="curves" viewBox="0 -(\d+) 520 (\d+)"(.*?)</svg>', text, re.S)
    above, height, inner = int(picture[1]), int(picture[2]), picture[3]
    t.check(height == 260 + above and above > 0 and all(
        int(x) + 14 + 6.5 * len(html.unescape(name)) <= 520 and -above <= int(y)
        for x, y, name in re.findall(r'<text x="(\d+)" y="(-?\d+)">([^<]*)<', inner)
        if "training" in name), "none outside", above, height)
    styles = re.findall(r'<polyline fill="none" (.*?) points', inner)
    t.check(len(styles) == len(set(styles)) == 16, "no two look the same", styles)


def one_run(t):
    images, labels = data_set("test", 400, 2)
    data_set("train", 1000, 1)
    config = t.write("config.json", {
        "name": "plain", "steps": 40, "evaluate_every_steps": 10,
        "model.layers.0.name": "<script>'&\"\u202e\x07",
        "data": {"train": {"images": "train-images", "labels": "train-labels"},
                 "test": {"images": "test-images", "labels": "test-labels"}}})
    with open(config, encoding="utf-8") as f:
        document = json.load(f)
    document["name"] = HOSTILE.replace("/", "|").replace("\x07", "")
    with open(config, "w", encoding="utf-8") as f:
        json.dump(document, f)
    run = "a 'run' <b>"
    _, lines, _ = t.expect(0, "train", config, "--run-dir", run, "--replicas", "2")
    before = sorted(os.listdir(run))
    _, said, _ = t.expect(0, "report", run)
    t.check(said == [f"report {run}/report.html"], "where it is", said)
    t.check(sorted(os.listdir(run)) == sorted(before + ["report.html"]), "and nothing else")
    p, text = page(t, run + "/report.html")
    for key in ("digest", "state_hash", "run_identity"):
        t.check(value(lines, key) in text, key)
    t.check("lockstep train &#39;a &#39;\\&#39;&#39;run&#39;\\&#39;&#39; &lt;b&gt;/config.json"
            "&#39; --run-dir again --set steps=40" in text, "how to reproduce it")
    # What predict says of every example.
    t.expect(0, "predict", config, "--run-dir", run, "--output", "logits.npy")
    rows = logits("logits.npy")
    best = [max(range(10), key=lambda c: (row[c], -c)) for row in rows]
    counts = [[0] * 10 for _ in range(10)]
    for label, found in zip(labels, best):
        counts[label][found] += 1
    matrix = next(table for table in p.tables if table[0] == [""] + [str(c) for c in range(10)])
    t.check([[int(cell or 0) for cell in row[1:]] for row in matrix[1:]] == counts,
            "the confusion matrix", matrix)
    sure = sorted(((1 / sum(math.exp(v - max(row)) for v in row), -i) for i, row in
                   enumerate(rows) if best[i] != labels[i]), reverse=True)[:24]
    numbers = [int(n) for n in re.findall(r">no\. (\d+)<", text)]
    shown = [float(n) for n in re.findall(r"<br>([\d.]+)% sure", text)]
    t.check(len(numbers) == 24 and len(p.images) == 24 and
            all(abs(a - 100 * s[0]) < 0.06 for a, s in zip(shown, sure)), "the most confident",
            shown, sure)
    t.check(all(best[n] != labels[n] for n in numbers), "they are mistakes")
    t.check(all(images[n] in unpack(png) for n, png in zip(numbers, p.images)), "their pictures")
    t.check(f"{sum(counts[c][c] for c in range(10))} of 400 are right" in text, "how many")
    t.check(text.count("<polyline") == 4 and text.count("<circle") == 8, "four curves, two dotted",
            text.count("<polyline"), text.count("<circle"))
    t.check({"Learning curves", "Confusion matrix", "Accuracy by class", "Configuration",
             "The most confident mistakes", "The time of a step", "Memory, to scale",
             "To reproduce it"} <= set(p.titles), "its parts", p.titles)
    t.check("mean of 40 steps" in text, "the step's time")
    # .. and op by op: all of the plan's ops, which with what is left add up to a step.
    ops = next(table for table in p.tables if any("dense_weight" in row[0] for row in table))
    found = {row[0] for row in ops}
    t.check({"load", "dense dense", "dense_weight_gradient logits", "softmax_cross_entropy",
             "updating"} <= found, "its ops", found)
    t.check(any("conv2d" in name and "<script>'&\"" in name for name in found), "by their names",
            found)
    us = [float(row[2].split()[0]) for row in ops]
    said = float(re.search(r"([\d.]+) us, the mean of \d+ steps that this", text).group(1))
    t.check(abs(sum(us) - said) < 0.06 * len(us) and said > 0, "they add up", sum(us), said)
    t.check({"forward", "backward"} <= {row[1] for row in ops}, "phases", ops)
    return config, run


def unpack(png):
    """The rows of a stored grey PNG, as one."""
    import zlib
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        data += png[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    raw = zlib.decompress(data)
    return b"".join(raw[y * 11 + 1:(y + 1) * 11] for y in range(10))


def two_runs(t, config, run):
    t.expect(0, "train", config, "--run-dir", "other", "--set", "seed=9", "--set",
             "optimizer.momentum=0.5")
    _, _, error = t.expect(64, "report", run, "other")
    t.check("--output" in error and error.count("\n") == 1, "one line", error)
    t.expect(0, "report", run, "other", "--output", "two.html")
    p, text = page(t, "two.html")
    t.check(text.count('class="plan" viewBox="0 0 666 ') == 2, "plans of half a page")
    t.check(p.titles.count("Confusion matrix") == 2 and p.titles.count("Learning curves") == 1,
            "side by side", p.titles)
    t.check(text.count("<polyline") == 8, "curves over each other", text.count("<polyline"))
    rows = next(table for table in p.tables if table[0] == ["", "A", "B"])
    t.check(sorted(rows[1:]) == [["optimizer.momentum", "0.9", "0.5"], ["seed", "7", "9"]],
            "what differs", rows)
    t.expect(0, "report", "other", "other", "--output", "same.html")
    t.check("identities are equal; the digests of the newest checkpoints are equal" in
            page(t, "same.html")[1], "equal ones")


def without(t, config, run):
    """A page, too, of a run without data, of one that has not saved, of one with other data."""
    os.rename("test-images", "away")
    t.expect(0, "report", run, "--output", "without.html")
    p, text = page(t, "without.html")
    t.check("Predictions" in p.titles and "test-images" in text and not p.images, "no data")
    os.rename("away", "test-images")
    os.rename("train-labels", "away")
    data_set("train", 1000, 7)
    t.expect(0, "report", run, "--output", "foreign.html")
    t.check("is not that of the run" in page(t, "foreign.html")[1], "other data")
    data_set("train", 1000, 1)
    os.makedirs("begun")
    for name in ("identity", "config.json", "plan.json"):
        shutil.copy(os.path.join(run, name), "begun")
    t.expect(0, "report", "begun")
    p, text = page(t, "begun/report.html")
    t.check("no checkpoint yet" in text and "Memory, to scale" in p.titles, "begun")
    for name in ("config.json", "plan.json"):
        with open("begun/" + name, "w", encoding="utf-8") as f:
            f.write('{"tensors": [{"name": 7, "offset": -1}], "regions": 3}')
    t.expect(0, "report", "begun")
    t.check("plan.json is missing or damaged" in page(t, "begun/report.html")[1], "damaged")
    # Bad input.
    for code, words, arguments in (
            (66, "nowhere", ("nowhere",)), (64, "found 0 arguments", ()),
            (64, "unknown option", (run, "--outptu", "x.html")),
            (64, "no plain file", (run, "--output", ".")),
            (74, "no/such", (run, "--output", "no/such/x.html"))):
        _, _, error = t.expect(code, "report", *arguments)
        t.check(words in error and error.count("\n") == 1, "one line", error)
    with open(run + "/metrics.jsonl", "r+b") as f:
        f.seek(30)
        f.write(b"9")
    _, _, error = t.expect(65, "report", run, "--output", "x.html")
    t.check("metrics.jsonl" in error and not os.path.exists("x.html"), "a damaged log", error)
    _, _, _ = t.expect(0, "train", config, "--run-dir", run, "--fresh", "--set", "steps=1")
    t.check(not os.path.exists(run + "/report.html"), "--fresh removes it", os.listdir(run))


def plans(t, config):
    _, lines, _ = t.expect(0, "plan", config, "--svg", "--replicas", "2")
    tree = xml.etree.ElementTree.fromstring("\n".join(lines))
    t.check(tree.tag == "{http://www.w3.org/2000/svg}svg", "an SVG of its own", tree.tag)
    _, lines, _ = t.expect(0, "plan", config, "--json", "--replicas", "2")
    plan = json.loads("\n".join(lines))
    drawn = {}
    for rect in tree.iter("{http://www.w3.org/2000/svg}rect"):
        title = rect.find("{http://www.w3.org/2000/svg}title")
        if title is not None:
            drawn[title.text] = rect
    ops, scale = len(plan["ops"]), 420 / plan["replica_region_bytes"]
    for tensor in (x for x in plan["tensors"] if x["region"] == "replica"):
        safe = tensor["name"].replace("\u202e", "\ufffd").replace("\x07", "\ufffd")
        rect = drawn.get(f"{safe}: {tensor['bytes']:,} bytes at {tensor['offset']:,}")
        if not t.check(rect is not None, "every tensor is drawn", tensor, list(drawn)[:5]):
            continue
        last = ops if tensor["last_op"] is None else tensor["last_op"] + 1
        box = [float(rect.get(k)) for k in ("x", "width", "y", "height")]
        want = [90 + 910 * tensor["first_op"] / ops, 910 * (last - tensor["first_op"]) / ops,
                136 + scale * tensor["offset"], scale * tensor["bytes"]]
        t.check(all(abs(a - b) < 0.02 for a, b in zip(box, want)), "to scale", tensor, box, want)
    for more in (["--json"], ["--show-shards"]):
        t.expect(64, "plan", config, "--svg", *more)


def chromium(t, config, run):
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        print("skipped: there is no chromium here")
        sys.exit(77)
    t.expect(0, "train", config, "--run-dir", "other", "--set", "seed=9")
    t.expect(0, "report", run, "other", "--output", "two.html")
    with open("plan.svg", "w", encoding="utf-8") as f:
        f.write("\n".join(t.expect(0, "plan", config, "--svg")[1]))
    for name, width in (("two.html", 1500), ("plan.svg", 1000)):
        shot = f"{name}-{width}.png"
        done = subprocess.run(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--enable-logging=stderr", "--hide-scrollbars", f"--window-size={width},3000",
             f"--user-data-dir={t.work}/profile", f"--screenshot={shot}",
             "file://" + os.path.join(t.work, name)], capture_output=True, text=True, timeout=120)
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        if not t.check(done.returncode == 0 and os.path.exists(shot), name + " is shown",
                       done.stderr[-1000:]):
            continue
        t.check(not said, name + ": without complaint", said)
        colours = screen(shot)
        t.check(len(colours) > 30 and colours.most_common(1)[0][0] == (255, 255, 255),
                name + ": light, and something is on it", colours.most_common(3))
        print(shot, len(colours), "colours")


def screen(path):
    """How often each colour is on a screenshot, on every 7th row."""
    import collections
    import zlib
    with open(path, "rb") as f:
        png = f.read()
    at, data, head = 8, b"", None
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8:at + 8 + length]
        head = struct.unpack(">IIBBBBB", body) if kind == b"IHDR" else head
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    width, height, depth, colour = head[:4]
    assert depth == 8 and colour in (2, 6)
    step = 3 if colour == 2 else 4
    raw, stride, before = zlib.decompress(data), width * step, None
    found = collections.Counter()
    for y in range(height):
        kind = raw[y * (stride + 1)]
        row = unfilter(kind, bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)]),
                       before or bytes(stride), step)
        before = row
        if y % 7 == 0:
            found.update(zip(row[0::step], row[1::step], row[2::step]))
    return found


def unfilter(kind, row, above, step):
    for i in range(len(row) if kind else 0):
        left = row[i - step] if i >= step else 0
        up, corner = above[i], above[i - step] if i >= step else 0
        if kind == 1:
            add = left
        elif kind == 2:
            add = up
        elif kind == 3:
            add = (left + up) // 2
        else:
            guess = left + up - corner
            add = min((left, up, corner), key=lambda v: abs(guess - v))
        row[i] = (row[i] + add) & 255
    return row


def main():
    t = Test()
    sigmoids(t)
    networks(t)
    config, run = one_run(t)
    if len(sys.argv) > 3:
        chromium(t, config, run)
    else:
        plans(t, config)
        two_runs(t, config, run)
        without(t, config, run)
    t.finish()


if __name__ == "__main__":
    main()
