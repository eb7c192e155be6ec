"""Programs that these tests run and Python packages do not bring. `.ci/run` installs them."""

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """Its path. Skips the test where it is not installed, but never where all checks must run."""
    found = shutil.which(name)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed, and .ci/run has to see to that")
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package {package})")
    return found
