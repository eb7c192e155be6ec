"""Which versions of libraries computed a part of an artifact that we do not compute ourselves."""

from importlib import import_module


def library_facts(*names: str) -> dict[str, str]:
    """What a fingerprint says of them: name -> `major.minor`. Patches mend; they do not compute anew.

    Args:
        names: of modules, which have a `__version__`.
    """
    return {name: ".".join(import_module(name).__version__.split(".")[:2]) for name in names}
