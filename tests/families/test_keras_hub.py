"""Models of KerasHub, made from their configurations: nothing is downloaded."""

from typing import Any

import keras
import numpy as np
import pytest

keras_hub = pytest.importorskip("keras_hub")

WORDS, LENGTH, CLASSES = 15, 6, 3
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMES = ["red", "blue", "green", "cat", "dog", "bird"]


def tokens(length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(0).integers(1, WORDS, (21, length)).astype("int32")


def mask() -> np.ndarray:
    lengths = np.random.default_rng(1).integers(2, LENGTH + 1, (21, 1))
    return (np.arange(LENGTH) < lengths).astype("int32")


def labels() -> np.ndarray:
    return np.random.default_rng(2).integers(0, CLASSES, 21)


def compiled(model: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=["accuracy"])
    return model


def bert(preprocessor: Any = None) -> Any:
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=WORDS,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        dropout=0.0,
        max_sequence_length=LENGTH,
    )
    return compiled(
        keras_hub.models.BertTextClassifier(backbone, CLASSES, preprocessor, dropout=0.0)
    )


def bert_of_text() -> Any:
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=[*SPECIAL, *NAMES])
    return bert(keras_hub.models.BertTextClassifierPreprocessor(tokenizer, LENGTH))


def resnet() -> Any:
    """Its preprocessor scales images, and its BatchNormalization is synchronized."""
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
        image_shape=(16, 16, 3),
    )
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
    converter = keras_hub.layers.ResNetImageConverter(image_size=(16, 16), scale=1 / 255)
    preprocessor = keras_hub.models.ResNetImageClassifierPreprocessor(converter)
    return compiled(keras_hub.models.ResNetImageClassifier(backbone, CLASSES, preprocessor))


def causal_lm(rank: int = 0) -> Any:
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=WORDS,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        dropout=0.0,
        max_sequence_length=LENGTH,
    )
    if rank:
        backbone.enable_lora(rank)
    return compiled(keras_hub.models.GPT2CausalLM(backbone))


def test_a_bert_classifier_is_that_of_keras(as_in_keras: Any) -> None:
    given = {"token_ids": tokens(), "padding_mask": mask(), "segment_ids": 0 * tokens()}
    as_in_keras(bert, given, labels(), replicas=[2])


def test_a_bert_classifier_that_is_given_text_is_that_of_keras(as_in_keras: Any) -> None:
    pytest.importorskip("tensorflow_text")
    texts = [" ".join(np.random.default_rng(i).choice(NAMES, 1 + i % 4)) for i in range(21)]
    as_in_keras(bert_of_text, np.array(texts), labels(), replicas=[2])


def test_an_image_classifier_with_its_preprocessor_is_that_of_keras(as_in_keras: Any) -> None:
    images = np.random.default_rng(3).integers(0, 256, (21, 16, 16, 3)).astype("uint8")
    as_in_keras(resnet, images, labels(), replicas=[2])


@pytest.mark.parametrize("rank", [0, 2], ids=["all_weights", "low_rank_adapters"])
def test_a_language_model_is_that_of_keras_and_generates(as_in_keras: Any, rank: int) -> None:
    words = tokens(LENGTH + 1)
    given = {"token_ids": words[:, :-1], "padding_mask": mask()}
    model = as_in_keras(
        lambda: causal_lm(rank), given, words[:, 1:], mask().astype("float32"), replicas=[2]
    )
    prompt = {"token_ids": words[:2, :-1], "padding_mask": np.ones((2, LENGTH), "int32")}
    prompt["padding_mask"][:, 3:] = 0
    generated = model.generate(prompt, stop_token_ids=None)["token_ids"]
    assert np.array_equal(generated[:, :3], words[:2, :3])
