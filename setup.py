"""Lists the packages to install; everything else is in ``pyproject.toml``.

``callbacks/`` installs as ``kfit.callbacks`` and ``datasets/`` as ``kfit.datasets``; ``kfit/`` has
a symbolic link to each of them, so that Python, type checkers and editors find them in the sources
under the names that they have when they are installed. Nothing is installed under a plain name.
"""

from setuptools import find_packages, setup

setup(
    # Said aloud, it makes an editable install a path, which type checkers and editors can follow.
    package_dir={"": "."},
    packages=find_packages(include=["kfit", "kfit.*"]),
    package_data={"kfit": ["py.typed"], "kfit.datasets": ["*.npz", "*.md"]},
    include_package_data=False,
)
