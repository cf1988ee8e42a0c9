#!/usr/bin/env python3
"""data_test - data that change or rot while a run uses them, labels that are no classes, .gz files
that are more than they say, a cache that lies: each ends by one line and its exit code, and no
result is wrong.

   data_test.py PROGRAM WORK_DIR
"""
import glob
import gzip
import os
import shutil
import struct
import subprocess
import time

from program import Test, result, value

COUNT, SIZE = 1000, 10
LABEL_AT, IMAGE_AT = 8, 16


def files(t, folder):
    """A pair of files, and the configuration that reads them."""
    shutil.rmtree(folder, ignore_errors=True)
    t.expect(0, "data", "shard", "--made-up", str(COUNT), "--height", str(SIZE), "--width",
             str(SIZE), "--shards", "1", "--to", folder)
    images, labels = f"{folder}/images-00000.idx", f"{folder}/labels-00000.idx"
    config = t.write(folder + ".json", {
        "steps": 100000, "checkpoint.every_steps": 50, "checkpoint.keep_max": 2,
        "data.train": {"images": images, "labels": labels}})
    return images, labels, config


def poke(path, at, value_):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(bytes([value_]) if isinstance(value_, int) else value_)


def peek(path):
    with open(path, "rb") as f:
        return f.read()


def wait_for_step(process, step):
    for line in process.lines():
        if line.startswith(f"checkpoint step {step} "):
            return


def end(t, process, code, what, *parts):
    try:
        out, error = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        error += "it went on"
    t.check(process.returncode == code and error.count("\n") == 1 and
            all(part in error for part in parts), what, process.returncode, error, out[-300:])
    return error


def changed(t):
    """Somebody writes into a file of the run; it ends, and goes on once the file is restored."""
    images, labels, config = files(t, "changed")
    wanted = result(t.expect(0, "train", config, "--run-dir", "unhurt", "--set", "steps=400")[1])
    good = {path: peek(path) for path in (images, labels)}
    cases = [("a label that is none", labels, LABEL_AT + 3, 255),
             ("labels that are none", labels, LABEL_AT, bytes([250] * COUNT)),
             ("another label", labels, LABEL_AT + 3, (good[labels][LABEL_AT + 3] + 1) % 10),
             ("a pixel", images, IMAGE_AT + 777, good[images][IMAGE_AT + 777] ^ 16)]
    for kernels in ("auto", "reference"):
        for what, path, at, byte in cases:
            what += ", " + kernels
            shutil.rmtree("run", ignore_errors=True)
            process = t.start("train", config, "--run-dir", "run", "--kernels", kernels)
            wait_for_step(process, 50)
            times = os.stat(path)
            poke(path, at, byte)
            if at % 2:  # and hides it
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            end(t, process, 65, what, "lockstep: " + path)
            last = max(glob.glob("run/checkpoints/*.safetensors"))
            steps = int(last.split("-")[-1].split(".")[0])
            t.check(steps >= 50, what + ": what was saved stands", last)
            # With these data it is another run; with the old ones it goes on.
            code, _, error = t.run("train", config, "--run-dir", "run", "--resume")
            t.check(code in (65, 78), what + ": not resumed", code, error)
            with open(path, "wb") as f:
                f.write(good[path])
            if steps < 400 and kernels == "auto":
                lines = t.expect(0, "train", config, "--run-dir", "run", "--resume", "--set",
                                 "steps=400")[1]
                t.check(result(lines) == wanted, what + ": resumed", result(lines), wanted)


def at_the_end(t):
    """No checkpoint comes in between: it is found before anything is said of the result."""
    _, labels, config = files(t, "ending")
    good = peek(labels)
    for arguments in (["--set", "steps=4000"], ["--set", "steps=4000", "--replicas", "2"]):
        process = t.start("train", config, "--run-dir", "end", "--fresh", *arguments,
                          "--set", "checkpoint.every_steps=0")
        for line in process.lines():
            if line.startswith("loss = "):
                break
        poke(labels, LABEL_AT, (good[LABEL_AT] + 1) % 10)
        error = end(t, process, 65, "written to", "they are no longer what this run began with")
        t.check("digest" not in error and not glob.glob("end/checkpoints/*"), "nothing was saved",
                glob.glob("end/*/*"))
        poke(labels, LABEL_AT, good[LABEL_AT])
        time.sleep(0.05)


def touched(t):
    """New times of the same bytes end no run."""
    images, labels, config = files(t, "touched")
    options = ["train", config, "--set", "steps=2000", "--run-dir"]
    wanted = result(t.expect(0, *options, "untouched")[1])
    process = t.start(*options, "touched-run")
    wait_for_step(process, 50)
    os.utime(images)
    poke(labels, LABEL_AT, peek(labels)[LABEL_AT:LABEL_AT + 5])
    out, error = process.communicate(timeout=60)
    t.check((process.returncode, error) == (0, "") and result(out.splitlines()) == wanted,
            "touched", process.returncode, error, out[-300:])


def scrubbed_once(t):
    """A run whose images change through a map that was dirty already: (times, standard error)."""
    script = r"""
import mmap, os, sys, time
f = open(sys.argv[1], "r+b")
m = mmap.mmap(f.fileno(), 0)
m.flush()
m[20] = m[20]
time.sleep(0.1)
print("dirty", flush=True)
sys.stdin.readline()
m[20] ^= 64
sys.stdin.readline()
"""
    images, _, config = files(t, "scrubbed")
    shutil.rmtree("scrub", ignore_errors=True)
    with subprocess.Popen(["python3", "-c", script, images], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as writer:
        writer.stdout.readline()
        os.utime(images)
        times = os.stat(images).st_mtime_ns
        time.sleep(2.1)  # so old that its times are believed
        t.expect(0, "train", config, "--run-dir", "first", "--fresh", "--set", "steps=3")
        process = t.start("train", config, "--run-dir", "scrub",
                          "--set", "checkpoint.every_steps=0")
        for line in process.lines():
            if line.startswith("loss = "):
                break
        writer.stdin.write("\n")
        writer.stdin.flush()
        error = end(t, process, 65, "scrub", images)
        same = os.stat(images).st_mtime_ns == times
        writer.stdin.write("\n")
        writer.stdin.close()
    return same, error


def scrubbed(t):
    """Bytes change under the same times. The kernel keeps the times only while the page stays
    dirty: where it wrote the page out in between it sets them, the run sees a changed file
    instead, and that says nothing of the scrub."""
    for _ in range(5):
        same, error = scrubbed_once(t)
        if same:
            t.check("or the disk or the memory is failing" in error, "the scrub found it", error)
            return
        t.check("somebody changed the file in place" in error, "the times changed", error)
    print("SKIPPED: the scrub of changed bytes: the kernel wrote the page out each time")


def rotten(t):
    """A record that says other bytes under the same stamp; a record with a flipped digit."""
    _, _, config = files(t, "rotten")
    short = ["train", config, "--set", "steps=3", "--fresh", "--run-dir"]
    time.sleep(2.1)
    identity = value(t.expect(0, *short, "rot")[1], "run_identity")
    records = [name for name in glob.glob("cache/lockstep/*.record")
               if b"stamp 0000000000000000" not in peek(name)]
    t.check(len(records) >= 1, "a record", records)
    for name in records:
        text = peek(name).decode()
        at = text.index("sha256 ") + 7
        poke(name, at, ord("1" if text[at] == "0" else "0"))
    lines = t.expect(0, *short, "rot")[1]
    t.check(value(lines, "run_identity") == identity, "a flipped digit is not believed", lines)
    lines = t.expect(0, *short, "rot", "--verify-data")[1]
    t.check(value(lines, "run_identity") == identity, "--verify-data", lines)


def bombs(t):
    """What a .gz may write."""
    images, labels, config = files(t, "bombs")
    shutil.rmtree("cache", ignore_errors=True)
    with gzip.open("bomb.gz", "wb", compresslevel=9) as f:
        f.write(struct.pack(">BBBBIII", 0, 0, 8, 3, COUNT, SIZE, SIZE))
        for _ in range(200):
            f.write(bytes(1 << 20))
    error = t.expect(65, "train", config, "--run-dir", "bomb", "--set",
                     "data.train.images=bomb.gz")[2]
    t.check("bomb.gz" in error and f"the {IMAGE_AT + COUNT * SIZE * SIZE} that its header" in error,
            "a bomb", error)
    kept = os.listdir("cache/lockstep")
    t.check(not any(".idx" in name for name in kept), "nothing was kept", kept)
    # A process that is killed while it unpacks; the next command that unpacks removes the rest.
    with gzip.open("large.gz", "wb", compresslevel=1) as f:
        f.write(struct.pack(">BBBBIII", 0, 0, 8, 3, 100 << 20, 1, 1))
        for _ in range(100):
            f.write(os.urandom(1 << 10) * 1024)
    process = t.start("data", "verify", "--images", "large.gz", "--labels", labels)
    deadline = time.monotonic() + 20
    while not glob.glob("cache/lockstep/*.tmp.*") and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    t.check(glob.glob("cache/lockstep/*.tmp.*"), "killed while it unpacked")
    with gzip.open("images.gz", "wb") as f:
        f.write(peek(images))
    t.expect(0, "data", "verify", "--images", "images.gz", "--labels", labels)
    t.check(not glob.glob("cache/lockstep/*.tmp.*"), "its leftovers are gone")
    # All that can be made again.
    os.makedirs("cache/lockstep/data/mine", exist_ok=True)
    with open("cache/lockstep/notes.txt", "w", encoding="ascii") as f:
        f.write("mine\n")
    dry = t.expect(0, "data", "clean", "--dry-run")[1]
    t.check(len(os.listdir("cache/lockstep")) > 2 and "would remove" in dry[0], "dry", dry)
    done = t.expect(0, "data", "clean")[1]
    t.check(done[0].replace("removed", "would remove") == dry[0], "as it said", dry, done)
    t.check(sorted(os.listdir("cache/lockstep")) == ["data", "notes.txt"], "only ours is removed")
    t.expect(66, "data", "clean", "--cache", "nowhere")
    t.expect(0, "data", "clean", "--cache", "cache/lockstep")


def main():
    t = Test()
    changed(t)
    at_the_end(t)
    touched(t)
    scrubbed(t)
    rotten(t)
    bombs(t)
    t.finish()


if __name__ == "__main__":
    main()
