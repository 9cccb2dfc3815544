"""Graphs on CPUs that add in the order in which the model does.

TensorFlow's optimizer of graphs makes one `add_n` of a chain of additions, and that begins with
whichever tensor nobody else reads any more: it depends on the threads, and another run may differ
in the last bit. On CPUs kfit's graphs are made without it. (The rest of what the "arithmetic
optimization" does saves no time that could be measured.) GPUs add in no fixed order anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from kfit.distribute.devices import visible_devices
from kfit.internals.runtime import with_call_options


@contextmanager
def adding_in_order() -> Iterator[None]:
    """Graphs that are first called within it, by this thread, add as they are written."""
    if visible_devices("GPU"):
        yield
        return
    with with_call_options(_without_add_n):
        yield


def _without_add_n(config: ConfigProto) -> None:
    config.graph_options.rewrite_options.arithmetic_optimization = RewriterConfig.OFF
