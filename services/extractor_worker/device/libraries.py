"""The versions of the libraries that compute a part of an artifact."""

from importlib import import_module


def library_versions(*names: str) -> dict[str, str]:
    """Return `major.minor` of each library, for the fingerprint.

    Patch releases are left out, because they only fix errors.

    Args:
        names: modules that have a `__version__`.
    """
    return {name: ".".join(import_module(name).__version__.split(".")[:2]) for name in names}
