"""PyTorch: Lightning's Trainer with the MLP, and DistributedDataParallel with the CNN.

Usage: python -m benchmarks.contestants.pytorch lightning|one_process|ddp
For ddp the environment has RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.contestants import work


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(work.FEATURES, 128), nn.ReLU(), nn.Linear(128, work.CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(26 * 26 * 32, 128),
        nn.ReLU(),
        nn.Linear(128, work.CLASSES),
    )


def lightning() -> float:
    """Seconds per step of a Trainer with default options, which logs loss and accuracy."""
    import lightning
    from torchmetrics.classification import MulticlassAccuracy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = mlp()
            self.loss = nn.CrossEntropyLoss()
            self.accuracy = MulticlassAccuracy(work.CLASSES, average="micro")

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            x, y = batch
            outputs = self.model(x)
            loss: torch.Tensor = self.loss(outputs, y)
            self.accuracy(outputs, y)
            self.log("loss", loss, prog_bar=True)
            self.log("accuracy", self.accuracy, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    size = work.size_of("mlp")
    x, y = (torch.from_numpy(each) for each in work.data("mlp"))
    loader = DataLoader(TensorDataset(x, y), size.batch_size, shuffle=True)
    module = Module()
    with tempfile.TemporaryDirectory() as folder:

        def make() -> Any:
            return lightning.Trainer(accelerator="cpu", max_epochs=1, default_root_dir=folder)

        make().fit(module, loader)
        # A single epoch is enough: it takes as long as ten epochs of the other libraries.
        return work.timed(lambda: make().fit(module, loader)) / size.steps


def plain_loop(distributed: bool) -> float:
    """Seconds per step of the training loop of PyTorch's tutorials."""
    size = work.size_of("cnn")
    x, y = (torch.from_numpy(each) for each in work.data("cnn"))
    data = TensorDataset(x.permute(0, 3, 1, 2).contiguous(), y)
    torch.manual_seed(1)
    model, loss_of = cnn(), nn.CrossEntropyLoss()
    sampler, processes = None, 1
    if distributed:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler, processes = DistributedSampler(data), int(os.environ["WORLD_SIZE"])
    loader = DataLoader(
        data, size.batch_size // processes, shuffle=sampler is None, sampler=sampler
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.001)

    def epoch() -> None:
        right = torch.zeros((), dtype=torch.int64)
        for images, labels in loader:
            optimizer.zero_grad()
            outputs = model(images)
            loss_of(outputs, labels).backward()
            optimizer.step()
            right += (outputs.argmax(1) == labels).sum()

    def epochs() -> None:
        for _ in range(size.epochs):
            epoch()

    epoch()
    seconds = work.timed(epochs)
    if distributed:
        torch.distributed.destroy_process_group()
    return seconds / size.epochs / size.steps


def main() -> None:
    """Does the work, and writes its time and memory."""
    what = sys.argv[1]
    work.tell(lightning() if what == "lightning" else plain_loop(what == "ddp"))


if __name__ == "__main__":
    main()
