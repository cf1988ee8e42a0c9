#!/usr/bin/env python3
"""noalloc_test - nothing is allocated between the seal and the end of a run of 1,000 steps with
evaluations, checkpoints, event files and a trace in it, of one process and on every rank of
several, counted by noalloc.c and refused by the kernel under --seal.

   noalloc_test.py PROGRAM WORK_DIR COUNTING_PROGRAM GAN_JSON
"""
import os
import signal
import socket
import sys

from program import Test, finish, free_port, result, start, tf_config


# Everything that a run may write beside its logs.
SEEN = ["--tensorboard", "--set", "events.images=4", "--set", "events.histograms=true", "--set",
        "trace.steps=50", "--trace", "trace.json"]


def counts(error):
    return error.split("after the seal:")[-1].split()[1::2]


def asked(t, config, sealed):
    """Progress by the clock, a status that is asked for, an answer to SIGHUP, a service manager's
    datagrams and a metrics file: handlers, too."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind("manager")
    os.environ.update(NOTIFY_SOCKET=os.path.abspath("manager"), WATCHDOG_USEC="1000000")
    process = t.start("train", config, "--run-dir", "asked", "--json", "--set", "steps=1000000",
                      "--metrics-file", "asked.prom", *(sealed or []))
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC"):
        del os.environ[name]
    progress = 0
    for line in process.lines():
        progress += '"progress"' in line
        if progress == 2:
            break
    process.send_signal(signal.SIGUSR1)
    for line in process.lines():
        if '"status"' in line:
            break
    process.send_signal(signal.SIGHUP)
    out, error = process.communicate(timeout=60)
    t.check(process.returncode == 129 and '"stopping"' in out and counts(error) == ["0"] * 11,
            "nothing is counted where it is asked", process.returncode, out[-300:], error)
    with open("asked.prom", encoding="utf-8") as f:
        t.check('phase="ended"' in f.read() and manager.recv(400).startswith(b"READY=1") and
                b"WATCHDOG=1" in manager.recv(400), "and it was served")


def workers(t, config, digest, sealed):
    """The same under TF_CONFIG: on every rank, whatever carries the bytes."""
    for world, more in ((3, []), (2, ["--collective", "messages"]), (2, sealed)):
        if more is None:
            continue
        port, run = free_port(), f"workers{world}{len(more)}"
        ends = finish([start(t, tf_config(world, r, port), "train", config, "--run-dir", run,
                             "--replicas", "1", *SEEN, *more) for r in range(world)])
        if ends[0][0] == 69 and "has no MPI" in ends[0][2]:
            print("not done with workers: this build has no MPI")
            return
        for rank, (code, _, error) in enumerate(ends):
            t.check(code == 0 and counts(error) == ["0"] * 11, "nothing is counted", rank, code,
                    error)
            print(f"rank {rank} of {world}:", error.strip(), *more)
        t.check(result(ends[0][1].splitlines()) == digest, "the same run", ends[0][1])
    # It can fail on a rank that does not lead, too.
    port = free_port()
    broken = [{}, {"NOALLOC_BREAK": "malloc"}]
    ends = finish([start(t, {**tf_config(2, r, port), **broken[r]}, "train", config, "--run-dir",
                         "workers-broken", "--replicas", "1") for r in range(2)])
    t.check([e[0] for e in ends] == [0, 99] and "malloc 1 " in ends[1][2], "one rank", ends)


def main():
    t = Test()
    plain, counting = t.program, os.path.abspath(sys.argv[3])
    config = t.write("noalloc.json", {
        "steps": 1000, "global_batch": 64, "grain": 16, "log_every_steps": 10,
        "hash_every_steps": 50, "evaluate_every_steps": 100,
        "checkpoint.every_steps": 90, "checkpoint.keep_max": 3,
        "data.test": {"made_up": {"first": 1000, "count": 300, "height": 10, "width": 10}}})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "plain", "--replicas", "2")
    digest = result(lines)
    sealed = ["--seal"] if t.run("train", config, "--run-dir", "try", "--seal", "--set",
                                 "steps=1")[0] == 0 else None
    t.program = counting
    for name, more in (("1", []), ("3", []), ("2", sealed)):
        if more is None:
            print("no --seal here")
            continue
        _, lines, error = t.expect(0, "train", config, "--run-dir", f"counted{name}", "--replicas",
                                   name, *SEEN, *more)
        t.check(counts(error) == ["0"] * 11, "nothing is counted", error)
        t.check(result(lines) == digest, "the same run", result(lines), digest)
        t.check(sum(line.startswith("evaluation") for line in lines) == 10, "ten evaluations")
        t.check(sum(line.startswith("checkpoint") for line in lines) == 12, "twelve checkpoints")
        print(error.strip(), *more)
    with open("gan.json", "w", encoding="utf-8") as to, open(sys.argv[4], encoding="utf-8") as f:
        to.write(f.read())
    _, lines, error = t.expect(0, "train", "gan.json", "--run-dir", "gan", *SEEN, *(sealed or []),
                               "--set", "samples.every_steps=50")
    t.check(counts(error) == ["0"] * 11, "nothing is counted where pictures are made", error)
    t.check(sum(f.endswith(".png") for f in os.listdir("gan")) == 4, "and they are")
    asked(t, config, sealed)
    workers(t, config, digest, sealed)
    # The test can fail: every way of allocating is found.
    for how in ("malloc", "realloc", "free", "mmap", "thread"):
        os.environ["NOALLOC_BREAK"] = how
        _, _, error = t.expect(99, "train", config, "--run-dir", "broken-" + how)
        t.check({"thread": "pthread_create 1"}.get(how, how + " 1") in error, how, error)
    # And the kernel refuses what goes past every wrapper.
    if sealed:
        for how in ("mmap", "thread"):
            os.environ["NOALLOC_BREAK"] = how
            _, _, error = t.expect(70, "train", config, "--run-dir", "refused-" + how, "--seal")
            t.check("sealed: " in error, "the call is named", error)
    del os.environ["NOALLOC_BREAK"]
    t.program = plain
    t.finish()


if __name__ == "__main__":
    main()
