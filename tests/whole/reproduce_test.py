#!/usr/bin/env python3
"""reproduce_test - lockstep pack and lockstep reproduce: the archive byte by byte, a run trained
again from it elsewhere, every way in which one may part, and archives of bad will.

   reproduce_test.py PROGRAM WORK_DIR

Standard library only.
"""
import glob
import io
import json
import os
import random
import shutil
import struct
import subprocess
import tarfile
import zlib

from program import Test

IMAGES, SHAPE = 400, (6, 5, 1)
NAMES = ["run/README", "run/manifest.json", "run/config.json", "run/hashes.jsonl",
         "run/metrics.jsonl"]


def write_data(directory, seed):
    os.makedirs(directory)
    noise = random.Random(seed)
    for name in ("train", "t10k"):
        with open(f"{directory}/{name}-images-idx3-ubyte", "wb") as f:
            f.write(struct.pack(">4I", 0x803, IMAGES, *SHAPE[:2]))
            f.write(noise.randbytes(IMAGES * SHAPE[0] * SHAPE[1]))
        with open(f"{directory}/{name}-labels-idx1-ubyte", "wb") as f:
            f.write(struct.pack(">2I", 0x801, IMAGES))
            f.write(bytes(noise.randrange(10) for _ in range(IMAGES)))


def members(path):
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}


def rewrite(path, to, change):
    """The archive with `change` made to its members, by Python's own writer."""
    files = members(path)
    change(files)
    with tarfile.open(to, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return to


def summed(line):
    """A log's line with another content and the checksum that fits it."""
    body = line.rpartition(b',"crc32":"')[0]
    return body + b',"crc32":"%08x"}' % zlib.crc32(body)


def train(t):
    write_data("data", 1)
    config = t.write("config.json", {
        "name": "again", "model.input": list(SHAPE), "steps": 24, "hash_every_steps": 4,
        "checkpoint.every_steps": 8, "global_batch": 32, "grain": 8,
        "data": {"set": "mine"}})
    t.expect(0, "train", config, "--run-dir", "run", "--data", "data", "--replicas", "1")


def packed(t):
    made = json.loads(t.expect(0, "pack", "run", "--to", "a.tar", "--json")[1][0])
    _, lines, _ = t.expect(0, "pack", "run/", "--to", "b.tar")
    with open("a.tar", "rb") as a, open("b.tar", "rb") as b:
        content = a.read()
        t.check(content == b.read() and len(content) == made["bytes"], "twice the same bytes", made)
    t.check(any("digest " + made["digest"] in line for line in lines), "the digest is said", lines)
    t.check(not glob.glob("*.tmp"), "nothing else is left")
    with tarfile.open("a.tar", format=tarfile.USTAR_FORMAT) as tar:
        found = tar.getmembers()
    t.check([m.name for m in found] == NAMES and all(
        (m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.isreg()) ==
        (0, 0, 0, "", "", 0o644, True) for m in found), "entries that say nothing of the packer")
    files = members("a.tar")
    for name in NAMES[2:]:
        with open("run/" + name.split("/")[1], "rb") as f:
            t.check(f.read() == files[name], f"{name} is the run's")
    manifest = json.loads(files["run/manifest.json"])
    t.check([r["step"] for r in manifest["results"]] == [8, 16, 24] and
            manifest["results"][2]["digest"] == made["digest"], "all checkpoints", manifest)
    t.check(manifest["data"]["train"] == {"examples": IMAGES, "sha256": made["data_sha256"]} and
            manifest["environment"]["replicas"] == 1, "data and machine", manifest)
    checked = t.expect(0, "data", "verify", "--images", "data/train-images-idx3-ubyte", "--labels",
                       "data/train-labels-idx1-ubyte")[1]
    t.check("data_sha256 " + made["data_sha256"] in checked, "the data hash", checked)


def again(t, place, *more, code=0):
    done, lines, error = t.run("reproduce", place, *more)
    t.check(done == code, "reproduce " + " ".join((place, *more)), done, lines, error)
    return "\n".join(lines)


def equal(t):
    """On another layout, by other kernels, from another place; from the directory itself."""
    os.makedirs("elsewhere")
    os.rename("data", "elsewhere/data")
    data = ["--data", "elsewhere/data"]
    _, lines, error = t.expect(66, "reproduce", "a.tar")
    t.check("--data DIRECTORY" in error, "without its data: where to look", error)
    before = sorted(os.listdir("."))
    for more in ((), ("--replicas", "3"), ("--kernels", "reference", "--replicas", "2"),
                 ("--set", "layout.wave_examples=8")):
        said = again(t, "a.tar", *data, *more)
        t.check("6 lines of step hashes and 3 digests and state hashes compared, all equal" in said,
                "all is compared", said)
    t.check(sorted(os.listdir(".")) == before, "no file is written")
    said = json.loads(again(t, "run", *data, "--json"))
    t.check((said["reproduced"], said["hashes_compared"], said["results_compared"]) ==
            (True, 6, 3), "a run directory", said)
    shutil.copytree("run", "early")
    os.remove("early/record.json")
    shutil.rmtree("early/checkpoints/")
    os.mkdir("early/checkpoints")
    shutil.copy("run/checkpoints/step-0000000016.safetensors", "early/checkpoints")
    t.expect(0, "pack", "early", "--to", "early.tar")
    said = again(t, "early.tar", *data)
    t.check("6 lines of step hashes and 1 digests" in said, "as earlier versions left it", said)


def parts(t):
    data = ["--data", "elsewhere/data"]

    def hashes(files):
        lines = files["run/hashes.jsonl"].split(b"\n")
        name, value = b'"dense/kernel":"', lines[3].split(b'"dense/kernel":"')[1][:16]
        lines[3] = summed(lines[3].replace(name + value, name + value[::-1]))
        files["run/hashes.jsonl"] = b"\n".join(lines)

    def result(which, key):
        def change(files):
            manifest = json.loads(files["run/manifest.json"])
            value = manifest["results"][which][key]
            manifest["results"][which][key] = value[::-1]
            files["run/manifest.json"] = json.dumps(manifest).encode()
        return change

    said = again(t, rewrite("a.tar", "c.tar", hashes), *data, code=1)
    t.check("differ step 16, hash of tensor dense/kernel: " in said and
            "the last equal step that was recorded is 12" in said and "compiler_there" in said,
            "step and tensor where they part", said)
    said = json.loads(again(t, "c.tar", *data, "--json", code=1))
    t.check((said["reproduced"], said["differ_at_step"], said["last_equal_step"],
             said["tensor"]) == (False, 16, 12, "dense/kernel"), "as JSON", said)
    said = again(t, rewrite("a.tar", "c.tar", result(1, "digest")), *data, code=1)
    t.check("differ step 16, digest: " in said, "a digest", said)
    said = again(t, rewrite("a.tar", "c.tar", result(0, "state_hash")), *data, code=1)
    t.check("differ step 8, state hash" in said, "a state hash", said)


def others(t):
    """What is another before a step is done: said, and nothing trained."""
    said = again(t, "a.tar", "--data", "elsewhere/data", "--seed", "8", code=1)
    t.check("the configurations differ in seed (7 there, 8 here)" in said and "step" not in
            said.split("differ ")[1], "the configuration", said)
    write_data("other", 2)
    said = again(t, "a.tar", "--data", "other", code=1)
    t.check("differ training set: " in said, "the data", said)

    def identity(files):
        manifest = json.loads(files["run/manifest.json"])
        manifest["run_identity"] = manifest["run_identity"][::-1]
        files["run/manifest.json"] = json.dumps(manifest).encode()

    said = again(t, rewrite("a.tar", "c.tar", identity), "--data", "elsewhere/data", code=1)
    t.check("so the version is another" in said, "the version", said)

    def arithmetic(files):
        files["run/manifest.json"] = files["run/manifest.json"].replace(
            b'"arithmetic_version": 1', b'"arithmetic_version": 9')

    _, _, error = t.run("reproduce", rewrite("a.tar", "c.tar", arithmetic))
    t.check("in arithmetic version 9" in error, "another arithmetic", error)


# --- what may be wrong ---------------------------------------------------------------------------

def refused(t, code, word, *arguments):
    found, lines, error = t.run(*arguments)
    t.check((found, lines) == (code, []) and error.startswith("lockstep: ") and
            error.count("\n") == 1 and word in error, f"{code} and one line with {word!r}",
            arguments, found, lines, error)


def hostile(t):
    def drop(name):
        return lambda files: files.pop(name)

    def put(name, content):
        return lambda files: files.update({name: content})

    changes = [
        (drop("run/manifest.json"), "has no entry run/manifest.json"),
        (drop("run/config.json"), "has no entry run/config.json"),
        (put("run/more", b"x"), "entry run/more: none of a run"),
        (put("../up", b"x"), "the entry's name"), (put("/etc/passwd", b"x"), "the entry's name"),
        (put("run/config.json", b"{}\0"), "has a NUL"),
        (put("run/config.json", b"{} " + b" " * (1 << 20)), "wanted at most"),
        (put("run/manifest.json", b"[]"), "run/manifest.json"),
        (put("run/manifest.json", b'{"format": 1, "form'), "run/manifest.json"),
        (put("run/manifest.json", b'{"format": 2}'), "format"),
        (put("run/hashes.jsonl", b'{"step":1,"crc32":"00000000"}\n'), "hashes.jsonl"),
        (put("run/hashes.jsonl", summed(b'{"step":4,"x":"0123456789abcdef","crc32":"') + b"\n"),
         "another model's log")]
    for change, word in changes:
        refused(t, 65, word, "reproduce", rewrite("a.tar", "c.tar", change), "--data",
                "elsewhere/data")

    with open("a.tar", "rb") as f:
        whole = f.read()
    with open("c.tar", "wb") as f:
        f.write(whole[:1024] + whole)
    refused(t, 65, "there are two of that name", "reproduce", "c.tar")

    def with_entry(**facts):
        info = tarfile.TarInfo("run/config.json")
        for key, value in facts.items():
            setattr(info, key, value)
        with tarfile.open("c.tar", "w") as tar:
            tar.addfile(info)
        return "c.tar"

    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        refused(t, 65, "no plain file", "reproduce", with_entry(type=kind, linkname="/etc/passwd"))
    for count in (0, 100, 511, 512, 1000, 1024, len(whole) - 1024, len(whole) - 1):
        with open("c.tar", "wb") as f:
            f.write(whole[:count])
        refused(t, 65, "c.tar", "reproduce", "c.tar")
    with open("c.tar", "wb") as f:
        f.write(whole.replace(b"run/config.json", b"run/README\0json"))
    refused(t, 65, "sum", "reproduce", "c.tar")
    with open("c.tar", "wb") as f:
        f.write(b"no archive at all " * 512)
    refused(t, 65, "ustar", "reproduce", "c.tar")
    refused(t, 66, "cannot open", "reproduce", "nowhere")


def wrong(t):
    refused(t, 64, "wanted --to", "pack", "run")
    refused(t, 66, "identity", "pack", "elsewhere", "--to", "new.tar")
    os.mkdir("folder")
    refused(t, 64, "which is no plain file", "pack", "run", "--to", "folder")
    for place in ("run/new.tar", "run/checkpoints/new.tar", "run/config.json"):
        refused(t, 64, "in the run directory itself", "pack", "run", "--to", place)
    refused(t, 74, "cannot create", "pack", "run", "--to", "no/where.tar")
    shutil.copytree("run", "damaged")
    with open("damaged/hashes.jsonl", "r+b") as f:
        f.seek(20)
        f.write(b"!")
    refused(t, 65, "hashes.jsonl: line 1", "pack", "damaged", "--to", "new.tar")
    shutil.copytree("run", "foreign")
    with open("foreign/identity", "r+", encoding="utf-8") as f:
        f.write("0" * 8)
    code, _, error = t.run("pack", "foreign", "--to", "new.tar")
    t.check(code == 66 and "holds no whole checkpoint" in error, "not its own checkpoints", error)
    path = "run/checkpoints/step-0000000016.safetensors"
    with open(path, "r+b") as f:
        f.seek(-10, os.SEEK_END)
        f.write(b"\xff" * 8)
    _, lines, error = t.expect(0, "pack", "run", "--to", "fewer.tar")
    t.check("checkpoint passed over: " + path in error and "2 results to step 24" in lines[0],
            "a damaged one is passed over, loudly", lines, error)
    t.check(not os.path.exists("new.tar") and not glob.glob("*.tmp"), "nothing half-written")


def main():
    t = Test()
    train(t)
    packed(t)
    equal(t)
    parts(t)
    others(t)
    hostile(t)
    wrong(t)
    help_text = subprocess.run([t.program, "help", "reproduce"], capture_output=True, text=True,
                               check=False)
    t.check(help_text.returncode == 0 and "--data DIRECTORY" in help_text.stdout, "its help")
    t.finish()


main()
