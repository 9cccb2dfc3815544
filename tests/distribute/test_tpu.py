"""The TPU adapter on a stand-in: what is called, in which order, and with what.

TensorFlow's TPU calls are replaced by ones that note themselves; in place of the cores of a TPU
there are CPU devices. Nothing here shows that a TPU does what it is told.
"""

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.cluster.tpu_address import TPUAddress
from kfit.distribute import TPU, TPULostError, TPUNotFoundError, as_strategy, factory, tpu

Calls = list[tuple[Any, ...]]
MESH = (2, 2, 1, 2)  # a v3-8


class StandIn(tf.distribute.MirroredStrategy):
    """In place of a `tf.distribute.TPUStrategy`."""

    calls: Calls

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.calls.append(("strategy", *arguments, options))
        super().__init__(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())

    def experimental_assign_to_logical_device(self, tensor: Any, device: int) -> Any:
        self.calls.append(("assign", device))
        return tensor

    def experimental_split_to_logical_devices(self, tensor: Any, parts: list[int]) -> Any:
        self.calls.append(("split", parts))
        return tensor

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        self.calls.append(("replicate",))
        return tensor


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    noted: Calls = []
    topology = SimpleNamespace(mesh_shape=np.array(MESH))

    def note(name: str, answer: Any = None) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            noted.append((name, *arguments, options) if options else (name, *arguments))
            return answer

        return call

    resolvers = tf.distribute.cluster_resolver
    monkeypatch.setattr(tpu, "wait_for_tpu", note("wait"))
    monkeypatch.setattr(resolvers, "TPUClusterResolver", note("resolver", "R"))
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", note("connect"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", note("initialize", topology))
    monkeypatch.setattr(tf.tpu.experimental.DeviceAssignment, "build", note("build", "A"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", StandIn)
    monkeypatch.setattr(StandIn, "calls", noted, raising=False)
    monkeypatch.setattr(tpu, "_systems", {})
    return noted


def options(assignment: Any = None, spmd: bool = False) -> dict[str, Any]:
    return {
        "experimental_device_assignment": assignment,
        "experimental_spmd_xla_partitioning": spmd,
    }


def test_a_tpu_of_the_network_is_connected_to_initialized_and_made_a_strategy(
    calls: Calls,
) -> None:
    strategy = TPU("grpc://10.0.0.2:8470", timeout=7.0)
    assert calls == []  # nothing before it is used
    assert strategy.num_replicas == 2
    assert strategy.is_chief
    address = TPUAddress("grpc://10.0.0.2:8470", "`tpu`")
    assert calls == [
        ("wait", address, 7.0, {"asks_metadata": True}),
        ("resolver", {"tpu": "grpc://10.0.0.2:8470", "zone": None, "project": None}),
        ("connect", "R"),
        ("initialize", "R"),
        ("strategy", "R", options()),
    ]


def test_a_tpu_of_this_host_is_not_connected_to_and_initialized_once(calls: Calls) -> None:
    for _ in range(2):
        TPU("local").tf_strategy  # noqa: B018  creates it
    assert [call[0] for call in calls] == ["wait", "resolver", "initialize", "strategy", "strategy"]


def test_a_named_tpu_with_its_zone_and_project_asks_no_metadata_server(calls: Calls) -> None:
    TPU("my-tpu", zone="europe-west4-a", project="p").tf_strategy  # noqa: B018
    assert calls[0][-1] == {"asks_metadata": False}
    assert calls[1][-1] == {"tpu": "my-tpu", "zone": "europe-west4-a", "project": "p"}


@pytest.mark.parametrize(
    ("given", "shape", "replicas"),
    [
        ({"logical_devices": 2}, [1, 1, 1, 2], 4),
        ({"logical_devices": 4}, [1, 2, 1, 2], 2),
        ({"logical_devices": 8, "spmd": True}, [2, 2, 1, 2], 1),
        ({"logical_devices": (2, 1, 1, 1)}, [2, 1, 1, 1], 4),
        ({"logical_devices": 2, "num_replicas": 1}, [1, 1, 1, 2], 1),
        ({"num_replicas": 3}, [1, 1, 1, 1], 3),
    ],
    ids=str,
)
def test_logical_devices_are_a_block_of_the_mesh(
    calls: Calls, given: Any, shape: list[int], replicas: int
) -> None:
    TPU("local", **given).tf_strategy  # noqa: B018
    *_, (name, topology, built), (_, resolver, made) = calls
    assert (name, tuple(topology.mesh_shape)) == ("build", MESH)
    assert built == {"computation_shape": shape, "num_replicas": replicas}
    assert (resolver, made) == ("R", options("A", given.get("spmd", False)))


def test_a_device_assignment_of_the_user(calls: Calls) -> None:
    TPU("local", device_assignment="theirs").tf_strategy  # noqa: B018
    TPU("local", device_assignment=lambda topology: topology.mesh_shape[0]).tf_strategy  # noqa: B018
    assert [call[-1] for call in calls if call[0] == "strategy"] == [options("theirs"), options(2)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tpu": " "}, "`tpu` must be 'local', an address"),
        ({"logical_devices": 0}, "`logical_devices` must be a number.*Received: 0"),
        ({"logical_devices": (1, 2)}, r"\(x, y, z, core\)"),
        ({"num_replicas": 0}, "`num_replicas` must be at least 1"),
        ({"timeout": 0}, "`timeout` is 0; expected a number of seconds above 0"),
        ({"timeout": "1"}, "`timeout` is '1'; expected"),
        ({"timeout": float("nan")}, "`timeout` is nan; expected"),
        ({"device_assignment": "A", "logical_devices": 2}, "leave `logical_devices`"),
        ({"gradient_dtype": "int8"}, "`gradient_dtype`"),
    ],
    ids=str,
)
def test_wrong_options_are_named_at_once(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TPU(**given)


@pytest.mark.parametrize(
    "given",
    [{"logical_devices": 3}, {"logical_devices": (1, 1, 2, 1)}, {"num_replicas": 9}],
    ids=str,
)
def test_what_does_not_fit_the_mesh_is_named(calls: Calls, given: Any) -> None:
    with pytest.raises(ValueError, match=r"do not fit this TPU.*\(2, 2, 1, 2\)"):
        TPU("local", **given).tf_strategy  # noqa: B018


def test_auto_takes_a_tpu_that_is_named(calls: Calls, monkeypatch: Any) -> None:
    monkeypatch.setenv("TPU_NAME", "local")
    assert isinstance(as_strategy("auto"), TPU)
    told = factory.explain_choice("auto", as_strategy("auto"))
    assert told is not None
    assert "chose 'tpu': TPU_NAME names the TPU 'local'" in told
    assert isinstance(as_strategy("tpu"), TPU)
    assert calls == []


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(variable, raising=False)


def test_without_a_tpu_it_is_said_at_once(tiny: Any, nowhere: None, monkeypatch: Any) -> None:
    begun = time.monotonic()
    with pytest.raises(TPUNotFoundError, match=r"TPU_NAME.*COLAB_TPU_ADDR.*libtpu.*`strategy`"):
        kfit.Trainer(tiny.model(), "tpu")
    assert not isinstance(as_strategy("auto"), TPU)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("TPU_NAME", f"grpc://127.0.0.1:{port}")
    with pytest.raises(TPUNotFoundError, match=rf"from TPU_NAME\).*127\.0\.0\.1:{port}"):
        kfit.Trainer(tiny.model(), "auto")
    assert time.monotonic() - begun < 5


def test_a_tpu_that_cannot_be_initialized_is_no_tpu(calls: Calls, monkeypatch: Any) -> None:
    def fail(_: Any) -> None:
        raise tf.errors.NotFoundError(None, None, "No TPU devices found")

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)
    with pytest.raises(TPUNotFoundError, match=r"`tpu='local'`.*No TPU devices found.*tensorflow-"):
        TPU("local").tf_strategy  # noqa: B018


def test_training_equals_one_device(tiny: Any, calls: Calls) -> None:
    one, many = tiny.model(), tiny.model(jit_compile=True)  # the TPU compiles by itself
    fixed = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = one.fit(*tiny.data(51), **fixed).history
    got = kfit.Trainer(many, TPU("local")).fit(*tiny.data(51), **fixed).history
    assert tiny.distance(one, many) < 1e-5
    assert got["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert tiny.is_plain(many)


def test_the_layers_of_a_split_model_reach_the_strategy(calls: Calls) -> None:
    strategy = TPU("local", logical_devices=2, spmd=True)

    class Split(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            x = strategy.split_to_logical_devices(x, (1, 2))
            x = strategy.assign_to_logical_device(x, 1)
            return strategy.replicate_to_logical_devices(x)

    model = keras.Sequential([keras.Input((4,)), Split(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kfit.Trainer(model, strategy).fit(np.ones((4, 4)), np.ones((4, 1)), batch_size=4, verbose=0)
    assert ("split", [1, 2]) in calls
    assert ("assign", 1) in calls
    # x, y, the replica's index and its number of rows; and x once more, by the layer.
    assert calls.count(("replicate",)) >= 2 * 5


class Preempted(keras.callbacks.Callback):
    """Loses the TPU after some steps."""

    def __init__(self, after: int, error: Exception) -> None:
        super().__init__()
        self.left, self.error = after, error

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            raise self.error


UNAVAILABLE = tf.errors.UnavailableError(None, None, "failed to connect")
SOCKET_CLOSED = tf.errors.InternalError(None, None, "Socket closed\nmore")


@pytest.mark.parametrize("error", [UNAVAILABLE, SOCKET_CLOSED], ids=["unavailable", "socket"])
def test_what_means_that_a_tpu_is_lost(error: Exception) -> None:
    told = pytest.raises(TPULostError, match=r"is lost.*BackupAndRestore.*(closed|connect)$")
    with told, TPU("local").naming_failures():
        raise error


@pytest.mark.long
def test_a_preempted_tpu_is_named_and_training_goes_on_in_the_next_run(
    tiny: Any, calls: Calls, tmp_path: Path
) -> None:
    data = tiny.data(31)
    fixed = {"batch_size": 10, "epochs": 2, "verbose": 0}

    def fit(*more: Any) -> Any:
        model = tiny.model()
        backup = kfit.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
        trainer = kfit.Trainer(model, TPU("local"), seed=3)
        trainer.fit(*data, callbacks=[backup, *more], **fixed)
        return model

    with pytest.raises(TPULostError, match=r"'local' is lost.*BackupAndRestore"):
        fit(Preempted(5, UNAVAILABLE))
    resumed = fit()
    assert [call[0] for call in calls].count("initialize") == 2  # the next one is initialized anew
    untouched = tiny.model()
    kfit.Trainer(untouched, TPU("local"), seed=3).fit(*data, **fixed)
    assert tiny.distance(resumed, untouched) == 0.0


@pytest.mark.long
def test_other_errors_stay_what_they_are(tiny: Any, calls: Calls) -> None:
    error = tf.errors.InvalidArgumentError(None, None, "a label out of range")
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of range"):
        kfit.Trainer(tiny.model(), TPU("local")).fit(
            *tiny.data(8), verbose=0, callbacks=[Preempted(1, error)]
        )
