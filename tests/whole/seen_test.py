#!/usr/bin/env python3
"""seen_test - a run as those who watch it see it: every log line in its file when it is logged,
progress by the clock on a real terminal, signals answered at once, whom a worker waits for, errors
that name what differs, and answers for programs.

   seen_test.py PROGRAM WORK_DIR
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from program import Process, Test, finish, free_port, result, start, tf_config

# A step of some seconds, of 64 grains; nothing is logged by step.
SLOW = {"global_batch": 1024, "grain": 16, "steps": 1000, "log_every_steps": 1000000,
        "data.train": {"made_up": {"count": 4096, "height": 28, "width": 28}},
        "model.input": [28, 28, 1], "model.layers.0.filters": 16,
        "layout": {"kernels": "reference", "wave_examples": 16}}


class Terminal:
    """A program on a terminal of its own, which is its controlling one."""

    def __init__(self, *arguments, columns=100):
        self.text, self.times = "", []
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(arguments[0], arguments)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))

    def read(self, seconds):
        """What comes meanwhile, until it ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                continue
            try:
                piece = os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                return False
            if not piece:
                return False
            self.text += piece
            self.times.append((time.monotonic(), piece))
        return True

    def until(self, words, seconds=60):
        """Seconds until these words came, counted from now."""
        begin = time.monotonic()
        while words not in self.text and time.monotonic() - begin < seconds:
            if not self.read(0.02):
                break
        return time.monotonic() - begin if words in self.text else None

    def end(self, seconds=60):
        """The exit code."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if self.fd is not None and not self.read(0.05):
                os.close(self.fd)
                self.fd = None
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if self.fd is None:
                time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return "hangs"

    def progress(self):
        """The progress lines shown, in order."""
        return re.findall(r"\r\x1b\[K(step \d+/[^\r\n\x1b]*)", self.text)


def checkpoints(run):
    return sorted(os.listdir(run + "/checkpoints"))


def logs(t):
    """Killed without a checkpoint: every line that was logged is there."""
    config = t.write("logged.json", {"steps": 1000000})
    process = t.start("train", config, "--run-dir", "logged")
    said = 0
    for line in process.lines():
        said += line.startswith("loss = ")
        if said == 60:
            break
    process.kill()
    process.communicate()
    with open("logged/metrics.jsonl", encoding="utf-8") as f:
        lines = f.read().split("\n")
    steps = [json.loads(line)["step"] for line in lines[:-1]]
    t.check(len(steps) >= 60 and steps == list(range(1, len(steps) + 1)) and not lines[-1],
            "metrics.jsonl after kill -9", len(steps), lines[-1])
    t.check(not checkpoints("logged"), "without a checkpoint")


def terminal(t):
    """Inside a step, too, at least once a second; Ctrl-C is answered while the step goes on."""
    config = t.write("slow.json", SLOW)
    run = Terminal(t.program, "train", config, "--run-dir", "slow", "--replicas", "2")
    t.check(run.until("step 0/1000") is not None, "it shows itself before a step is done", run.text)
    run.read(3.2)
    shown = run.progress()
    t.check(len(shown) >= 4, "at least once a second", shown)
    grains = [re.search(r"grains (\d+)/32", line) for line in shown]
    t.check(len({m.group(1) for m in grains if m}) >= 2, "grains within a step", shown)
    os.write(run.fd, b"\x03")
    waited = run.until("stopping after this step")
    t.check(waited is not None and waited < 1.0, "Ctrl-C is answered at once", waited)
    t.check(run.until("stopped after step ") is not None and run.end() == 130, "and it ends",
            run.text[-300:])
    t.check(len(checkpoints("slow")) == 1, "saved", checkpoints("slow"))
    # On a narrow terminal the line never wraps; at the end there is none.
    quick = t.write("quick.json", {"steps": 3000})
    run = Terminal(t.program, "train", quick, "--run-dir", "quick", columns=30)
    t.check(run.end() == 0 and all(len(line) < 30 for line in run.progress()), "a narrow one",
            run.text[-300:])
    t.check(run.text.rstrip().rsplit("\n", 1)[-1].startswith("state_hash "), "the last word",
            run.text[-300:])


def first_step(process, begins="loss"):
    for line in process.lines():
        if line.startswith(begins):
            return


def impatience(t):
    """Two signals at once are one wish; Ctrl-C once more, later, is another."""
    config = t.write("long.json", {"steps": 1000000, "log_every_steps": 100})
    process = t.start("train", config, "--run-dir", "wish")
    first_step(process)
    for number in (signal.SIGSTOP, signal.SIGHUP, signal.SIGINT, signal.SIGCONT):
        process.send_signal(number)  # both are heard when it goes on
    code, out, error = finish([process])[0]
    t.check(code in (129, 130) and "stopped after step" in out and not error and
            checkpoints("wish"), "two at once end nothing early", code, out[-300:], error)
    run = Terminal(t.program, "train", t.write("slow.json", SLOW), "--run-dir", "wishes")
    run.until("step 0/1000")
    os.write(run.fd, b"\x03")
    run.until("Ctrl-C once more ends at once")
    os.kill(run.pid, signal.SIGSTOP)
    time.sleep(0.6)
    os.write(run.fd, b"\x03")
    os.kill(run.pid, signal.SIGCONT)
    t.check(run.end() == 130 and "interrupted again: ended at once" in run.text and
            not checkpoints("wishes"), "Ctrl-C once more", run.text[-300:])


def hangup(t):
    config = t.write("slow.json", SLOW)
    run = Terminal(t.program, "train", config, "--run-dir", "gone", "--replicas", "2")
    run.until("step 0/1000")
    os.close(run.fd)  # the terminal is closed
    run.fd = None
    t.check(run.end() == 129 and len(checkpoints("gone")) == 1, "the terminal goes: saved")
    config = t.write("long.json", {"steps": 1000000, "log_every_steps": 100})
    process = t.start("train", config, "--run-dir", "hup")
    first_step(process)
    process.send_signal(signal.SIGHUP)
    code, out, error = finish([process])[0]
    t.check(code == 129 and "stopped after step" in out and checkpoints("hup") and not error,
            "SIGHUP saves", code, out[-300:], error)
    process = Process(["nohup", t.program, "train", config, "--run-dir", "nohup"],
                      stdin=subprocess.DEVNULL)
    first_step(process)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    t.check(process.poll() is None, "nohup is heeded")
    process.terminate()
    t.check(finish([process])[0][0] == 143, "and SIGTERM is")


def ask(t, process, victim, begins):
    """SIGUSR1 to `victim`: a line of `process` that begins so, and it goes on."""
    os.kill(victim, signal.SIGUSR1)
    for line in process.lines():
        if line.startswith(begins):
            return bool(re.search(r"step \d+/\d+ .*loss [\d.]+ .*(no checkpoint yet|checkpoint "
                                  r"step \d+)", line)), line
    return False, "it has ended"


def status(t):
    config = t.write("long.json", {"steps": 1000000, "log_every_steps": 100})
    process = t.start("train", config, "--run-dir", "asked")
    first_step(process)
    for _ in range(5):
        t.check(*ask(t, process, process.pid, "status: step "))
    # The data is learned by now: the loss is far below 0.1.
    for line in process.lines():
        if re.search(r"^loss = .* step = [3-9]\d{3}\b", line):
            break
    _, line = ask(t, process, process.pid, "status: step ")
    said = re.search(r"step (\d+)/(\d+)  loss 0\.0\d{3}  accuracy \d+\.\d\d%  (\d+) images/s  "
                     r"(\d+) s left", line)
    if t.check(said, "each decimal", line):
        done, total, rate, left = map(int, said.groups())
        wanted = (total - done) * 256 / rate
        t.check(abs(left - wanted) <= 1 + wanted / 100, "seconds left of what is to come", line)
    process.terminate()
    t.check(finish([process])[0][0] == 143, "it went on")


def workers_of(process):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                if int(f.read().rpartition(")")[2].split()[1]) == process.pid:
                    found.append(int(name))
        except OSError:
            continue
    return sorted(found)


def launched(t):
    config = t.write("long.json", {"steps": 1000000, "log_every_steps": 100})
    launch = ["launch", "--workers", "2", "--replicas", "1", "train"]
    process = t.start(*launch, config, "--run-dir", "asked2")
    first_step(process, "[0] loss")
    t.check(*ask(t, process, process.pid, "[0] status: step "))
    t.check(*ask(t, process, workers_of(process)[1], "[1] rank 1: status: step "))
    process.send_signal(signal.SIGHUP)
    code, out, error = finish([process])[0]
    t.check(code == 129 and "[0] stopping after this step" in out and "[0] stopped after" in out and
            not error and checkpoints("asked2"), "SIGHUP", code, out[-300:], error)
    # One progress line, of all, however fast the machine; then the bits of a run without one.
    quick = t.write("quick.json", {"steps": 3000})
    run = Terminal(t.program, *launch, t.write("slow.json", SLOW), "--run-dir", "shown")
    end = time.monotonic() + 60
    while len(shown := run.progress()) < 3 and time.monotonic() < end and run.read(0.5):
        pass
    os.write(run.fd, b"\x03")
    code = run.end()
    t.check(code == 130 and len(shown) >= 3 and any("grains" in line for line in shown),
            "launch shows progress", code, shown, run.text[-300:])
    code, lines, _ = t.expect(0, *launch, quick, "--run-dir", "events", "--json")
    events = [json.loads(line) for line in lines]
    t.check(events[0]["event"] == "start" and events[-1]["event"] == "end", "launch --json", lines)
    _, lines, _ = t.expect(0, "train", quick, "--run-dir", "plain", "--quiet")
    t.check((events[-1]["digest"], events[-1]["state_hash"]) == result(lines), "the same bits",
            lines)


def waiting(t):
    config = t.write("pair.json", {"steps": 1000000, "log_every_steps": 10})
    train = ["train", config, "--replicas", "1", "--start-timeout", "20"]
    for rank in (0, 1):
        process = start(t, tf_config(2, rank, free_port()), *train, "--run-dir", f"alone{rank}")
        ready = select.select([process.stdout], [], [], 10)[0]
        line = next(process.lines(), "") if ready else ""
        t.check(f"waiting for rank {1 - rank} (worker:{1 - rank} at localhost:" in line and
                "; see --start-timeout (20 s)" in line, "start-up", rank, line)
        process.kill()
        finish([process])
    port = free_port()
    pair = [start(t, tf_config(2, r, port), *train, "--run-dir", "pair") for r in (0, 1)]
    for line in pair[0].lines():
        if line.startswith("loss"):
            break
    pair[1].send_signal(signal.SIGSTOP)
    for line in pair[0].lines():
        if line.startswith("waiting"):
            break
    t.check(f"waiting for rank 1 on " in line and f"(process {pair[1].pid}), which is stopped"
            in line, "in a step", line)
    pair[1].send_signal(signal.SIGCONT)
    for line in pair[0].lines():
        if line.startswith("loss"):
            break
    t.check(line.startswith("loss"), "it goes on", line)
    pair[0].terminate()
    t.check([e[0] for e in finish(pair)] == [143, 143], "and ends")
    # A share of an evaluation that takes the one longer than --step-timeout after the other.
    config = t.write("shares.json", {
        "steps": 20, "data.test": {"made_up": {"first": 1000, "count": 150000, "height": 10,
                                               "width": 10}}})
    port = free_port()
    ends = finish([start(t, tf_config(2, r, port), "train", config, "--replicas", "1", "--run-dir",
                         "shares", "--step-timeout", "1", "--kernels", kernels)
                   for r, kernels in ((0, "auto"), (1, "reference"))], 120)
    t.check([e[0] for e in ends] == [0, 0] and "test_accuracy" in ends[0][1],
            "a long evaluation is no silence", ends)


def evaluator(t):
    """Ends with the run that is there, not with the one that is configured."""
    test = {"made_up": {"first": 1000, "count": 100, "height": 10, "width": 10}}
    config = t.write("test.json", {"data.test": test})
    t.expect(0, "train", config, "--run-dir", "short", "--set", "steps=40")
    here = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["localhost:1"]},
                                     "task": {"type": "evaluator", "index": 0}})}
    code, out, error = finish([start(t, here, "train", config, "--run-dir", "short")], 20)[0]
    t.check(code == 0 and "the run in short ends at step 40, this configuration at step 200" in out
            and "evaluation step 40" in out, "a shorter run", code, out, error)


def messages(t):
    test = {"made_up": {"first": 1000, "count": 100, "height": 10, "width": 10}}
    config = t.write("say.json", {"data.test": test})
    t.expect(0, "train", config, "--run-dir", "said", "--set", "steps=20")
    for code, wanted, *more in (
            (78, "they differ in optimizer.momentum (0.9 there, 0.5 here), seed (7 there, 8 here); "
             "make them equal, name another directory, or begin anew with --fresh",
             "--run-dir", "said", "--resume", "--seed", "8", "--set", "optimizer.momentum=0.5"),
            # What only one of the two says, and what is its default, is no difference.
            (78, "they differ in grain (16 there, 32 here); make", "--run-dir", "said", "--resume",
             "--set", "grain=32", "--set", "data.order=global", "--set", "drop_remainder=false"),
            (78, "they differ in drop_remainder (not set there, true here); make", "--run-dir",
             "said", "--resume", "--set", "drop_remainder=true"),
            (64, "--set data.train.made_up.count: found with --data, which takes the place of",
             "--data", "nowhere", "--set", "data.train.made_up.count=7"),
            (66, "begin it with --fresh", "--run-dir", "unsaid", "--set", "on_start=resume"),
            (64, "go on with --resume, begin anew with --fresh, or name another directory",
             "--run-dir", "said"),
            (74, "its parent no/where is not there", "--run-dir", "no/where/at-all"),
            (78, "optimizer.momentum: found real 1.0, wanted a number from 0 to below 1",
             "--set", "optimizer.momentum=1.0"),
            (78, "model.layers: found an array of 0 elements, wanted one layer or more",
             "--set", "model.layers=[]"),
            (64, "the integer is beyond 9223372036854775807", "--set",
             "seed=99999999999999999999"),
            (64, "--seed: found \"99999999999999999999\", wanted a number from 0 to", "--seed",
             "99999999999999999999"),
            (78, "wanted one of \"tf32\", \"bf16\", \"fp16\"; replace it", "--set",
             "arithmetic=fast", "--set", "fast_precision=fp8"),
            (64, "--quiet and --json exclude each other", "--quiet", "--json")):
        _, _, error = t.expect(code, "train", config, *more)
        t.check(wanted in error and error.count("\n") == 1, "one line", wanted, error)
    # The same but for what changes no bit: no key is named in vain.
    t.expect(0, "train", config, "--run-dir", "said", "--resume", "--set", "steps=30", "--set",
             "log_every_steps=7", "--set", "layout.overlay=false")
    for more, wanted in (([], "there is no checkpoint yet"),
                         (["--set", "checkpoint.every_steps=1"], "the last checkpoint, of step 1, "
                          "stands")):
        rate = ["--set", "optimizer.learning_rate=1e30"] if not more else \
               ["--set", "optimizer.learning_rate=1e15"]
        _, _, error = t.run("train", config, "--run-dir", "diverged", "--fresh", *rate, *more)
        t.check(wanted in error or (more and "the last checkpoint, of step" in error), "diverged",
                wanted, error)


def words(t):
    for asked in (["-h"], ["--help"], ["help"]):
        _, lines, _ = t.expect(0, *asked)
        t.check("a fixed-memory" in lines[0], "help", lines[:1])
    for asked in (["-V"], ["--version"], ["version"]):
        _, lines, _ = t.expect(0, *asked)
        t.check(lines[0].startswith("lockstep ") and any(line.startswith("kernels: ")
                for line in lines) and any(line in ("MPI: yes", "MPI: no") for line in lines),
                "build features", lines)
    for name in ("plan", "cluster", "train", "launch", "eval", "predict", "embed", "data",
                 "checkpoint", "diff", "bench", "verify", "doctor"):
        texts = [t.expect(0, *asked)[1] for asked in (["help", name], [name, "--help"],
                                                      [name, "-h"])]
        t.check(texts[0] == texts[1] == texts[2] and "lockstep " + name in texts[0][0],
                "help COMMAND", name, texts)
    texts = [t.expect(0, *asked)[1] for asked in (["help", "data", "shard"],
                                                  ["data", "shard", "-h"])]
    t.check(texts[0] == texts[1] and "data shard" in texts[0][0], "help of a subcommand", texts)
    t.expect(0, "train", t.write("say.json"), "-h", "--replicas", "2")
    _, _, error = t.expect(64, "help", "trian")
    t.check("did you mean \"train\"" in error, "help of what there is not", error)
    _, lines, _ = t.expect(0, "train", t.write("say.json"), "--run-dir", "few", "--quiet", "--set",
                           "steps=10", "--seed", "3", "--epochs", "2")
    t.check(1 < len(lines) < 8 and not any(line.startswith("loss") for line in lines) and
            lines[-1].startswith("state_hash"), "--quiet", lines)
    with open("few/config.json", encoding="utf-8") as f:
        document = json.load(f)
    t.check((document["seed"], document["epochs"]) == (3, 2), "--seed, --epochs", document)


def answers(t):
    """--json: one object, or of train one a line."""
    test = {"made_up": {"first": 1000, "count": 100, "height": 10, "width": 10}}
    config = t.write("json.json", {"steps": 30, "log_every_steps": 10, "data.test": test,
                                   "checkpoint.every_steps": 10})
    _, lines, error = t.expect(0, "train", config, "--run-dir", "a", "--json")
    events = [json.loads(line) for line in lines]
    kinds = [e["event"] for e in events if e["event"] != "progress"]
    t.check(kinds == ["start", "step", "step", "checkpoint", "step", "checkpoint", "step",
                      "checkpoint", "evaluation", "end"] and not error, "events", kinds, error)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "b", "--seed", "9")
    _, lines, _ = t.expect(80, "train", config, "--run-dir", "c", "--json", "--set",
                           "optimizer.learning_rate=1e30")
    last = json.loads(lines[-1])
    t.check(last["event"] == "error" and last["code"] == 80 and "not finite" in last["text"],
            "an error is an event", lines[-1:])
    file = "a/checkpoints/" + checkpoints("a")[-1]
    for code, check, *arguments in (
            (0, lambda d: d["digest"] == events[-1]["digest"], "eval", config, "--run-dir", "a"),
            (0, lambda d: d["logits"] == "l.npy", "predict", config, "--run-dir", "a", "--output",
             "l.npy"),
            (0, lambda d: {c["kind"] for c in d["checks"]} <= {"ok", "warning"}, "doctor"),
            (0, lambda d: d["same"] and d["last_step"] == 30, "diff", "a", "a"),
            (1, lambda d: not d["same"] and d["differ_at_step"] == 30, "diff", "a", "b"),
            (1, lambda d: not d["within"], "diff", "a", "b", "--tolerance", "1e-6"),
            (0, lambda d: d["good"] == 3, "checkpoint", "verify", "a"),
            (0, lambda d: d["metadata"]["step"] == "30", "checkpoint", "info", file),
            (0, lambda d: d["step"] == 30, "checkpoint", "export", file, "--output", "e"),
            (0, lambda d: sum(d["class_counts"]) == 50, "data", "verify", "--made-up", "50"),
            (0, lambda d: d["shards"] == 2, "data", "shard", "--made-up", "50", "--shards", "2",
             "--to", "shards")):
        _, lines, _ = t.expect(code, *arguments, "--json")
        t.check(len(lines) == 1 and check(json.loads(lines[0])), "one object", arguments, lines)
    with open(file, "r+b") as f:
        f.seek(-5, 2)
        f.write(b"\xff")
    _, lines, _ = t.expect(65, "checkpoint", "verify", "a", "--json")
    t.check(json.loads(lines[0])["bad"] == 1, "a damaged one", lines)
    _, lines, _ = t.expect(0, "verify", "--json", "--kernels", "auto")
    rows = json.loads(lines[0])
    t.check(rows["differ"] == 0 and rows["rows"], "verify", lines)


def main():
    t = Test()
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
                 "PMI_SIZE", "LOCKSTEP_KEY_FILE", "LOCKSTEP_PROGRESS_FD"):
        os.environ.pop(name, None)
    parts = [logs, terminal, impatience, hangup, status, evaluator, messages, words, answers]
    code, _, error = t.run("launch", "--workers", "2", "train", t.write("try.json", {"steps": 1}))
    if code == 69 and "has no MPI" in error:
        print("not done with workers: this build has no MPI")
    else:
        parts += [launched, waiting]
    for part in parts:
        if len(sys.argv) <= 3 or part.__name__ in sys.argv[3:]:
            begin = time.monotonic()
            part(t)
            print(f"{part.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    t.finish()


if __name__ == "__main__":
    main()
