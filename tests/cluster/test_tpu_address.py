import socket
import time
from pathlib import Path
from typing import Any

import pytest

from kfit.cluster import tpu_address
from kfit.cluster.tpu_address import TPUAddress, TPUNotFoundError, find_tpu, wait_for_tpu


@pytest.fixture(autouse=True)
def no_tpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(tpu_address, "_DEVICE_FILES", ("/nowhere/accel[0-9]*",))


@pytest.mark.parametrize(
    ("environment", "tpu"),
    [
        ({}, None),
        ({"TPU_NAME": ""}, None),
        ({"TPU_NAME": "local"}, "local"),
        ({"TPU_NAME": "my-tpu", "COLAB_TPU_ADDR": "10.0.0.2:8470"}, "my-tpu"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.3:8470"}, "grpc://10.0.0.3:8470"),
    ],
    ids=str,
)
def test_what_the_environment_names(environment: dict[str, str], tpu: str | None) -> None:
    found = find_tpu(environment)
    assert (found and found.tpu) == tpu


def test_a_tpu_of_this_host_is_its_device_and_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu_address, "_DEVICE_FILES", (f"{tmp_path}/accel[0-9]*",))
    assert find_tpu({"TPU_LIBRARY_PATH": "libtpu.so"}) is None
    (tmp_path / "accel0").touch()
    assert find_tpu({"TPU_LIBRARY_PATH": "libtpu.so"}) == ("local", str(tmp_path / "accel0"))
    assert find_tpu({}) is None


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("tpu", "message"),
    [
        ("local", r"`tpu='local'` \(from X\).*libtpu.*grpc://host:8470"),
        ("grpc://127.0.0.1:PORT", r"`tpu='grpc.*does not answer at 127.*refused.*up"),
        ("grpc://no.such.host.invalid:8470", r"no\.such\.host\.invalid:8470"),
        ("grpc://no..host:8470", r"no\.\.host:8470.*label"),
        ("grpc://host:port", r"'grpc://host:8470'. Received"),
        ("my-tpu", r"the name of a TPU.*(cloud-tpu-client|metadata server).*grpc://host:8470"),
    ],
)
def test_what_is_not_there_is_named_within_a_second(
    tpu: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{free_port()}")
    begun = time.monotonic()
    with pytest.raises(TPUNotFoundError, match=message):
        wait_for_tpu(TPUAddress(tpu.replace("PORT", str(free_port())), "X"), timeout=1.0)
    assert time.monotonic() - begun < 2.5  # 1 s, and what a busy machine adds


def test_the_metadata_server_is_asked_by_its_port_alone(monkeypatch: Any) -> None:
    # A listener that takes connections and says nothing: who asked it in HTTP would hang.
    monkeypatch.setattr(tpu_address, "_check_client", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.getsockname()[1]}")
        wait_for_tpu(TPUAddress("my-tpu", "X"), timeout=30)
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{free_port()}")
    with pytest.raises(TPUNotFoundError, match=r"metadata server.*127.*`project` and `zone`"):
        wait_for_tpu(TPUAddress("my-tpu", "X"), timeout=0.2)
    wait_for_tpu(TPUAddress("my-tpu", "X"), timeout=0.2, asks_metadata=False)


def test_a_name_that_nobody_looks_up_takes_no_longer(monkeypatch: Any) -> None:
    def never(*_: Any) -> None:
        time.sleep(2)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", never)
    begun = time.monotonic()
    with pytest.raises(TPUNotFoundError, match=r"no answer within"):
        wait_for_tpu(TPUAddress("grpc://host:8470", "X"), timeout=0.3)
    assert time.monotonic() - begun < 1.9


def test_a_tpu_that_is_still_starting_is_waited_for(monkeypatch: Any) -> None:
    answers = iter(["refused", "refused", None])
    monkeypatch.setattr(tpu_address, "_connected", lambda *_: next(answers))
    monkeypatch.setattr(tpu_address, "_RETRY_SECONDS", 0.01)
    wait_for_tpu(TPUAddress("grpc://host:8470", "X"), timeout=30)
    assert next(answers, "all asked") == "all asked"
