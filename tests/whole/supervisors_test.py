#!/usr/bin/env python3
"""supervisors_test - one command that somebody else repeats: --resume-or-start under lockstep
launch, a loop as Kubernetes' and Slurm's, systemd and torchrun. The end is that of a run nobody
disturbed.

   supervisors_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON [torchrun [BIN]]

Standard library only. With `torchrun` that alone, from PyPI in an environment that is thrown away,
or from the folder BIN; skipped (77) where it cannot be had. systemd-run is left out with a line
where no systemd answers.
"""
import glob
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

from launch_test import workers_of
from program import Process, Test, finish, golden, result, value

HERE = os.path.dirname(os.path.abspath(__file__))
MATRIX, GOLDEN = os.path.abspath(sys.argv[3]), os.path.abspath(sys.argv[4])
STEPS = "50"
LENGTH = ("--set", "steps=" + STEPS, "--set", "checkpoint.every_steps=5", "--set",
          "log_every_steps=1")


def command(t, run, *more):
    return [t.program, "train", MATRIX, "--run-dir", run, "--resume-or-start", *LENGTH, *more]


def plain(text, rank=0):
    return [line[4:] for line in text.splitlines() if line.startswith(f"[{rank}] ")]


def logs(run):
    found = []
    for name in ("metrics", "hashes"):
        with open(f"{run}/{name}.jsonl", encoding="utf-8") as f:
            found.append(f.read())
    return found


def refusals(t):
    """Nothing there: start. This run: resume. Finished: say so, exit 0. Anything else: refuse."""
    start, run = command(t, "told"), ["train", MATRIX, "--run-dir", "told", *LENGTH]
    os.makedirs("told")
    for expected in ("loss = ", "nothing to do: step 50 of 50 is already saved"):
        done = subprocess.run(start, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        t.check(done.returncode == 0 and result(lines) == golden(GOLDEN, STEPS) and
                any(line.startswith(expected) for line in lines), expected, done.stderr, lines[-5:])
    for code, how in ((78, ["--set", "seed=8", "--resume-or-start"]),
                      (64, ["--resume-or-start", "--fresh"]),
                      (64, ["--resume-or-start", "--resume"])):
        _, _, error = t.expect(code, *run, *how)
        t.check(error.count("\n") == 1, "one line", error)
    os.makedirs("foreign")
    with open("foreign/poem.txt", "w", encoding="utf-8") as f:
        f.write("mine")
    t.expect(64, "train", MATRIX, "--run-dir", "foreign", "--resume-or-start")
    t.check(os.listdir("foreign") == ["poem.txt"], "nothing is touched", os.listdir("foreign"))
    # The same by the configuration; what the command line says comes first.
    said = ["train", MATRIX, "--run-dir", "said", *LENGTH, "--set", "on_start=\"resume_or_start\""]
    for _ in range(2):
        _, lines, _ = t.expect(0, *said)
        t.check(result(lines) == golden(GOLDEN, STEPS), "by the configuration", lines[-3:])
    t.expect(0, *said, "--fresh")
    t.expect(66, "train", MATRIX, "--run-dir", "none", "--set", "on_start=\"resume\"")
    _, _, error = t.expect(78, "train", MATRIX, "--run-dir", "none", "--set",
                           "on_start=\"sometimes\"")
    t.check("on_start" in error and "resume_or_start" in error, "what is wanted", error)


def launched(t):
    """lockstep launch repeats it by itself, and may be repeated."""
    arguments = ["launch", "--workers", "2", "--replicas", "1", "--restarts", "2"]
    process = t.start(*arguments, *command(t, "launched")[1:])
    for line in process.lines():
        if line.startswith("[0] checkpoint step 10 "):
            break
    pids = workers_of(process, 2)
    os.kill(pids[0], signal.SIGKILL)
    code, output, error = finish([process])[0]
    t.check(code == 0 and result(plain(output)) == golden(GOLDEN, STEPS), "launch --restarts", code,
            error)
    t.check("restart 1 of 2" in error and value(plain(output), "weights of step"), "it was resumed",
            error)
    code, lines, error = t.expect(0, *arguments, *command(t, "launched")[1:])
    t.check(any("nothing to do" in line for line in lines), "finished", lines[-5:])


def repeated(t):
    """What restarts a container, or a job by requeue: the same command until it ends with 0. It is
    killed wherever it is, and ended as a node is drained: SIGTERM."""
    ends = []
    for attempt in range(40):
        process = Process(command(t, "repeated"))
        seen = 0
        for line in process.lines():
            seen += line.startswith("loss = ")
            if seen == 4 + attempt % 5:
                break
        process.send_signal(signal.SIGTERM if attempt % 3 == 2 else signal.SIGKILL)
        output, error = process.communicate()
        ends.append(process.returncode)
        if process.returncode == 0:
            break
        t.check(process.returncode in (-signal.SIGKILL, 143), "as it was told", error)
    last = subprocess.run(command(t, "repeated"), capture_output=True, text=True, check=False)
    t.check(last.returncode == 0 and result(last.stdout.splitlines()) == golden(GOLDEN, STEPS),
            "the end is that of one run", ends, last.stderr)
    t.expect(0, "train", MATRIX, "--run-dir", "once", *LENGTH)
    t.check(logs("repeated") == logs("once"), "and the logs are")
    t.check(143 in ends and -signal.SIGKILL in ends, "killed and ended", ends)


def by_systemd(t):
    """Restart=on-failure: systemd starts the same command again."""
    manager = [] if os.geteuid() == 0 else ["--user"]
    probe = shutil.which("systemd-run") and subprocess.run(
        ["systemd-run", *manager, "--quiet", "--wait", "true"], capture_output=True, text=True,
        check=False)
    if not probe or probe.returncode != 0:
        print("systemd-run: left out, no systemd answers here")
        return
    unit = f"lockstep-test-{os.getpid()}"
    run = t.work + "/systemd"
    subprocess.run(["systemd-run", *manager, "--quiet", "--unit", unit, "-p",
                    "Restart=on-failure", "-p", "RestartSec=0", "-p", "StartLimitIntervalSec=0",
                    *command(t, run, "--set", "steps=3000")], check=True)
    kills = 0
    for _ in range(600):
        done = glob.glob(run + "/checkpoints/step-0000003000.safetensors")
        if done:
            break
        if kills < 3 and len(glob.glob(run + "/checkpoints/*.safetensors")) > 1:
            kills += subprocess.run(["systemctl", *manager, "kill", "-s", "KILL", unit],
                                    check=False).returncode == 0
        time.sleep(0.2)
    subprocess.run(["systemctl", *manager, "stop", unit], check=False, capture_output=True)
    _, one, _ = t.run(*command(t, run, "--set", "steps=3000")[1:])
    _, two, _ = t.run(*command(t, "alone", "--set", "steps=3000")[1:])
    t.check(kills > 0 and result(one) == result(two), "systemd", kills, one[-2:], two[-2:])
    t.check(logs(run) == logs("alone"), "systemd: the same logs")


def get_torchrun():
    """An environment as the comparison with other frameworks makes it: the folder of torchrun."""
    loader = importlib.machinery.SourceFileLoader("peers", HERE + "/../bench/peers")
    peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(peers)
    try:
        os.mkdir("environment")
        return os.path.dirname(peers.torch_python(os.path.abspath("environment")))
    except (peers.Left_out, subprocess.SubprocessError) as why:
        print("skipped: torchrun cannot be installed here:", why)
        sys.exit(77)


def by_torchrun(t, bin_):
    """torchrun --max-restarts starts all workers again when one is lost."""
    wrapper = t.work + "/worker"
    with open(wrapper, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\necho $$ >pid-$TORCHELASTIC_RESTART_COUNT-$RANK\nexec " +
                " ".join(f"'{part}'" for part in command(t, "torchrun", "--replicas", "1")) +
                " >out-$TORCHELASTIC_RESTART_COUNT-$RANK\n")
    os.chmod(wrapper, 0o755)
    process = Process(
        [bin_ + "/torchrun", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=2",
         "--no-python", wrapper])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not glob.glob("torchrun/checkpoints/*.safetensors"):
        time.sleep(0.001)
    try:
        with open("pid-0-1", encoding="ascii") as f:
            os.kill(int(f.read()), signal.SIGKILL)
    except (OSError, ValueError) as why:
        t.check(False, "a worker to kill", why)
    code, _, error = finish([process], 300)[0]
    with open("out-1-0", encoding="utf-8") as f:
        lines = f.read().splitlines()
    t.check(code == 0 and result(lines) == golden(GOLDEN, STEPS), "torchrun --max-restarts", code,
            error[-2000:])
    t.check(value(lines, "weights of step"), "it was resumed", lines[:20])


def main():
    t = Test()
    if "torchrun" in sys.argv[5:]:
        try:
            by_torchrun(t, sys.argv[6] if len(sys.argv) > 6 else get_torchrun())
        finally:
            shutil.rmtree("environment", ignore_errors=True)
    else:
        refusals(t)
        repeated(t)
        launched(t)
        by_systemd(t)
    t.finish()


if __name__ == "__main__":
    main()
