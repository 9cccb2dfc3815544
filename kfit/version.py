"""The version of kfit that is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kfit")
except PackageNotFoundError:  # sources that are not installed
    __version__ = "0+unknown"
