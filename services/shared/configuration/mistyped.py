"""Finds environment variables that nothing reads, and the known names that were probably meant. It never
looks at values.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping

import structlog
from pydantic_settings import BaseSettings

from services.shared.configuration.all_settings import ALL_SETTINGS
from services.shared.configuration.explanation import variable_of
from speaker_registry.environment import SDK_VARIABLES

log = structlog.get_logger()

_PREFIX = "SPEAKER_"
_LIKENESS = 0.8
"""Least similarity, from 0 to 1, at which a known variable is suggested. It is high because all variables
have their prefix in common.
"""
_COMPARED_CHARACTERS = 128
"""Largest number of characters of a name that are compared. The time grows with the square of the length, and
names in requests can have any length.
"""


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name that is most similar to this one, or None if no similarity reaches `likeness` (0
    to 1).
    """
    found = difflib.get_close_matches(name[:_COMPARED_CHARACTERS], sorted(known), n=1, cutoff=likeness)
    return found[0] if found else None


def warn_of_unknown_variables(environment: Mapping[str, str] = os.environ) -> None:
    """Log each environment variable that has our prefix and that no setting reads.

    Unknown variables are not refused, because other programs may use the prefix as well. Values are not
    logged.
    """
    known = _known_variables()
    for name in _unknown(environment, known):
        meant = nearest(name.upper(), known, likeness=_LIKENESS)
        log.warning("setting.unknown", variable=name, **({"nearest": meant} if meant else {}))


def _known_variables() -> frozenset[str]:
    """Return the variables of all settings, those of further classes that are loaded, and those of the SDK.

    A process also knows the variables of other programs, because all of them may share one environment.
    """
    classes = {*ALL_SETTINGS, *BaseSettings.__subclasses__()}
    settings = {variable_of(cls, field) for cls in classes for field in cls.model_fields}
    return frozenset({*settings, *SDK_VARIABLES})


def _unknown(environment: Mapping[str, str], known: frozenset[str]) -> Iterator[str]:
    """Yield the variables that have our prefix and are not known, in any case of letters, as when settings
    are read.

    Kubernetes sets variables in every container for each Service. Variables of a Service called `speaker-…`
    are not mistakes and are left out.
    """
    services = [name.removesuffix("SERVICE_HOST") for name in environment if name.endswith("_SERVICE_HOST")]
    not_ours = tuple(f"{service}{kind}" for service in services for kind in ("SERVICE_", "PORT"))
    for name in sorted(environment):
        if name.upper().startswith(_PREFIX) and name.upper() not in known and not name.startswith(not_ours):
            yield name
