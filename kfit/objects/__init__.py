"""State that programs keep in plain Python: global random generators, and attributes of objects."""

from kfit.objects.attributes import Attributes
from kfit.objects.generators import Generators

__all__ = ["Attributes", "Generators"]
