"""The position in training."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Progress:
    """How far training has come.

    Attributes:
        epoch: The epoch under way, from 0.
        step: Optimizer steps taken since the first epoch.
        step_in_epoch: Steps taken of the epoch under way.
    """

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0

    def advance(self, steps: int) -> None:
        """Counts `steps` more steps of this epoch."""
        self.step += steps
        self.step_in_epoch += steps

    def end_epoch(self) -> None:
        """Goes to the start of the next epoch."""
        self.epoch += 1
        self.step_in_epoch = 0

    def state_dict(self) -> dict[str, int]:
        """The position as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes to the position that `state_dict` gave.

        Raises:
            ValueError: If `state` is not one of `state_dict`.
        """
        if set(state) != set(self.state_dict()):
            raise ValueError(
                f"`state` must have the keys {sorted(self.state_dict())}. Received: {sorted(state)}"
            )
        for name, value in state.items():
            setattr(self, name, int(value))
