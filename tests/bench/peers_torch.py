# peers_torch.py MODE - the MNIST CNN in PyTorch, for tests/bench/peers.
#
#   default    as tutorials write it: DataLoader, contiguous tensors, everything as installed
#   tuned      two threads, channels_last, images gathered from one uint8 tensor, fused SGD
#   compiled   tuned, and the model with its loss under torch.compile
import sys

import torch
from torch import nn

import peers_worker as worker

mode = sys.argv[1]
torch.set_flush_denormal(False)
torch.manual_seed(1)
images, labels = (torch.from_numpy(a) for a in worker.made_up_images())
model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(5408, 64), nn.ReLU(), nn.Linear(64, worker.CLASSES))
loss_of = nn.CrossEntropyLoss()


def default_step():
    dataset = torch.utils.data.TensorDataset(images.float().div(255).unsqueeze(1), labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=worker.BATCH, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=worker.LEARNING_RATE)

    def batches():
        while True:
            yield from loader
    source = batches()

    def step():
        x, y = next(source)
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
    return step


def tuned_step(compiled):
    torch.set_num_threads(2)
    model.to(memory_format=torch.channels_last)
    flat = images.reshape(worker.EXAMPLES, -1)
    optimizer = torch.optim.SGD(model.parameters(), lr=worker.LEARNING_RATE, fused=True)
    order = {"at": worker.EXAMPLES, "index": None}

    def loss(x, y):
        x = x.float().mul(1 / 255).view(worker.BATCH, 1, worker.HEIGHT, worker.WIDTH)
        return loss_of(model(x.contiguous(memory_format=torch.channels_last)), y)
    loss = torch.compile(loss) if compiled else loss

    def step():
        if order["at"] + worker.BATCH > worker.EXAMPLES:
            order["index"], order["at"] = torch.randperm(worker.EXAMPLES), 0
        index = order["index"][order["at"]:order["at"] + worker.BATCH]
        order["at"] += worker.BATCH
        optimizer.zero_grad(set_to_none=True)
        loss(flat.index_select(0, index), labels.index_select(0, index)).backward()
        optimizer.step()
    return step


step = default_step() if mode == "default" else tuned_step(mode == "compiled")
step()
worker.say({"version": f"PyTorch {torch.__version__}"})
worker.serve(worker.blocks_of(step))
