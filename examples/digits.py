"""Recognises handwritten digits. The data are part of kfit, so no network is needed.

python examples/digits.py                           one process
kfit run --workers 2 examples/digits.py             two workers, synchronous training
kfit run --workers 2 --ps 1 examples/digits.py      two workers, asynchronous training
"""

import sys

import keras

import kfit

GOOD_ENOUGH = 0.95


def make_model() -> keras.Model:
    """A small convolutional network."""
    return keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )


def main() -> int:
    """Trains, tests and returns the exit code: 0 if the accuracy is good enough."""
    keras.utils.set_random_seed(1)
    (x, y), (x_test, y_test) = kfit.datasets.digits.load_data()

    trainer = kfit.Trainer(make_model(), strategy="auto")
    trainer.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # This is the global batch size: with two workers each one gets 32 of the 64 examples.
    trainer.fit(x, y, batch_size=64, epochs=15, verbose=2)
    accuracy = trainer.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
    if trainer.is_chief:
        print(f"Test accuracy: {accuracy:.2%} on {trainer.num_replicas} replica(s)")
    return 0 if accuracy >= GOOD_ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
