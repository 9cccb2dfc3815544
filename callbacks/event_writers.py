"""Writes the points, histograms, images and the graph of a training for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalars

from kfit.callbacks.layer_graph import layer_graph
from kfit.checkpoint.event_files import EventFiles, elements
from kfit.heartbeat.tracebacks import warn_user

_GRAPH_PLUGIN = "graph_keras_model"
"""The plugin of TensorBoard that draws a Keras model from its JSON."""


class EventWriters:
    """The writers of one training's event files, each of which is opened at its first use.

    What was written is in the file when a method returns, so that the sizes of the files are those
    at a snapshot.

    Args:
        files: The event files.
    """

    def __init__(self, files: EventFiles) -> None:
        self.files = files
        self._open: dict[str, Any] = {}

    def close(self) -> None:
        """Closes the files; what is written later goes to new ones."""
        while self._open:
            self._open.popitem()[1].close()

    def scalars(self, run: str, step: int, values: Mapping[str, Any]) -> None:
        """Writes numbers, as a point of each curve.

        Args:
            run: "train" or "validation".
            step: The position of the points on the x axis.
            values: Numbers by the name of the curve. An array is written as a curve for each of its
                elements: "epoch_f1/0", "epoch_f1/1" and so on.
        """
        if not values:
            return
        with self._writer(run).as_default(step):
            for name, value in values.items():
                for suffix, number in elements(value):
                    tf.summary.scalar(name + suffix, number)

    def histograms(self, step: int, values: Mapping[str, np.ndarray], *, images: bool) -> None:
        """Writes the distributions of weights, without values that are infinite or NaN.

        Args:
            step: The position of the histograms.
            values: The weights by their names.
            images: Whether to write each weight as an image as well, if it can be one.
        """
        with self._writer("train").as_default(step):
            for name, value in values.items():
                tf.summary.histogram(f"{name}/histogram", value[np.isfinite(value)])
                if images and (image := as_image(value)) is not None:
                    tf.summary.image(f"{name}/image", image)

    def graph(self, model: keras.Model) -> None:
        """Writes the graph of layers of a Sequential or functional model; nothing for others.

        It is written twice: as the "conceptual graph" of a Keras model and as the "op graph", which
        is what TensorBoard shows first. If the model cannot be described, a warning says why.
        """
        try:
            text = model.to_json()
            description = json.loads(text)
            if "layers" not in description["config"]:
                return
            layers = layer_graph(description)
        except Exception as error:  # it is code of the user's layers that fails
            warn_user(
                "The graph of the model is not written for TensorBoard, since the model can't be "
                f"described as JSON: {error!r}"
            )
            return
        metadata = SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name=_GRAPH_PLUGIN, content=b"1")
        )
        with self._writer("train").as_default(0):
            tf.summary.write("keras", text, metadata=metadata)
            tf.summary.graph(layers)

    def plot(self, title: str, names: str) -> None:
        """Has TensorBoard's page "Custom Scalars" draw some curves of the run "train" in one plot.

        Args:
            title: The title of the plot.
            names: A regular expression that the names of the curves match.
        """
        lines = layout_pb2.MultilineChartContent(tag=[names])
        chart = layout_pb2.Chart(title=title, multiline=lines)
        layout = layout_pb2.Layout(category=[layout_pb2.Category(title="kfit", chart=[chart])])
        with self._writer("train").as_default(0):
            tf.summary.write(
                custom_scalars.CONFIG_SUMMARY_TAG,
                layout.SerializeToString(),
                metadata=custom_scalars.create_summary_metadata(),
            )

    def _writer(self, run: str) -> Any:
        if run not in self._open:
            folder, suffix = self.files.folder(run), self.files.suffix
            self._open[run] = tf.summary.create_file_writer(folder, filename_suffix=suffix)
        return self._open[run]


def as_image(weight: np.ndarray) -> np.ndarray | None:
    """Returns a weight as images of the shape `(images, height, width, channels)`.

    They are those of `keras.callbacks.TensorBoard`: a vector is a column, a matrix is drawn with
    its longer side across, and an array of three axes is an image for each index of the last one.

    Returns:
        The images; None if the weight cannot be drawn.
    """
    squeezed = np.squeeze(weight)
    if squeezed.ndim == 1:
        squeezed = squeezed[np.newaxis, :, np.newaxis, np.newaxis]
    elif squeezed.ndim == 2:
        across = squeezed.T if squeezed.shape[0] > squeezed.shape[1] else squeezed
        squeezed = across[np.newaxis, :, :, np.newaxis]
    elif squeezed.ndim == 3:
        is_last = keras.config.image_data_format() == "channels_last"
        squeezed = (np.moveaxis(squeezed, -1, 0) if is_last else squeezed)[..., np.newaxis]
    is_drawable = squeezed.ndim == 4 and squeezed.shape[-1] in (1, 3, 4) and squeezed.size > 0
    return squeezed if is_drawable else None
