"""What a user may wish of a launch's workers; what cannot be right is refused before anything."""

from typing import Any

import pytest

from kfit.remote.resources import WorkerResources, environment_checked


def test_what_a_worker_takes() -> None:
    assert WorkerResources().bundle() == {"CPU": 1}
    worker_resources = WorkerResources(cpus=0, gpus=0.5, resources={"fast_disk": 1, "none": 0})
    assert worker_resources.bundle() == {"GPU": 0.5, "fast_disk": 1}


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"cpus": -1}, "`cpus` is -1; expected a number from 0 up"),
        ({"gpus": True}, "`gpus` is True"),
        ({"gpus": float("inf")}, "`gpus` is inf"),
        ({"resources": ["disk"]}, r"`resources` is \['disk'\]; expected a dict"),
        ({"resources": {"disk": "1"}}, "expected a dict of Ray's names to amounts"),
        ({"resources": {"GPU": 1}}, "`resources` holds 'GPU'; give `gpus` instead"),
        ({"placement": "NEAR"}, "`placement` is 'NEAR'; expected one of"),
    ],
)
def test_what_cannot_be_meant(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkerResources(**wish)


def test_without_ray_nothing_can_be_wished() -> None:
    WorkerResources().refuse_any()
    with pytest.raises(ValueError, match="`gpus` is 0, but `on` is 'local'"):
        WorkerResources(gpus=0).refuse_any()


def test_the_environment_is_texts_by_texts_and_not_the_launchs_own() -> None:
    assert environment_checked(None) == {}
    assert environment_checked([("A", "1")]) == {"A": "1"}
    for wrong in (3, {"A": 1}, {1: "A"}, {"": "A"}, "A=1"):
        with pytest.raises(ValueError, match="expected a dict of environment variables"):
            environment_checked(wrong)
    for bad in ({"A=B": "1"}, {"A": "1\0"}, {"A\0": "1"}):
        with pytest.raises(ValueError, match="expected a name without '=', and no"):
            environment_checked(bad)
    for own in ("TF_CONFIG", "KFIT_RUN", "KFIT_CLUSTER"):
        with pytest.raises(ValueError, match=f"`env` sets {own}"):
            environment_checked({own: "1"})
