"""What a tf.data pipeline holds that no iterator of it begins anew with.

TensorFlow's random operations and `shuffle` draw from seeds, which each iterator begins with again.
Variables that a pipeline writes to (those of `tf.random.Generator`s, of Keras' seed generators and
layers) and Python code that it calls go on from one iterator to the next.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kfit.distribute.eager import drawn_seed
from kfit.distribute.pipeline_parts import parts_of
from kfit.objects.hidden_state import DRAWS, nodes_of

_WRITES = ("Assign", "RngReadAndSkip", "RngSkip", "StatefulUniform", "StatefulStandardNormal")
_PYTHON = ("PyFunc", "EagerPyFunc")


@dataclass(frozen=True)
class PipelineState:
    """What goes on from iterator to iterator of a pipeline.

    Attributes:
        variables: What it writes to, in order.
        calls_python: Whether it calls Python, which may draw from global generators.
        unordered: What makes it draw other numbers each time it runs, in users' words.
    """

    variables: tuple[tf.Variable, ...]
    calls_python: bool
    unordered: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.variables) or self.calls_python


def state_of(dataset: tf.data.Dataset) -> PipelineState:
    """Looks at every function of a pipeline; private: no public method lists them."""
    variables: dict[int, tf.Variable] = {}
    unordered: dict[str, None] = {}
    calls_python = False
    # What `kfit run` has drawn the tasks get again when it restarts them.
    lost = None if "KFIT_SEED" in os.environ else drawn_seed()
    for part in parts_of(dataset):
        kind = type(part).__name__
        if "Shuffle" in kind and _is_unseeded(part):
            unordered["`shuffle` without a seed"] = None
        elif "Shuffle" in kind and lost is not None and int(getattr(part, "_seed", -1)) == lost:
            unordered["`shuffle` without a global seed"] = None
        for function in part._functions():
            graph = function.function.graph
            nodes = nodes_of(graph)
            ops = {node.op for node in nodes}
            calls_python |= bool(ops & set(_PYTHON))
            writes = any(op.startswith(_WRITES) for op in ops)
            if writes:
                variables.update((id(variable), variable) for variable in graph.variables)
            drawing = [node for node in nodes if node.op in DRAWS]
            if any(node.attr["seed"].i == node.attr["seed2"].i == 0 for node in drawing):
                unordered["a random operation without a seed"] = None
            elif any(node.attr["seed"].i == lost for node in drawing):
                unordered["a random operation without a global seed"] = None
            if kind.startswith("_Parallel") and (writes or drawing):
                unordered["random numbers drawn in `map(num_parallel_calls=...)`"] = None
    return PipelineState(tuple(variables.values()), calls_python, tuple(unordered))


def _is_unseeded(part: Any) -> bool:
    seeds = [getattr(part, name, None) for name in ("_seed", "_seed2")]
    return all(seed is not None and int(seed) == 0 for seed in seeds)
