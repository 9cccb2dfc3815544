"""Gives another thread the settings that Keras and Python keep for each thread.

TensorFlow runs the function of each replica in a thread of its own. There Keras would not know the
global dtype policy, for example, that the program has set, and a layer that a step makes would
compute in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import tensorflow as tf

from kfit.internals.private import imported

get_of_thread: Any = imported(
    "keras.src.backend.common.global_state.get_global_attribute",
    because="not all settings of a thread can be asked in a public way, and asking for its seed "
    "generator would make one",
)
set_of_thread: Any = imported(
    "keras.src.backend.common.global_state.set_global_attribute",
    because="not all settings of a thread can be set in a public way, and its seed generator can "
    "be taken away in none",
)

_NAMES = ("custom_objects_scope_dict", "dtype_policy", "flash_attention", "remat_scope_stack")
"""The settings of Keras on which it depends what a layer computes.

Not among them are scopes that Keras enters itself while it computes, and the numbers in the names
of new objects: each replica counts them alike.
"""


def with_settings_of_this_thread(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `fn` with the settings that this thread has now.

    These are those of Keras, such as the global dtype policy, and the variables of `contextvars`.
    What `fn` changes in them in another thread, that thread alone sees, and not afterwards.

    Args:
        fn: The function; another thread may call it, and several threads at the same time.
    """
    kept, context, own = _settings(), copy_context(), threading.get_ident()

    @tf.autograph.experimental.do_not_convert
    def called(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == own:
            return fn(*args, **kwargs)
        with _given(kept):
            return context.copy().run(fn, *args, **kwargs)

    return called


def _settings() -> dict[str, Any]:
    return {name: get_of_thread(name) for name in _NAMES}


@contextmanager
def _given(settings: Mapping[str, Any]) -> Iterator[None]:
    before = _settings()
    for name, value in settings.items():
        set_of_thread(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            set_of_thread(name, value)
