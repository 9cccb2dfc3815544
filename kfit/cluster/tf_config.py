"""Reads TensorFlow's `TF_CONFIG`: the addresses of the cluster, and which task this process is.

TensorFlow ignores some mistakes in it, so that every task trains alone or waits for ever. Here each
mistake raises an error that names the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kfit.cluster.addresses import ClusterError, Task, check_rpc_layer, show
from kfit.lazy import closest_name

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)

_AROUND = 20
"""How many characters are shown before and after the place of a mistake."""


def read_tf_config(text: str) -> tuple[dict[str, Any], Task]:
    """Reads the text of `TF_CONFIG`.

    Args:
        text: A JSON object with the keys `cluster` and `task`. If it has the key `rpc_layer`, the
            value must be "grpc". Other keys, which platforms add, are ignored.

    Returns:
        The addresses by task type, which `Cluster` has yet to check; and the task that this process
        is.

    Raises:
        ClusterError: If the text does not have this form. The message names the wrong key.
    """
    config = _load_object(text)
    _refuse_misspelt_keys(config)
    check_rpc_layer("rpc_layer", config.get("rpc_layer"))
    if "cluster" not in config:
        raise ClusterError(
            "`cluster` is missing, so this task has no peers and would train alone; "
            f"list the addresses of all tasks, as in {_EXAMPLE}, or unset TF_CONFIG"
        )
    if not isinstance(config["cluster"], dict):
        raise ClusterError(
            f"`cluster` is {show(config['cluster'])}; expected an object of address lists by task "
            'type, as in {"worker": ["host0:2222", "host1:2222"]}'
        )
    return config["cluster"], _read_task(config)


def describes_nothing(text: str) -> bool:
    """Returns whether a `TF_CONFIG` describes no cluster, so that kfit can ignore it.

    The result is True for a JSON object with neither the key `cluster` nor the key `task`. It is
    False if the text is no JSON object, or has a key that may be a misspelt `cluster` or `task`.
    kfit must not ignore such mistakes: `read_tf_config` raises an error that names them.

    Args:
        text: The value of the environment variable `TF_CONFIG`, which is not empty.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(config, dict) or "cluster" in config or "task" in config:
        return False
    try:
        _refuse_misspelt_keys(config)
    except ClusterError:
        return False
    return True


def _load_object(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text, object_pairs_hook=_without_repeats)
    except ClusterError:
        raise
    except (ValueError, RecursionError) as error:
        raise ClusterError(
            f"the text is not JSON ({_where(error)}); write it like {_EXAMPLE}, with names and "
            "texts in double quotes"
        ) from None
    if not isinstance(config, dict):
        raise ClusterError(f"the JSON is {show(config)}; expected an object like {_EXAMPLE}")
    return config


def _where(error: ValueError | RecursionError) -> str:
    """Returns what is wrong with a text that is not JSON, with the characters around the place."""
    if not isinstance(error, json.JSONDecodeError):
        return "it is nested too deeply"
    text, place = error.doc, error.pos
    before, after = text[max(0, place - _AROUND) : place], text[place : place + _AROUND]
    if not before:
        return f"{error.msg} at its beginning, before {after!r}"
    if not after:
        return f"{error.msg} at its end, after {before!r}"
    return f"{error.msg} between {before!r} and {after!r}"


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python's JSON keeps the last of two equal keys, which would silently drop half of the workers.
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ClusterError(f"`{key}` is given twice in one object; merge the two")
        found[key] = value
    return found


def _refuse_misspelt_keys(config: Mapping[str, Any]) -> None:
    # Keys that platforms add are harmless. A misspelt `cluster` or `task` is not: TensorFlow
    # ignores the key, and every task trains alone.
    if "sparseCluster" in config and "cluster" not in config:
        raise ClusterError(
            "the key `sparseCluster`, which Kubeflow writes for a TFJob with "
            "`enableDynamicWorker`, lists only some of the other tasks, while a worker meets all "
            "of its peers; leave `enableDynamicWorker` out of the TFJob"
        )
    for key in config:
        if key == "sparseCluster":
            continue
        for meant in ("cluster", "task"):
            near = closest_name(key.lower(), [meant], likeness=0.75)
            if key != meant and (meant in key.lower() or near):
                raise ClusterError(
                    f"the key `{key}` is not one that TensorFlow reads; did you mean `{meant}`?"
                )


def _read_task(config: Mapping[str, Any]) -> Task:
    if "task" not in config:
        raise ClusterError(
            "`task` is missing, so this process cannot know which of the addresses is its own; "
            'add for example "task": {"type": "worker", "index": 0}, another index on each'
        )
    task = config["task"]
    if not isinstance(task, dict):
        raise ClusterError(
            f'`task` is {show(task)}; expected an object like {{"type": "worker", "index": 0}}'
        )
    for key in ("type", "index"):
        if key not in task:
            holds = f"it holds only {', '.join(f'`{name}`' for name in task)}" if task else "empty"
            raise ClusterError(
                f"`task.{key}` is missing ({holds}); expected an object like "
                '{"type": "worker", "index": 0}'
            )
    index = task["index"]
    # Job templates often set the index as a text, which TensorFlow accepts. TensorFlow accepts a
    # float or a bool as well, but those are mistakes.
    if isinstance(index, str) and re.fullmatch("[0-9]{1,9}", index):
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ClusterError(f"`task.index` is {show(index)}; expected a whole number from 0 up")
    return Task(task["type"], index)
