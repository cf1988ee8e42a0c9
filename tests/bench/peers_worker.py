# peers_worker.py - what the workers of tests/bench/peers share: cases, data, and the words they
# speak.
#
# A worker says {"version": ...} when its first step is done, then answers every number of seconds
# on its standard input with the list of the times, in seconds, of the steps it ran meanwhile.
import json
import sys
import time

EXAMPLES, HEIGHT, WIDTH, CLASSES, LEARNING_RATE = 60000, 28, 28, 10, 0.1
STRIP_DIGITS = 5  # of the longest strip; theirs are all as long
WARM_STEPS = 20

# name: (global batch, case of lockstep bench, what it is)
CASES = {
    "mnist-cnn": (64, "mnist-cnn-64", "MNIST CNN, fp32"),
    "mnist-cnn-bf16": (64, "mnist-cnn-64-bf16", "MNIST CNN, mixed_bfloat16"),
    "resnet20": (64, "resnet20-64", "ResNet-20 on 28x28, fp32"),
    "resnet20-256": (256, "resnet20-256", "ResNet-20 on 28x28, fp32"),
    "rnnt": (32, "rnnt-32", "the transducer of rnnt-strips, fp32"),
    "gan": (32, "gan-32", "mnist-gan, fp32; generator and discriminator in turns"),
}


def made_up_images():
    """Images of MNIST's shape that can be learnt: a pattern for each class under noise."""
    import numpy as np
    random = np.random.default_rng(1)
    labels = random.integers(0, CLASSES, EXAMPLES, dtype=np.int64)
    patterns = random.integers(0, 256, (CLASSES, HEIGHT, WIDTH), dtype=np.uint8)
    noise = random.integers(0, 192, (EXAMPLES, HEIGHT, WIDTH), dtype=np.uint8)
    return noise + patterns[labels] // 4, labels


def blocks_of(step):
    """A block from a function that runs one step and returns when it is done."""
    for _ in range(WARM_STEPS):
        step()

    def block(seconds):
        times = []
        start = last = time.perf_counter()
        while last - start < seconds:
            step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
        return times
    return block


def say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def serve(block):
    say({"warm": True})
    for line in sys.stdin:
        say(block(float(line)))
