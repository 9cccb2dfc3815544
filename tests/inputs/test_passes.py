"""Passes over data sets, which several calls count together."""

from kfit.inputs.passes import PassCounter, are_counted_apart, note_pass


class Source:
    """Stands for a data set, by which passes are counted."""


def test_calls_on_one_source_count_their_passes_together() -> None:
    source = Source()
    train = PassCounter(source)
    train.begin()
    train.take(3)
    evaluation = PassCounter(source)
    evaluation.begin()
    evaluation.take(5)
    assert (train.own, train.taken, train.begun) == (0, 3, 2)
    assert (evaluation.own, evaluation.taken, evaluation.first) == (1, 5, 1)
    evaluation.end()
    train.take(1)
    assert train.passes() == [4, 5]
    assert evaluation.passes() == [5]
    assert train.state_dict() == {"begun": 2, "own": 0, "taken": 4}
    assert evaluation.state_dict() == {"begun": 2, "own": None, "taken": None}


def test_batches_count_while_a_pass_is_open_only() -> None:
    counter = PassCounter()
    counter.take(2)
    assert (counter.taken, counter.is_open, counter.passes()) == (0, False, [])
    counter.begin_another()
    counter.take(2)
    assert (counter.taken, counter.begun, counter.passes()) == (0, 1, [0])
    assert PassCounter().begun == 0


def test_passes_of_the_users_code_count_where_kfit_counts() -> None:
    source, unknown = Source(), Source()
    counter = PassCounter(source)
    note_pass(source)
    note_pass(unknown)
    assert counter.begun == 1
    assert PassCounter(unknown).begun == 0


def test_pipelines_over_one_shuffle_are_counted_apart_by_two_sources() -> None:
    shuffle, alone, one, other = Source(), Source(), Source(), Source()
    assert not are_counted_apart([shuffle], one)
    assert not are_counted_apart([shuffle], one)
    assert are_counted_apart([alone, shuffle], other)
    assert not are_counted_apart([alone], other)
