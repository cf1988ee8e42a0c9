# peers_torch.py CASE MODE - a case of peers_worker.py in PyTorch, for tests/bench/peers.
#
#   default    as tutorials write it: contiguous tensors, everything as installed; the images of a
#              classifier by a DataLoader
#   tuned      two threads, channels_last, images gathered from one uint8 tensor, fused optimizers;
#              a GAN's generator step computes no gradients of the discriminator's weights
#   compiled   tuned, and the model with its loss under torch.compile
import contextlib
import sys

import torch
from torch import nn

import peers_worker as worker

CASE, MODE = sys.argv[1:3]
BATCH, TUNED = worker.CASES[CASE][0], MODE != "default"
EXAMPLES, HEIGHT, WIDTH, CLASSES = worker.EXAMPLES, worker.HEIGHT, worker.WIDTH, worker.CLASSES
DIGITS = worker.STRIP_DIGITS
torch.set_flush_denormal(False)
torch.manual_seed(1)
if TUNED:
    torch.set_num_threads(2)
FORMAT = torch.channels_last if TUNED else torch.contiguous_format
images, labels = (torch.from_numpy(a) for a in worker.made_up_images())


def compiled(function):
    return torch.compile(function) if MODE == "compiled" else function


# --- classifiers ---------------------------------------------------------------------------------

def mnist_cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(5408, 64), nn.ReLU(), nn.Linear(64, CLASSES))


class Residual(nn.Module):
    def __init__(self, inputs, filters, stride):
        super().__init__()
        self.a = nn.Conv2d(inputs, filters, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.a_norm, self.b_norm = nn.BatchNorm2d(filters), nn.BatchNorm2d(filters)
        self.way = nn.Sequential() if stride == 1 else nn.Sequential(
            nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x):
        y = torch.relu(self.a_norm(self.a(x)))
        return torch.relu(self.b_norm(self.b(y)) + self.way(x))


def resnet20():
    blocks = [Residual(*shape) for shape in
              [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] +
              [(64, 64, 1)] * 2]
    return nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                         *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def indices(count):
    """The examples of each step: all of them in a new order, again and again."""
    while True:
        order = torch.randperm(EXAMPLES)
        for at in range(0, EXAMPLES - count + 1, count):
            yield order[at:at + count]


def batches_of_loader():
    dataset = torch.utils.data.TensorDataset(images.float().div(255).unsqueeze(1), labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    while True:
        yield from loader


def batches_gathered():
    flat = images.reshape(EXAMPLES, -1)
    for index in indices(BATCH):
        yield flat.index_select(0, index), labels.index_select(0, index)


def classifier_step(model, optimizer):
    loss_of = nn.CrossEntropyLoss()
    model.to(memory_format=FORMAT)
    half = CASE.endswith("bf16")

    def loss(x, y):
        if TUNED:
            x = x.float().mul(1 / 255).view(BATCH, 1, HEIGHT, WIDTH)
        with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
            return loss_of(model(x.contiguous(memory_format=FORMAT)), y)
    loss = compiled(loss)
    source = batches_gathered() if TUNED else batches_of_loader()

    def step():
        x, y = next(source)
        optimizer.zero_grad(set_to_none=True)
        loss(x, y).backward()
        optimizer.step()
    return step


def sgd_step(model, **more):
    return classifier_step(model, torch.optim.SGD(model.parameters(), lr=worker.LEARNING_RATE,
                                                  fused=TUNED, **more))


# --- the transducer of rnnt-strips ---------------------------------------------------------------

class Transducer(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(),
                                   nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.encoder = nn.LSTM(224, 128, batch_first=True)
        self.encoded = nn.Linear(128, 64)
        self.said = nn.Embedding(CLASSES + 1, 32)
        self.prediction = nn.LSTM(32, 64, batch_first=True)
        self.joint = nn.Linear(64, CLASSES + 1)

    def forward(self, frames, labels):
        x = self.convs(frames).permute(0, 2, 3, 1).flatten(2)
        encoded = self.encoded(self.encoder(x)[0])
        said = self.prediction(self.said(nn.functional.pad(labels, (1, 0))))[0]
        return self.joint(torch.tanh(encoded[:, :, None] + said[:, None])).log_softmax(-1)


def transducer_loss():
    """(loss, what it is). Without torchaudio's, a mean of all scores: its gradient reaches as far,
    and the loss itself takes no time."""
    try:
        from torchaudio.functional import rnnt_loss
    except (ImportError, OSError, AttributeError):
        return (lambda scores, labels: -scores.mean()), "the loss itself left out"
    frames = torch.full((BATCH,), 35, dtype=torch.int32)
    said = torch.full((BATCH,), DIGITS, dtype=torch.int32)

    def loss(scores, labels):
        return rnnt_loss(scores, labels.int(), frames, said, blank=0, fused_log_softmax=False)
    return loss, "torchaudio's loss"


def transducer_step():
    model, (loss_of, what) = Transducer(), transducer_loss()
    model.to(memory_format=FORMAT)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002, fused=TUNED)
    scores = compiled(model)
    source = indices(BATCH * DIGITS)

    def step():
        index = next(source)
        x = images[index].view(BATCH, DIGITS, HEIGHT, WIDTH).transpose(2, 3)
        x = x.reshape(BATCH, 1, DIGITS * WIDTH, HEIGHT).float().mul(1 / 255)
        y = labels[index].view(BATCH, DIGITS) + 1
        optimizer.zero_grad(set_to_none=True)
        loss_of(scores(x.contiguous(memory_format=FORMAT), y), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return step, what


# --- the networks of mnist-gan -------------------------------------------------------------------

def generator():
    return nn.Sequential(
        nn.Linear(64, 1024, bias=False), nn.BatchNorm1d(1024), nn.ReLU(),
        nn.Linear(1024, 6272, bias=False), nn.BatchNorm1d(6272), nn.ReLU(),
        nn.Unflatten(1, (128, 7, 7)), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64),
        nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 1, 4, padding="same"), nn.Tanh())


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 64, 4, 2, 1), nn.LeakyReLU(0.01), nn.Conv2d(64, 128, 4, 2, 1),
        nn.LeakyReLU(0.01), nn.Flatten(), nn.Linear(6272, 1024, bias=False), nn.BatchNorm1d(1024),
        nn.LeakyReLU(0.01), nn.Linear(1024, 1))


def gan_step():
    """A generator's update and a discriminator's, in turns."""
    g, d = generator().to(memory_format=FORMAT), discriminator().to(memory_format=FORMAT)
    update_g = torch.optim.Adam(g.parameters(), lr=0.001, betas=(0.5, 0.999), fused=TUNED)
    update_d = torch.optim.Adam(d.parameters(), lr=0.0001, betas=(0.5, 0.999), fused=TUNED)
    loss_of, source, seen = nn.BCEWithLogitsLoss(), indices(BATCH), [0]
    yes, no = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)

    def loss_g(z):
        return loss_of(d(g(z)), yes)

    def loss_d(z, x):
        with torch.no_grad():
            fake = g(z)
        return loss_of(d(x), yes) + loss_of(d(fake), no)
    loss_g, loss_d = compiled(loss_g), compiled(loss_d)

    def step():
        z = torch.randn(BATCH, 64)
        turn, seen[0] = seen[0], 1 - seen[0]
        if TUNED:
            d.requires_grad_(turn == 1)
        if turn == 0:
            update_g.zero_grad(set_to_none=True)
            loss_g(z).backward()
            update_g.step()
            return
        x = images[next(source)].view(BATCH, 1, HEIGHT, WIDTH).float().sub(127.5).div(127.5)
        update_d.zero_grad(set_to_none=True)
        loss_d(z, x.contiguous(memory_format=FORMAT)).backward()
        update_d.step()
    return step


def step_and_word():
    if CASE.startswith("mnist-cnn"):
        return sgd_step(mnist_cnn()), ""
    if CASE.startswith("resnet20"):
        return sgd_step(resnet20(), momentum=0.9, nesterov=True, weight_decay=0.0005), ""
    return (gan_step(), "") if CASE == "gan" else transducer_step()


step, word = step_and_word()
step()
worker.say({"version": f"PyTorch {torch.__version__}{', ' * bool(word)}{word}"})
worker.serve(worker.blocks_of(step))
