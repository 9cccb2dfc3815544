"""Graphs on CPUs that add in the order in which the model does.

TensorFlow's optimizer of graphs makes one `add_n` of a chain of additions, and that begins with
whichever tensor nobody else reads any more: it depends on the threads, and another run may differ
in the last bit. On CPUs kfit's graphs are made without it. (The rest of what the "arithmetic
optimization" does saves no time that could be measured.) GPUs add in no fixed order anyway.

Private: `tensorflow.python.eager.context`, since the public option is that of the whole program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context

from kfit.distribute.devices import visible_devices

_made: dict[str, Any] = {}
"""Options without it, by those of the program."""


@contextmanager
def adding_in_order() -> Iterator[None]:
    """Graphs that are first called within it, by this thread, add as they are written."""
    if visible_devices("GPU"):
        yield
        return
    runtime = context.context()
    before = runtime.function_call_options
    runtime.function_call_options = _without_add_n(before)
    try:
        yield
    finally:
        runtime.function_call_options = before


def _without_add_n(options: Any) -> Any:
    """The options of a call, which are the program's in all other respects."""
    key = options.config_proto_serialized
    if key not in _made:
        config = ConfigProto.FromString(key)
        config.graph_options.rewrite_options.arithmetic_optimization = RewriterConfig.OFF
        _made[key] = context.FunctionCallOptions(options.executor_type, config)
    return _made[key]
