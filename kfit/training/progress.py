"""The position in a training: the epoch and the step."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Progress:
    """The position in a training: how many epochs and steps are done.

    Attributes:
        epoch: The index of the current epoch, from 0.
        step: The number of training steps taken since the first epoch began.
        step_in_epoch: The number of steps taken in the current epoch.
    """

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0

    def advance(self, steps: int) -> None:
        """Adds `steps` to the number of steps taken."""
        self.step += steps
        self.step_in_epoch += steps

    def end_epoch(self) -> None:
        """Moves the position to the start of the next epoch."""
        self.epoch += 1
        self.step_in_epoch = 0

    def state_dict(self) -> dict[str, int]:
        """Returns the position as plain numbers by name, for a snapshot."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Sets the position to one that `state_dict` has returned, when training resumes.

        Raises:
            ValueError: If `state` has other keys than the result of `state_dict`.
        """
        if set(state) != set(self.state_dict()):
            raise ValueError(
                f"`state` must have the keys {sorted(self.state_dict())}. Received: {sorted(state)}"
            )
        for name, value in state.items():
            setattr(self, name, int(value))
