# peers_tensorflow.py CASE MODE - a case of peers_worker.py in TensorFlow, for tests/bench/peers.
# Classifiers and the GAN, whose default is a tf.function as its tutorial has it.
#
#   default    Keras, model.fit on arrays, everything as installed
#   tuned      two threads, the whole step with its gather in one tf.function
#   compiled   tuned, and compiled by XLA
import sys
import time

import numpy as np
import tensorflow as tf

import peers_worker as worker

CASE, MODE = sys.argv[1:3]
BATCH, EXAMPLES = worker.CASES[CASE][0], worker.EXAMPLES
SHAPE = (worker.HEIGHT, worker.WIDTH, 1)
tf.keras.utils.set_random_seed(1)
images, labels = worker.made_up_images()
if MODE != "default":
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(1)
if CASE.endswith("bf16"):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
layers = tf.keras.layers
VERSION = {"version": f"TensorFlow {tf.__version__}, Keras {tf.keras.__version__}"}


# --- the networks --------------------------------------------------------------------------------

def mnist_cnn():
    return tf.keras.Sequential([
        tf.keras.Input(SHAPE), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(2),
        layers.Flatten(), layers.Dense(64, activation="relu"),
        layers.Dense(worker.CLASSES, dtype="float32")])


def normed(x, filters, kernel, strides=1):
    x = layers.Conv2D(filters, kernel, strides, "same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def resnet20():
    first = tf.keras.Input(SHAPE)
    x = layers.ReLU()(normed(first, 16, 3))
    for filters in (16, 32, 64):
        for block in range(3):
            strides = 2 if filters > 16 and block == 0 else 1
            way = normed(x, filters, 1, 2) if strides == 2 else x
            y = normed(layers.ReLU()(normed(x, filters, 3, strides)), filters, 3)
            x = layers.ReLU()(layers.Add()([y, way]))
    return tf.keras.Model(first, layers.Dense(worker.CLASSES)(layers.GlobalAveragePooling2D()(x)))


def generator():
    def bigger(filters):
        return [layers.Conv2DTranspose(filters, 4, 2, "same"), layers.BatchNormalization(),
                layers.ReLU()]
    return tf.keras.Sequential([
        tf.keras.Input((64,)), layers.Dense(1024, use_bias=False), layers.BatchNormalization(),
        layers.ReLU(), layers.Dense(6272, use_bias=False), layers.BatchNormalization(),
        layers.ReLU(), layers.Reshape((7, 7, 128)), *bigger(64), *bigger(32),
        layers.Conv2D(1, 4, padding="same", activation="tanh")])


def discriminator():
    return tf.keras.Sequential([
        tf.keras.Input(SHAPE), layers.Conv2D(64, 4, 2, "same"), layers.LeakyReLU(0.01),
        layers.Conv2D(128, 4, 2, "same"), layers.LeakyReLU(0.01), layers.Flatten(),
        layers.Dense(1024, use_bias=False), layers.BatchNormalization(), layers.LeakyReLU(0.01),
        layers.Dense(1)])


# --- steps of classifiers ------------------------------------------------------------------------

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


def optimizer():
    if CASE.startswith("resnet20"):
        return tf.keras.optimizers.SGD(worker.LEARNING_RATE, momentum=0.9, nesterov=True,
                                       weight_decay=0.0005)
    return tf.keras.optimizers.SGD(worker.LEARNING_RATE)


def fit_block(model):
    model.compile(optimizer=optimizer(),
                  loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = (images[..., None] / np.float32(255)).astype(np.float32)

    def fit(seconds, steps_max=1 << 30):
        clock = Clock(seconds, steps_max)
        model.fit(x, labels, batch_size=BATCH, epochs=1000, verbose=0, callbacks=[clock])
        return clock.times
    fit(1e9, 1)
    worker.say(VERSION)
    fit(1e9, worker.WARM_STEPS)
    return fit


def indices():
    """The examples of each step: all of them in a new order, again and again."""
    while True:
        order = np.random.permutation(EXAMPLES).astype(np.int32)
        for at in range(0, EXAMPLES - BATCH + 1, BATCH):
            yield tf.constant(order[at:at + BATCH])


def batch_of(source, index):
    return tf.reshape(tf.cast(tf.gather(source, index), tf.float32), (BATCH, *SHAPE))


def classifier_step(model):
    x, y = tf.constant(images.reshape(EXAMPLES, -1)), tf.constant(labels)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    update, source = optimizer(), indices()
    update.build(model.trainable_variables)

    @tf.function(jit_compile=MODE == "compiled")
    def step_on(index):
        with tf.GradientTape() as tape:
            loss = loss_of(tf.gather(y, index), model(batch_of(x, index) / 255, training=True))
        variables = model.trainable_variables
        update.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss
    return lambda: step_on(next(source)).numpy()  # waits for the step


# --- steps of the GAN ----------------------------------------------------------------------------

def gan_step():
    """A generator's update and a discriminator's, in turns."""
    g, d, x = generator(), discriminator(), tf.constant(images.reshape(EXAMPLES, -1))
    updates = [tf.keras.optimizers.Adam(rate, beta_1=0.5) for rate in (0.001, 0.0001)]
    for update, model in zip(updates, (g, d)):
        update.build(model.trainable_variables)
    loss_of, source = tf.keras.losses.BinaryCrossentropy(from_logits=True), indices()

    def updated(update, model, tape, loss):
        variables = model.trainable_variables
        update.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    @tf.function(jit_compile=MODE == "compiled")
    def step_g():
        with tf.GradientTape() as tape:
            score = d(g(tf.random.normal((BATCH, 64)), training=True), training=True)
            loss = loss_of(tf.ones_like(score), score)
        return updated(updates[0], g, tape, loss)

    @tf.function(jit_compile=MODE == "compiled")
    def step_d(index):
        fake = g(tf.random.normal((BATCH, 64)), training=True)
        with tf.GradientTape() as tape:
            real = d((batch_of(x, index) - 127.5) / 127.5, training=True)
            false = d(fake, training=True)
            loss = loss_of(tf.ones_like(real), real) + loss_of(tf.zeros_like(false), false)
        return updated(updates[1], d, tape, loss)
    turn = [0]

    def step():
        turn[0] = 1 - turn[0]
        (step_g() if turn[0] else step_d(next(source))).numpy()  # waits for the step
    return step


def serve(step):
    step()
    worker.say(VERSION)
    worker.serve(worker.blocks_of(step))


if CASE == "gan":
    serve(gan_step())
else:
    network = resnet20() if CASE.startswith("resnet20") else mnist_cnn()
    if MODE == "default":
        worker.serve(fit_block(network))
    else:
        serve(classifier_step(network))
