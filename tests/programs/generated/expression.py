"""Plain data as Python code.

Where plain data stand for Python, `{"call": "keras.layers.Dense", "units": 4}` is a call with these
keyword arguments, and `{"code": "..."}` is an expression as it is.
"""

from typing import Any

Call = dict[str, Any]


def call(name: str, **arguments: Any) -> Call:
    """A call as plain data; names without a dot are pieces."""
    return {"call": name, **arguments}


def layer(name: str, **arguments: Any) -> Call:
    """A call of a Keras layer."""
    return call(f"keras.layers.{name}", **arguments)


def expression(value: Any) -> str:
    """A plain value as Python code."""
    if isinstance(value, dict) and "code" in value:
        return str(value["code"])
    if isinstance(value, dict) and "call" in value:
        arguments = [f"{k}={expression(v)}" for k, v in value.items() if k != "call"]
        return f"{value['call']}({', '.join(arguments)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {expression(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(expression(each) for each in value) + "]"
    return repr(value)


def compile_call(arguments: dict[str, Any]) -> str:
    """The line that compiles the model."""
    return f"model.compile({', '.join(f'{k}={expression(v)}' for k, v in arguments.items())})"
