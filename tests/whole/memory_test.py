#!/usr/bin/env python3
"""memory_test - the memory of a training process as the kernel counts it, looked at from outside.

At the first steps and near the end, the anonymous and shared pages of /proc/PID/smaps are at most
the plan plus 2 MiB, and the same number both times. Pages of mapped files are listed apart.
"""
import json
import os
import sys

from program import Test

SLACK_BYTES = 2 << 20
STEPS = 400


def smaps(pid):
    """(anonymous + shmem bytes, file bytes) resident in all mappings of a process.

    A page of a file mapped privately and written to counts as anonymous, as the kernel does."""
    ours = files = 0
    field, shared_memory = {}, False

    def close():
        nonlocal ours, files
        anonymous = field.get("Anonymous", 0)
        ours += field.get("Rss", 0) if shared_memory else anonymous
        files += 0 if shared_memory else field.get("Rss", 0) - anonymous

    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        for line in f:
            key, rest = line.split(None, 1) if line[:1].isupper() else ("", "")
            if key.endswith(":") and rest.endswith("kB\n"):
                field[key[:-1]] = int(rest.split()[0]) * 1024
            elif not key:  # the line that begins a mapping
                close()
                name = line.split(None, 5)[5].strip() if len(line.split(None, 5)) > 5 else ""
                field = {}
                shared_memory = name.startswith(("/dev/shm", "/memfd:", "/SYSV", "/dev/zero"))
    close()
    return ours, files


def watch(t, config, replicas, *more):
    _, lines, _ = t.expect(0, "plan", config, "--json", "--replicas", str(replicas))
    plan = json.loads("\n".join(lines))
    plan = plan["arena_bytes"] + plan["hot_bytes"]
    process = t.start("train", config, "--replicas", str(replicas), "--run-dir",
                      f"run{replicas}{''.join(more)}", *more)
    seen = {}
    for line in process.lines():
        for step in (1, STEPS - 40):
            if line.startswith("loss = ") and f"step = {step} " in line.replace(",", " "):
                seen[step] = smaps(process.pid)
    error = process.stderr.read()
    t.check(process.wait() == 0, f"{replicas} replicas: it trains", error)
    if not t.check(len(seen) == 2, f"looked twice, at {sorted(seen)}"):
        return
    (early, early_files), (late, late_files) = seen[1], seen[STEPS - 40]
    print(f"{replicas} replicas {' '.join(more)}: plan {plan}, step 1: {early}, step {STEPS - 40}: "
          f"{late} bytes; mapped files {early_files}, {late_files}", flush=True)
    t.check(early == late, f"bytes at step 1 {early}, near the end {late}: wanted the same")
    t.check(late <= plan + SLACK_BYTES, f"bytes in use {late}, plan {plan} + {SLACK_BYTES}")
    t.check(late >= plan, f"bytes in use {late} are less than the plan of {plan}: untouched pages")
    t.check(late_files <= early_files + (1 << 20), "mapped files stay as they are", late_files)


def exchanged(t, config):
    """Of sums a replica sends the others its own: none where it is alone."""
    bytes_ = []
    for replicas in (1, 2, 3):
        _, lines, _ = t.expect(0, "plan", config, "--json", "--replicas", str(replicas), "--set",
                               "layout.reduce=partials")
        bytes_.append(json.loads("\n".join(lines))["exchange_bytes_per_step"])
    t.check(bytes_[0] == 0 < bytes_[1] and bytes_[2] == 2 * bytes_[1], "exchanged", bytes_)


def bounds(t):
    """The text and the document say one lower bound, also where a region is larger."""
    data = {"train": {"made_up": {"count": 64, "height": 28, "width": 28}}}
    arguments = ["plan", "bench-lenet", "--replicas", "2", "--set", f"data={json.dumps(data)}"]
    plan = json.loads("\n".join(t.expect(0, *arguments, "--json")[1]))
    region, bound = plan["replica_region_bytes"], plan["replica_lower_bound_bytes"]
    shown = f"replica region: {region} bytes; lower bound {bound}, "
    lines = t.expect(0, *arguments)[1]
    t.check(bound < region and any(line.startswith(shown) for line in lines), shown, *lines)


def main():
    if not os.path.exists("/proc/self/smaps"):
        sys.exit(77)
    t = Test()
    # 20,000 examples as files: mapped bytes that must not count as ours.
    t.expect(0, "data", "shard", "--made-up", "20000", "--height", "10", "--width", "10",
             "--shards", "3", "--to", "shards")
    config = t.write("memory.json", {
        "steps": STEPS, "data": {"train": {"manifest": t.work + "/shards/manifest.json"},
                                 "test": {"made_up": {"count": 300, "height": 10, "width": 10}}},
        "evaluate_every_steps": 50, "checkpoint.every_steps": 50})
    exchanged(t, config)
    bounds(t)
    for replicas in (1, 2, 3):
        watch(t, config, replicas)
    watch(t, config, 2, "--seal")
    t.finish()


if __name__ == "__main__":
    main()
