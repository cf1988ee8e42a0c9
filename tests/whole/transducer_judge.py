#!/usr/bin/env python3
"""transducer_judge - PyTorch in float64 computes what transducer_test.py has had trained, with its
own LSTM, its own gradients and its own Adam.

   transducer_judge.py OUT

Reads c.json, images, labels and start.safetensors of the current folder; writes, as JSON, the loss
of each step and the weights behind the last one.
"""
import json
import struct
import sys

import torch

from transducer_test import EXAMPLES, FEATURES, LABELS, ROWS, read_weights, shapes


def read_examples():
    with open("images", "rb") as f:
        rows = torch.tensor(list(f.read()[16:]), dtype=torch.float64) / 255
    rows = rows.reshape(EXAMPLES, ROWS // 2, 2 * FEATURES)
    with open("labels", "rb") as f:
        labels = f.read()[12:]
    examples = []
    for n in range(EXAMPLES):
        own = labels[n * (2 + LABELS):(n + 1) * (2 + LABELS)]
        frames = (struct.unpack(">H", own[:2])[0] + 1) // 2
        examples.append((rows[n, :frames], [label for label in own[2:] if label]))
    return examples


class Network(torch.nn.Module):
    """Parameters by our names and shapes, but for those of PyTorch's own LSTM."""

    def __init__(self, units, said, values):
        super().__init__()
        self.shapes = shapes(units, said, values)
        weights = read_weights("start.safetensors", self.shapes)
        tensors = {name: torch.tensor(weights[name], dtype=torch.float64).reshape(shape)
                   for name, shape in self.shapes.items()}
        self.lstm = torch.nn.LSTM(said, units, batch_first=True).double()
        with torch.no_grad():
            self.lstm.weight_ih_l0.copy_(tensors["pred/kernel"].T)
            self.lstm.weight_hh_l0.copy_(tensors["pred/recurrent_kernel"].T)
            self.lstm.bias_ih_l0.copy_(tensors["pred/bias"])
            self.lstm.bias_hh_l0.zero_()
        self.lstm.bias_hh_l0.requires_grad = False
        self.own = torch.nn.ParameterDict(
            {name.replace("/", "_"): torch.nn.Parameter(tensor)
             for name, tensor in tensors.items() if not name.startswith("pred/")})

    def dense(self, name, x):
        return x @ self.own[name + "_kernel"] + self.own[name + "_bias"]

    def loss(self, x, labels):
        """In the log space, over the cells (frame, labels said)."""
        said = self.own["said_embeddings"][[0] + labels]
        prediction = self.dense("out", self.lstm(said[None])[0][0])
        both = torch.tanh(self.dense("enc", x)[:, None] + prediction[None])
        odds = torch.log_softmax(self.dense("joint", both), -1)
        row = []
        for t in range(len(x)):
            before, row = row, []
            for u in range(len(labels) + 1):
                ways = [before[u] + odds[t - 1, u, 0]] if t else []
                ways += [row[u - 1] + odds[t, u - 1, labels[u - 1]]] if u else []
                row.append(torch.logsumexp(torch.stack(ways), 0) if ways else odds.new_zeros(()))
        return -(row[-1] + odds[-1, len(labels), 0])

    def weights(self):
        found = {name: self.own[name.replace("/", "_")] for name in self.shapes
                 if not name.startswith("pred/")}
        found["pred/kernel"] = self.lstm.weight_ih_l0.T
        found["pred/recurrent_kernel"] = self.lstm.weight_hh_l0.T
        found["pred/bias"] = self.lstm.bias_ih_l0
        return {name: found[name].reshape(-1).tolist() for name in self.shapes}


def main():
    with open("c.json", encoding="utf-8") as f:
        config = json.load(f)
    layers = {layer["name"]: layer for layer in config["model"]["layers"]}
    net = Network(layers["pred"]["units"], layers["said"]["units"], layers["enc"]["units"])
    how = config["optimizer"]
    some = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(some, lr=how["learning_rate"]) if how["type"] == "sgd" else \
        torch.optim.Adam(some, lr=how["learning_rate"], eps=how["epsilon"])
    examples, losses = read_examples(), []
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        loss = sum(net.loss(*example) for example in examples) / EXAMPLES
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump({"losses": losses, "weights": net.weights(),
                   "judge": f"PyTorch {torch.__version__}"}, f)


if __name__ == "__main__":
    main()
