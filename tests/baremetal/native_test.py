#!/usr/bin/env python3
"""The core trainer as a program of this machine: every kernel variant, the host's results.

   native_test.py LOCKSTEP WORK CONFIG SOURCE.c PROGRAM [CONFIG SOURCE.c PROGRAM]..
"""
import json
import os
import re
import subprocess
import sys

import boards

STRIPS = ('data={"strips": {"min": 1, "max": 5}, "train": '
          '{"made_up": {"count": 40, "height": 28, "width": 28}}}')


def check(host, config, source, program):
    wanted = host.train(config)
    name = os.path.basename(config)
    with open(config, encoding="utf-8") as f:
        told = json.load(f)
    overflow = told.get("loss_scale", {}).get("on_overflow", "skip")
    if "loss_scale" in told and not re.search({"skip": r"skipped [1-9]",
                                               "replay": r"replayed [1-9]"}[overflow],
                                              wanted["scale"]):
        sys.exit(f"{name}: no step overflows on the host: {wanted['scale']}")
    core = host.core_bytes(config, *([] if "replicas" in told else ["--replicas", "1"]))
    ran = 0
    for kernels in ("reference", "portable", "avx2", "avx512", "neon", "auto"):
        done = subprocess.run([program, kernels], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode in (64, 69):  # not of this build, or not of this processor
            print(f"{name}: {done.stdout.strip()}")
            continue
        if done.returncode != 0:
            sys.exit(f"{program} {kernels}: exit code {done.returncode}:\n{done.stdout}")
        boards.compare(f"{name}, native, {kernels}", boards.results(done.stdout), wanted)
        if f"arena {core} bytes, static" not in done.stdout:
            sys.exit(f"{name}: its arena is not the core's {core} bytes:\n{done.stdout}")
        ran += 1
    if ran < 3:
        sys.exit(f"{name}: only {ran} kernel variants ran")
    hurt = boards.damage(program, source, os.path.join(host.work, "damaged"))
    text = boards.run([hurt], 65)
    if "do not have the data hash" not in text or "digest" in text:
        sys.exit(f"a damaged example was not refused in words:\n{text}")


def refusals(host, config):
    there = os.path.join(host.work, "none", "run.c")
    text = host.embed(config, there, code=74)
    if there not in text:
        sys.exit(f"embed to nowhere: no path in: {text}")
    boards.run([host.program, "embed", config], 64)
    too_many = host.embed(config, os.path.join(host.work, "run.c"), "--examples", "501", code=78)
    if "found 500 examples, wanted the first 501" not in too_many:
        sys.exit(f"too many examples: {too_many}")
    strips = host.embed("rnnt-strips", there, "--set", STRIPS, code=69)
    if "rnnt-strips" not in strips or "data.strips: boards make none yet" not in strips:
        sys.exit(f"strips: {strips}")


def main():
    host = boards.Host(sys.argv[1], sys.argv[2])
    rest = sys.argv[3:]
    for i in range(0, len(rest), 3):
        check(host, *rest[i:i + 3])
    refusals(host, rest[0])


if __name__ == "__main__":
    main()
