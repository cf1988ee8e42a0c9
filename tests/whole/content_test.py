#!/usr/bin/env python3
"""content_test - what checkpoints, logs and configurations say is compared with what they hold:
changed weights, numbers that are not finite, control characters, huge headers, wrong checksums.

   content_test.py PROGRAM WORK_DIR

Standard library only.
"""
import glob
import hashlib
import json
import os
import shutil
import struct
import subprocess
import time
import zlib

from program import Test

TEST_SET = ["--set", 'data.test={"made_up":{"count":40,"height":10,"width":10}}']
SLOTS = "/momentum"


def one_line(t, error, *words):
    t.check(error.startswith("lockstep: ") and error.count("\n") == 1 and
            all(word in error for word in words), f"one line with {words}", error)


# --- checkpoints ---------------------------------------------------------------------------------

def newest(run):
    return sorted(glob.glob(run + "/checkpoints/*"))[-1]


def read(path):
    """The header as a dictionary, and the tensor bytes."""
    with open(path, "rb") as f:
        content = f.read()
    data_at = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:data_at]), bytearray(content[data_at:])


def write(path, header, data, sums=True):
    """With a content hash that is right; with `sums`, so are the digest and the state hash."""
    tensors = sorted((record["data_offsets"], name) for name, record in header.items()
                     if name != "__metadata__")
    metadata = header["__metadata__"]
    if sums:
        parameters = b"".join(data[slice(*at)] for at, name in tensors if name.count("/") == 1)
        metadata["digest"] = hashlib.sha256(parameters).hexdigest()
        state = bytes(data) + struct.pack("<Q", int(metadata["step"]))
        metadata["state_hash"] = hashlib.sha256(state).hexdigest()
    metadata = {"content_sha256": "0" * 64, **{k: v for k, v in metadata.items()
                                               if k != "content_sha256"}}
    text = json.dumps({**header, "__metadata__": metadata}, separators=(",", ":")).encode()
    # As the program writes it: the metadata first.
    parts = {"__metadata__": metadata, **{k: v for k, v in header.items() if k != "__metadata__"}}
    text = json.dumps(parts, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    content = struct.pack("<Q", len(text)) + text + bytes(data)
    digest = hashlib.sha256(content).hexdigest().encode()
    with open(path, "wb") as f:
        f.write(content.replace(b"0" * 64, digest, 1))


def poke(path, tensor, element, bits, sums):
    """Puts another float into a tensor of a checkpoint."""
    header, data = read(path)
    at = header[tensor]["data_offsets"][0] + 4 * element
    data[at:at + 4] = struct.pack("<I", bits)
    write(path, header, data, sums)


def users(run):
    """Everybody who reads weights: the arguments, without the configuration's own."""
    path = newest(run)
    return [["train", "c.json", "--run-dir", run, "--resume", "--set", "steps=12"],
            ["eval", "c.json", "--run-dir", run, *TEST_SET],
            ["eval", "c.json", "--checkpoint", path, *TEST_SET],
            ["predict", "c.json", "--checkpoint", path, "--output", "new.npy", *TEST_SET],
            ["checkpoint", "info", path],
            ["checkpoint", "verify", path],
            ["checkpoint", "export", path, "--output", "new"]]


def everybody_refuses(t, run, word):
    for arguments in users(run):
        code, lines, error = t.run(*arguments)
        said = error + "\n".join(lines)
        t.check(code == 65 and word in said, " ".join(arguments), f"exit {code}, wanted 65", word,
                said)
        t.check(not os.path.exists("new.npy") and not os.path.exists("new"), "nothing is written")


def weights(t):
    """One checkpoint, since of several an older one would serve."""
    config = t.write("c.json", {"steps": 6, "checkpoint.every_steps": 6, "global_batch": 32})
    t.expect(0, "train", config, "--run-dir", "run")
    header, data = read(newest("run"))
    same = "same/checkpoints/" + os.path.basename(newest("run"))
    shutil.copytree("run", "same")
    write(same, header, data)
    with open(same, "rb") as a, open(newest("run"), "rb") as b:
        t.check(a.read() == b.read(), "this test hashes as the program does")

    shutil.copytree("run", "changed")
    poke(newest("changed"), "dense/kernel", 7, 0x3f000000, sums=False)
    everybody_refuses(t, "changed", "the digest of its parameters is")
    shutil.copytree("run", "slots")
    poke(newest("slots"), "dense/kernel" + SLOTS, 7, 0x3f000000, sums=False)
    everybody_refuses(t, "slots", "its state hash is")
    shutil.copytree("run", "unrecorded")
    header, data = read(newest("unrecorded"))
    del header["__metadata__"]["digest"]
    write(newest("unrecorded"), header, data, sums=False)
    everybody_refuses(t, "unrecorded", 'has recorded no "digest"')
    code, lines, error = t.expect(0, "diff", "run", "changed")
    t.check(lines[0].startswith("passed over: changed/"), "diff passes it over", lines)


def not_finite(t):
    for name, bits, word in (("nan", 0x7fc00000, "found nan"), ("inf", 0xff800000, "found -inf")):
        shutil.copytree("run", name)
        poke(newest(name), "conv/kernel", 11, bits, sums=True)
        everybody_refuses(t, name, 'tensor "conv/kernel", element 11: ' + word)
    # Whatever the kernels.
    for kernels in ("reference", "portable", "auto"):
        t.expect(65, "eval", "c.json", "--run-dir", "nan", "--kernels", kernels, *TEST_SET)


def controls(t):
    """ESC and U+009B, if a file has them, reach no terminal; and a header is bounded."""
    shutil.copytree("run", "escape")
    header, data = read(newest("escape"))
    name = "dense/\x1b[2Jk\u009b1\x7fn"
    header = {name if k == "dense/kernel" else k: v for k, v in header.items()}
    header["__metadata__"]["lockstep_version"] = "\x1b]0;x\x07"
    write(newest("escape"), header, data)
    for line in ("hashes.jsonl", "metrics.jsonl"):
        os.remove("escape/" + line)
    with open("escape/hashes.jsonl", "w", encoding="utf-8") as f:
        f.write('{"step":6,"\\u001b[2J":"\\u001b[31m"}\n')
    shutil.copytree("escape", "bare")
    os.remove("bare/hashes.jsonl")
    shutil.copytree("escape", "wrong")
    poke(newest("wrong"), name, 3, 0x7fc00000, sums=True)
    shutil.copytree("escape", "names")
    header["__metadata__"]["step"] = "\x1b[2J"
    write(newest("names"), header, data, sums=False)
    path = newest("escape")
    for code, arguments in (
            (1, ["diff", "run", "escape"]), (1, ["diff", "escape", "run"]),
            (1, ["diff", "run", "bare"]), (1, ["diff", "bare", "run"]),
            (0, ["diff", "run", "bare", "--tolerance", "1"]),
            (0, ["diff", "bare", "run", "--tolerance", "1"]),
            (0, ["checkpoint", "info", path]), (0, ["checkpoint", "verify", path]),
            (65, ["checkpoint", "verify", newest("wrong")]),
            (65, ["checkpoint", "verify", newest("names")]),
            (65, ["checkpoint", "export", path, "--output", "new"]),
            (65, ["eval", "c.json", "--checkpoint", path, *TEST_SET])):
        done = subprocess.run([t.program, *arguments], capture_output=True, check=False)
        said = done.stdout + done.stderr
        t.check(done.returncode == code, " ".join(arguments), done.returncode, said)
        raw = [c for c in said.replace(b"\n", b"") if c < 32 or c == 127]
        t.check(not raw and b"\xc2\x9b" not in said, "no control character", arguments, said)

    text = b'{"__metadata__":{"a":"' + b"b" * 99_000_000 + b'"}}'
    with open("huge", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
    start = time.monotonic()
    for command in ("info", "verify"):
        code, lines, error = t.run("checkpoint", command, "huge")
        t.check(code == 65 and "its header is 99000025 bytes, wanted at most 1048576" in
                error + "".join(lines), "a huge header is refused", code, lines, error)
    t.check(time.monotonic() - start < 5, "at once")
    os.remove("huge")


def configurations(t):
    """A number that is not 0 is not read as 0."""
    t.write("tiny.json", {"optimizer.learning_rate": 0.123456789})
    with open("tiny.json", encoding="utf-8") as f:
        text = f.read()
    with open("tiny.json", "w", encoding="utf-8") as f:
        f.write(text.replace("0.123456789", "1e-400"))
    for command in ("plan", "train"):
        _, _, error = t.expect(78, command, "tiny.json")
        one_line(t, error, "tiny.json:1:", "a number below 3e-324, which would be read as 0")
    _, _, error = t.expect(64, "plan", "c.json", "--set", "optimizer.learning_rate=1e-400")
    one_line(t, error, "would be read as 0")


def strangers(t):
    """What has the name of an unfinished manifest and is none is left alone."""
    shard = ["data", "shard", "--made-up", "10", "--shards", "2", "--to", "shards"]
    for what in ("precious", '{\n  "format": "mine"}\n', "link"):
        shutil.rmtree("shards", ignore_errors=True)
        os.mkdir("shards")
        tmp = "shards/manifest.json.tmp"
        with open("target", "w", encoding="utf-8") as f:
            f.write(what)
        if what == "link":
            os.symlink("../target", tmp)
        else:
            os.rename("target", tmp)
        _, _, error = t.expect(64, *shard)
        one_line(t, error, "that this command has not written")
        with open(tmp, encoding="utf-8") as f:
            t.check(f.read() == what and os.listdir("shards") == ["manifest.json.tmp"], "as it was")
    shutil.rmtree("shards")
    # One of its own, torn in its first line, is not.
    for own in ("", '{\n  "for', '{\n  "format": "lockstep-manifest-1",\n  "count": 9'):
        os.mkdir("shards")
        with open("shards/manifest.json.tmp", "w", encoding="utf-8") as f:
            f.write(own)
        t.expect(0, *shard)
        shutil.rmtree("shards")


def launchers(t):
    """A launcher that is gone is said by this program, not by MPI."""
    for number in ("33", "0", "x"):
        environment = {**os.environ, "PMI_FD": number, "PMI_RANK": "0", "PMI_SIZE": "2"}
        done = subprocess.run([t.program, "train", "c.json", "--run-dir", "pmi"], env=environment,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        t.check(done.returncode == 64, f"PMI_FD={number}", done.returncode)
        one_line(t, done.stderr, f'PMI_FD: found "{number}", wanted the open socket of the')


# --- logs ----------------------------------------------------------------------------------------

def lines_of(path):
    with open(path, "rb") as f:
        return f.read().splitlines(keepends=True)


def summed(line):
    """As io/README.md says it."""
    body, _, rest = line.rpartition(b',"crc32":"')
    return bool(body) and rest[8:] == b'"}\n' and zlib.crc32(body) == int(rest[:8], 16)


def put_lines(path, lines):
    with open(path, "wb") as f:
        f.write(b"".join(lines))


def without_sum(line):
    return line.rpartition(b',"crc32":"')[0] + b"}\n"


def logs(t):
    config = t.write("c.json", {"steps": 6, "checkpoint.every_steps": 2, "global_batch": 32,
                                "hash_every_steps": 1, "checkpoint.keep_max": 0})
    t.expect(0, "train", config, "--run-dir", "log", *TEST_SET)
    names = ("metrics.jsonl", "hashes.jsonl")
    for name in names:
        lines = lines_of("log/" + name)
        t.check(len(lines) >= 6 and all(summed(line) for line in lines), name, lines)
        t.check(all(json.loads(line)["crc32"] for line in lines), "it is JSON")
    t.expect(0, "diff", "log", "log")
    # One figure of one line: whoever reads it says where, what was found, what was wanted.
    for name, reader in (("metrics.jsonl", ["--tolerance", "2"]), ("hashes.jsonl", [])):
        shutil.rmtree("bad", ignore_errors=True)
        shutil.copytree("log", "bad")
        lines = lines_of("log/" + name)
        old = lines[2]
        at = old.index(b'":') + 20
        lines[2] = old[:at] + bytes([old[at] ^ 1]) + old[at + 1:]
        wanted = zlib.crc32(lines[2].rpartition(b',"crc32":"')[0])
        words = (f"bad/{name}: line 3: found crc32 {old[-11:-3].decode()}", f"wanted {wanted:08x}")
        put_lines("bad/" + name, lines)
        _, _, error = t.expect(65, "diff", "log", "bad", *reader)
        one_line(t, error, *words)
        _, said, error = t.expect(65, "checkpoint", "verify", "bad")
        t.check(any(line.startswith("WRONG") and all(w in line for w in words) for line in said),
                "verify", said)
        one_line(t, error, "0 of 3 checkpoints and 1 of 2 logs are not valid")
        code, _, error = t.expect(0, "train", config, "--run-dir", "bad", "--resume", *TEST_SET)
        t.check(error.startswith("lockstep: WARNING: bad/") and error.count("\n") == 1 and
                all(word in error for word in words), "a resumed run says it", error)
        t.check(lines_of("bad/" + name) == lines, "and leaves it")
        # None at all, behind lines that have one.
        lines[2] = without_sum(old)
        put_lines("bad/" + name, lines)
        _, _, error = t.expect(65, "diff", "log", "bad", *reader)
        one_line(t, error, f"{name}: line 3: found no", "wanted one")
        # Of an earlier version: accepted, with a word; new lines may follow.
        lines = [without_sum(line) for line in lines_of("log/" + name)[:4]]
        put_lines("bad/" + name, lines + lines_of("log/" + name)[4:])
        _, said, _ = t.expect(0, "diff", "log", "bad", *reader)
        t.check(f"bad/{name}: 4 lines without a checksum, as earlier versions wrote them: taken as "
                "they are" in said, "an older log", said)
        _, said, _ = t.expect(0, "checkpoint", "verify", "bad")
        t.check(any("lines, 4 without a checksum" in line for line in said), "counted", said)


def cut_logs(t):
    """The step of a line whose checksum is wrong does not say where a log is cut."""
    shutil.rmtree("bad")
    shutil.copytree("log", "bad")
    for step in (4, 6):
        os.remove(f"bad/checkpoints/step-{step:010}.safetensors")
    lines = lines_of("bad/hashes.jsonl")
    lines[4] = lines[4].replace(b'"step":5', b'"step":1')
    put_lines("bad/hashes.jsonl", lines)
    t.expect(0, "train", "c.json", "--run-dir", "bad", "--resume", *TEST_SET)
    t.check(lines_of("bad/hashes.jsonl") == lines_of("log/hashes.jsonl"), "cut at step 2")


def evaluations(t):
    task = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]},
                                     "task": {"type": "evaluator", "index": 0}})}

    def evaluate():
        done = subprocess.run([t.program, "train", "c.json", "--run-dir", "log", *TEST_SET],
                              env={**os.environ, **task}, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=100, check=False)
        return done.returncode, done.stderr
    name = "log/evaluations.jsonl"
    t.check(evaluate() == (0, "") and len(lines_of(name)) == 3, "an evaluator")
    lines = lines_of(name)
    t.check(all(summed(line) for line in lines), "its lines have checksums", lines)
    put_lines(name, lines[:-1] + [lines[-1].replace(b'"step":6', b'"step":7')])
    code, error = evaluate()
    t.check(code == 65, "a wrong last line", code)
    one_line(t, error, "evaluations.jsonl: line 3: found crc32", "wanted")
    put_lines(name, lines[:-1] + [without_sum(lines[-1]).replace(b'"step":6', b'"step":4')])
    t.expect(65, "checkpoint", "verify", "log")
    put_lines(name, lines)
    t.expect(0, "checkpoint", "verify", "log")


def everything(t):
    """verify --all: every run of a directory."""
    _, _, error = t.expect(66, "checkpoint", "verify", "--all")
    one_line(t, error, "runs: cannot list")
    os.makedirs("runs/not-a-run")
    _, _, error = t.expect(66, "checkpoint", "verify", "--all")
    one_line(t, error, "runs: holds no run")
    shutil.copytree("log", "runs/one")
    shutil.copytree("run", "runs/two\x1b[2J")
    shutil.copytree("run", "runs/young")
    shutil.rmtree("runs/young/checkpoints")
    for place in ([], ["runs"]):
        _, said, _ = t.expect(0, "checkpoint", "verify", "--all", *place)
        t.check(said[-1] == "3 runs, 4 checkpoints, 7 logs: 0 wrong", "all of them", said)
        t.check("\x1b" not in "".join(said), "names are escaped", said)
    poke(newest("runs/one"), "dense/bias", 0, 0x3f000000, sums=False)
    lines = lines_of("runs/young/metrics.jsonl")
    put_lines("runs/young/metrics.jsonl", [lines[0].replace(b"loss", b"lost"), *lines[1:]])
    _, said, error = t.expect(65, "checkpoint", "verify", "--all")
    t.check(said[-1] == "3 runs, 4 checkpoints, 7 logs: 2 wrong", "two of them", said)
    one_line(t, error, "runs: 1 of 4 checkpoints and 1 of 7 logs are not valid")
    put_lines("runs/one/metrics.jsonl", [b"hello\n", b"world\n"])
    _, said, error = t.expect(65, "checkpoint", "verify", "runs/one")
    t.check("found a line without" in error + "".join(said), "no log", said, error)
    t.expect(64, "checkpoint", "verify")
    t.expect(64, "checkpoint", "verify", "--all", "a", "b")


def scrub(t):
    """A checkpoint that rots while the run goes on: said at one of the next saves."""
    config = t.write("long.json", {"steps": 1000000, "checkpoint.every_steps": 5,
                                   "checkpoint.keep_max": 0, "global_batch": 32})
    run = t.start("train", config, "--run-dir", "long")
    old = "long/checkpoints/step-0000000005.safetensors"
    deadline = time.monotonic() + 60
    while not os.path.exists(old) and time.monotonic() < deadline:
        time.sleep(0.01)
    with open(old, "r+b") as f:
        f.seek(-8, os.SEEK_END)
        f.write(b"rotten!!")
    error = run.stderr.readline()
    run.terminate()
    out, rest = run.communicate(timeout=100)
    t.check(run.returncode == 143, "it went on", run.returncode, rest)
    t.check(error.startswith("lockstep: WARNING: an older checkpoint: ") and
            "step-0000000005.safetensors: damaged: its SHA-256 is" in error, "it is said", error)
    t.check("WARNING: an older checkpoint: " in out, "in the log, too")


def main():
    t = Test()
    weights(t)
    not_finite(t)
    controls(t)
    configurations(t)
    strangers(t)
    launchers(t)
    logs(t)
    cut_logs(t)
    evaluations(t)
    everything(t)
    scrub(t)
    t.finish()


if __name__ == "__main__":
    main()
