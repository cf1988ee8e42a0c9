#!/usr/bin/env python3
"""package_test - the Debian packages: made by cpack, judged by dpkg and lintian, unpacked and used.

    package_test.py CPACK CMAKE BUILD_DIR WORK_DIR

That they install on a bare Debian was proven with debootstrap (toolchain/README.md); here their
dependencies are compared with what the program links. Exit 77: there is no dpkg here.
"""
import os
import re
import shutil
import subprocess
import sys

CPACK, CMAKE, BUILD, WORK = sys.argv[1], sys.argv[2], *map(os.path.abspath, sys.argv[3:5])
PACKAGES = ("lockstep", "liblockstep-dev", "lockstep-doc")
WANTED = {
    "lockstep": ("usr/bin/lockstep", "usr/share/lockstep/configs/mnist-cnn.json",
                 "usr/share/lockstep/configs/published/digests.json",
                 "usr/share/man/man1/lockstep.1.gz", "usr/share/man/man1/lockstep-train.1.gz",
                 "usr/share/man/man7/lockstep-keys.7.gz",
                 "usr/share/bash-completion/completions/lockstep",
                 "usr/share/zsh/vendor-completions/_lockstep"),
    "liblockstep-dev": ("usr/lib/liblockstep.a", "usr/include/lockstep/lockstep.h",
                        "usr/share/lockstep/examples/mnist.c",
                        "usr/lib/cmake/lockstep/lockstepConfig.cmake",
                        "usr/lib/cmake/lockstep/LockstepRuns.cmake",
                        "usr/lib/pkgconfig/lockstep.pc"),
    "lockstep-doc": ("usr/share/doc/lockstep/README.md", "usr/share/doc/lockstep/GLOSSARY.md",
                     "usr/share/doc/lockstep/apps/README.md",
                     "usr/share/doc/lockstep/ops/ARITHMETIC.md",
                     "usr/share/doc/lockstep/examples/service/lockstep@.service"),
}
failures = 0


def check(holds, what, *more):
    global failures
    if not holds:
        failures += 1
        print("FAILED:", what, *more, sep="\n  ", flush=True)
    return bool(holds)


def output(*command, code=0):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    check(done.returncode == code, f"exit {code} of {' '.join(command)}",
          f"found {done.returncode}", done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def make():
    """{package: file}"""
    output(CPACK, "--config", BUILD + "/CPackConfig.cmake", "-B", WORK + "/made")
    found = {}
    for name in sorted(os.listdir(WORK + "/made")):
        if name.endswith(".deb"):
            found[name.split("_")[0]] = f"{WORK}/made/{name}"
    check(sorted(found) == sorted(PACKAGES), "the packages", found)
    return found


def fields(file):
    lines = output("dpkg-deb", "-f", file).splitlines()
    return dict(line.split(": ", 1) for line in lines if re.match(r"[A-Za-z-]+: ", line))


def judge_fields(debs):
    f = {package: fields(file) for package, file in debs.items()}
    version = f["lockstep"]["Version"]
    for package in f:
        check(f[package]["Version"] == version, "one version", f)
        check("@" in f[package]["Maintainer"] and f[package]["Description"], package, f[package])
    # Every library that the program asks the loader for is in a package that it depends on.
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]",
                        output("readelf", "-d", WORK + "/root/usr/bin/lockstep"))
    depends = f["lockstep"].get("Depends", "")
    for library in needed:
        owners = {line.split(":")[0] for line in
                  output("dpkg", "-S", f"*/{library}").splitlines() if line.endswith(library)}
        check(library.startswith("ld-") or any(re.search(rf"\b{re.escape(owner)}\b", depends)
                                               for owner in owners),
              "what is linked is depended on", library, owners, depends)
    check(len(needed) >= 4, "libraries", needed)
    check(f"lockstep (= {version})" in f["liblockstep-dev"]["Depends"], "dev", f)
    with open(WORK + "/root/usr/lib/pkgconfig/lockstep.pc", encoding="utf-8") as pc:
        content = pc.read()
    requires = re.search(r"^Requires[^:]*: (.*)$", content, re.M)[1].split()
    for library in re.findall(r"-l(\S+)", content):
        if library == "lockstep":
            continue
        found = output("dpkg", "-S", f"*/lib{library}.a").splitlines()
        owners = {line.split(":")[0] for line in found}
        check(owners & set(f["liblockstep-dev"]["Depends"].split(", ")), "what it links with -l",
              library, owners, f["liblockstep-dev"])
    for module in requires:
        owner = output("dpkg", "-S", f"*/pkgconfig/{module}.pc").split(":")[0]
        check(owner in f["liblockstep-dev"]["Depends"].split(", "), "what pkg-config asks for",
              module, owner, f["liblockstep-dev"])
    check("Depends" not in f["lockstep-doc"] and f["lockstep-doc"]["Architecture"] == "all",
          "documents", f["lockstep-doc"])


def judge_contents(debs):
    holder = {}
    for package, file in debs.items():
        for line in output("dpkg-deb", "-c", file).splitlines():
            mode, owner, path = line.split()[0], line.split()[1], line.split()[5][2:]
            check(owner == "root/root" and not re.match(r"........w.", mode), "owner, mode", line)
            check(path.startswith("usr/") or not path, "place", line)
            if mode[0] != "d":
                check(path not in holder, "in one package alone", path, holder.get(path), package)
                holder[path] = package
        for path in (*WANTED[package], f"usr/share/doc/{package}/copyright",
                     f"usr/share/doc/{package}/changelog.Debian.gz"):
            check(holder.get(path) == package, f"{package} has {path}")
        output("dpkg-deb", "-x", file, WORK + "/root")
    for path in holder:
        with open(f"{WORK}/root/{path}", "rb") as f:
            check(BUILD.encode() not in f.read(), "no path of the build", path)


def judge_lintian(debs):
    if not shutil.which("lintian"):
        return print("lintian: not here")
    done = subprocess.run(["lintian", "--fail-on", "error", "--no-tag-display-limit",
                           *debs.values()], capture_output=True, text=True, check=False)
    check(done.returncode == 0, "lintian", done.stdout, done.stderr)
    return print(done.stdout, end="")


def use():
    """What was unpacked finds its own parts, wherever it lies."""
    program = WORK + "/root/usr/bin/lockstep"
    check("mnist-cnn" in output(program, "help", "configs"), "ready configurations")
    check("step 2/2" not in output(program, "train", "made-up-cnn", "--examples", "64", "--set",
                                   "steps=2", "--run-dir", WORK + "/run", "--quiet"), "a run")
    check(os.path.exists(WORK + "/run/metrics.jsonl"), "a run's files")


def install():
    """cmake --install brings documents, pages and examples too, and nothing of Debian's."""
    output(CMAKE, "--install", BUILD, "--prefix", WORK + "/prefix")
    for path in ("share/doc/lockstep/README.md", "share/lockstep/examples/mnist.c",
                 "share/doc/lockstep/examples/service/slurm.sh",
                 "share/bash-completion/completions/lockstep"):
        check(os.path.exists(f"{WORK}/prefix/{path}"), "installed", path)
    check(any(name.startswith("lockstep-train.1") for name in
              os.listdir(WORK + "/prefix/share/man/man1")), "pages are installed")
    check(not os.path.exists(WORK + "/prefix/share/doc/lockstep/copyright"), "nothing of Debian's")


def main():
    if not shutil.which("dpkg-deb") or not shutil.which("dpkg-shlibdeps"):
        print("skipped: dpkg-deb and dpkg-shlibdeps are not here")
        return 77
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    os.environ.update(LC_ALL="C", HOME=WORK, XDG_CACHE_HOME=WORK + "/cache",
                      LOCKSTEP_HOT_DIRECTORY=WORK)
    debs = make()
    if sorted(debs) == sorted(PACKAGES):
        judge_contents(debs)
        judge_fields(debs)
        judge_lintian(debs)
        use()
    install()
    return failures > 0


sys.exit(main())
