# peers_gpu.py MODE SECONDS BATCH.. - the MNIST CNN on a GPU in other frameworks, for
# toolchain/gpu-check: images as bytes on the device, a new order every epoch. One JSON line: steps
# per second for each batch. fp32 (no TF32), but for the modes in bf16.
#
#   torch-eager     the model as written
#   torch-compiled  the model and its loss under torch.compile
#   torch-graph     forward, backward and update as one CUDA graph, replayed
#   torch-eager-bf16      as written, under autocast
#   torch-graph-bf16      torch-graph, products in bf16 (autocast), weights in fp32
#   torch-graph-pure16    the same, all in bf16, weights too: less than what Lockstep keeps
#   torch-compiled-bf16   torch.compile under autocast, and that as one CUDA graph
#   jax-jit         the whole step under jax.jit
#
# peers_gpu.py beside LOCKSTEP [--batch N] [--seconds S] [--rounds N] [--modes A,B]
#                              [--precision P] [--device D] [--data DIR]
#
# Lockstep in its fast arithmetic and those in bf16, batch 8,192, in turns (A B C A B C): each
# framework a process that is started and warmed up first, Lockstep a run for each turn. A table,
# and how many times faster Lockstep is than the fastest of the others. `--device cpu` tries the
# command itself where there is no GPU: no graphs, and the strict arithmetic.
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import peers_worker as worker

CHECK_STEPS = 100  # the device is waited for so often, as in `lockstep bench`
IN_FP32 = ("torch-eager", "torch-compiled", "torch-graph")
IN_BF16 = ("torch-eager-bf16", "torch-graph-bf16", "torch-compiled-bf16", "torch-graph-pure16")


def torch_model(device):
    import torch
    from torch import nn
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(5408, 64), nn.ReLU(), nn.Linear(64, worker.CLASSES)).to(device)


def torch_loss(mode, model):
    """The loss of a batch of bytes, in the arithmetic of the mode."""
    import torch
    loss_of = torch.nn.CrossEntropyLoss()
    kind = torch.bfloat16 if mode.endswith("pure16") else torch.float32
    device = next(model.parameters()).device.type

    def plain(x, y):
        return loss_of(model(x.to(kind).mul(1 / 255).unsqueeze(1)).float(), y)

    def rounded(x, y):
        # A copy of the weights that were cached outside would not be in the graph.
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
            return plain(x, y)
    loss = rounded if mode.endswith("bf16") else plain
    return torch.compile(loss) if mode.startswith("compiled") else loss


def torch_steps(mode, batch, device="cuda"):
    """(one step, wait)"""
    import torch
    images, labels = (torch.from_numpy(a).to(device) for a in worker.made_up_images())
    model = torch_model(device)
    if mode.endswith("pure16"):
        model = model.bfloat16()
    loss = torch_loss(mode, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=worker.LEARNING_RATE)
    index = torch.zeros(batch, dtype=torch.long, device=device)
    order = {"at": worker.EXAMPLES, "of": None}

    def compute():
        optimizer.zero_grad(set_to_none=True)
        loss(images[index], labels[index]).backward()
        optimizer.step()

    def captured():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss(images[index], labels[index]).backward()
            optimizer.step()
        return graph.replay
    graphs = device == "cuda" and (mode.startswith("graph") or mode == "compiled-bf16")
    work = captured() if graphs else compute

    def step():
        if order["at"] + batch > worker.EXAMPLES:
            order["of"], order["at"] = torch.randperm(worker.EXAMPLES, device=device), 0
        index.copy_(order["of"][order["at"]:order["at"] + batch])
        order["at"] += batch
        work()
    return step, torch.cuda.synchronize if device == "cuda" else lambda: None


def jax_steps(batch):
    """(one step, wait)"""
    import jax
    import jax.numpy as jnp
    jax.config.update("jax_default_matmul_precision", "highest")
    if jax.default_backend() != "gpu":
        sys.exit("JAX has no GPU here")
    images, labels = (jnp.asarray(a) for a in worker.made_up_images())
    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    shapes = ((3, 3, 1, 32), (5408, 64), (64, worker.CLASSES))
    weights = [(jax.random.normal(k, s) * 0.05, jnp.zeros(s[-1])) for k, s in zip(keys, shapes)]

    def loss(p, x, y):
        x = x.astype(jnp.float32)[..., None] / 255
        x = jax.lax.conv_general_dilated(x, p[0][0], (1, 1), "VALID",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + p[0][1])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(x.reshape(batch, -1) @ p[1][0] + p[1][1]) @ p[2][0] + p[2][1]
        return -jnp.mean(jax.nn.log_softmax(x)[jnp.arange(batch), y])

    def update(p, order, at):
        index = jax.lax.dynamic_slice(order, (at,), (batch,))
        g = jax.grad(loss)(p, images[index], labels[index])
        return jax.tree_util.tree_map(lambda w, d: w - worker.LEARNING_RATE * d, p, g)
    update = jax.jit(update, donate_argnums=0)
    shuffle = jax.jit(lambda key: jax.random.permutation(key, worker.EXAMPLES))
    state = {"at": worker.EXAMPLES, "epoch": 0, "weights": weights, "order": None}

    def step():
        if state["at"] + batch > worker.EXAMPLES:
            state["epoch"] += 1
            state["order"], state["at"] = shuffle(jax.random.PRNGKey(state["epoch"])), 0
        state["weights"] = update(state["weights"], state["order"], state["at"])
        state["at"] += batch
    return step, lambda: jax.block_until_ready(state["weights"])


def warm(step, wait):
    for _ in range(worker.WARM_STEPS):
        step()
    wait()


def measure(step, wait, seconds):
    """The fastest of the stretches that fit into the time."""
    best, end = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(CHECK_STEPS):
            step()
        wait()
        best = max(best, CHECK_STEPS / (time.perf_counter() - start))
    return best


def mean_speed(step, wait, seconds):
    """Steps per second over all of the time, as a run says it."""
    start, done = time.perf_counter(), 0
    while done == 0 or time.perf_counter() < start + seconds:
        for _ in range(10):
            step()
        wait()
        done += 10
    return done / (time.perf_counter() - start)


# --- beside Lockstep -----------------------------------------------------------------------------

def serve(mode, batch, device):
    """Warms up, then answers each line of seconds with steps per second."""
    import torch
    steps = torch_steps(mode.split("-", maxsplit=1)[1], batch, device)
    warm(*steps)
    worker.say({"version": f"torch {torch.__version__}"})
    for line in sys.stdin:
        worker.say(mean_speed(*steps, float(line)))


class Left_out(Exception):
    """A contestant that cannot take part, and why."""


class Framework:
    def __init__(self, mode, options):
        self.name = mode
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "serve", mode, str(options.batch),
             options.device], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace")
        line = self.process.stdout.readline()
        if not line:
            _, error = self.process.communicate()
            raise Left_out((error.strip().splitlines() or ["no output"])[-1][:120])
        self.version = json.loads(line)["version"]

    def turn(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Lockstep:
    def __init__(self, options):
        self.options, self.speed = options, None
        self.name = f"lockstep {options.precision if options.device == 'cuda' else 'strict'}"
        self.version = self.run("version").strip()

    def run(self, *arguments):
        done = subprocess.run([self.options.program, *arguments], capture_output=True, text=True,
                              errors="replace", stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Left_out(f"exit {done.returncode}: {done.stderr.strip()[-200:]}")
        return done.stdout

    def train(self, steps):
        o = self.options
        more = ["--data", o.data] if o.data else []
        settings = {"global_batch": o.batch, "steps": steps, "log_every_steps": steps}
        if o.device == "cuda":
            more += ["--kernels", "cuda"]
            settings.update({"arithmetic": "fast", "fast_precision": o.precision, "grain": 1024,
                             "layout.resident": "true"})
        for key, value in settings.items():
            more += ["--set", f"{key}={value}"]
        with tempfile.TemporaryDirectory() as directory:
            said = self.run("train", "mnist-cnn" if o.data else "bench-mnist-cnn", "--fresh",
                            "--run-dir", os.path.join(directory, "run"), *more)
        return float(re.findall(r": ([\d.]+) steps/s", said)[-1])

    def turn(self, seconds):
        self.speed = self.speed or self.train(10)
        self.speed = self.train(max(10, int(self.speed * seconds)))
        return self.speed

    def end(self):
        pass


def contestants(options):
    """Those that can take part; the others are said."""
    found = []
    for make in [lambda: Lockstep(options)] + [
            lambda m=mode: Framework(m, options) for mode in options.modes.split(",")]:
        try:
            found.append(make())
        except (Left_out, OSError) as why:
            print(f"left out: {why}", flush=True)
    return found


def beside(options):
    them = contestants(options)
    rounds = {one.name: [] for one in them}
    for _ in range(options.rounds):
        for one in them:
            rounds[one.name].append(one.turn(options.seconds))
    for one in them:
        one.end()
    print(f"batch {options.batch}, {options.rounds} rounds of {options.seconds:g} s in turns")
    print("| | steps/s, median | of the rounds | images/s | ms for 60,000 images |")
    print("|---|---|---|---|---|")
    medians = {}
    for one in them:
        speeds = rounds[one.name]
        medians[one.name] = speed = statistics.median(speeds)
        images = speed * options.batch
        print(f"| {one.name} ({one.version}) | {speed:,.1f} | {min(speeds):,.1f} .. "
              f"{max(speeds):,.1f} | {images:,.0f} | {60000 / images * 1000:.2f} |")
    ours = [n for n in medians if n.startswith("lockstep")]
    others = [n for n in medians if n not in ours]
    if not ours or not others:
        sys.exit("nothing to compare")
    best = max(others, key=medians.get)
    print(f"{ours[0]} is {medians[ours[0]] / medians[best]:.2f} x {best}")


def read_options(arguments):
    parser = argparse.ArgumentParser(prog="peers_gpu.py beside")
    parser.add_argument("program", metavar="LOCKSTEP", type=os.path.abspath)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", default=",".join(IN_BF16))
    parser.add_argument("--precision", default="bf16", help="Lockstep's")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--data", metavar="DIR", type=os.path.abspath,
                        help="IDX files for Lockstep's part; made-up images have no blank parts")
    options = parser.parse_args(arguments)
    wrong = [mode for mode in options.modes.split(",") if mode not in IN_FP32 + IN_BF16]
    if wrong:
        parser.error(f"--modes: found {wrong[0]}, wanted of: {', '.join(IN_FP32 + IN_BF16)}")
    return options


def main():
    if sys.argv[1] == "beside":
        return beside(read_options(sys.argv[2:]))
    if sys.argv[1] == "serve":
        return serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    library, mode = sys.argv[1].split("-", maxsplit=1)
    speeds = {}
    for batch in sys.argv[3:]:
        steps = jax_steps(int(batch)) if library == "jax" else torch_steps(mode, int(batch))
        warm(*steps)
        speeds[batch] = measure(*steps, float(sys.argv[2]))
    module = __import__(library)
    return worker.say({"version": f"{library} {module.__version__}", "steps_per_second": speeds})


main()
