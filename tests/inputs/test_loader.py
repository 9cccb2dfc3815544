"""A loader is iterated over anew in each epoch, and trains like its arrays."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import kfit
from tests.inputs.numbered import batch, batches_of, numbers, read
from tests.sweeps import only


class _Loader:
    """Looks like torch's DataLoader, which this environment need not have."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)
        self.iterated = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.iterated += 1
        return iter(self.batches)


def test_a_loader_is_iterated_over_anew_in_each_epoch() -> None:
    cls = type("DataLoader", (_Loader,), {"__module__": "torch.utils.data.dataloader"})
    loader = cls([list(batch(number)) for number in range(5)])
    batches = batches_of(loader)
    assert batches.steps == 5
    assert [numbers(read(batches, epoch)) for epoch in range(2)] == 2 * [[0, 1, 2, 3, 4]]
    assert loader.iterated == 1 + 2  # as in Keras, one to look at
    assert numbers(read(batches_of(loader), 1, 3)) == [3, 4]
    with pytest.raises(ValueError, match="`x` must be arrays"):
        batches_of(_Loader([]))


class TorchTensor:
    """What kfit asks of a torch tensor: one that must leave its graph and its device first."""

    def __init__(self, values: np.ndarray, where: str = "cuda") -> None:
        self.values, self.where = values, where

    def detach(self) -> "TorchTensor":
        return TorchTensor(self.values, f"{self.where}, detached")

    def cpu(self) -> np.ndarray:
        assert self.where == "cuda, detached"
        return self.values


@pytest.mark.long
def test_a_torch_loader_of_a_stream_has_no_length(tiny: Any) -> None:
    def no_length(self: _Loader) -> int:
        raise TypeError("object of type 'IterableDataset' has no len()")

    options = {"__module__": "torch.utils.data.dataloader", "__len__": no_length}
    x, y = tiny.data(20)
    loader = type("DataLoader", (_Loader,), options)([(x[:10], y[:10]), (x[10:], y[10:])])
    one, many = tiny.model(), tiny.model()
    one.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    kfit.Trainer(many, tiny.strategy(2)).fit(loader, epochs=2, verbose=0)
    assert tiny.distance(one, many) < 1e-5


@pytest.mark.parametrize(("replicas", "steps"), only([(1, None)], [(1, None), (2, None), (2, 3)]))
def test_a_torch_loader_trains_like_its_arrays(tiny: Any, replicas: int, steps: int | None) -> None:
    x, y = tiny.data(41)
    options = {"epochs": 3, "steps_per_epoch": steps, "verbose": 0}
    one, many = tiny.model(), tiny.model()
    expected = one.fit(x, y, batch_size=10, shuffle=False, **options).history
    # The default collation of a data set of pairs makes lists; the last batch has one example.
    parts = [[x[k : k + 10].astype("float64"), y[k : k + 10]] for k in range(0, 41, 10)]
    cls = type("DataLoader", (_Loader,), {"__module__": "torch.utils.data.dataloader"})
    loader = cls([[TorchTensor(array) for array in part] for part in parts])
    trainer = kfit.Trainer(many, tiny.strategy(replicas))
    got = trainer.fit(loader, validation_data=loader, **options).history
    assert tiny.distance(one, many) < 1e-5
    for name, values in expected.items():
        assert got[name] == pytest.approx(values, rel=1e-5)
    assert loader.iterated == 1 + (3 if steps is None else 2) + 1 + 3  # looked at twice
    assert trainer.evaluate(loader, verbose=0) == pytest.approx(
        one.evaluate(x, y, verbose=0), rel=1e-5
    )
