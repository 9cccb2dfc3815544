"""What is found of a node is found of its inputs before, once each, however deep they are."""

from kfit.graphs.inputs_first import find_inputs_first

DEPTH = 5000
"""More than Python's calls may be nested."""


def test_each_is_found_once_and_after_its_inputs() -> None:
    inputs = {number: [number - 1, number - 2] for number in range(2, DEPTH)}
    known: dict[int, int] = {}
    order: list[int] = []

    def find(number: int) -> int:
        order.append(number)
        return 1 + max((known[each] for each in inputs.get(number, ())), default=0)

    def ask(number: int) -> int:
        found: int = find_inputs_first(
            number,
            known,
            key=lambda each: each,
            inputs=lambda each: inputs.get(each, ()),
            find=find,
        )
        return found

    assert ask(DEPTH - 1) == DEPTH - 1
    assert len(order) == DEPTH == len(set(order))
    assert ask(DEPTH - 2) == DEPTH - 2
    assert len(order) == DEPTH


def test_a_loop_ends() -> None:
    known: dict[str, bool] = {}
    inputs = {"a": "b", "b": "a"}
    find_inputs_first(
        "a",
        known,
        key=lambda each: each,
        inputs=lambda each: inputs[each],
        find=lambda each: known.get(inputs[each], False),
    )
    assert known == {"a": False, "b": False}
