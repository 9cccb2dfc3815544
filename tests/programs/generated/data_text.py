"""The part of a program's text that makes its data."""

from typing import Any

from tests.programs.generated.compare import LAST_DIGITS
from tests.programs.generated.place import Place

SHAPES = {"vector": (16,), "sequence": (5, 3), "image": (6, 6, 1), "tokens": (6,)}
# Rows of 64 bytes, as the vectors have, are the least that TensorFlow cuts without a copy.


def data_lines(program: dict[str, Any], place: Place) -> list[str]:
    """Lines that make `arrays`, `held_out`, and `data` if these are no arrays."""
    lines = _arrays(program)
    lines.append(f"x = {_structure(program, 'inputs', 'x')}")
    lines.append(f"y = {_structure(program, 'outputs', 'y')}")
    if place.shaken:
        digits = LAST_DIGITS[program["dtype"]]
        lines.append(f"shake = lambda array: shaken(array, {digits})")
        lines += [f"{name} = keras.tree.map_structure(shake, {name})" for name in ("x", "y")]
    data = program["data"]
    if data.get("weights") == "each":
        lines.append(f"w = {_structure(program, 'outputs', 'w')}")
    listed = f"(x, y{', w' if data.get('weights') else ''})"
    lines.append(f"arrays = keras.tree.map_structure(aligned, {listed})")
    lines.append("given = keras.tree.map_structure(np.copy, arrays)")
    kind, batch = data["kind"], data["batch_size"]
    rows = batch if program["model"].get("stateful") else 11
    lines.append(f"held_out = keras.tree.map_structure(lambda array: array[:{rows}], arrays)")
    if kind == "loader" and place.strategy:
        name = "StatefulLoader" if data.get("says_its_state") else "DataLoader"
        lines.append(f"data = {name}(arrays, {batch}, shuffles={data.get('shuffles', False)})")
        # Nobody needs torch for a class of that name, by which loaders are told.
        lines += ['DataLoader.__module__ = "torch.utils.data"'] if name == "DataLoader" else []
    elif kind in ("dataset", "loader"):
        chain = "tf.data.Dataset.from_tensor_slices(arrays)"
        if "shuffle" in data:
            chain += f".shuffle({data['shuffle']}, seed=11)"
        chain += f".batch({batch}, drop_remainder={data.get('drop_remainder', False)})"
        # Keras 3.15 takes a step more than there are batches where it cannot know their number.
        if data.get("unknown") and place.strategy:
            chain += ".filter(everything)"
        chain += ".repeat()" if data.get("endless") else ""
        lines.append(f"data = {chain}")
    elif kind == "py_dataset":
        shuffles = data.get("shuffles", "")
        lines.append(f"data = Batches(arrays, {batch}, shuffles={shuffles!r})")
    elif kind == "generator":
        lines.append(f"data = batches_of(arrays, {batch})")
    return lines


def names(program: dict[str, Any], side: str) -> list[str]:
    """The names of a model's "inputs" or "outputs"."""
    return (["a", "b"] if side == "inputs" else ["p", "q"])[: program[side].get("count", 1)]


def _structure(program: dict[str, Any], side: str, prefix: str) -> str:
    all_names = names(program, side)
    if len(all_names) == 1:
        return f"{prefix}_{all_names[0]}"
    if program[side].get("structure") == "dict":
        return "{" + ", ".join(f"{n!r}: {prefix}_{n}" for n in all_names) + "}"
    return "(" + ", ".join(f"{prefix}_{n}" for n in all_names) + ")"


def _arrays(program: dict[str, Any]) -> list[str]:
    """Lines that make `x`, `y` and `w`."""
    n, kind = program["data"]["examples"], program["inputs"]["kind"]
    dtype = "float64" if program["dtype"] == "float64" else "float32"
    lines = [f"draw = np.random.default_rng({program['seed']})"]
    size = (n, *SHAPES[kind])
    for name in names(program, "inputs"):
        if kind == "tokens":
            lines.append(f"x_{name} = draw.integers(1, 9, size={size})")
            lines.append(f"x_{name}[np.arange(6) >= draw.integers(1, 7, size=({n}, 1))] = 0")
        else:
            lines.append(f"x_{name} = draw.normal(size={size}).astype({dtype!r})")
    rows = f"({n}, {SHAPES[kind][0]}" if program["outputs"].get("sequences") else f"({n}"
    for name in names(program, "outputs"):
        lines.append(
            f"y_{name} = "
            + {
                "regression": f"draw.normal(size={rows}, 2)).astype({dtype!r})",
                "binary": f"draw.integers(0, 2, size={rows}, 1))",
                "sparse": f"draw.integers(0, 3, size={rows},))",
                "categorical": f"np.eye(3, dtype={dtype!r})[draw.integers(0, 3, size={rows},))]",
            }[program["outputs"]["task"]]
        )
        if program["data"].get("weights") == "each":
            lines.append(f"w_{name} = draw.integers(0, 5, size={n}).astype({dtype!r}) / 2")
    if program["data"].get("weights") == "one":
        lines.append(f"w = draw.integers(0, 5, size={n}).astype({dtype!r}) / 2")
    return lines
