#!/usr/bin/env python3
"""upgrade_test - the policy of io/README.md: a run of version 1, as it was written, goes on to its
golden digest; what is newer than this program is refused, not passed over, and nothing changes.

    upgrade_test.py PROGRAM WORK_DIR GOLDEN_DIR
"""
import hashlib
import json
import os
import shutil
import struct
import sys

import program

GOLDEN = os.path.abspath(sys.argv[3])
DIGEST = "5ecc2577031d3c9dc87e5a39e66d1b1ab99d28736928a2aefda74f1d6689c3f5"
STATE = "3d0706d9d6e7632539e7f83f68c35726d634bdfb842d5db7c3c47c476003e550"
OLD = "step-0000000008.safetensors"


def copy(name):
    shutil.copytree(GOLDEN + "/run", name)
    return f"{name}/checkpoints/"


def listing(folder):
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with open(f"{path}/{name}", "rb") as f:
                found[os.path.relpath(f"{path}/{name}", folder)] = f.read()
    found.pop("lock", None)  # who held it last
    return found


def rewrite(path, to, **metadata):
    """A checkpoint with other metadata: whole, so its own hash is right, as a program of that
    version would have written it. Values keep their length."""
    with open(path, "rb") as f:
        data = f.read()
    length, = struct.unpack("<Q", data[:8])
    header = data[8:8 + length].decode()
    values = json.loads(header)["__metadata__"]
    for key, value in {**metadata, "content_sha256": "0" * 64}.items():
        old = f'"{key}":"{values[key]}"'
        assert header.count(old) == 1 and len(values[key]) == len(value), (key, header)
        header = header.replace(old, f'"{key}":"{value}"')
    data = data[:8] + header.encode() + data[8 + length:]
    digest = hashlib.sha256(data).hexdigest()
    with open(to, "wb") as f:
        f.write(data.replace(b"0" * 64, digest.encode(), 1))


def older(t, config):
    """What an older program wrote: read, proven, evaluated, gone on from, to the same bits."""
    checkpoints = copy("old")
    t.expect(0, "checkpoint", "verify", "old")
    _, lines, _ = t.expect(0, "checkpoint", "info", checkpoints + OLD)
    t.check(program.value(lines, "step").strip() == "8", "its step", lines)
    t.expect(0, "eval", config, "--checkpoint", checkpoints + OLD)
    t.expect(0, "checkpoint", "export", checkpoints + OLD, "--output", "old.safetensors")
    before = listing(GOLDEN + "/run")
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "old", "--resume")
    t.check(program.result(lines) == (DIGEST, STATE), "it goes on to the golden digest", lines)
    for name in ("metrics.jsonl", "hashes.jsonl"):
        with open("old/" + name, "rb") as f:
            t.check(f.read() == before[name], "the logs are those of one that was never upgraded",
                    name)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "fresh")
    t.check(program.result(lines) == (DIGEST, STATE), "as from its start", lines)


def newer(t, config):
    """A rollback: the newest checkpoint is of a later program."""
    checkpoints = copy("new")
    t.expect(0, "train", config, "--run-dir", "new", "--resume", "--set", "steps=16")
    shutil.copy(checkpoints + "step-0000000016.safetensors", "kept")
    rewrite("kept", checkpoints + "step-0000000016.safetensors", lockstep_checkpoint="2",
            lockstep_version="9.9.9")
    before = listing("new")
    for command in (["train", config, "--run-dir", "new", "--resume"],
                    ["train", config, "--run-dir", "new", "--resume-or-start"],
                    ["eval", config, "--run-dir", "new"],
                    ["checkpoint", "info", checkpoints + "step-0000000016.safetensors"]):
        _, _, error = t.expect(69, *command)
        t.check(all(word in error for word in ("checkpoint version 2", "lockstep 9.9.9",
                                               "step-0000000016", "reads up to 1")) and
                error.count("\n") == 1, "refused by name", command, error)
        t.check(listing("new") == before, "nothing changed", command)
    # Moved away, by a decision of whoever rolls back: the older one is gone on from.
    os.rename(checkpoints + "step-0000000016.safetensors", "moved")
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "new", "--resume")
    t.check(program.result(lines) == (DIGEST, STATE), "the same end", lines)
    # What no version says so is damaged or foreign, and an older one does take its place.
    checkpoints = copy("odd")
    for number, version in ((16, "x"), (24, "0")):
        rewrite("kept", f"{checkpoints}step-00000000{number}.safetensors", step=str(number),
                lockstep_checkpoint=version)
    _, lines, error = t.expect(0, "train", config, "--run-dir", "odd", "--resume")
    t.check(error.count("passed over") == 2 and program.result(lines) == (DIGEST, STATE),
            "passed over", error)


def newer_configuration(t, config):
    """A key that only a later program knows is refused, and named."""
    with open(config, encoding="utf-8") as f:
        document = json.load(f)
    document["key_of_the_future"] = 1
    with open("future.json", "w", encoding="utf-8") as f:
        json.dump(document, f)
    copy("future")
    before = listing("future")
    _, _, error = t.expect(78, "train", "future.json", "--run-dir", "future", "--resume")
    t.check("key_of_the_future" in error and listing("future") == before, "named", error)


def main():
    t = program.Test()
    config = GOLDEN + "/config.json"
    for part in (older, newer, newer_configuration):
        part(t, config)
    t.finish()


main()
