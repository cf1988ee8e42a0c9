#!/usr/bin/env python3
"""container_test - the Containerfile without a container: every instruction of it, in its order, in
bare Debian systems that debootstrap makes. So the packages that it names exist, the sources build
with them and nothing else, and the .deb installs where nothing but Debian is.

   container_test.py SOURCE WORK_DIR

As root, with a network; skipped (77) where debootstrap, unshare or one of these is missing.
Standard library only.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

SOURCE, WORK = (os.path.abspath(path) for path in sys.argv[1:3])
SUITES = {"12": "bookworm", "13": "trixie"}
HERE = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C",
        "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
KEPT = ("http_proxy", "https_proxy", "no_proxy")  # what a container's builder hands on, too


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def instructions(text):
    """(word, rest) of each, comments and continuations taken out."""
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


class Stage:
    """A system of its own, and where the next instruction works in it."""

    def __init__(self, root, image):
        self.root, self.place, self.user, self.entry, self.command = root, "/", None, [], []
        version = re.fullmatch(r".*/debian:(\d+)-slim", image)
        assert version, f"FROM {image}: found another image than Debian's"
        done = subprocess.run(["debootstrap", "--variant=minbase", SUITES[version[1]], root],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            skip("debootstrap made no system: " + done.stdout[-300:] + done.stderr[-300:])

    def path(self, inside):
        return self.root + os.path.normpath(os.path.join(self.place, inside))

    def run(self, *command):
        who = [f"--userspec={self.user}"] if self.user else []
        inside = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", self.place, *command]
        env = {**HERE, **{k: v for k, v in os.environ.items() if k.lower() in KEPT}}
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.root}/proc", "chroot",
             *who, self.root, *inside], capture_output=True, text=True, check=False, env=env)


def copy(stages, stage, words):
    """COPY . TO, or COPY --from=STAGE PATTERN TO."""
    *options, pattern, to = words
    to = stage.path(to)
    if not options:
        assert pattern == ".", words
        kept = shutil.ignore_patterns(".git", "build", "__pycache__")
        return shutil.copytree(SOURCE, to, ignore=kept, symlinks=True)
    found = glob.glob(stages[options[0].removeprefix("--from=")].root + pattern)
    assert found, f"{pattern} matches nothing"
    for path in found:
        shutil.copy(path, to)
    return None


def follow(text):
    """The last stage."""
    stages, stage = {}, None
    for word, rest in instructions(text):
        print(word, rest[:90], flush=True)
        if word == "FROM":
            image, *name = rest.split()
            stage = stages[name[1] if name else "last"] = Stage(f"{WORK}/{len(stages)}", image)
        elif word == "COPY":
            copy(stages, stage, rest.split())
        elif word == "RUN":
            done = stage.run("/bin/sh", "-c", rest)
            if done.returncode:
                sys.exit(f"FAILED: RUN {rest}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        elif word == "WORKDIR":
            stage.place = rest
            os.makedirs(stage.path("."), exist_ok=True)
        elif word == "USER":
            stage.user = rest
        elif word in ("ENTRYPOINT", "CMD"):
            setattr(stage, "entry" if word == "ENTRYPOINT" else "command", json.loads(rest))
        else:
            sys.exit(f"FAILED: {word}: this test does not know the instruction")
    return stage


def use(stage):
    """What a user of the image does."""
    for arguments, wanted in ((stage.command, "a fixed-memory"),
                              (["train", "made-up-cnn", "--examples", "64", "--set", "steps=2",
                                "--run-dir", "first"], "state_hash "),
                              (["doctor"], "")):
        done = stage.run(*stage.entry, *arguments)
        print(" ".join(arguments), "->", done.returncode)
        if done.returncode or wanted not in done.stdout:
            sys.exit(f"FAILED: {arguments}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    owner = os.stat(stage.path("first/metrics.jsonl")).st_uid
    if str(owner) != stage.user:
        sys.exit(f"FAILED: a run of user {owner}, wanted {stage.user}")


def main():
    if os.geteuid() or not shutil.which("debootstrap") or not shutil.which("unshare"):
        skip("root, debootstrap and unshare are needed")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        skip("no mount namespaces here")
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    try:
        with open(SOURCE + "/toolchain/service/Containerfile", encoding="utf-8") as f:
            use(follow(f.read()))
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    print("every instruction was followed")


main()
