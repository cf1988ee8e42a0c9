#!/usr/bin/env python3
"""gpu_check_test - toolchain/gpu-check where there is no GPU: what it says, and, with the programs
of the host execution layer in the place of a GPU's, what it does.

   gpu_check_test.py LOCKSTEP_ON_HOST WORK_DIR GPU_CHECK MEASURE KERNELS CONV_KERNELS
                     PERSISTENT_KERNELS PERSISTENT_CONV_KERNELS SEQUENCE TRANSDUCER UPDATE OPS
"""
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../whole"))
from program import Test  # noqa: E402

GPU_CHECK, *PROGRAMS = (os.path.abspath(path) for path in sys.argv[3:14])
NAMES = ("gpu_measure", "gpu_kernels_test", "gpu_conv_kernels_test",
         "gpu_persistent_kernels_test", "gpu_persistent_conv_kernels_test", "gpu_sequence_test",
         "gpu_transducer_test", "gpu_update_test", "gpu_narrow_test", "gpu_ops")
# Stands before the program: a benchmark is the processor's, or the digests are not its own.
STAND_IN = """#!/bin/sh
case "$*" in *--seal*cuda) exec "$PROGRAM" "$@" ;; esac
case "$1" in
launch) test -z "$NO_MPI" || { echo "lockstep: no MPI" >&2; exit 69; }; exec "$PROGRAM" "$@" ;;
bench) exec "$PROGRAM" bench --json --cases mnist-cnn-64 --seconds 0.1 --rounds 1 ;;
train) said=$("$PROGRAM" "$@"); code=$?; echo "$said" | sed "$CHANGE"; exit $code ;;
*) exec "$PROGRAM" "$@" ;;
esac
"""


def gpu_check(*arguments, quick=("--quick",), **environment):
    done = subprocess.run([sys.executable, GPU_CHECK, *quick, *arguments], timeout=280,
                          capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def write_script(path, commands):
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n{commands}\n")
    os.chmod(path, 0o755)


def rows_of(file):
    with open(file, encoding="utf-8") as f:
        return {row["part"]: row for row in json.load(f)["parts"]}


def without_a_gpu(t):
    for environment in ({"LOCKSTEP_HOST_CUDA_DEVICES": "0"}, {"LOCKSTEP_HOST_CUDA_DEVICES": "-1"}):
        code, out, error = gpu_check("--program", t.program, **environment)
        t.check(code == 69 and not out and error.count("\n") == 1
                and error.startswith("gpu-check: no GPU can be used here: "), code, out, error)
    code, out, error = gpu_check("--only", "kernels,nothing")
    t.check(code == 64 and "\"nothing\"" in error, "a part that is not there", code, error)


def with_all(t):
    """Every part that the host layer can play; the others say why not."""
    parts = ("golden,kernels,equal,models,ops,measure,bench,speeds,ways,fast,allocations,memory,"
             "seal,gpus,workers")
    code, out, error = gpu_check("--program", "program", "--tests", "tests", "--to", "all.json",
                                 "--only", parts, "--work", "work",
                                 LOCKSTEP_HOST_CUDA_DEVICES="3")
    t.check(code == 0, "gpu-check", code, out, error)
    rows = rows_of("all.json")
    for name in ("golden", "kernels", "equal", "models", "ops", "gpus", "workers", "fast",
                 "allocations", "measure", "bench", "speeds", "ways", "seal"):
        t.check(rows[name]["status"] == "ok", name, rows[name])
    t.check("4 workers by nccl: not run: " in rows["workers"]["text"], rows["workers"])
    t.check(rows["kernels"]["text"].count(", ") == 7 and "?" not in rows["kernels"]["text"],
            rows["kernels"])
    t.check(rows["seal"]["text"].startswith("refused with a GPU; "), rows["seal"])
    t.check("none by the driver" in rows["allocations"]["text"], rows["allocations"])
    for name, key in (("bench", "64"), ("measure", "chain_term_ns"), ("allocations", "bytes"),
                      ("fast", "bf16"), ("fast", "fp16"), ("ops", "matrix"),
                      ("ways", "64 fast resident")):
        t.check(rows[name]["figures"].get(key), f"{name} has no {key}", rows[name])
    t.check(out.count("\n") == len(rows) + 2, "a line for each part", out)
    with open("all-logs/golden.log", encoding="utf-8") as f:
        said = f.read()
    t.check(said.startswith("$ ") and "state_hash" in said and "[exit 0]" in said, said)


def with_faults(t):
    """Wrong bits and a failing test are found; what is missing is said; the rest is run."""
    os.remove("tests/gpu_measure")
    os.remove("tests/gpu_update_test")
    os.symlink("/bin/false", "tests/gpu_update_test")
    code, out, error = gpu_check("--program", "program", "--tests", "tests", "--to", "faults.json",
                                 "--only", "golden,kernels,equal,gpus,allocations,seal,measure",
                                 "--work", "work", LOCKSTEP_HOST_CUDA_DEVICES="2",
                                 CHANGE="s/^digest ./digest 0/")
    rows = rows_of("faults.json")
    found = {name: row["status"] for name, row in rows.items()}
    t.check(code == 1 and found == {"golden": "FAILED", "kernels": "FAILED", "equal": "FAILED",
                                    "gpus": "FAILED", "allocations": "ok", "seal": "FAILED",
                                    "measure": "not run"},
            found, code, out, error)
    t.check("no gpu_measure" in rows["measure"]["text"], rows["measure"])
    t.check("op by op: " in rows["golden"]["text"], rows["golden"])


def without_mpi(t):
    """What all ways of several workers lack is said once."""
    gpu_check("--program", "program", "--to", "alone.json", "--only", "workers", "--work", "work",
              LOCKSTEP_HOST_CUDA_DEVICES="1", NO_MPI="yes")
    row = rows_of("alone.json")["workers"]
    t.check(row["status"] == "not run" and row["text"] == "lockstep: no MPI", row)


def ops_of(config, *arguments):
    """(exit code, rows)"""
    path = os.path.join(HERE, f"../../matrix/{config}.json")
    done = subprocess.run(["tests/gpu_ops", path, *arguments], timeout=60, capture_output=True,
                          text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def with_a_wrong_op(t):
    """An op whose bits differ is named, the first of all that do."""
    code, rows = ops_of("matrix", "--spoil", "4")
    wrong = [row["op"] for row in rows if not row["equal"]]
    t.check(code == 1 and wrong and wrong[0] == 4, code, rows)
    os.rename("tests/gpu_ops", "tests/gpu_ops_itself")
    write_script("tests/gpu_ops", 'exec "$(dirname "$0")/gpu_ops_itself" "$@" --spoil 4')
    code, out, error = gpu_check("--program", "program", "--tests", "tests", "--to", "wrong.json",
                                 "--only", "golden,ops", "--work", "work",
                                 LOCKSTEP_HOST_CUDA_DEVICES="1", CHANGE="s/^digest ./digest 0/")
    rows = rows_of("wrong.json")
    t.check(code == 1 and all("op 4 relu of relu2 is the first of" in row["text"]
                              for row in rows.values()), code, out, error, rows)
    t.check(rows["ops"]["figures"].get("matrix"), "a part that fails has its figures", rows)
    os.rename("tests/gpu_ops_itself", "tests/gpu_ops")


def with_other_nans(t):
    """A NaN is any NaN, in sums and in 16 bits, and nothing else is: the first step overflows, and
    the bit that is turned is one of a payload where all that an op has written is NaN."""
    code, rows = ops_of("mixed_gan")
    all_nan = {row["name"]: row["op"] for row in rows if row["nans"] == row["numbers"] > 0}
    t.check(code == 0 and all(row["equal"] for row in rows), code, rows)
    for name in ("conv2d_transpose_weight_gradient", "batch_normalization_backward"):
        code, _ = ops_of("mixed_gan", "--spoil", str(all_nan[name]))
        t.check(code == 0, f"{name}: another NaN is another number", code)
    free = [row["op"] for row in rows if row["numbers"] and not row["nans"]]
    for op in (free[0], free[-1]):
        code, rows = ops_of("mixed_gan", "--spoil", str(op))
        t.check(code == 1 and not rows[op]["equal"], f"op {op}: another bit is not seen", code)


def with_several_objectives(t):
    """Ops of each objective, by any kernels and with other settings."""
    code, rows = ops_of("objectives", "--kernels", "auto", "--set", "global_batch=128")
    t.check(code == 0 and [row["name"] for row in rows].count("load") == 2, code, rows)
    for wrong in (["4"], ["--spoil", "x"], ["--kernels", "cuda"]):
        t.check(ops_of("matrix", *wrong) == (64, []), wrong)


def runs(command):
    return subprocess.run(["pgrep", "-f", f"^{command}$"], capture_output=True,
                          check=False).returncode == 0


def with_what_hangs(t):
    """A program that does not end is ended with all that it started, and its words are kept."""
    write_script("tests/gpu_measure", "echo begun\nsleep 4321 &\nwait")
    code, _, error = gpu_check("--program", "program", "--tests", "tests", "--to", "hangs.json",
                               "--only", "measure", "--work", "work", "--seconds", "8",
                               LOCKSTEP_HOST_CUDA_DEVICES="1")
    row = rows_of("hangs.json")["measure"]
    t.check(code == 1 and "gpu_measure: not done after" in row["text"], code, row, error)
    with open("hangs-logs/measure.log", encoding="utf-8") as f:
        t.check("begun" in f.read(), "what it said is lost")
    t.check(not runs("sleep 4321"), "what it started still runs")


def with_kernels_at_once(t):
    """Of the kernels' programs, which run at once, all that fail or are late are named."""
    os.mkdir("scripts")
    for name in NAMES[1:9]:
        write_script(f"scripts/{name}", "echo '[  PASSED  ] 3 test(s).' >&2")
    write_script("scripts/gpu_kernels_test", "sleep 4324")
    write_script("scripts/gpu_update_test", "echo 'a bit is wrong' >&2; exit 1")
    gpu_check("--program", "program", "--tests", "scripts", "--to", "kernels.json",
              "--only", "kernels", "--work", "work", "--seconds", "8",
              LOCKSTEP_HOST_CUDA_DEVICES="1")
    row = rows_of("kernels.json")["kernels"]
    t.check(row["status"] == "FAILED" and "gpu_kernels_test: not done after" in row["text"]
            and "gpu_update_test: exit 1: a bit is wrong" in row["text"]
            and "tests passed: conv_kernels 3, persistent_kernels 3" in row["text"], row)
    with open("kernels-logs/kernels.log", encoding="utf-8") as f:
        said = f.read()
    t.check(said.count("$ ") == 8 and said.count("[exit 0]\n\n") == 6, said)
    t.check(not runs("sleep 4324"), "what it started still runs")


def with_late_ops(t):
    """All models are looked at op by op; one that takes too long costs the others nothing."""
    row = '{"op": 1, "name": "relu", "layer": "r", "equal": true, "us": 1.5}'
    write_script("scripts/gpu_ops", f"case $1 in mnist-gan) sleep 4325 ;; esac; echo '{row}'\n"
                 f"echo '{row}'; echo \"$@\" >&2")
    gpu_check("--program", "program", "--tests", "scripts", "--to", "ops.json", "--only", "ops",
              "--work", "work", "--seconds", "12", quick=(),
              LOCKSTEP_HOST_CUDA_DEVICES="1")
    row = rows_of("ops.json")["ops"]
    said = "rnnt-strips: 2 ops equal, 3.0 us one by one, most of it relu 3.0; bench-lenet: 2 ops"
    t.check(row["status"] == "FAILED" and said in row["text"]
            and row["text"].startswith("mnist-gan: gpu_ops: not done after"), row)
    t.check(list(row["figures"]) == ["bench-mnist-cnn", "matrix", "resnet20-mnist", "rnnt-strips",
                                     "bench-lenet", "bench-lstm"], row)
    with open("ops-logs/ops.log", encoding="utf-8") as f:
        t.check('resnet20-mnist --kernels auto --set data={"train":{"made_up":{"count":60000}}} '
                "--set global_batch=64\n" in f.read(), "how it was asked")
    t.check(not runs("sleep 4325"), "what it started still runs")


def with_sanitizers(t):
    """What they find fails; what the machine forbids, or takes too long, was not run."""
    ways = (("echo '========= ERROR SUMMARY: 0 errors'", "ok", "racecheck, initcheck: nothing"),
            ("echo '========= ERROR SUMMARY: 1 error'; exit 99", "FAILED", "memcheck: exit 99"),
            ("echo 'not permitted' >&2; exit 1", "not run", "not permitted; before it: none"),
            ('test "$2" = memcheck || sleep 4323', "not run", "racecheck: compute-sanitizer: not "
             "done after"))
    os.mkdir("bin")
    for commands, status, text in ways:
        write_script("bin/compute-sanitizer", commands)
        gpu_check("--program", "program", "--to", "sanitizers.json", "--only", "sanitizers",
                  "--work", "work", "--seconds", "8", LOCKSTEP_HOST_CUDA_DEVICES="1",
                  PATH=os.path.abspath("bin") + ":" + os.environ["PATH"])
        row = rows_of("sanitizers.json")["sanitizers"]
        t.check(row["status"] == status and text in row["text"], status, text, row)
    t.check(not runs("sleep 4323"), "what it started still runs")


def with_a_signal(t, part, script):
    """Who ends gpu-check from outside ends what it called, too; what was found before stays."""
    os.remove(script)
    write_script(script, "echo begun\nsleep 4322 &\nwait")
    command = [sys.executable, GPU_CHECK, "--quick", "--program", "program", "--tests", "tests",
               "--to", "ended.json", "--only", f"golden,{part}", "--work", "work"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "LOCKSTEP_HOST_CUDA_DEVICES": "1"}) as process:
        begin = time.monotonic()
        while not runs("sleep 4322") and time.monotonic() - begin < 60:
            time.sleep(0.05)
        process.terminate()
        out, _ = process.communicate(timeout=20)
    t.check(process.returncode == 143 and list(rows_of("ended.json")) == ["golden"],
            process.returncode, out)
    t.check(not runs("sleep 4322"), "what it started still runs")


def main():
    t = Test()
    os.mkdir("tests")
    for name, path in zip(NAMES, PROGRAMS):
        os.symlink(path, "tests/" + name)
    os.symlink(t.program, "tests/lockstep_on_gpu")
    with open("program", "w", encoding="utf-8") as f:
        f.write(STAND_IN)
    os.chmod("program", 0o755)
    os.environ.update(PROGRAM=t.program, CHANGE="")
    without_a_gpu(t)
    with_all(t)
    with_faults(t)
    without_mpi(t)
    with_a_wrong_op(t)
    with_other_nans(t)
    with_several_objectives(t)
    with_what_hangs(t)
    with_kernels_at_once(t)
    with_late_ops(t)
    with_sanitizers(t)
    with_a_signal(t, "measure", "tests/gpu_measure")
    with_a_signal(t, "kernels", "tests/gpu_narrow_test")
    t.finish()


main()
