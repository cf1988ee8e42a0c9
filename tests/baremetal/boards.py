"""boards - what the tests of embedded runs share: the host's word on a run, and the comparison."""
import json
import os
import re
import shutil
import subprocess
import sys

RESULTS = ("run_identity", "digest", "state_hash")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def need(*programs):
    for name in programs:
        if not shutil.which(name):
            skip(f"{name} is not installed")


def run(command, code=0, **more):
    """The output of a command that must end with `code`."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=more.pop("timeout", 300), check=False, **more)
    if done.returncode != code:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}, wanted {code}:\n{done.stdout}")
    return done.stdout


def results(output):
    """The last value of each result, and the loss lines without the host's clock."""
    found = {}
    for name in RESULTS:
        values = re.findall(rf"^{name} ([0-9a-f]{{64}})$", output, re.M)
        if not values:
            sys.exit(f"no line \"{name} ...\" in:\n{output}")
        found[name] = values[-1]
    said = re.findall(r"^loss_scale \S+, skipped \d+, replayed \d+$", output, re.M)
    found["scale"] = said[-1] if said else ""
    found["loss"] = re.findall(r"^(loss = \S+, step = \d+)", output, re.M)
    if not found["loss"]:
        sys.exit(f"no loss lines in:\n{output}")
    return found


class Host:
    """lockstep on this machine, in a directory of its own."""

    def __init__(self, program, work):
        self.program, self.work = program, work
        shutil.rmtree(work, ignore_errors=True)
        os.makedirs(work)

    def train(self, config, *options):
        directory = os.path.join(self.work, "run")
        found = results(run([self.program, "train", config, "--fresh", "--run-dir", directory,
                             *options]))
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
            last = [row["train"] for row in map(json.loads, f) if "train" in row][-1]
        if "loss_scale" in last:
            found["scale"] = (f"loss_scale {last['loss_scale']:.9g}, skipped {last['skipped']}, "
                              f"replayed {last['replayed']}")
        return found

    def embed(self, config, source, *options, code=0):
        return run([self.program, "embed", config, "--to", source, *options], code)

    def core_bytes(self, config, *options):
        text = run([self.program, "plan", config, *options])
        return int(re.search(r"^core (\d+) bytes", text, re.M).group(1))


def compare(what, found, wanted):
    for name, value in wanted.items():
        if found[name] != value:
            sys.exit(f"{what}: {name}: found {found[name]}, the host has {value}")
    print(f"{what}: {len(wanted['loss'])} loss lines and {', '.join(RESULTS)} as on the host "
          f"{wanted['scale']}")


def embedded_images(source):
    """The bytes of the images in a C source that lockstep embed wrote."""
    with open(source, encoding="utf-8") as f:
        text = f.read()
    literals = text[text.index(" images["):text.index(" labels[")]
    return bytes(int(octal, 8) for octal in re.findall(r"\\([0-7]{1,3})", literals))


def damage(image, source, damaged):
    """A copy of a program or image with one bit of one example changed."""
    with open(image, "rb") as f:
        data = bytearray(f.read())
    pixels = embedded_images(source)
    at = data.find(pixels)
    if at < 0 or data.find(pixels, at + 1) >= 0:
        sys.exit(f"{image}: the embedded images are not in it exactly once")
    data[at + len(pixels) // 2] ^= 1
    with open(damaged, "wb") as f:
        f.write(data)
    os.chmod(damaged, 0o755)
    return damaged
