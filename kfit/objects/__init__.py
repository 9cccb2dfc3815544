"""State that programs keep in plain Python: global random generators, and attributes of objects.

Snapshots of a training contain this state, so that a resumed training continues with it.
"""

from kfit.objects.attributes import Attributes
from kfit.objects.generators import Generators

__all__ = ["Attributes", "Generators"]
