# peers_tensorflow.py MODE - the MNIST CNN in TensorFlow, for tests/bench/peers.
#
#   default    Keras, model.fit on arrays, everything as installed
#   tuned      two threads, the whole step with its gather in one tf.function
#   compiled   tuned, and compiled by XLA
import sys
import time

import numpy as np
import tensorflow as tf

import peers_worker as worker

mode = sys.argv[1]
tf.keras.utils.set_random_seed(1)
images, labels = worker.made_up_images()
if mode != "default":
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(1)
layers = tf.keras.layers
model = tf.keras.Sequential([
    tf.keras.Input((worker.HEIGHT, worker.WIDTH, 1)),
    layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(2), layers.Flatten(),
    layers.Dense(64, activation="relu"), layers.Dense(worker.CLASSES)])
version = {"version": f"TensorFlow {tf.__version__}, Keras {tf.keras.__version__}"}


class Clock(tf.keras.callbacks.Callback):
    """Times the steps of a fit and ends it after so many seconds."""

    def __init__(self, seconds, steps_max):
        super().__init__()
        self.seconds, self.steps_max, self.times, self.seen = seconds, steps_max, [], 0

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.seen += 1
        if self.seen > 3:  # the first ones carry the start of the fit
            self.times.append(now - self.last)
        if self.seen == 3:
            self.start = now
        self.last = now
        if self.seen >= self.steps_max or (self.seen > 3 and now - self.start >= self.seconds):
            self.model.stop_training = True


def default_block():
    model.compile(optimizer=tf.keras.optimizers.SGD(worker.LEARNING_RATE),
                  loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = (images[..., None] / np.float32(255)).astype(np.float32)

    def fit(seconds, steps_max=1 << 30):
        clock = Clock(seconds, steps_max)
        model.fit(x, labels, batch_size=worker.BATCH, epochs=1000, verbose=0, callbacks=[clock])
        return clock.times
    fit(1e9, 1)
    worker.say(version)
    fit(1e9, worker.WARM_STEPS)
    return fit


def tuned_step(compiled):
    x, y = tf.constant(images.reshape(worker.EXAMPLES, -1)), tf.constant(labels)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = tf.constant(worker.LEARNING_RATE)

    @tf.function(jit_compile=compiled)
    def step_on(index):
        batch = tf.cast(tf.gather(x, index), tf.float32) * (1 / 255)
        batch = tf.reshape(batch, (worker.BATCH, worker.HEIGHT, worker.WIDTH, 1))
        with tf.GradientTape() as tape:
            loss = loss_of(tf.gather(y, index), model(batch, training=True))
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(rate * gradient)
        return loss

    order = {"at": worker.EXAMPLES, "index": None}

    def step():
        if order["at"] + worker.BATCH > worker.EXAMPLES:
            order["index"], order["at"] = np.random.permutation(worker.EXAMPLES).astype(np.int32), 0
        index = order["index"][order["at"]:order["at"] + worker.BATCH]
        order["at"] += worker.BATCH
        step_on(tf.constant(index)).numpy()  # waits for the step
    return step


if mode == "default":
    worker.serve(default_block())
else:
    step = tuned_step(mode == "compiled")
    step()
    worker.say(version)
    worker.serve(worker.blocks_of(step))
