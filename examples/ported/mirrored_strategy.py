"""Ported from `guide/migrate/mirrored_strategy`: one host, several GPUs.

The guide moves from an `Estimator` with `RunConfig(train_distribute=MirroredStrategy())` to a Keras
model that is made, compiled and trained in the scope of a `MirroredStrategy`.

With kfit the program of one device stays as it is. After `kfit.install()` Keras' own `fit`,
`evaluate` and `predict` train on all GPUs of the host, or on all workers of a cluster, for every
model of the program, also those of libraries. `kfit train.py` does this for programs without
any line of kfit.
"""

import keras

import kfit

keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()

with kfit.install():  # kfit: until the end of the block; `install("mirrored")` insists
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
    model.compile(
        optimizer=keras.optimizers.Adagrad(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=64, epochs=10, verbose=0)
    loss, accuracy = model.evaluate(*test, verbose=0)
if kfit.saving.is_chief():  # kfit: on workers, each of them runs this program
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
