"""Makes graphs on CPUs add in the order in which the model adds.

Grappler, TensorFlow's graph optimizer, turns a chain of additions into a single `add_n`. The order
in which `add_n` adds depends on thread timing, so the last bit of a sum may differ from run to run
(see `kfit.distribute.additions`). So on CPUs, kfit switches off the part of Grappler that does
this, the "arithmetic optimization". This part also rewrites graphs in other ways, but these saved
no measurable time. On GPUs kfit changes nothing, since GPUs add in no fixed order anyway.
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
    """Context in which the graphs that this thread calls keep the order of their additions.

    With a fixed order, a sum is exactly the same in every run. The context affects only graphs that
    are called for the first time, since TensorFlow optimizes a graph at its first call. On a host
    with GPUs the context does nothing, since GPUs add in no fixed order anyway.
    """
    if visible_devices("GPU"):
        yield
        return
    with with_call_options(_without_add_n):
        yield


def _without_add_n(config: ConfigProto) -> None:
    config.graph_options.rewrite_options.arithmetic_optimization = RewriterConfig.OFF
