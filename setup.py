"""Maps the folders of the repository to the packages that are installed.

``callbacks/`` installs as ``kfit.callbacks`` and ``datasets/`` as ``kfit.datasets``; nothing is
installed under the plain names. The list of packages is computed, so a new folder with an
``__init__.py`` is picked up by itself. Everything else is in ``pyproject.toml``.
"""

from setuptools import find_packages, setup

PACKAGE_DIR = {"kfit": "kfit", "kfit.callbacks": "callbacks", "kfit.datasets": "datasets"}

packages = sorted(
    name
    for package, folder in PACKAGE_DIR.items()
    for name in [package, *(f"{package}.{child}" for child in find_packages(folder))]
)

setup(
    package_dir=PACKAGE_DIR,
    packages=packages,
    package_data={"kfit": ["py.typed"], "kfit.datasets": ["*.npz", "*.md"]},
    include_package_data=False,
)
