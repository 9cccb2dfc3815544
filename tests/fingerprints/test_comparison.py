"""Every difference of two fingerprints in words, and not more of them than one reads."""

from typing import Any

from kfit.fingerprints.comparison import compare


def lines(own: dict[str, Any], kept: dict[str, Any], **options: Any) -> list[str]:
    return [found.line for found in compare(own, kept, **options)]


def test_what_differs_is_named_with_both_values() -> None:
    own = {"optimizer": {"class_name": "SGD", "momentum": 0.9}, "seed": {"seed": 1}}
    kept = {"optimizer": {"class_name": "Adam", "beta_1": 0.9}, "seed": {"seed": 1}}
    assert lines(own, own) == []
    assert lines(own, kept) == [
        "optimizer: class_name is SGD, in the snapshot Adam",
        "optimizer: momentum is 0.9, which the snapshot does not have",
        "optimizer: beta_1 is not there, in the snapshot 0.9",
    ]
    assert {found.section for found in compare(own, kept)} == {"optimizer"}


def test_a_number_of_another_type_is_another_one() -> None:
    assert lines({"data": {"a": 1}}, {"data": {"a": 1.0}}) != []
    assert lines({"data": {"a": float("nan")}}, {"data": {"a": float("nan")}}) == []


def test_of_other_versions_only_what_both_say_counts() -> None:
    own = {"loss": {"name": "mse", "new": 1, "call.code": "#1"}}
    kept = {"loss": {"name": "mae", "old": 1, "call.code": "#2"}}
    assert lines(own, kept, alike=False) == ["loss: name is mse, in the snapshot mae"]


def test_what_one_of_them_does_not_describe_is_not_compared() -> None:
    assert lines({"data": {"a": 1}}, {"model": {"a": 1}}) == []


def test_a_section_that_a_stranger_has_put_there_is_not_compared() -> None:
    for there in (5, "data", [1, [2]], None):
        assert lines({"data": {"a": 1}}, {"data": there}) == []


def test_many_differences_and_long_values_are_cut_short() -> None:
    own = {"model": {str(index): "x" * 500 for index in range(20)}}
    kept = {"model": {str(index): 0 for index in range(20)}}
    found = lines(own, kept)
    assert len(found) == 13
    assert found[-1] == "model: and 8 more"
    assert "x..., in the snapshot 0" in found[0]
    assert len(found[0]) < 200


def test_the_number_of_inputs_in_turns_is_explained() -> None:
    [said] = lines({"data": {"map.cycle_length": 4}}, {"data": {"map.cycle_length": 8}})
    assert said.endswith("not that of its cores)")


def test_layers_are_matched_by_the_order_of_their_names() -> None:
    def layers(*names: str, **changed: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"model (0)": "Sequential", "model (0).connections": f"#{names}"}
        for number, name in enumerate(names, 1):
            found[f"{name} ({number})"] = name.title()
            found[f"{name} ({number}).units"] = changed.get(name, 1)
        return {"model": found}

    own = layers("dense", "norm", "dense", "drop", drop=2)
    assert lines(own, layers("dense", "dense", "drop")) == [
        "model: drop (4).units is 2, in the snapshot 1",
        "model: norm (2), a Norm, is not in the snapshot",
    ]
    assert lines(layers("dense", "drop"), layers("drop")) == [
        "model: dense (1), a Dense, is not in the snapshot"
    ]
    assert lines(layers("drop"), layers("dense", "drop")) == [
        "model: dense (1), a Dense, is only in the snapshot"
    ]
    twisted = {"model": {**own["model"], "model (0).connections": "#1"}}
    assert lines(own, twisted) == [
        "model: model (0) connects its layers in another way than in the snapshot"
    ]


def test_what_an_object_of_another_class_has_is_not_listed() -> None:
    own = {"optimizer": {"optimizer": "Lion", "optimizer.beta": 0.9, "optimizer.clip": 1}}
    kept = {"optimizer": {"optimizer": "SGD", "optimizer.momentum": 0.9, "optimizer.clip": 2}}
    assert lines(own, kept) == [
        "optimizer: optimizer is Lion, in the snapshot SGD",
        "optimizer: optimizer.clip is 1, in the snapshot 2",
    ]


def test_numbers_of_float32_have_few_digits() -> None:
    own, kept = 0.009999999776482582, 0.0010000000474974513
    assert lines({"loss": {"a": own}}, {"loss": {"a": kept}}) == [
        "loss: a is 0.01, in the snapshot 0.001"
    ]
    assert lines({"loss": {"a": own}}, {"loss": {"a": 0.01}}) == [
        "loss: a is 0.009999999776482582, in the snapshot 0.01"
    ]
    assert lines({"loss": {"a": 1e300}}, {"loss": {"a": 0.1}}) == [
        "loss: a is 1e+300, in the snapshot 0.1"
    ]


def test_long_values_that_differ_at_their_ends_are_shown_whole() -> None:
    [said] = lines({"loss": {"a": "x" * 150 + "1"}}, {"loss": {"a": "x" * 150 + "2"}})
    assert "x1'" in said
    assert "x2'" in said
