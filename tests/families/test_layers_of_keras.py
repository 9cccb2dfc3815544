"""Each layer of Keras that draws no random numbers, in a model of its own, beside Keras."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tests.sweeps import only

EXAMPLES, WORDS = 21, 7
INPUTS = {
    "vector": (6,),
    "sound": (64, 1),
    "sequence": (6, 4),
    "image": (8, 8, 4),
    "volume": (4, 4, 4, 2),
    "rows": (3, 6, 2),
    "film": (3, 6, 6, 2),
    "words": (5,),
}

Layers = Callable[[], Sequence[Callable[[Any], Any]]]


def merged(x: Any) -> Any:
    first, second = layers.Dense(4)(x), layers.Dense(4)(x)
    names = ("Add", "Multiply", "Subtract", "Average", "Maximum", "Minimum")
    both = [getattr(layers, name)()([first, second]) for name in names]
    return layers.Concatenate()([*both, layers.Dot(axes=1, normalize=True)([first, second])])


CASES: dict[str, dict[str, Layers]] = {
    "vector": {
        "PReLU": lambda: [layers.Dense(4), layers.PReLU()],
        "ELU": lambda: [layers.Dense(4), layers.ELU(), layers.LeakyReLU(), layers.Softmax()],
        "ActivityRegularization": lambda: [layers.ActivityRegularization(0.1, 0.1)],
        "regularizers": lambda: [
            layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1"),
            layers.Dense(4, kernel_regularizer="orthogonal_regularizer"),
        ],
        "constraints": lambda: [
            layers.Dense(4, kernel_constraint="unit_norm", bias_constraint="non_neg"),
            layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.5)),
            layers.Dense(3, kernel_constraint=keras.constraints.MinMaxNorm(0.1, 0.4)),
        ],
        "RepeatVector": lambda: [layers.RepeatVector(3), layers.SimpleRNN(3)],
        "Lambda": lambda: [layers.Lambda(keras.ops.sin)],
        "Discretization": lambda: [
            layers.Discretization([-0.5, 0.5], output_mode="int"),
            layers.Embedding(4, 3),
        ],
        "UnitNormalization": lambda: [layers.UnitNormalization(), layers.RMSNormalization()],
        "noise of rate 0": lambda: [layers.Dropout(0.0), layers.GaussianNoise(0.0)],
        "merging": lambda: [merged],
    },
    "sound": {
        "STFTSpectrogram": lambda: [
            layers.STFTSpectrogram("real", frame_length=16, frame_step=8, fft_length=16)
        ],
    },
    "sequence": {
        "Conv1D": lambda: [layers.Conv1D(4, 3, padding="causal", dilation_rate=2)],
        "Conv1DTranspose": lambda: [layers.Conv1DTranspose(4, 3)],
        "SeparableConv1D": lambda: [layers.SeparableConv1D(4, 3), layers.DepthwiseConv1D(3)],
        "LSTM": lambda: [layers.LSTM(5, return_sequences=True, go_backwards=True, unroll=True)],
        "GRU": lambda: [layers.Masking(), layers.GRU(5)],
        "Bidirectional": lambda: [layers.Bidirectional(layers.SimpleRNN(4), merge_mode="mul")],
        "RNN": lambda: [layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)])],
        "EinsumDense": lambda: [
            layers.EinsumDense("abc,cd->abd", output_shape=(6, 3), bias_axes="d")
        ],
        "MultiHeadAttention": lambda: [
            lambda x: layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
        ],
        "GroupQueryAttention": lambda: [lambda x: layers.GroupQueryAttention(3, 4, 2)(x, x)],
        "Attention": lambda: [
            lambda x: layers.Attention(use_scale=True)([x, x]),
            lambda x: layers.AdditiveAttention()([x, x]),
        ],
        "resampling": lambda: [
            layers.UpSampling1D(2),
            layers.ZeroPadding1D(1),
            layers.Cropping1D(2),
            layers.MaxPooling1D(2, padding="same"),
            layers.AveragePooling1D(2),
        ],
        "GlobalMaxPooling1D": lambda: [layers.GlobalMaxPooling1D()],
        "GlobalAveragePooling1D": lambda: [layers.Masking(), layers.GlobalAveragePooling1D()],
    },
    "image": {
        "Conv2D": lambda: [layers.Conv2D(4, 3, groups=2, strides=2)],
        "Conv2DTranspose": lambda: [layers.Conv2DTranspose(4, 3)],
        "SeparableConv2D": lambda: [layers.SeparableConv2D(4, 3), layers.DepthwiseConv2D(3)],
        "BatchNormalization": lambda: [layers.BatchNormalization(synchronized=True)],
        "LayerNormalization": lambda: [layers.LayerNormalization(axis=(1, 2))],
        "GroupNormalization": lambda: [layers.GroupNormalization(groups=2)],
        "SpectralNormalization": lambda: [layers.SpectralNormalization(layers.Conv2D(4, 3))],
        "resampling": lambda: [
            layers.UpSampling2D(2, interpolation="bilinear"),
            layers.ZeroPadding2D(1),
            layers.Cropping2D(2),
            layers.MaxPooling2D(2, padding="same"),
            layers.AveragePooling2D(2),
        ],
        "GlobalMaxPooling2D": lambda: [layers.GlobalMaxPooling2D()],
        "preprocessing": lambda: [
            layers.Rescaling(0.5, 1.0),
            layers.Resizing(5, 5),
            layers.CenterCrop(4, 4),
            layers.Permute((3, 1, 2)),
        ],
    },
    "volume": {
        "Conv3D": lambda: [layers.Conv3D(3, 2)],
        "Conv3DTranspose": lambda: [layers.Conv3DTranspose(3, 2)],
        "resampling": lambda: [
            layers.UpSampling3D(2),
            layers.ZeroPadding3D(1),
            layers.Cropping3D(2),
            layers.MaxPooling3D(2),
            layers.AveragePooling3D(2),
        ],
    },
    "rows": {"ConvLSTM1D": lambda: [layers.ConvLSTM1D(3, 2)]},
    "film": {
        "ConvLSTM2D": lambda: [layers.ConvLSTM2D(3, 2)],
        "TimeDistributed": lambda: [
            layers.TimeDistributed(layers.Conv2D(3, 2)),
            layers.TimeDistributed(layers.BatchNormalization(synchronized=True)),
        ],
    },
    "words": {
        "masked LSTM": lambda: [layers.Embedding(WORDS, 4, mask_zero=True), layers.LSTM(4)],
        "masked BatchNormalization": lambda: [
            layers.Embedding(WORDS, 4, mask_zero=True),
            layers.BatchNormalization(synchronized=True),
            layers.GlobalAveragePooling1D(),
        ],
        "CategoryEncoding": lambda: [layers.CategoryEncoding(WORDS, output_mode="count")],
        "Hashing": lambda: [layers.Hashing(4), layers.Embedding(4, 3)],
        "IntegerLookup": lambda: [
            layers.IntegerLookup(vocabulary=[1, 2, 3]),
            layers.Embedding(5, 3),
        ],
    },
}
PAIRS = [(kind, name) for kind, cases in CASES.items() for name in cases]
DAILY = [("sequence", "GroupQueryAttention"), ("image", "SpectralNormalization")]


@pytest.mark.parametrize(("kind", "name"), only(DAILY, PAIRS))
def test_a_layer_is_trained_on_two_replicas_as_in_keras(
    as_in_keras: Any, kind: str, name: str
) -> None:
    draw = np.random.default_rng(0)
    shape = (EXAMPLES, *INPUTS[kind])
    x = draw.integers(0, WORDS, shape) if kind == "words" else draw.normal(size=shape)
    x = x if kind == "words" else x.astype("float32")

    def model() -> keras.Model:
        inputs = outputs = keras.Input(INPUTS[kind], dtype=x.dtype.name)
        for layer in CASES[kind][name]():
            outputs = layer(outputs)
        if len(outputs.shape) > 2:
            outputs = layers.Reshape((-1,))(outputs)
        outputs = layers.Dense(1)(layers.Dense(3, "tanh")(outputs))
        made = keras.Model(inputs, outputs)
        made.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
        return made

    as_in_keras(model, x, draw.normal(size=(EXAMPLES, 1)).astype("float32"), replicas=[2])
