"""A name that nothing reads is told, with the one that was probably meant."""

import importlib
import pkgutil

import pytest
from pydantic_settings import BaseSettings
from structlog.testing import capture_logs

from services.shared import configuration
from services.shared.configuration.all_settings import ALL_SETTINGS
from services.shared.configuration.mistyped import nearest, warn_of_unknown_variables
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.uploads import UploadLimits


def told(*names: str) -> list[tuple[str, str | None]]:
    """Return which of these variables are warned of, and which name is proposed for each."""
    with capture_logs() as lines:
        warn_of_unknown_variables(dict.fromkeys(names, "hunter2"))
    assert "hunter2" not in str(lines), "values may be secret"
    assert all((line["event"], line["log_level"]) == ("setting.unknown", "warning") for line in lines)
    return [(line["variable"], line.get("nearest")) for line in lines]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SPEAKER_UPLOAD_MAXBYTES", "SPEAKER_UPLOAD_MAX_BYTES"),
        ("SPEAKER_STORE_URI", "SPEAKER_STORE_URL"),
        ("SPEAKER_REGISTRATION_POLICY", "VLLM_OMNI_SPEAKER_REGISTRATION_POLICY"),
        ("speaker_auth_require", "SPEAKER_AUTH_REQUIRED"),
        ("SPEAKER_XYZ", None),
    ],
)
def test_a_variable_that_nothing_reads_is_told_with_the_nearest_one(name: str, meant: str | None):
    """Its value would be ignored in silence, and the default be taken."""
    assert told(name) == [(name, meant)]


def test_variables_that_are_read_are_not_told():
    """The names are accepted in any case, with a prefix or a name of their own, and so are those of
    the SDK.
    """
    fields = [f"SPEAKER_UPLOAD_{field}" for field in UploadLimits.model_fields]
    aliases = [str(field.validation_alias) for field in RegistrySettings.model_fields.values()]
    assert told(*fields, *aliases, "SPEAKER_REGISTRY_URL", "SPEAKER_REGISTRY_API_KEY", "PATH") == []


def test_every_class_of_settings_is_listed():
    """A class that is not listed has no row in the table for operators. A process that does not load it would
    also tell its variables as unknown.
    """
    names = [one.name for one in pkgutil.iter_modules(configuration.__path__, f"{configuration.__name__}.")]
    in_modules = [vars(importlib.import_module(name)).values() for name in names]
    classes = {one for members in in_modules for one in members if isinstance(one, type)}
    settings = {one for one in classes if issubclass(one, BaseSettings)} - {BaseSettings}
    assert settings == {*ALL_SETTINGS}


def test_variables_that_kubernetes_sets_for_a_service_are_not_told():
    """It sets them in every container, for each Service of the namespace."""
    port = "SPEAKER_REGISTRY_PORT_8300_TCP"
    assert told("SPEAKER_REGISTRY_SERVICE_HOST", "SPEAKER_REGISTRY_SERVICE_PORT", port, f"{port}_ADDR") == []
    assert told("SPEAKER_REGISTRY_PORT") == [("SPEAKER_REGISTRY_PORT", "SPEAKER_REGISTRY_URL")]


def test_a_name_of_any_length_is_compared_quickly():
    """A request may hold one of kilobytes; only its beginning is looked at."""
    assert nearest("profile" + "x" * 16_000, ["profile", "profile" + "x" * 121]) == "profile" + "x" * 121
