#!/usr/bin/env python3
"""import_test - lockstep data import: every byte that comes out against what went in, training on
it, and everything that may be wrong with what others wrote.

   import_test.py PROGRAM WORK_DIR

Standard library only.
"""
import glob
import json
import os
import random
import resource
import shutil
import struct
import subprocess

from program import Test

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


def written(directory, part):
    """Dimensions and values of both files."""
    for name in NAMES[part]:
        with open(f"{directory}/{name}", "rb") as f:
            content = f.read()
        count = content[3]
        assert content[:3] == b"\0\0\x08", content[:4]
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

    images("its items are f4, wanted u1", "<f4", (4, 2, 3), bytes(96))
    images("its items are u2, wanted u1", "<u2", (4, 2, 3), bytes(48))
    images("an array of 2 dimensions", "|u1", (4, 6), bytes(24))
    images("of 16 channels", "|u1", (4, 1, 1, 17), bytes(68))
    images("more than 4 dimensions", "|u1", (4, 1, 1, 1, 6), bytes(24))
    images("a dimension of 0", "|u1", (0, 2, 3), b"")
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
    labels("label 1 is negative or above 255", "<i8", "(4,)", struct.pack("<4q", 0, 256, 1, 2))
    labels("wanted (n) or (n, 1) integers", "<f4", "(4,)", bytes(16))
    labels("wanted (n) or (n, 1) integers", "|u1", "(4, 10)", bytes(40))
    labels("4", "|u1", "(5,)", bytes(5))
    refused(t, 66, "nowhere", "npy", "nowhere", "labels.npy", "--to", "new")
    refused(t, 66, "nowhere", "npy", "images.npy", "nowhere", "--to", "new")
    refused(t, 64, "wanted --to", "npy", "images.npy", "labels.npy")
    refused(t, 64, 'found "valid"', "npy", "images.npy", "labels.npy", "--to", "new", "--part",
            "valid")
    refused(t, 64, "is there already", "npy", "images.npy", "labels.npy", "--to", "set0")
    refused(t, 74, "cannot create", "npy", "images.npy", "labels.npy", "--to", "no/where")


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


def main():
    t = Test()
    arrays(t)
    wrong_arrays(t)
    cifar(t)
    wrong_cifar(t)
    t.check(not glob.glob("new/*") and not glob.glob("*/*.tmp"), "nothing half-written",
            glob.glob("new/*"))
    t.finish()


main()
