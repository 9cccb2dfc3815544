"""State that programs keep in plain Python: global random generators, and attributes of objects.

Snapshots of a training contain this state, so that a resumed training continues with it. The module
`generators` does not need TensorFlow, so snapshots can be checked without it.
"""

from typing import TYPE_CHECKING

from kfit.lazy import lazy_names

if TYPE_CHECKING:
    from kfit.objects.attributes import Attributes as Attributes
    from kfit.objects.generators import Generators as Generators
else:
    __getattr__, __dir__, __all__ = lazy_names(
        globals(),
        {"kfit.objects.attributes": ["Attributes"], "kfit.objects.generators": ["Generators"]},
    )
