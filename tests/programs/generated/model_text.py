"""The part of a program's text that makes and compiles its model."""

from typing import Any

from tests.programs.generated.data_text import SHAPES, names
from tests.programs.generated.expression import compile_call, expression

HEADS = {
    "regression": ("2", "None"),
    "binary": ("1", '"sigmoid"'),
    "sparse": ("3", '"softmax"'),
    "categorical": ("3", '"softmax"'),
}
CLASSES = {
    "functional": "keras.Model",
    "own_step": "OwnStep",
    "clips_by_hand": "ClipsByHand",
    "own_loss": "OwnLoss",
    "own_trackers": "OwnTrackers",
}


def model_lines(program: dict[str, Any]) -> list[str]:
    """Lines that make `model`, and `trainer`, by which it is trained."""
    spec = program["model"]
    if spec["style"] == "adversaries":
        return [*_adversaries(), *_end(program)]
    lines = _layers(program)
    if spec["style"] == "subclassed":
        lines += ["model = Chain(body, heads)", "model(x)"]
    elif spec["style"] == "sequential":
        given = f"keras.Input({_input(program)})"
        lines.append(f"model = keras.Sequential([{given}, *body, *heads])")
    else:
        lines += _functional(program)
    for index in spec.get("lora", []):
        lines.append(f"body[{index}].enable_lora(2)")
    for index in spec.get("frozen", []):
        lines.append(f"body[{index}].trainable = False")
    return [*lines, *_end(program)]


def _input(program: dict[str, Any]) -> str:
    kind = program["inputs"]["kind"]
    text = f"{SHAPES[kind]}" + (', dtype="int64"' if kind == "tokens" else "")
    if program["model"].get("stateful"):
        text += f", batch_size={program['data']['batch_size']}"
    return text


def _layers(program: dict[str, Any]) -> list[str]:
    units, activation = HEADS[program["outputs"]["task"]]
    last = ', dtype="float32"' if program["dtype"].startswith("mixed") else ""
    return [
        "body = [",
        *(f"    {expression(layer)}," for layer in program["model"]["body"]),
        "]",
        "heads = [",
        *(
            f"    keras.layers.Dense({units}, activation={activation}, name={name!r}{last}),"
            for name in names(program, "outputs")
        ),
        "]",
    ]


def _functional(program: dict[str, Any]) -> list[str]:
    spec, ins, outs = program["model"], names(program, "inputs"), names(program, "outputs")
    made = [f"keras.Input({_input(program)}, name={name!r})" for name in ins]
    lines, rest = [f"inputs = [{', '.join(made)}]"], "body"
    if len(ins) > 1 and spec.get("shared"):
        lines.append("inside = keras.layers.Concatenate()([body[0](each) for each in inputs])")
        rest = "body[1:]"
    elif len(ins) > 1:
        lines.append("inside = keras.layers.Concatenate()(inputs)")
    else:
        lines.append("inside = inputs[0]")
    lines += [f"for layer in {rest}:", "    inside = layer(inside)"]
    lines.append("outputs = [head(inside) for head in heads]")
    given = [_given(program, "inputs", ins), _given(program, "outputs", outs)]
    return [*lines, f"model = {CLASSES[spec['style']]}({', '.join(given)})"]


def _given(program: dict[str, Any], side: str, all_names: list[str]) -> str:
    if len(all_names) == 1:
        return f"{side}[0]"
    if program[side].get("structure") == "dict":
        return f"dict(zip({''.join(all_names)!r}, {side}))"
    return side


def _adversaries() -> list[str]:
    inside = "keras.layers.Dense(3, activation='tanh'), keras.layers.Dense(2)"
    return [
        f"maker = keras.Sequential([keras.Input((16,)), {inside}])",
        f"judge = keras.Sequential([keras.Input((2,)), {inside}])",
        "model = Adversaries(maker, judge)",
        "model(x)",
    ]


def _end(program: dict[str, Any]) -> list[str]:
    lines = [compile_call(program["compile"])]
    if program.get("door") == "function":
        return [*lines, "trainer = model"]
    return [*lines, "trainer = kfit.Trainer(model, strategy, seed=5) if strategy else model"]
