#!/usr/bin/env python3
"""manual_test - the manual pages that lockstep writes of its help: real man and mandoc read them,
and nothing that help says is missing.

    manual_test.py PROGRAM WORK_DIR

Exit 77: neither man nor mandoc is here.
"""
import os
import re
import shutil
import subprocess
import sys

PROGRAM, WORK = map(os.path.abspath, sys.argv[1:3])
failures = 0


def check(holds, what, *more):
    global failures
    if not holds:
        failures += 1
        print("FAILED:", what, *more, sep="\n  ", flush=True)
    return bool(holds)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def words(text):
    """What a page must not lose: every word of a text, however it is filled."""
    return re.findall(r"[^\s]+", text)


def shown(page):
    if shutil.which("mandoc"):
        return run("mandoc", "-T", "ascii", "-O", "width=1000", page)[1].replace("\b", "\0")
    return run("man", "-l", page)[1]


def plain(text):
    return re.sub(".\0", "", text)  # bold is a letter over itself


def judge(page):
    if shutil.which("mandoc"):
        code, out, err = run("mandoc", "-T", "lint", "-W", "style", page)
        check(code == 0 and not out, "mandoc -Tlint", page, out, err)
    if shutil.which("man"):
        _, _, err = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page)
        check(not err, "man --warnings", page, err)


def same_words(name, texts):
    """Every word of these texts stands in the page, in order."""
    found = words(plain(shown(f"{WORK}/{name}")))
    at = 0
    for text in texts:
        for word in words(text.removeprefix("usage: ")):
            while at < len(found) and found[at] != word:
                at += 1
            if not check(at < len(found), "a word that help says", name, word, text):
                return
            at += 1


def main():
    if not shutil.which("mandoc") and not shutil.which("man"):
        print("skipped: neither man nor mandoc is here")
        return 77
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    os.environ.update(LC_ALL="C.UTF-8", MANPAGER="cat", PAGER="cat", SOURCE_DATE_EPOCH="86400")
    check(run(PROGRAM, "manual", "--to", WORK)[0] == 0, "manual")
    pages = sorted(os.listdir(WORK))
    rows = re.findall(r"^([a-z]+)\t(.*)$", run(PROGRAM, "complete", "")[1], re.M)
    commands = dict(rows)
    commands.pop("help")
    check(pages == sorted([f"lockstep-{c}.1" for c in commands] +
                          ["lockstep.1", "lockstep-keys.7"]), "a page for each command", pages)
    for page in pages:
        judge(f"{WORK}/{page}")
    for command, about in commands.items():
        with open(f"{WORK}/lockstep-{command}.1", encoding="utf-8") as f:
            head = f.read(400)
        check('"1970-01-02"' in head and f"\\- {about.replace('-', chr(92) + '-')}" in head,
              "title and name", command, head)
        texts = [run(PROGRAM, "help", command)[1]]
        listed = run(PROGRAM, "complete", "help", command, "")[1]
        if command != "launch":  # its word is train, a command
            texts += [run(PROGRAM, "help", command, line.split("\t")[0])[1]
                      for line in listed.splitlines()]
        same_words(f"lockstep-{command}.1", texts)
    same_words("lockstep-keys.7", [run(PROGRAM, "help", "keys")[1]])
    overview = run(PROGRAM, "help")[1].split("\n\n", 2)
    same_words("lockstep.1", [overview[2]])
    # What cannot be written is said.
    for where in ("/dev/null", WORK + "/missing"):
        code, _, err = run(PROGRAM, "manual", "--to", where)
        check(code == 74 and err.count("\n") == 1 and where in err, "no such place", code, err)
    check(run(PROGRAM, "manual")[0] == 64, "no place")
    return failures > 0


sys.exit(main())
