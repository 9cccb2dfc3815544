"""How far a program has come: in which of its `fit`s, and at which step of it.

A program may call `fit` several times, and each begins at step 0 again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Reached:
    """The place that a program has reached: a `fit`, and a step of it.

    Places can be compared. A later `fit` is beyond any step of an earlier one.

    Attributes:
        fit: The number of the training `fit` in the program, from 0.
        step: The number of steps of this `fit`, including those before a resume.
    """

    fit: int = 0
    step: int = 0

    @property
    def in_words(self) -> str:
        """The place in words such as "after step 6 of the third `fit`".

        They are empty at the very beginning. Most programs have one `fit`, so the first one is not
        named.
        """
        if not self.fit:
            return f"after step {self.step}" if self.step else ""
        where = f"the {nth(self.fit)} `fit`"
        return f"after step {self.step} of {where}" if self.step else f"at the beginning of {where}"


def nth(number: int) -> str:
    """Returns the place of a `fit` in the program in words: "first" for the number 0."""
    if number < 3:
        return ("first", "second", "third")[number]
    count = number + 1
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{count}{endings.get(count % 10, 'th') if count // 10 % 10 != 1 else 'th'}"
