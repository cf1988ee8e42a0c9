#!/usr/bin/env python3
"""import_test - lockstep data import: every byte that comes out against what went in, training on
it, and everything that may be wrong with what others wrote.

   import_test.py PROGRAM WORK_DIR

Standard library only.
"""
import fcntl
import glob
import json
import os
import random
import resource
import shutil
import statistics
import struct
import subprocess

from pictures import chunk, png, rows_of
from program import Test, value

noise = random.Random(3)
NAMES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
         "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}


def npy(path, descr, shape, data, order="False", version=1, header=None):
    text = header or f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    width = 2 if version == 1 else 4
    text += " " * (-(len(text) + 9 + width) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") +
                text.encode() + data)
    return path


def written(directory, part, wide=False):
    """Dimensions and values of both files; of labels of two bytes their bytes."""
    for name in NAMES[part]:
        with open(f"{directory}/{name}", "rb") as f:
            content = f.read()
        count = content[3]
        wanted = 11 if wide and name == NAMES[part][1] else 8
        assert content[:3] == bytes([0, 0, wanted]), (name, content[:4])
        yield list(struct.unpack(f">{count}I", content[4:4 + 4 * count])), content[4 + 4 * count:]


def refused(t, code, word, *arguments):
    found, lines, error = t.run("data", "import", *arguments)
    t.check((found, lines) == (code, []) and error.startswith("lockstep: ") and
            error.count("\n") == 1 and word in error, f"{code} and one line with {word!r}",
            arguments, found, lines, error)


# --- .npy ----------------------------------------------------------------------------------------

def arrays(t):
    kinds = [("B", "|u1", 1), ("b", "|i1", 2), ("<h", "<i2", 3), ("<I", "<u4", 1), ("<q", "<i8", 1)]
    for number, (code, descr, version) in enumerate(kinds):
        shape = (130, 6, 5, 3) if number % 2 else (130, 6, 5)
        values = noise.randbytes(130 * 6 * 5 * (3 if number % 2 else 1))
        labels = [noise.randrange(10) for _ in range(130)]
        npy("images.npy", "|u1", shape, values, version=version)
        npy("labels.npy", descr, "(130, 1)" if number == 2 else "(130,)",
            b"".join(struct.pack(code, v) for v in labels), version=version)
        to = f"set{number}"
        for part in NAMES:
            t.expect(0, "data", "import", "npy", "images.npy", "labels.npy", "--to", to, "--part",
                     part)
            found = list(written(to, part))
            t.check(found == [(list(shape), values), ([130], bytes(labels))],
                    f"{descr}, {part}: every byte")
    # Labels of two bytes, where one is above 255, whatever the array's integers are.
    for number, (code, descr, most) in enumerate([("<h", "<i2", 32767), ("<H", "<u2", 65535),
                                                  ("<q", "<i8", 256)]):
        large = [noise.randrange(most) for _ in range(129)] + [most]
        npy("large.npy", descr, "(130,)", b"".join(struct.pack(code, v) for v in large))
        to = f"large{number}"
        lines = t.expect(0, "data", "import", "npy", "images.npy", "large.npy", "--to", to)[1]
        t.check(list(written(to, "train", wide=True))[1] == ([130], struct.pack(">130H", *large)),
                f"{descr}: every label in two bytes")
        t.check(f"labels below {most + 1}" in lines[0], "says so", lines)
    said = json.loads(t.expect(0, "data", "import", "npy", "images.npy", "labels.npy", "--to",
                               "json", "--json")[1][0])["train"]
    t.check((said["examples"], said["image"], said["classes"]) ==
            (130, [6, 5, 1], max(labels) + 1), "as JSON", said)
    for place in ("set0", "set1"):
        t.expect(0, "data", "verify", "--directory", place)
    config = t.write("config.json", {"model.input": [6, 5, 3], "data": {"set": "mine"},
                                     "steps": 2, "global_batch": 32})
    t.expect(0, "train", config, "--data", "set1", "--run-dir", "run")


def wrong_arrays(t):
    npy("images.npy", "|u1", (4, 2, 3), bytes(24))
    npy("labels.npy", "|u1", "(4,)", bytes([0, 1, 2, 3]))

    def images(word, *more, **facts):
        refused(t, 65, word, "npy", npy("bad.npy", *more, **facts), "labels.npy", "--to", "new")

    def labels(word, *more):
        refused(t, 65, word, "npy", "images.npy", npy("bad.npy", *more), "--to", "new")

    images("its items are f8, wanted u1", "<f8", (4, 2, 3), bytes(192))
    images("value 23: found NaN", "<f4", (4, 2, 3), bytes(92) + b"\0\0\xc0\x7f")
    images("value 0: found an infinity", "<f4", (4, 2, 3), b"\0\0\x80\xff" + bytes(92))
    images("its items are u2, wanted u1", "<u2", (4, 2, 3), bytes(48))
    images("an array of 1 dimensions", "|u1", "(4,)", bytes(4))
    images("of 16 channels", "|u1", (4, 1, 1, 17), bytes(68))
    images("more than 4 dimensions", "|u1", (4, 1, 1, 1, 6), bytes(24))
    images("a dimension of 0, so there is nothing in it; wanted one item", "|u1", (0, 2, 3), b"")
    images("found 151 bytes", "|u1", (4, 2, 3), bytes(23))
    images("(absurd)", "|u1", (99999999999, 99999999999), bytes(24))
    images("Fortran", "|u1", (4, 2, 3), bytes(24), order="True")
    images("another byte order", ">u2", (4, 2, 3), bytes(48))
    images("no plain number", "|O1", (4, 2, 3), bytes(24))
    images("a version", "|u1", (4, 2, 3), bytes(24), version=4)
    for header in ("", "{'descr': '|u1'}", "{'descr': '|u1', 'fortran_order': False, 'shape': "
                   "(4, 2, 3), 'descr': '|u1'}", "{'descr': '|u1', 'descr': '|u1'}", "[1]",
                   "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 2, 3)} x",
                   "{'descr': '|u1', 'fortran_order': False, 'shape': (4, -2, 3)}",
                   "{'descr': '|u1', 'fortran_order': False, 'shape': (4 2, 3)}",
                   "{'descr': '|u1', 'fortran_order': False, 'shape': [4, 2, 3]}",
                   "__import__('os').system('touch new')" + " " * 5000):
        images("bad.npy: byte ", "", "", bytes(24), header=header or " ")
    refused(t, 65, "no \\x93NUMPY", "npy", t.program, "labels.npy", "--to", "new")
    labels("label 2 is negative", "<i4", "(4,)", struct.pack("<4i", 0, 1, -1, 2))
    labels("label 3 is negative", "|i1", "(4,)", bytes([0, 1, 2, 200]))
    labels("label 2 is negative", "<i2", "(4,)", struct.pack("<4h", 0, 1, -1, 2))
    labels("label 2 is negative", "<i8", "(4,)", struct.pack("<4q", 0, 300, -2**63, 2))
    labels("label 1 is negative or above 65535, wanted 0 to 65535", "<i8", "(4,)",
           struct.pack("<4q", 0, 65536, 1, 2))
    labels("wanted (n) or (n, 1) integers", "<f4", "(4,)", bytes(16))
    labels("wanted (n) or (n, 1) integers", "|u1", "(4, 10)", bytes(40))
    labels("bad.npy: found 5 labels, wanted 4, one for each image", "|u1", "(5,)", bytes(5))
    refused(t, 66, "nowhere", "npy", "nowhere", "labels.npy", "--to", "new")
    refused(t, 66, "nowhere", "npy", "images.npy", "nowhere", "--to", "new")
    refused(t, 64, "wanted --to", "npy", "images.npy", "labels.npy")
    refused(t, 64, 'found "valid"', "npy", "images.npy", "labels.npy", "--to", "new", "--part",
            "valid")
    refused(t, 64, "is there already", "npy", "images.npy", "labels.npy", "--to", "set0")
    refused(t, 74, "cannot create", "npy", "images.npy", "labels.npy", "--to", "no/where")


# --- ragged sequences ----------------------------------------------------------------------------

LENGTHS = [4, 1, 7, 2, 7, 3, 5, 1, 6, 2]  # frames, of 3 features
SAID = [[1, 2], [], [255, 7, 7, 1], [9], [3], [], [8, 8], [254], [1, 1], [2]]
FILES = ("frames.npy", "offsets.npy", "labels.npy", "label-offsets.npy")


def offsets_of(lengths):
    return [sum(lengths[:i]) for i in range(len(lengths) + 1)]


def integers(path, values, code="<q", descr="<i8"):
    return npy(path, descr, f"({len(values)},)",
               b"".join(struct.pack(code, value) for value in values))


def sequences(t):
    everything = offsets_of(LENGTHS)
    flat = [label for row in SAID for label in row]
    for kind, size in (("|u1", 1), ("<f4", 4)):
        values = [noise.randrange(256) for _ in range(3 * sum(LENGTHS))]
        pack = (lambda v: bytes(v)) if size == 1 else (lambda v: struct.pack(f"<{len(v)}f", *v))
        npy("frames.npy", kind, (sum(LENGTHS), 3), pack(values))
        integers("offsets.npy", everything)
        integers("labels.npy", flat, "B", "|u1")
        integers("label-offsets.npy", offsets_of([len(row) for row in SAID]), "<H", "<u2")
        for to, most, labels, more in ((f"ragged{size}", 7, 4, ()), (
                f"wide{size}", 9, 6, ("--frames", "9", "--labels", "6", "--classes", "256"))):
            lines = t.expect(0, "data", "import", "sequences", *FILES, "--to", to, *more)[1]
            t.check(lines[0] == f"train: 10 images [{most}, 3, 1], labels below 256, up to "
                    f"{labels} of an example", "says what", lines)
            images = b"".join(
                struct.pack(f">{3 * most}{'B' if size == 1 else 'f'}",
                            *values[3 * everything[i]:3 * everything[i + 1]],
                            *[0] * (3 * (most - LENGTHS[i]))) for i in range(10))
            rows = b"".join(struct.pack(">H", LENGTHS[i]) + bytes(SAID[i]) +
                            bytes(labels - len(SAID[i])) for i in range(10))
            t.check(read(f"{to}/{NAMES['train'][0]}") ==
                    bytes([0, 0, 8 if size == 1 else 13, 3]) + struct.pack(">3I", 10, most, 3) +
                    images, "frames, every byte", to)
            t.check(read(f"{to}/{NAMES['train'][1]}") ==
                    bytes([0, 0, 8, 2]) + struct.pack(">2I", 10, 2 + labels) + rows,
                    "labels, every byte", to)
            lines = t.expect(0, "data", "verify", "--directory", to)[1]
            for key, of in (("mean", statistics.fmean), ("deviation", statistics.pstdev)):
                found, wanted = json.loads(value(lines, key)), of(values) / (255 ** (size == 1))
                t.check(abs(found[0] - wanted) <= 1e-7 * wanted, f"{key} of the frames", found,
                        wanted)
    said = json.loads(t.expect(0, "data", "import", "sequences", *FILES, "--to", "split",
                               "--validation", "0.3", "--json")[1][0])
    t.check(said["test"]["sequence_labels"] == 4 and said["train"]["image"] == [7, 3, 1],
            "as JSON", said)
    t.check(read("split/" + NAMES["test"][1])[:12] == bytes([0, 0, 8, 2]) +
            struct.pack(">2I", 3, 6), "a share of them")
    # Labels of two bytes.
    large = [label + 300 * (number % 3) for number, label in enumerate(flat)]
    integers("large.npy", large, "<I", "<u4")
    for part in ("test", "train"):
        lines = t.expect(0, "data", "import", "sequences", *FILES[:2], "large.npy", FILES[3],
                         "--to", "large", "--labels", "5", "--part", part)[1]
    t.check(f"labels below {max(large) + 1}, up to 5 of an example" in lines[0], "says what", lines)
    rows, at = b"", 0
    for frames, row in zip(LENGTHS, SAID):
        rows += struct.pack(">6H", frames, *large[at:at + len(row)], *[0] * (5 - len(row)))
        at += len(row)
    t.check(read(f"large/{NAMES['train'][1]}") == bytes([0, 0, 11, 2]) +
            struct.pack(">2I", 10, 6) + rows, "labels of two bytes, every byte")
    config = t.write("ragged.json", {
        "model.input": [7, 3, 1], "model.input_type": "f32", "model.classes": 256,
        "model.labels": 4, "model.loss": "transducer", "model.layers": [
            {"type": "reshape", "name": "frames", "target_shape": [7, 3]},
            {"type": "label_embedding", "name": "said", "units": 3, "inputs": []},
            {"type": "joint", "name": "joint", "units": 256, "inputs": ["frames", "said"]}],
        "steps": 2, "global_batch": 4, "grain": 2})
    t.expect(0, "train", config, "--data", "split", "--run-dir", "spoken")
    # Advice of a directory without a test set, and of strips of what are no images.
    for setting in ("data", "data.directory"):
        where = ["--data", "ragged4"] if setting == "data" else [
            "--set", 'data={"directory":"ragged4"}']
        error = t.expect(66, "train", config, *where, "--run-dir", "never")[2]
        t.check("ragged4/t10k-images-idx3-ubyte: neither" in error and "--part test" in error and
                "data.train" in error and "fetch" not in error, "no test set", error)
    error = t.expect(78, "train", config, "--data", "split", "--run-dir", "never", "--set",
                     'data.strips={"max":1}')[2]
    t.check("found labels that are sequences, wanted one label an example: data.strips" in error,
            "strips of sequences", error)
    options = ["--set", "model.labels=5", "--set", "model.classes=900"]
    with open(config, encoding="utf-8") as f:
        layers = json.load(f)["model"]["layers"]
    layers[2]["units"] = 900
    t.expect(0, "train", config, "--data", "large", "--run-dir", "loud", *options, "--set",
             f"model.layers={json.dumps(layers)}")
    code, _, error = t.run("train", config, "--data", "large", "--run-dir", "never", "--set",
                           f"model.layers={json.dumps(layers)}", "--set", "model.classes=900")
    t.check(code == 78 and "an example has 12 bytes of labels, wanted 10" in error,
            "another number of labels", code, error)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def wrong_sequences(t):
    good = [read(name) for name in FILES]
    lengths, flat = [len(row) for row in SAID], [label for row in SAID for label in row]

    def bad(word, number, make, *options, code=65):
        make(FILES[number])
        refused(t, code, word, "sequences", *FILES, "--to", "never", *options)
        t.check(not os.path.exists("never"), "nothing is written", word)
        with open(FILES[number], "wb") as f:
            f.write(good[number])

    def offsets(word, values, number=1, *options):
        bad(word, number, lambda path: integers(path, values), *options)

    def labels(word, values, *kind):
        bad(word, 2, lambda path: integers(path, values, *kind))

    frames = offsets_of(LENGTHS)
    offsets("offsets.npy: offset 0: found 1, wanted 0", [1] + frames[1:])
    offsets("offset 3: found 4, wanted 5, the one before, to 38", frames[:3] + [4] + frames[4:])
    offsets("offset 2 is negative", frames[:2] + [-5] + frames[3:])
    offsets("offset 4: found 39, wanted 12", frames[:4] + [39] + frames[5:])
    offsets("offset 2: sequence 1 has 0 values, wanted 1 to", frames[:2] + frames[1:2] + frames[3:])
    offsets("found 11 offsets up to 37", frames[:-1] + [37])
    offsets("label-offsets.npy: found 11 offsets, but offsets.npy has 10", frames[:8] + [30, 38])
    offsets("offset 3: sequence 2 has 7 values, wanted 1 to 6", frames, 1, "--frames", "6")
    offsets("label-offsets.npy: offset 3: sequence 2 has 4 values, wanted 0 to 3",
            offsets_of(lengths), 3, "--labels", "3")
    offsets("found 11 offsets up to 13", offsets_of(lengths)[:-1] + [13], 3)
    labels("labels.npy: label 2 is 0, wanted 1 to 65535", flat[:2] + [0] + flat[3:])
    labels("label 13 is too large, wanted 1 to 65535", flat[:-1] + [65536])
    labels("label 1 is negative", flat[:1] + [-1] + flat[2:], "<h", "<i2")
    bad("labels.npy: its shape has a dimension of 0", 2, lambda path: integers(path, []))
    bad("label 2 is too large, wanted 1 to 199", 2, lambda path: None, "--classes", "200")
    bad("offsets.npy: 1 dimensions of f4", 1, lambda path: integers(path, frames, "<f", "<f4"))
    bad("2 dimensions of i8", 1, lambda path: npy(path, "<i8", "(11, 1)", bytes(88)))
    bad("3 dimensions of u1", 0, lambda path: npy(path, "|u1", (38, 3, 1), bytes(114)))
    bad("2 dimensions of i2", 0, lambda path: npy(path, "<i2", (38, 3), bytes(228)))
    refused(t, 65, "value 3: found NaN", "sequences", npy(
        "nan.npy", "<f4", (38, 3), struct.pack("<114f", *[0] * 3, float("nan"), *[0] * 110)),
        *FILES[1:], "--to", "never")
    t.check(os.listdir("never") == [], "nothing is left", os.listdir("never"))
    os.rmdir("never")
    refused(t, 66, "nowhere", "sequences", *FILES[:3], "nowhere", "--to", "never")
    refused(t, 64, "wanted 4", "sequences", *FILES[:3], "--to", "never")


# --- CIFAR ---------------------------------------------------------------------------------------

def records(path, count, classes, coarse):
    """The file, and its images (32, 32, 3) and labels."""
    images, labels = [], bytes(noise.randrange(classes) for _ in range(count))
    with open(path, "wb") as f:
        for label in labels:
            planes = noise.randbytes(3072)
            f.write(bytes([label // 5] if coarse else []) + bytes([label]) + planes)
            images.append(bytes(planes[c * 1024 + p] for p in range(1024) for c in range(3)))
    return b"".join(images), labels


def cifar(t):
    for classes, files, names in (
            (10, {"train": [f"data_batch_{i}.bin" for i in range(1, 6)],
                  "test": ["test_batch.bin"]}, "batches.meta.txt"),
            (100, {"train": ["train.bin"], "test": ["test.bin"]}, "fine_label_names.txt")):
        folder, to = f"cifar{classes}", f"idx{classes}"
        os.mkdir(folder)
        wanted = {}
        for part, parts in files.items():
            found = [records(f"{folder}/{name}", 7, classes, classes == 100) for name in parts]
            wanted[part] = [b"".join(images) for images in zip(*found)]
        words = [f"class {i}" for i in range(classes)]
        with open(f"{folder}/{names}", "w", encoding="ascii") as f:
            f.write("\r\n".join(words) + "\n\n")
        _, lines, _ = t.expect(0, "data", "import", "cifar", folder, "--to", to)
        t.check(lines[0] == f"CIFAR-{classes}", "which it is", lines)
        for part, (images, labels) in wanted.items():
            t.check(list(written(to, part)) == [([len(labels), 32, 32, 3], images),
                                                ([len(labels)], labels)], f"{folder}, {part}")
        with open(f"{to}/classes.txt", encoding="ascii") as f:
            t.check(f.read().splitlines() == words, "the names of the classes")
        t.expect(0, "data", "verify", "--directory", to, "--part", "test")
    os.remove("cifar10/batches.meta.txt")
    said = json.loads(t.expect(0, "data", "import", "cifar", "cifar10", "--to", "unnamed",
                               "--json")[1][0])
    t.check(said["train"]["examples"] == 35 and said["test"]["classes"] == 10 and
            not os.path.exists("unnamed/classes.txt"), "without names", said)


def wrong_cifar(t):
    def changed(name, change):
        shutil.rmtree("bad", ignore_errors=True)
        shutil.copytree("cifar10", "bad")
        with open("bad/" + name, "r+b") as f:
            change(f)

    def new(word, code=65):
        refused(t, code, word, "cifar", "bad", "--to", "new")

    changed("data_batch_3.bin", lambda f: f.truncate(3072))
    new("data_batch_3.bin: found 3072 bytes, wanted a multiple of 3073")
    changed("test_batch.bin", lambda f: f.truncate(0))
    new("test_batch.bin: found 0 bytes")
    changed("data_batch_5.bin", lambda f: (f.seek(2 * 3073), f.write(b"\x0a")))
    new("data_batch_5.bin: byte 6146: label 10 of record 2")
    os.remove("bad/data_batch_5.bin")
    new("data_batch_5.bin", 66)
    changed("data_batch_1.bin", lambda f: None)
    for text in ("a\nb\n", "a\n" * 11, "a\n" * 9 + "\x1b[2J\n", "a\n" * 9 + "b" * 64, "\n" +
                 "a\n" * 10):
        with open("bad/batches.meta.txt", "w", encoding="ascii") as f:
            f.write(text)
        new("batches.meta.txt: ")
    refused(t, 66, "train.bin", "cifar", "set0", "--to", "new")
    refused(t, 64, "is there already", "cifar", "cifar10", "--to", "idx100")
    for most in (0, 2000, 100000):
        done = subprocess.run(
            [t.program, "data", "import", "cifar", "cifar10", "--to", "new"], text=True,
            capture_output=True, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
        t.check(done.returncode == 74 and done.stderr.count("\n") == 1, "a full disk: 74", done)


# --- PNG -----------------------------------------------------------------------------------------

def put(path, data):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def picture_forms():
    """(file, height, width, channels, pixels) of every form that is taken."""
    grey, rgb = noise.randbytes(12 * 9), noise.randbytes(12 * 9 * 3)
    yield png(rows_of(grey, 9), 9), 12, 9, 1, grey
    yield png(rows_of(rgb, 27), 9, color=2), 12, 9, 3, rgb
    yield png(rows_of(grey, 9), 9, interlaced=True), 12, 9, 1, grey
    yield png(rows_of(rgb, 27), 9, color=2, interlaced=True), 12, 9, 3, rgb
    palette = noise.randbytes(3 * 16)
    colors = bytes(b & 15 for b in grey)
    yield (png(rows_of(colors, 9), 9, color=3, palette=palette), 12, 9, 3,
           b"".join(palette[3 * c:3 * c + 3] for c in colors))
    lines = noise.randbytes(4)  # 8 pixels of one bit a row
    yield (png(rows_of(lines, 1), 8, bits=1), 4, 8, 1,
           bytes(255 * (line >> (7 - i) & 1) for line in lines for i in range(8)))
    yield (png([b"\x1b"], 4, bits=2), 1, 4, 1, bytes([0, 85, 170, 255]))
    yield (png(rows_of(grey, 9), 9, more=chunk(b"gAMA", struct.pack(">I", 45455)) +
               chunk(b"tEXt", b"Title\0a picture")), 12, 9, 1, grey)


def pictures(t):
    for number, (data, height, width, channels, pixels) in enumerate(picture_forms()):
        put(f"forms{number}/one/a.png", data)
        _, lines, _ = t.expect(0, "data", "import", "png", f"forms{number}", "--to",
                               f"form{number}")
        shape = [1, height, width] + ([3] if channels == 3 else [])
        t.check(list(written(f"form{number}", "train")) == [(shape, pixels), ([1], b"\0")],
                f"form {number}: every pixel", lines)
    # Three classes, numbered by their names; the first picture of each, then the second ..
    wanted, names = [], ["Zebra", "a cat", "dog-2"]
    for c, count in enumerate((2, 4, 1)):
        for i in range(count):
            data = noise.randbytes(30)
            put(f"zoo/{names[c]}/{9 - i}.png", png(rows_of(data, 6), 6))
            wanted.append((count - 1 - i, c, data))
    put("zoo/Zebra/.hidden", b"")
    put("zoo/.git/x", b"")
    wanted.sort()
    _, lines, _ = t.expect(0, "data", "import", "png", "zoo", "--to", "zoo-idx")
    t.check(list(written("zoo-idx", "train")) ==
            [([7, 5, 6], b"".join(w[2] for w in wanted)), ([7], bytes(w[1] for w in wanted))],
            "classes and order", lines)
    with open("zoo-idx/classes.txt", encoding="ascii") as f:
        t.check(f.read().splitlines() == names, "names in their order")
    # A test set of two of them has their numbers.
    put("zoo-test/dog-2/x.PNG", png(rows_of(bytes(30), 6), 6))
    put("zoo-test/Zebra/x.png", png(rows_of(bytes(30), 6), 6))
    said = json.loads(t.expect(0, "data", "import", "png", "zoo-test", "--to", "zoo-idx", "--part",
                               "test", "--json")[1][0])
    t.check(list(written("zoo-idx", "test"))[1] == ([2], bytes([0, 2])) and
            list(said) == ["test"] and said["test"]["classes"] == 3, "numbers of classes.txt", said)
    config = t.write("zoo.json", {
        "model.input": [5, 6, 1], "model.classes": 3, "data": {"set": "zoo"}, "steps": 2,
        "global_batch": 4, "grain": 2, "model.layers.4.units": 3})
    t.expect(0, "train", config, "--data", "zoo-idx", "--run-dir", "zoo-run")


def many_folders(t):
    """More classes than a byte tells apart, in the order of their names' bytes."""
    names = sorted(str(c) for c in range(300))
    pixels = {name: noise.randbytes(4) for name in names}
    for name in reversed(names):
        put(f"many/{name}/1.png", png(rows_of(pixels[name], 2), 2))
    t.expect(0, "data", "import", "png", "many", "--to", "many-idx")
    t.check(list(written("many-idx", "train", wide=True)) ==
            [([300, 2, 2], b"".join(pixels[name] for name in names)),
             ([300], struct.pack(">300H", *range(300)))], "300 classes of pictures")
    with open("many-idx/classes.txt", encoding="ascii") as f:
        t.check(f.read().splitlines() == names, "their names")
    put("some/299/1.png", png(rows_of(bytes(4), 2), 2))
    t.expect(0, "data", "import", "png", "some", "--to", "many-idx", "--part", "test")
    t.check(list(written("many-idx", "test", wide=True))[1] ==
            ([1], struct.pack(">H", names.index("299"))), "the number of classes.txt")


def wrong_pictures(t):
    good = png(rows_of(bytes(30), 6), 6)

    def bad(word, data, code=65):
        shutil.rmtree("bad-png", ignore_errors=True)
        put("bad-png/a/1.png", good)
        put("bad-png/b/2.png", data)
        refused(t, code, word, "png", "bad-png", "--to", "new")

    bad("b/2.png: found 16 bits", png(rows_of(bytes(60), 12), 6, bits=16))
    bad("wanted 5 x 6 of 1, as the first picture has, bad-png/a/1.png",
        png(rows_of(bytes(36), 6), 6))
    bad("5 x 6 pixels of 3 channels", png(rows_of(bytes(90), 18), 6, color=2))
    bad("transparency", png(rows_of(bytes(120), 24), 6, color=6))
    bad("transparency", png(rows_of(bytes(60), 12), 6, color=4))
    bad("transparency", png(rows_of(bytes(30), 6), 6, more=chunk(b"tRNS", b"\0\0")))
    large = struct.pack(">2I5B", 1025, 1024, 8, 0, 0, 0, 0)
    bad("1024 x 1025 pixels, wanted at most", good[:8] + chunk(b"IHDR", large) + good[33:])
    bad("no PNG signature", b"GIF89a")
    bad("no PNG signature", b"")
    for end in (9, 30, len(good) - 20, len(good) - 1):
        bad("is no whole PNG picture", good[:end])
    for at in (20, 45, len(good) - 5):
        bad("is no whole PNG picture", good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
    bad("there is more behind its end", good + b"x")
    bad("is no whole PNG picture", png(rows_of(bytes(30), 6), 7))  # rows that are too short
    bomb = struct.pack(">2I5B", 60000, 60000, 8, 0, 0, 0, 0)
    bad("pixels, wanted at most", good[:8] + chunk(b"IHDR", bomb) + good[33:])
    bad("is no whole PNG picture", good[:8] + chunk(b"IHDR", struct.pack(
        ">2I5B", 0, 5, 8, 0, 0, 0, 0)) + good[33:])
    # What is no picture in a class, no class in the folder, no folder.
    put("mixed/a/1.txt", b"")
    refused(t, 65, "1.txt", "png", "mixed", "--to", "new")
    put("mixed/a/1.txt", b"")
    os.makedirs("empty/a")
    refused(t, 65, "there is no picture", "png", "empty", "--to", "new")
    os.rmdir("empty/a")
    refused(t, 65, "there is no folder", "png", "empty", "--to", "new")
    put("file/a", good)
    refused(t, 65, "file/a", "png", "file", "--to", "new")
    refused(t, 66, "nowhere", "png", "nowhere", "--to", "new")
    put("name/\x1b[2J/1.png", good)
    refused(t, 65, "printing letters", "png", "name", "--to", "new")
    put("strange/camel/1.png", good)
    refused(t, 65, "is no class of zoo-idx/classes.txt", "png", "strange", "--to", "zoo-idx",
            "--part", "test")
    refused(t, 64, "is there already", "png", "zoo", "--to", "zoo-idx")
    put("letters/" + 64 * "l" + "/1.png", good)
    refused(t, 65, "at most 65,536 classes", "png", "letters", "--to", "new")


# --- two at once ---------------------------------------------------------------------------------

def two_at_once(t):
    """A file that is being written is neither taken nor published by another import; what a killed
    one left is."""
    sets = {}
    for name, count in (("few", 2000), ("many", 9000)):
        images, labels = noise.randbytes(count * 784), noise.randbytes(count)
        npy(f"{name}.npy", "|u1", (count, 28, 28), images)
        npy(f"{name}-labels.npy", "|u1", f"({count},)", labels)
        sets[name] = [([count, 28, 28], images), ([count], labels)]
    left = "busy/train-images-idx3-ubyte.tmp"
    put(left, b"half of a file")
    with open(left, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(t, 69, "another import writes there", "npy", "few.npy", "few-labels.npy", "--to",
                "busy")
        t.check(read(left) == b"half of a file" and os.listdir("busy") == [left[5:]],
                "the other's file stays", os.listdir("busy"))
    t.expect(0, "data", "import", "npy", "few.npy", "few-labels.npy", "--to", "busy")
    t.check(list(written("busy", "train")) == sets["few"], "a leftover goes")
    for turn in range(6):
        to = f"both{turn}"
        started = [(name, t.start("data", "import", "npy", f"{name}.npy", f"{name}-labels.npy",
                                  "--to", to)) for name in sets]
        ends = {name: (process.communicate(), process.returncode) for name, process in started}
        won = [name for name, end in ends.items() if end[1] == 0]
        t.check(len(won) == 1 and all(end[1] in (0, 64, 69) for end in ends.values()),
                "one of two", ends)
        t.check(list(written(to, "train")) == sets[won[0]] and len(os.listdir(to)) == 2,
                "the files of one import", won, os.listdir(to))


# --- CSV -----------------------------------------------------------------------------------------

def tables(t):
    forms = {
        "names": ("a,b,label\n1,2,cat\n255,0,dog\n7,8,cat\n", [], [1, 2, 255, 0, 7, 8], [0, 1, 0],
                  ["cat", "dog"]),
        "numbers": ("1,2,9\r\n3,4,200", [], [1, 2, 3, 4], [9, 200], None),
        "first": ("5,1,2\n6,3,4\n", ["--label", "1"], [1, 2, 3, 4], [5, 6], None),
        "named": ("y,p q\n3,7\n", ["--label", "y"], [7], [3], None),
        "quotes": ('\xef\xbb\xbf"x, 1",what\n"1","a ""b"", c"\n2,B\n', [], [1, 2], [1, 0],
                   ["B", 'a "b", c']),
        "shape": ("1,2,3,4,5,6,0\n6,5,4,3,2,1,1\n", ["--shape", "2,1,3"],
                  [1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1], [0, 1], None)}
    for name, (text, options, features, labels, names) in forms.items():
        put(f"{name}.csv", text.encode("latin1"))
        t.expect(0, "data", "import", "csv", f"{name}.csv", "--to", f"csv-{name}", *options)
        (shape, values), (_, found) = written(f"csv-{name}", "train")
        wanted = [len(labels)] + ([2, 1, 3] if name == "shape" else
                                  [1, len(features) // len(labels)])
        t.check(shape == wanted and list(values) == features and list(found) == labels,
                f"{name}: every cell", shape, list(values), list(found))
        there = os.path.exists(f"csv-{name}/classes.txt")
        if names:
            with open(f"csv-{name}/classes.txt", encoding="ascii") as f:
                t.check(f.read().splitlines() == names, f"{name}: names of classes")
        t.check(there == bool(names), f"{name}: classes.txt")
    # What the first line is taken for.
    for number, (text, options, features, labels) in enumerate([
            ("a,b,5\n1,2,3\n", ["--label", "5"], [1, 2], [3]),
            ("a,b,c\n1,9,3\n", ["--label", "2"], [1, 3], [9]),
            (",a,b,label\n0,1,2,7\n", [], [0, 1, 2], [7]),
            ("label,0,1,2\n6,1,2,3\n", ["--label", "1"], [1, 2, 3], [6]),
            ("0,1,label,2\n6,1,2,3\n", ["--label", "3"], [6, 1, 3], [2]),
            ("0,1,2,3,what\n6,1,2,3,4\n", [], [6, 1, 2, 3], [4]),
            ("a,1,2,what\n6,1,2,3\n", ["--label", "what"], [6, 1, 2], [3]),
            ("0,1,2,3\n", [], [0, 1, 2], [3]),
            ("0,1,what\n", [], [0, 1], [0]),
            ("1,2,3,what\n", [], [1, 2, 3], [0]),
            ("x,y,z\n1,2,10.0\n3,4,2.00\n5,6,7\n", [], [1, 2, 3, 4, 5, 6], [10, 2, 7])]):
        put("first.csv", text.encode())
        to, example = f"first-{number}", 7 <= number <= 9
        lines = t.expect(0, "data", "import", "csv", "first.csv", "--to", to, *options)[1]
        (_, values), (_, found) = written(to, "train")
        t.check(list(values) == features and list(found) == labels, text, list(values), list(found))
        t.check(lines[0].endswith(f", first line: {'an example' if example else 'names'}"),
                f"{text}: says what it took it for", lines)
    said = json.loads(t.expect(0, "data", "import", "csv", "first.csv", "--to", "first-json",
                               "--json")[1][0])
    t.check(said["train"]["first_line"] == "names", "as JSON", said)
    put("more.csv", b"9,9,dog\n")
    t.expect(0, "data", "import", "csv", "more.csv", "--to", "csv-names", "--part", "test")
    t.check(list(written("csv-names", "test"))[1] == ([1], b"\x01"), "numbers of classes.txt")
    # As many classes as there may be, by name and by number.
    count = 65536
    names = [f"c{i * 40503 % count}" for i in range(count)]
    put("most.csv", "".join(f"1,{name}\n" for name in names).encode())
    t.expect(0, "data", "import", "csv", "most.csv", "--to", "csv-most")
    with open("csv-most/classes.txt", encoding="ascii") as f:
        listed = f.read().splitlines()
    numbers = {name: number for number, name in enumerate(sorted(names))}
    t.check(listed == sorted(names) and list(written("csv-most", "train", wide=True))[1] ==
            ([count], struct.pack(f">{count}H", *(numbers[name] for name in names))),
            "65,536 names")
    put("most-test.csv", b"1,c7\n")
    t.expect(0, "data", "import", "csv", "most-test.csv", "--to", "csv-most", "--part", "test")
    t.check(list(written("csv-most", "test", wide=True))[1] ==
            ([1], struct.pack(">H", numbers["c7"])), "one of 65,536 names")
    put("numbers.csv", b"1,256\n2,65535\n3,0\n")
    t.expect(0, "data", "import", "csv", "numbers.csv", "--to", "csv-65535")
    t.check(list(written("csv-65535", "train", wide=True))[1] ==
            ([3], struct.pack(">3H", 256, 65535, 0)), "numbers of two bytes")
    # Cells across the borders of what is read at once.
    rows = [[noise.randrange(256) for _ in range(1000)] for _ in range(30)]
    put("wide.csv", "".join(",".join(map(str, row)) + ",3\n" for row in rows).encode())
    t.expect(0, "data", "import", "csv", "wide.csv", "--to", "csv-wide")
    t.check(list(next(written("csv-wide", "train"))[1]) == sum(rows, []), "a file of many pieces")


def wrong_tables(t):
    def bad(word, text, *options, code=65):
        put("bad.csv", text if isinstance(text, bytes) else text.encode())
        refused(t, code, word, "csv", "bad.csv", "--to", "new", *options)

    bad("line 2, column 1: the cell is empty", "1,2,3\n,2,3\n")
    bad("line 2, column 3: the label is missing", "1,2,3\n1,2,\n")
    bad("line 3, column 1: the cell is empty", "1,2,3\n1,2,3\n\n")
    # No example is taken for names.
    bad("line 1, column 1: the cell is empty", ",2,3,0\n4,5,6,1\n7,8,9,1\n")
    for text in ("nan", "inf", "0x10", " 3", "NA", "?", "x"):
        bad("line 1, column 2: no finite number; if the first", f"1,{text},3\n4,5,6\n")
    bad("line 1, column 1: no finite number", "NA,n/a,3\n4,5,6\n")
    bad("line 1, column 1: no finite number; if the first", "a,0,1,what\n4,5,6,7\n")
    bad("if the first line is one of names, say", "0,1,what\n4,5,6\n")
    for label in ("-1", "-2.0", "2.5", "1e1", "10.", ".0", "99999999999999999999"):
        bad("line 1, column 3: a label that is no whole number", f"1,2,{label}\n1,2,3\n")
    bad("line 2, column 3: a label that is no whole number", "1,2,cat\n1,2,0.5\n")
    bad('has no column "5"', "1,5,3\n4,5,6\n", "--label", "5", code=64)
    bad("line 2, column 2: fewer cells", "1,2,3\n1,2\n")
    bad("line 2, column 4: more cells", "1,2,3\n1,2,3,4\n")
    bad("line 2, column 2: a number that is not whole", "1,2,3\n1,2.5,3\n")
    bad("line 2, column 1: a number that is not whole or not from 0", "1,2,3\n-1,2,3\n")
    bad("line 1, column 2: a number that is not whole or not from 0", "1,256,3\n")
    for text in ("nan", "inf", "1e99", "NA", "0x10", " 1", "--1", "1e"):
        bad("line 2, column 1: no finite number", f"1,2,3\n{text},2,3\n")
    bad("a label above 65535, wanted 0 to 65535", "1,2,65536\n")
    bad("a name among numbers", "1,2,3\n1,2,cat\n")
    bad("line 2, column 3: a number among labels", "1,2,cat\n1,2,3\n")
    bad("printing letters", "1,2," + "c" * 64 + "\n")
    bad("printing letters", b"1,2,\x1b[2J\n")
    bad("line 65537, column 3: one class more than 65,536",
        "".join(f"1,2,c{i}\n" for i in range(65537)))
    for text, byte in ((b"a\nb\na\n", 4), (b"a\n\n", 2), (b"a\n" + 64 * b"b", 2),
                       (b"\x1b\n", 0), (b"".join(b"%d\n" % i for i in range(65537)), 382106)):
        put("listed/classes.txt", text)
        refused(t, 65, f"listed/classes.txt: byte {byte}: wanted at most 65,536 different names",
                "csv", "more.csv", "--to", "listed")
    bad("it is empty", "")
    bad("there is no example", "a,b,c\n")
    bad("one column", "1\n2\n")
    bad("a byte of 0", b"1,2,3\n1,\0,3\n")
    bad("a cell of more than 255 letters", "1,2,3\n" + "1" * 256 + ",2,3\n")
    bad("within quotes", '1,2,3\n1,"2,3\n')
    bad("behind a closing quote", '1,2,3\n1,"2"2,3\n')
    bad("a quote within a cell", '1,2,3\n1,2"2",3\n')
    bad("a carriage return", "1,2,3\r1,2,3\n")
    bad("more than 65,536 columns", "1," * 70000 + "1\n")
    bad("found 2 features, wanted 3 x 1 x 1", "1,2,3\n", "--shape", "3,1,1")
    bad("the label's name for the second time", "y,y,z\n1,2,3\n", "--label", "y")
    bad('has no column "q"', "a,b,c\n1,2,3\n", "--label", "q", code=64)
    bad('has no column "4"', "1,2,3\n", "--label", "4", code=64)
    for shape in ("3", "1,2,3,4", "0,1,1", "1,,1", "1,1,17", "a,1,1", "1,1,1 "):
        bad("--shape: found", "1,2,3\n", "--shape", shape, code=64)
    put("other.csv", b"1,2,horse\n")
    refused(t, 65, "a label that is not in classes.txt", "csv", "other.csv", "--to", "csv-names",
            "--part", "test")
    put("other.csv", b"1,2,1\n1,2,2\n")
    refused(t, 65, "line 2, column 3: a label that is not in classes.txt", "csv", "other.csv",
            "--to", "csv-names", "--part", "test")
    # Folders of digits: their names are no numbers of classes.
    put("digits/classes.txt", b"1\n10\n2\n")
    put("other.csv", b"1,2,2\n1,2,10\n1,2,1\n")
    t.expect(0, "data", "import", "csv", "other.csv", "--to", "digits", "--part", "test")
    t.check(list(written("digits", "test"))[1] == ([3], b"\2\1\0"), "names that are numbers")
    put("other.csv", b"1,2,0\n")
    refused(t, 65, "a label that is not in classes.txt", "csv", "other.csv", "--to", "digits")
    refused(t, 66, "nowhere", "csv", "nowhere", "--to", "new")


# --- a part for validation -----------------------------------------------------------------------

def validation(t):
    """Each example is in one part, as many are held out as were asked for, and which ones follows
    from the seed alone: for arrays, tables and pictures alike."""
    count = 40
    values, labels = noise.randbytes(count * 6), bytes(noise.randrange(5) for _ in range(count))
    npy("split-i.npy", "|u1", (count, 1, 6), values)
    npy("split-l.npy", "|u1", (count,), labels)
    put("split.csv", "".join(",".join(map(str, values[6 * i:6 * i + 6])) + f",{labels[i]}\n"
                             for i in range(count)).encode())
    found = {}
    for name, *what in (("npy", "npy", "split-i.npy", "split-l.npy"), ("csv", "csv", "split.csv")):
        for seed in ("0", "1"):
            to = f"split-{name}-{seed}"
            t.expect(0, "data", "import", *what, "--to", to, "--validation", "0.26", "--seed", seed)
            parts = {part: list(written(to, part)) for part in NAMES}
            t.check([parts[part][1][0] for part in NAMES] == [[30], [10]], "30 and 10", parts)
            examples = sorted((parts[part][0][1][6 * i:6 * i + 6], parts[part][1][1][i])
                              for part in NAMES for i in range(parts[part][1][0][0]))
            t.check(examples == sorted((values[6 * i:6 * i + 6], labels[i]) for i in range(count)),
                    "every example once")
            found[name, seed] = parts
    t.check(found["npy", "0"] == found["csv", "0"] and found["npy", "1"] == found["csv", "1"],
            "the choice is of numbers alone")
    t.check(found["npy", "0"] != found["npy", "1"], "the seed chooses")
    t.expect(0, "data", "import", "png", "zoo", "--to", "split-png", "--validation", "0.3")
    t.check([len(list(written("split-png", part))[1][1]) for part in NAMES] == [5, 2], "pictures")

    def bad(word, *options):
        refused(t, 64, word, "csv", "split.csv", "--to", "new", *options)

    bad("leaves one part empty", "--validation", "0.001")
    for share in ("0", "1", "0.0", "10%", "0.", ".5", "-0.1", "0.1234567", "0.1e1"):
        bad("wanted a share between 0 and 1", "--validation", share)
    bad("wanted one of them", "--validation", "0.1", "--part", "test")
    bad("wanted --validation beside it", "--seed", "1")


def main():
    t = Test()
    pictures(t)
    many_folders(t)
    wrong_pictures(t)
    tables(t)
    wrong_tables(t)
    validation(t)
    two_at_once(t)
    arrays(t)
    wrong_arrays(t)
    sequences(t)
    wrong_sequences(t)
    cifar(t)
    wrong_cifar(t)
    t.check(not glob.glob("new/*") and not glob.glob("*/*.tmp"), "nothing half-written",
            glob.glob("new/*"))
    t.finish()


if __name__ == "__main__":
    main()
