"""TensorBoard in a browser shows what the callback has written.

The test needs Chromium and its driver: `apt-get install chromium chromium-driver`. With
`KFIT_SCREENSHOTS=folder` it leaves a picture of each page there.
"""

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import kfit
from kfit.callbacks import BackupAndRestore, TensorBoard, TrainingCallback
from kfit.callbacks.epoch_times import PARTS
from kfit.checkpoint import fits

pytestmark = pytest.mark.long
SECONDS = 180
EXAMPLES = 1497
STEPS = 6 * math.ceil(EXAMPLES / 64)

ALL_TEXT = """
function text(node) {
  let found = node.nodeType == Node.TEXT_NODE ? node.textContent : '';
  for (const child of [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes])
    if (!['STYLE', 'SCRIPT', 'TEMPLATE'].includes(child.nodeName)) found += ' ' + text(child);
  return found;
}
return text(document.body);
"""
"""Returns the text of a page with that of its shadow roots."""


class Interrupts(TrainingCallback):
    """Interrupts a training after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def steps_until_due(self) -> int | None:
        assert self.training is not None
        left = self._step - self.training.progress.step
        return left if left > 0 else None

    def is_due(self) -> bool:
        assert self.training is not None
        return self.training.progress.step == self._step

    def on_due(self) -> None:
        assert self.training is not None
        self.training.interrupted = True


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of a training that was interrupted once, and resumed."""
    folder = tmp_path_factory.mktemp("run")
    (x, y), (x_test, y_test) = kfit.datasets.digits.load_data()
    assert len(x) == EXAMPLES
    for interrupted in (True, False):
        fits.forget()
        keras.utils.set_random_seed(1)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8, 8)),
                layers.Flatten(name="flatten"),
                layers.Dense(32, "relu", name="first"),
                layers.Dense(10, name="second"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
        board = TensorBoard(
            *(folder / "logs" / "run1", 1), update_freq=7, write_steps_per_second=True
        )
        callbacks = [board, BackupAndRestore(folder / "backup", save_freq=10)]
        kfit.Trainer(model, "one_device", seed=1).fit(
            *(x, y),
            batch_size=64,
            epochs=6,
            validation_data=(x_test, y_test),
            verbose=0,
            callbacks=[*callbacks, Interrupts(64)] if interrupted else callbacks,
        )
    return folder / "logs"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{argument}")
    options.add_argument("--window-size=1500,1100")
    service = webdriver.ChromeService(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def address(logs: Path) -> Iterator[str]:
    """The address of a TensorBoard that shows the training."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs)]
    command += ["--port", str(port), "--host", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{url}/data/runs") as answer:
                    if b"run1/validation" in answer.read():
                        break
            except OSError:
                pass
            assert time.monotonic() < deadline, "TensorBoard does not answer"
            time.sleep(0.5)
        yield url
    finally:
        process.kill()
        process.wait()


def text_of(browser: Any, url: str, expected: list[str], name: str) -> str:
    """Opens a page, waits until all the texts are on it, and returns its text."""
    browser.get("about:blank")
    browser.get(url)
    deadline = time.monotonic() + SECONDS
    found = ""
    while not all(text in found for text in expected):
        missing = [text for text in expected if text not in found]
        assert time.monotonic() < deadline, f"{missing} are not on the page: {found.split()}"
        time.sleep(2)
        found = str(browser.execute_script(ALL_TEXT))
    if "KFIT_SCREENSHOTS" in os.environ:
        time.sleep(5)  # until what is animated stands still
        browser.save_screenshot(f"{os.environ['KFIT_SCREENSHOTS']}/{name}.png")
    return found


def test_the_curves_of_training_and_validation(browser: Any, address: str) -> None:
    expected = ["run1/train", "run1/validation", "epoch_loss", "epoch_accuracy", "batch_loss"]
    text_of(browser, f"{address}/#timeseries", expected, "curves")
    lines = browser.execute_script("return document.querySelectorAll('line-chart').length")
    assert lines > 0


def test_the_histograms(browser: Any, address: str) -> None:
    text_of(browser, f"{address}/#histograms", ["kernel/histogram", "bias/histogram"], "histograms")


def test_the_graph_of_the_layers(browser: Any, address: str) -> None:
    names = ["flatten", "first", "second"]
    text = text_of(browser, f"{address}/#graphs&run=run1%2Ftrain", names, "graph")
    assert "Graph visualization failed" not in text


def test_what_takes_the_time_is_in_one_plot(browser: Any, address: str) -> None:
    text_of(browser, f"{address}/#custom_scalars", ["seconds of an epoch"], "time")


def test_the_plot_of_the_time_has_a_curve_for_each_part(address: str) -> None:
    """As TensorBoard serves it."""
    with urllib.request.urlopen(f"{address}/data/plugin/custom_scalars/layout") as answer:
        ((chart,),) = (category["chart"] for category in json.load(answer)["category"])
    (tag,) = chart["multiline"]["tag"]
    url = f"{address}/data/plugin/custom_scalars/scalars?tag={tag}&run=run1%2Ftrain"
    with urllib.request.urlopen(url) as answer:
        curves = json.load(answer)["tag_to_events"]
    assert set(curves) == {f"epoch_seconds/{part}" for part in (*PARTS, "rest")}
    assert all([epoch for _, epoch, _ in curve] == list(range(6)) for curve in curves.values())


def test_each_step_is_there_once(address: str) -> None:
    """As TensorBoard serves them."""
    url = f"{address}/data/plugin/scalars/scalars?tag=batch_loss&run=run1%2Ftrain"
    with urllib.request.urlopen(url) as answer:
        steps = [step for _, step, _ in json.load(answer)]
    assert steps == list(range(7, STEPS + 1, 7))
