"""What TensorFlow says when it is first used, and what must not be taken for it."""

import pytest

from kfit.supervisor.start_up_messages import StartUpFilter, is_start_up_message


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795454553.025623   20710 cudart_stub.cc:31] Could not find cuda drivers on "
        "your machine, GPU will not be used.",
        "I0000 00:00:1795454545.095888   20710 port.cc:153] oneDNN custom operations are on. You",
        "E0000 00:00:1795454560.494663   20710 cuda_platform.cc:52] failed call to cuInit: NO",
        "E0000 00:00:1736945.1 7 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to",
        "2024-11-23 16:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations "
        "are on. You may see slightly different numerical results",
        "2024-11-23 16:00:00.1: I tensorflow/core/platform/cpu_feature_guard.cc:210] This "
        "TensorFlow binary is optimized to use available CPU instructions",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow "
        "with the appropriate compiler flags.",
        "E0000 00:00:1795487149.835733    5907 base_collective_executor.cc:252] "
        "BaseCollectiveExecutor::StartAbort UNAVAILABLE: Failed to send RPC to coordination "
        "service. Either the leader task was preempted/died/restarted unexpectedly or",
        "I0000 00:00:1795989164.244036   10002 local_rendezvous.cc:432] Local rendezvous recv item "
        "cancelled. Key hash: 4048409107780853130",
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while "
        "calling /tensorflow.CoordinationService/Heartbeat:",
        ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"failed to connect"}',
    ],
)
def test_messages_that_tell_nothing(line: str) -> None:
    assert is_start_up_message(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Epoch 1/3",
        "oneDNN custom operations are on",
        "my log: WARNING: All log messages before absl::InitializeLog() is called",
        "E0000 00:00:1795454560.494663   20710 gpu_device.cc:52] out of memory",
        "E0000 00:00:1795487149.8 59 base_collective_executor.cc:252] "
        "BaseCollectiveExecutor::StartAbort INTERNAL: out of luck",
        "W0000 00:00:1795454560.494663   20710 op_kernel.cc:1857] OP_REQUIRES failed at io.cc:1",
        "2024-11-23 16:00:00.1: W tensorflow/core/framework/op_kernel.cc:1857] OP_REQUIRES failed",
    ],
)
def test_other_lines_are_printed(line: str) -> None:
    assert not is_start_up_message(line)


FOREIGN = b"W0000 00:00:1700000000.123456 7 other.cc:1] something else\n"
CUDA = b"I0000 00:00:1700000000.123456    7 cudart_stub.cc:31] Could not find cuda drivers on it.\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_filter_drops_the_messages_and_no_other_byte(size: int) -> None:
    others = b"Epoch 1/2\r\n 10%\r 20%\r\xff\n2026 was\n" + FOREIGN + b"In the end"
    text = CUDA + others.replace(b"2026", CUDA.replace(b"\n", b"") + b"\n2026") + b"\n" + CUDA
    found = StartUpFilter()
    parts = [found.feed(text[i : i + size]) for i in range(0, len(text), size)]
    assert b"".join(parts) + found.flush() == others + b"\n"


def test_a_bar_on_stderr_moves_at_once() -> None:
    found = StartUpFilter()
    assert found.feed(b" 10%") == b" 10%"
    assert found.feed(b"\r 20%") == b"\r 20%"
    assert found.feed(b"\nI0000") == b"\n"
    assert found.flush() == b"I0000"


def test_a_failure_to_reach_the_coordinator_is_left_out_whole() -> None:
    text = (
        b"E0000 00:00:1.2 3 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort "
        b"UNAVAILABLE: Failed to send RPC to coordination service. Either\n"
        b"Additional GRPC error information from remote target /job:worker/task:0 while calling "
        b"/tensorflow.CoordinationService/Heartbeat:\n"
        b":UNKNOWN:Error received from peer  {grpc_status:14}\n"
    )
    found = StartUpFilter()
    parts = [found.feed(text[i : i + 7]) for i in range(0, len(text), 7)]
    assert b"".join(parts) + found.flush() == b""
