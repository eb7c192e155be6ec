"""The environment variables that our processes read, and reading settings from some."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from pydantic_settings import BaseSettings

from services.shared.configuration.all_settings import ALL_SETTINGS
from services.shared.configuration.explanation import variable_of

FOREIGN = {
    *("HOME", "HF_HOME", "PATH"),
    *("NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
}
"""Read by others in our processes."""


VARIABLES = {variable_of(cls, field) for cls in ALL_SETTINGS for field in cls.model_fields}


@contextmanager
def only(environment: Mapping[str, str]) -> Iterator[None]:
    """The process has these variables and no others."""
    with patch.dict("os.environ", environment, clear=True):
        yield


def check(environment: Mapping[str, str]) -> None:
    """Every variable is known, and every value valid. Raises AssertionError or ValidationError."""
    unknown = environment.keys() - VARIABLES - FOREIGN
    assert not unknown, f"nobody reads {sorted(unknown)}"
    with only(environment):
        for cls in ALL_SETTINGS:
            if {variable_of(cls, field) for field in _required(cls)} <= environment.keys():
                cls()


def _required(cls: type[BaseSettings]) -> list[str]:
    """Return the fields that must be set. A process that sets none of them does not read the class."""
    return [field for field, info in cls.model_fields.items() if info.is_required()]
