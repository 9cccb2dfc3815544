"""Damages a snapshot on the disk, as a failing disk or a broken copy would."""

import os
import random
from pathlib import Path


def damage(snapshot: Path, draw: random.Random) -> str:
    """Flips a bit of one file of a snapshot, or cuts the file off; returns what was done."""
    file = draw.choice(sorted(path for path in snapshot.iterdir() if path.is_file()))
    size = file.stat().st_size
    place = draw.randrange(size)
    if draw.random() < 0.5:
        os.truncate(file, place)
        return f"cut {file.name} off after {place} of {size} bytes"
    with open(file, "r+b") as opened:
        opened.seek(place)
        [byte] = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ (1 << draw.randrange(8))]))
    return f"flipped a bit of byte {place} of {file.name}"
