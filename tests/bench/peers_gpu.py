# peers_gpu.py MODE SECONDS BATCH.. - the MNIST CNN on a GPU in other frameworks, for
# toolchain/gpu-check: fp32 (no TF32), images as bytes on the device, a new order every epoch. One
# JSON line: steps per second for each batch.
#
#   torch-eager     the model as written
#   torch-compiled  the model and its loss under torch.compile
#   torch-graph     forward, backward and update as one CUDA graph, replayed
#   jax-jit         the whole step under jax.jit
import json
import sys
import time

import peers_worker as worker

CHECK_STEPS = 100  # the device is waited for so often, as in `lockstep bench`


def torch_model():
    import torch
    from torch import nn
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(5408, 64), nn.ReLU(), nn.Linear(64, worker.CLASSES)).cuda()


def torch_steps(mode, batch):
    """(one step, wait)"""
    import torch
    images, labels = (torch.from_numpy(a).cuda() for a in worker.made_up_images())
    model, loss_of = torch_model(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=worker.LEARNING_RATE)
    index = torch.zeros(batch, dtype=torch.long, device="cuda")
    order = {"at": worker.EXAMPLES, "of": None}

    def loss(x, y):
        return loss_of(model(x.float().mul(1 / 255).unsqueeze(1)), y)
    loss = torch.compile(loss) if mode == "compiled" else loss

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
    work = captured() if mode == "graph" else compute

    def step():
        if order["at"] + batch > worker.EXAMPLES:
            order["of"], order["at"] = torch.randperm(worker.EXAMPLES, device="cuda"), 0
        index.copy_(order["of"][order["at"]:order["at"] + batch])
        order["at"] += batch
        work()
    return step, torch.cuda.synchronize


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


def measure(step, wait, seconds):
    """The fastest of the stretches that fit into the time."""
    for _ in range(worker.WARM_STEPS):
        step()
    wait()
    best, end = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(CHECK_STEPS):
            step()
        wait()
        best = max(best, CHECK_STEPS / (time.perf_counter() - start))
    return best


def main():
    library, mode = sys.argv[1].split("-")
    speeds = {}
    for batch in sys.argv[3:]:
        steps = jax_steps(int(batch)) if library == "jax" else torch_steps(mode, int(batch))
        speeds[batch] = measure(*steps, float(sys.argv[2]))
    module = __import__(library)
    worker.say({"version": f"{library} {module.__version__}", "steps_per_second": speeds})


main()
