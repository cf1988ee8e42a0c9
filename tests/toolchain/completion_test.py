#!/usr/bin/env python3
"""completion_test - real bash and zsh, on a terminal, with a Tab behind what was typed.

    completion_test.py PROGRAM COMPLETION_DIR WORK_DIR

Exit 77: neither shell is here.
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

PROGRAM, SCRIPTS, WORK = map(os.path.abspath, sys.argv[1:4])
failures = 0
# Typed, and what the line then is. Each has one answer, so the shell writes it out.
LINES = (
    ("lockstep tra", "lockstep train "),
    ("lockstep train made-", "lockstep train made-up-cnn "),
    ("lockstep train x --resume-or", "lockstep train x --resume-or-start "),
    ("lockstep train x --kernels ref", "lockstep train x --kernels reference "),
    ("lockstep train x --run-dir a-fold", "lockstep train x --run-dir a-folder/"),
    ("lockstep train own-", "lockstep train own-config.json "),
    ("lockstep launch --wor", "lockstep launch --workers "),
    ("lockstep launch --workers 2 tr", "lockstep launch --workers 2 train "),
    ("lockstep launch --workers 2 train x --verify",
     "lockstep launch --workers 2 train x --verify-data "),
    ("lockstep data fetch fashion", "lockstep data fetch fashion-mnist "),
    ("lockstep data shard --mani", "lockstep data shard --manifest "),
    ("lockstep data import cif", "lockstep data import cifar "),
    ("lockstep data import npy a b --pa", "lockstep data import npy a b --part "),
    ("lockstep checkpoint ex", "lockstep checkpoint export "),
    ("lockstep bench --sec", "lockstep bench --seconds "),
    ("lockstep diff a-f", "lockstep diff a-folder/"),
    ("lockstep help doc", "lockstep help doctor "),
    ("lockstep help data unp", "lockstep help data unpack "),
)


def check(holds, what, *more):
    global failures
    if not holds:
        failures += 1
        print("FAILED:", what, *more, sep="\n  ", flush=True)
    return bool(holds)


class Shell:
    """A shell on a terminal, whose command line can be asked for by a key."""

    def __init__(self, command, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(WORK)
            os.execvpe(command[0], command, environment)
        self.said = ""

    def read(self, until, seconds=20.0):
        end = time.monotonic() + seconds
        while until not in self.said and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:
                    break
        before, found, self.said = self.said.partition(until)
        return before if found else None

    def type(self, text):
        os.write(self.fd, text.encode())

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def lines_of(shell, prepare):
    """Types each line and a Tab, then a key that writes the line to a file and clears it."""
    for text in prepare:
        shell.type(text + "\r")
    shell.type("echo rea''dy\r")
    check(shell.read("ready\r\n") is not None, "the shell starts", shell.said)
    for typed, wanted in LINES:
        if os.path.exists(WORK + "/line"):
            os.remove(WORK + "/line")
        shell.type(typed + "\t")
        time.sleep(0.05)
        shell.type("\x18w")
        end = time.monotonic() + 20
        found = ""
        while not found.endswith("|") and time.monotonic() < end:
            time.sleep(0.02)
            if os.path.exists(WORK + "/line"):
                with open(WORK + "/line", encoding="utf-8") as f:
                    found = f.read()
        check(found == wanted + "|", "completed", typed, "found  " + found, "wanted " + wanted)


def bash(environment):
    shell = Shell(["bash", "--norc", "--noprofile", "-i"], environment)
    lines_of(shell, [
        "bind 'set bell-style none'", "bind 'set enable-bracketed-paste off'",
        f"source '{SCRIPTS}/lockstep.bash'",
        r"""keep() { printf '%s|' "$READLINE_LINE" > line; READLINE_LINE=; READLINE_POINT=0; }""",
        r"""bind -x '"\C-xw": keep'"""])
    shell.type("exit\r")
    shell.close()


def zsh(environment):
    shell = Shell(["zsh", "-f", "-i"], environment)
    lines_of(shell, [
        "unsetopt beep zle_bracketed_paste; unset zle_bracketed_paste",
        f"fpath=('{SCRIPTS}' $fpath)",
        "autoload -Uz compinit && compinit -u -D",
        r"""keep() { printf '%s|' "$BUFFER" > line; BUFFER= }; zle -N keep; bindkey '^Xw' keep"""])
    shell.type("exit\r")
    shell.close()


def answers():
    """What the program itself says, apart from shells."""
    def of(*words):
        return subprocess.run([PROGRAM, "complete", *words], capture_output=True, text=True,
                              check=False)
    names = [line.split("\t")[0] for line in of("train", "x", "--").stdout.splitlines()]
    shown = re.findall(r"^  (--[a-z-]+)", subprocess.run(
        [PROGRAM, "help", "train"], capture_output=True, text=True, check=True).stdout, re.M)
    check(names == sorted(set(names), key=names.index) and sorted(names) == sorted(shown),
          "completion and help know the same options", names, shown)
    check(of("plan", "").stdout.endswith(":files\n"), "a configuration may be a file")
    check(of().returncode == 64, "no word")
    check(of("nothing", "").stdout == "" and of("nothing", "").returncode == 0, "no such command")


def main():
    if not shutil.which("bash") and not shutil.which("zsh"):
        print("skipped: neither bash nor zsh is here")
        return 77
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK + "/a-folder")
    with open(WORK + "/own-config.json", "w", encoding="utf-8") as f:
        f.write("{}")
    environment = dict(os.environ, LC_ALL="C", TERM="dumb", HOME=WORK, PS1="$ ",
                       PATH=os.path.dirname(PROGRAM) + ":" + os.environ["PATH"])
    answers()
    for shell in (bash, zsh):
        if shutil.which(shell.__name__):
            shell(environment)
        else:
            print(f"{shell.__name__}: not here")
    return failures > 0


sys.exit(main())
