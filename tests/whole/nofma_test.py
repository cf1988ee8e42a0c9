#!/usr/bin/env python3
"""nofma_test - on a processor without FMA (qemu-user plays one) a run has the digest of this one,
and `doctor` and the start of the run say in one line what it costs. Where FMA is, the run does not.

   nofma_test.py PROGRAM WORK_DIR QEMU_X86_64
"""
import subprocess
import sys

from program import Test, result

SAYS = "no FMA"


def main():
    t = Test()
    config = t.write("nofma.json", {"steps": 6})
    train = ["train", config, "--replicas", "2"]
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        here = " fma " in f.read()
    lines = t.expect(0, *train, "--run-dir", "here")[1]
    wanted = result(lines)
    if here:
        t.check(not any(SAYS in line for line in lines), "a run with FMA says nothing", lines)
        lines = t.expect(0, *train, "--run-dir", "portable", "--kernels", "portable")[1]
        t.check(result(lines) == wanted, "portable kernels", lines)
        t.check(not any(SAYS in line for line in lines), "FMA is there", lines)
    for cpu in ("Westmere", "SandyBridge"):
        command = [sys.argv[3], "-cpu", cpu, t.program]
        # qemu-user dies of the signals of a run's clock, which --quiet has none of, and which a run
        # of one step does not live to see.
        done = subprocess.run(command + train + ["--run-dir", cpu, "--quiet"], cwd=t.work,
                              text=True, capture_output=True, timeout=600, check=False)
        lines = done.stdout.splitlines()
        t.check(done.returncode == 0 and result(lines) == wanted, cpu, done.returncode, lines,
                done.stderr)
        done = subprocess.run(command + train + ["--run-dir", cpu, "--fresh", "--set", "steps=1"],
                              cwd=t.work, text=True, capture_output=True, timeout=600, check=False)
        lines = done.stdout.splitlines()
        t.check(sum(SAYS in line for line in lines) == 1, cpu, "says it once", lines)
        done = subprocess.run(command + ["doctor"], cwd=t.work, text=True, capture_output=True,
                              timeout=600, check=False)
        said = [line for line in done.stdout.splitlines() if SAYS in line]
        t.check(len(said) == 1 and said[0].startswith("warning  kernels"), cpu, "doctor",
                done.stdout)
        print(said)
    t.finish()


if __name__ == "__main__":
    main()
