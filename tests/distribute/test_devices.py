"""Devices, and what is passed to TensorFlow for GPUs, on a machine without one."""

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

import kfit
from kfit.distribute import Mirrored, MultiWorker, OneDevice, factory
from kfit.distribute.devices import resolve_device

GPUS = ["GPU:0", "GPU:1", "GPU:11"]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A host with GPUs, as far as names go; notes what a mirrored strategy is made of."""
    made: list[Any] = []

    def logical(kind: str | None = None) -> list[Any]:
        names = [name for name in ["CPU:0", *GPUS] if kind is None or name.startswith(kind)]
        return [SimpleNamespace(name=f"/device:{name}") for name in names]

    monkeypatch.setattr(tf.config, "list_logical_devices", logical)
    monkeypatch.setattr(
        tf.distribute,
        "MirroredStrategy",
        lambda devices, cross_device_ops: made.append((devices, cross_device_ops)),
    )
    monkeypatch.setattr("kfit.distribute.mirrored.with_keys_of_its_own", lambda strategy: strategy)
    monkeypatch.setattr(tf.distribute, "OneDeviceStrategy", made.append)
    return made


@pytest.mark.parametrize(
    "device",
    [
        1,
        "GPU:1",
        "gpu:1",
        "/gpu:1",
        "/device:GPU:1",
        "/job:localhost/replica:0/task:0/device:GPU:1",
    ],
    ids=str,
)
def test_devices_by_every_name(gpus: list[Any], device: Any) -> None:
    assert resolve_device(device, "devices") == "GPU:1"
    OneDevice(device)._create()
    Mirrored([0, device])._create()
    assert gpus == ["GPU:1", (["GPU:0", "GPU:1"], None)]


def test_all_gpus_by_default_and_any_number_of_them(gpus: list[Any]) -> None:
    Mirrored()._create()
    OneDevice("GPU:11")._create()
    assert gpus == [(GPUS, None), "GPU:11"]


@pytest.mark.parametrize("device", ["GPU:2", 7, "TPU:0", "gpu:x", "GPU:01"], ids=str)
def test_a_device_that_is_not_there_is_named_with_those_that_are(
    gpus: list[Any], device: Any
) -> None:
    with pytest.raises(ValueError, match=rf"`devices` names {device!r}.*'GPU:0', 'GPU:1'.*VISIBLE"):
        Mirrored([device])._create()
    with pytest.raises(ValueError, match=rf"`device` names {device!r}.*'CPU:0'"):
        OneDevice(device)._create()


def test_a_number_of_gpus(gpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: GPUS)
    Mirrored(2)._create()
    assert gpus == [(["GPU:0", "GPU:1"], None)]
    with pytest.raises(ValueError, match=r"`devices=4`, but this host has only 3 GPUs.*DEVICES=-1"):
        Mirrored(4)


def test_a_number_of_parts_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Mirrored(3).num_replicas == 3  # of the four that the tests have made
    late = (
        r"`devices=9` comes too late.*kfit run --cpus 9`\. Or, .*Trainer\(make_model, .*devices=9"
    )
    with pytest.raises(ValueError, match=late):
        Mirrored(9)
    monkeypatch.setattr("kfit.distribute.devices.in_notebook", lambda stream: True)
    with pytest.raises(ValueError, match=r"Restart the kernel and, .*Mirrored\(9\)`.*workers=9"):
        Mirrored(9)
    split: list[Any] = []
    configured, configure = "get_logical_device_configuration", "set_logical_device_configuration"
    monkeypatch.setattr(tf.config, configured, lambda cpu: None)
    monkeypatch.setattr(tf.config, configure, lambda cpu, parts: split.append(len(parts)))
    assert Mirrored(2)._devices == ["CPU:0", "CPU:1"]
    Mirrored(1)
    assert split == [2]


def test_the_devices_of_a_trainer(tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert kfit.Trainer(tiny.model, devices=2).num_replicas == 2
    assert kfit.Trainer(tiny.model(), "mirrored", devices=["CPU:1"]).num_replicas == 1
    assert capsys.readouterr().out == ""
    for strategy in ("one_device", Mirrored()):
        with pytest.raises(ValueError, match="`devices` is an argument of the strategy 'mirrored'"):
            kfit.Trainer(tiny.model(), strategy, devices=2)
    with pytest.raises(ValueError, match=r"'miror'\. Did you mean 'mirrored'\?"):
        kfit.Trainer(tiny.model(), "miror", devices=2)
    for name, meant in (
        ("MirroredStrategy", "mirrored"),
        ("MultiWorkerMirroredStrategy", "multi_worker"),
        ("gpu", "mirrored"),
        ("CUDA", "mirrored"),
        ("cpu", "one_device"),
    ):
        with pytest.raises(ValueError, match=f"{name!r}. Did you mean {meant!r}"):
            kfit.Trainer(tiny.model(), name)


def test_devices_in_a_cluster_do_not_make_each_worker_train_alone(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFIT_WORKERS", "localhost:20001,localhost:20002")
    monkeypatch.setenv("KFIT_INDEX", "0")
    with pytest.raises(ValueError, match="alone, but KFIT_WORKERS describes a cluster"):
        kfit.Trainer(tiny.model(), devices=2)


def test_a_strategy_of_several_that_has_only_one(tiny: Any, capsys: Any, monkeypatch: Any) -> None:
    kfit.Trainer(tiny.model(), "mirrored")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("kfit.distribute.mirrored.visible_devices", lambda kind: ["CPU:0"])
    monkeypatch.setitem(factory._BY_NAME, "mirrored", kfit.distribute.Mirrored)  # a new one
    kfit.Trainer(tiny.model(), "mirrored")
    told = capsys.readouterr().out
    assert "'mirrored' trains on one device, since this host has no other" in told
    assert "try two replicas. Start the program by `kfit run --cpus 2`. Or, before a model" in told
    kfit.Trainer(tiny.model(), Mirrored(["CPU:0"]))
    assert capsys.readouterr().out == ""
    kfit.Trainer(tiny.model(), "multi_worker")
    assert "'multi_worker' trains on this process alone" in capsys.readouterr().out


def test_what_is_no_device_is_refused_at_once(gpus: list[Any]) -> None:
    for device in (-1, True, "", 1.5):
        with pytest.raises(ValueError, match="`devices` must name devices"):
            Mirrored([device])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="`device` must name devices"):
            OneDevice(device)  # type: ignore[arg-type]
    for devices in (0, -1, True, "GPU:0", [], 1.5):
        with pytest.raises(ValueError, match="`devices` must be a number of devices, a list"):
            Mirrored(devices)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`devices` names a device twice"):
        Mirrored(["GPU:0", "/gpu:0"])._create()


@pytest.mark.parametrize(
    ("given", "kind", "packs"),
    [
        ({"cross_device_ops": "nccl", "num_packs": 3}, tf.distribute.NcclAllReduce, 3),
        ({"cross_device_ops": "hierarchical"}, tf.distribute.HierarchicalCopyAllReduce, 1),
        ({"cross_device_ops": "one_device"}, tf.distribute.ReductionToOneDevice, None),
    ],
    ids=["nccl", "hierarchical", "one_device"],
)
def test_how_gradients_are_summed(gpus: list[Any], given: Any, kind: type, packs: Any) -> None:
    Mirrored(**given)._create()
    [(_, ops)] = gpus
    assert type(ops) is kind
    assert packs is None or ops._num_packs == packs


def test_nccl_between_workers() -> None:
    implementation = tf.distribute.experimental.CommunicationImplementation.NCCL
    made = MultiWorker(communication="nccl", bytes_per_pack=1 << 20)._options
    assert (made.implementation, made.bytes_per_pack) == (implementation, 1 << 20)


@pytest.mark.parametrize("make", [OneDevice, Mirrored, MultiWorker])
@pytest.mark.parametrize("wanted", [True, False])
def test_memory_growth_is_set_on_every_gpu_before_devices_are_looked_at(
    make: Any, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["one", "two"])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda *_: called.append("looked"))
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda *args: called.append(args)
    )
    make(memory_growth=wanted)
    assert called == [("one", wanted), ("two", wanted)]
    make()
    assert len(called) == 2


def test_memory_growth_that_comes_too_late_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["one"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", fail)
    with pytest.raises(ValueError, match=r"`memory_growth=True` comes too late.*ALLOW_GROWTH=true"):
        Mirrored(memory_growth=True)
