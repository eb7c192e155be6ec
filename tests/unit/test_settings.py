"""Tests of the messages about variables whose value is not accepted."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.embedded.settings import EmbeddedSettings
from services.shared.configuration.access import AccessSettings
from services.shared.configuration.all_settings import ALL_SETTINGS
from services.shared.configuration.api import ApiSettings
from services.shared.configuration.explanation import explain, variable_of
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.telemetry import LogSettings, MetricsSettings, TracesSettings
from services.shared.configuration.uploads import UploadLimits
from services.shared.configuration.worker import ExtractorSettings


class Guarded(BaseSettings):
    """Settings with values that must not be seen."""

    model_config = SettingsConfigDict(env_prefix="GUARDED_", env_ignore_empty=True)

    api_key: str = Field("", max_length=3)
    word: SecretStr | None = Field(None, max_length=3)
    url: str = Field("", max_length=3)


def told(settings: type[BaseSettings], **given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        settings.model_validate(given)
    return explain(caught.value)


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch):
    """Compose files pass variables on that nobody has set."""
    for name in UploadLimits.model_fields:
        monkeypatch.setenv(f"SPEAKER_UPLOAD_{name.upper()}", "")
    assert UploadLimits().max_bytes == 10 * 1024**2


def test_a_wrong_value_is_shown(monkeypatch: pytest.MonkeyPatch):
    """It may come from a file that whoever reads the message has not opened yet."""
    monkeypatch.setenv("SPEAKER_UPLOAD_MAX_BYTES", "10MB")
    monkeypatch.setenv("SPEAKER_UPLOAD_DECODERS", "0")
    with pytest.raises(ValidationError) as caught:
        UploadLimits()
    assert explain(caught.value).splitlines() == [
        "SPEAKER_UPLOAD_MAX_BYTES: accepted: a whole number from 1 to 1125899906842624; it is '10MB'",
        "SPEAKER_UPLOAD_DECODERS: accepted: a whole number from 1 to 1000000000; it is '0'",
    ]
    levels = "'DEBUG', 'INFO', 'WARNING', 'ERROR'"
    assert told(LogSettings, level="LOUD") == f"SPEAKER_LOG_LEVEL: accepted: {levels}; it is 'LOUD'"
    attempts = "SPEAKER_MAX_ATTEMPTS: accepted: a whole number from 1 to 4; it is '9'"
    assert told(RegistrySettings, SPEAKER_MAX_ATTEMPTS="9") == attempts
    assert told(RegistrySettings, max_attempts="9").endswith("a whole number from 1 to 4; it is '9'")


def test_a_voice_has_no_more_versions_than_its_document_holds():
    """A document holds all versions of a voice, and every change of the voice writes it anew. An operator who
    asks for more learns the limit at the start, and not at an upload.
    """
    refused = told(RegistrySettings, SPEAKER_MAX_VERSIONS="201")
    assert refused == "SPEAKER_MAX_VERSIONS: accepted: a whole number from 1 to 200; it is '201'"
    assert RegistrySettings().max_versions == RegistrySettings(max_versions=200).max_versions == 200


def test_a_value_is_not_told_twice():
    """Our own messages name it."""
    said = told(EmbeddedSettings, profiles="qwen3")
    assert said.count("'qwen3'") == 1


@pytest.mark.parametrize("name", ["api_key", "word"])
def test_what_may_be_a_secret_is_not_shown(name: str):
    """The name or the type of a setting marks it as a secret. The line goes to a log."""
    assert "hunter2" not in told(Guarded, **{name: "hunter2"})


def test_credentials_in_a_url_are_not_shown():
    """Some tools take them there, so somebody will try it with ours."""
    shown = told(StoreSettings, url="s3://key:sec/ret@voices")
    assert shown.endswith("it is 's3://…@voices'")


def test_of_settings_that_contradict_each_other_only_the_message_is_shown():
    """Pydantic gives everything that was set as the value of such an error."""
    said = told(StoreSettings, url="s3://voices", secret_access_key="hunter2")
    assert said == (
        "SPEAKER_STORE_ACCESS_KEY_ID and SPEAKER_STORE_SECRET_ACCESS_KEY (or …_FILE) go together: one of the "
        "two is missing"
    )


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (StoreSettings, {"url": "s3://voices", "secret_access_key": "x"}),
        (StoreSettings, {"url": "s3://voices", "endpoint": "http://s3.example.org"}),
        (UploadLimits, {"min_seconds": 9, "max_seconds": 8}),
        (UploadLimits, {"held_bytes": 1}),
        (RegistrySettings, {"redis_password": "x", "redis_password_file": __file__}),
        (AccessSettings, {"bootstrap_key": "x", "bootstrap_key_file": __file__}),
        (AccessSettings, {"oidc_issuer": "https://issuer.example"}),
        (AccessSettings, {"oidc_audience": "speaker-registry"}),
        (AccessSettings, {"oidc_issuer": "http://issuer.example", "oidc_audience": "x"}),
    ],
)
def test_settings_that_contradict_each_other_are_called_as_they_are_set(
    settings: type[BaseSettings], given: dict[str, Any]
):
    """An operator who sets variables does not know the names of our fields."""
    said = told(settings, **given)
    assert any(variable_of(settings, field) in said for field in given)
    assert not any(f" {field}" in f" {said}" for field in settings.model_fields if "_" in field)


@pytest.mark.parametrize(
    "issuer",
    [
        "https://a.example//",
        "https://a.example/?b",
        "https://a.example/#b",
        "https://",
        "https:///",
        "ftp://a",
        "https://a b.example",
        "https://a.example/b ",
    ],
)
def test_an_address_that_no_issuer_has_is_refused(issuer: str):
    """OpenID Connect Discovery allows neither a query nor a fragment. One slash may end the address."""
    AccessSettings(oidc_issuer="https://a.example/b/", oidc_audience="x")
    assert "SPEAKER_AUTH_OIDC_ISSUER" in told(AccessSettings, oidc_issuer=issuer, oidc_audience="x")


@pytest.mark.parametrize("kind", ["missing", "folder", "unreadable"])
def test_the_file_of_a_secret_that_cannot_be_read_is_named(kind: str, tmp_path: Path):
    """Its name is no secret, and without it nobody knows what to look at."""
    file = tmp_path / "key"
    if kind == "folder":
        file.mkdir()
    elif kind == "unreadable":
        file.symlink_to(file)
    said = told(StoreSettings, url="s3://voices", access_key_id="GK1", secret_access_key_file=str(file))
    reason = {
        "missing": "this file cannot be read: No such file or directory",
        "folder": "this is not a regular file",
        "unreadable": "this file cannot be read: Too many levels of symbolic links",
    }[kind]
    assert said == f"SPEAKER_STORE_SECRET_ACCESS_KEY_FILE: {reason}; it is '{file}'"


@pytest.mark.parametrize("secret", ["hunter2", "hun/ter/2", "/hunter2", "/hun/ter2", "h" * 300 + "/2"])
def test_a_secret_that_was_set_where_its_file_belongs_is_not_shown(secret: str):
    """A mistake that is easily made, and the line goes to a log."""
    said = told(StoreSettings, url="s3://voices", access_key_id="GK1", secret_access_key_file=secret)
    assert said.startswith("SPEAKER_STORE_SECRET_ACCESS_KEY_FILE: this file cannot be read: ")
    assert said.endswith("its value may be a secret, and is not shown")
    assert secret not in said


def test_what_is_missing_has_no_value():
    assert told(StoreSettings) == "SPEAKER_STORE_URL: it must be set"


REDIS_URLS = "redis://host:6379/0, rediss://host:6379/0 or unix:///path?db=0"


@pytest.mark.parametrize(
    "url",
    [
        "http://x",
        "redis://[",
        "redis://a..b:6379/0",
        "redis://127.0.0.1:99999/0",
        "redis://127.0.0.1:port/0",
        "redis://127.0.0.1/notanumber",
        "redis://127.0.0.1/0?no_such_option=1",
        "redis://127.0.0.1/0?socket_timeout=soon",
        "redis://127.0.0.1/0?protocol=5",
        "rediss://127.0.0.1/0?ssl_cert_reqs=x",
        "unix://",
    ],
)
def test_a_url_that_redis_cannot_be_reached_by_is_named(url: str):
    """Each process would otherwise end with a traceback of redis-py, or use another database."""
    shown = re.sub("=.*", "=…", url)
    assert told(RegistrySettings, SPEAKER_REDIS_URL=url) == (
        f"SPEAKER_REDIS_URL: accepted: {REDIS_URLS}; it is '{shown}'"
    )
    assert told(EmbeddedSettings, redis_url=url).startswith(f"REDIS_URL: accepted: {REDIS_URLS}; ")


@pytest.mark.parametrize(
    "url",
    [
        "http://:hunter2@h",
        "redis://:hunter2/@h:6379/0",
        "u:hunter2@h:6379",
        "http://h?password=hunter2&db=0",
        "http://:hunter2\n@h",
    ],
)
def test_the_password_in_a_wrong_url_is_not_shown(url: str):
    """The line goes to a log. A person who forgets `redis://` has written the password nevertheless."""
    said = told(RegistrySettings, SPEAKER_REDIS_URL=url)
    assert said.startswith("SPEAKER_REDIS_URL: accepted: ")
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "url",
    [
        "https://u:hunter2@s3.example.org",
        "https://u:hun?ter/2@s3.example.org:9000",
        "https://hunter2@s3.example.org/",
        "https://s3.example.org?X-Amz-Credential=id&X-Amz-Signature=hunter2",
        "s3.example.org?X-Amz-Signature=hunter2",
    ],
)
def test_credentials_in_the_endpoint_of_the_bucket_are_refused_and_not_shown(url: str):
    """The store gets its credentials by other settings. The bucket records the endpoint, and logs show it."""
    said = told(StoreSettings, url="s3://voices", endpoint=url)
    assert said.startswith("SPEAKER_STORE_ENDPOINT: expected only https://host or https://host:port; ")
    assert "hunter2" not in said
    assert "s3.example.org" in said


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379",
        "rediss://user:pass@redis.example:6380/15",
        "unix:///tmp/my%20data/valkey.sock?db=0",
        "redis://[::1]:6379/0?protocol=3",
    ],
)
def test_urls_of_redis_are_taken_as_they_are(url: str):
    assert RegistrySettings(redis_url=url).redis_address == url


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (RegistrySettings, "redis_password_file"),
        (AccessSettings, "bootstrap_key_file"),
        (AccessSettings, "oidc_client_secret_file"),
        (StoreSettings, "secret_access_key_file"),
    ],
)
@pytest.mark.parametrize(("content", "fault"), [(b"\xff\xfe", "holds no UTF-8 text"), (b" \n", "is empty")])
def test_the_file_of_a_secret_that_holds_no_text_is_named(
    settings: type[BaseSettings],
    field: str,
    content: bytes,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The process would otherwise end with an error of decoding that names neither setting nor file, or would
    pass over a file that is empty.
    """
    file = tmp_path / "secret"
    file.write_bytes(content)
    variable = variable_of(settings, field)
    monkeypatch.setenv("SPEAKER_STORE_URL", "s3://voices")
    monkeypatch.setenv(variable, str(file))
    with pytest.raises(ValidationError) as caught:
        settings()
    assert explain(caught.value).startswith(f"{variable}: this file {fault}; ")


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        (StoreSettings, "endpoint", "http://[::1"),
        (StoreSettings, "endpoint", "https://s3.example.org:99999"),
        (StoreSettings, "endpoint", "https://a..b"),
        (AccessSettings, "oidc_issuer", "https://[::1"),
        (TracesSettings, "endpoint", "http://[::1"),
        (TracesSettings, "endpoint", "http://:4318/v1/traces"),
    ],
)
def test_a_url_without_a_usable_host_is_named(settings: type[BaseSettings], field: str, value: str):
    """A library would complain of an IPv6 address, without the name of the setting."""
    given = {"url": "s3://voices"} if settings is StoreSettings else {}
    said = told(settings, **given, **{field: value})
    assert said == (
        f"{variable_of(settings, field)}: this is not the URL of a server, such as https://example.org:9000; "
        f"it is '{value}'"
    )


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (EmbeddedSettings, "host"),
        (EmbeddedSettings, "data"),
        (EmbeddedSettings, "weights"),
        (EmbeddedSettings, "profiles"),
        (ApiSettings, "host"),
        (RegistrySettings, "SPEAKER_REDIS_PASSWORD"),
        (AccessSettings, "bootstrap_key"),
    ],
)
def test_bytes_that_are_no_text_are_named(settings: type[BaseSettings], field: str):
    """Python keeps them as surrogates, which nothing can send or write as a URL."""
    assert ": this is not UTF-8 text; " in told(settings, **{field: "\udcff"})


@pytest.mark.parametrize("settings", [EmbeddedSettings, ApiSettings, MetricsSettings])
@pytest.mark.parametrize("host", ["a..b", "a" * 64, "ü" * 80])
def test_a_host_that_no_machine_can_have_is_named(settings: type[BaseSettings], host: str):
    """Python's lookup of names raises UnicodeError for it, and not OSError as for other hosts."""
    said = told(settings, host=host)
    requirement = "this is neither an address nor the name of a machine"
    assert said == f"{variable_of(settings, 'host')}: {requirement}; it is '{host}'"


@pytest.mark.parametrize("device", ["notcpu", "cpus", "CPU", "gpu,cuda", "cuda:", "cuda:x", "cuda:256"])
def test_a_device_that_there_is_not_is_named(device: str):
    """The worker would otherwise end with an error of torch, or compute on another GPU."""
    assert told(ExtractorSettings, weights="untrained", device=device) == (
        "SPEAKER_EXTRACTOR_DEVICE: accepted: cpu, cuda, or cuda:N with the number of a GPU from 0 to 99; "
        f"it is '{device}'"
    )


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:15"])
def test_devices_are_accepted(device: str):
    assert ExtractorSettings(weights="untrained", device=device).device == device


@pytest.mark.parametrize(
    "origin",
    [
        "https://page.example/",
        "https://Page.example",
        "https://page.example:443",
        "http://page.example:80",
        "https://page.example:00443",
        "http://page.example:08080",
        "http://page.example:99999",
        "http://page..example",
        "http://[:]",
        "http://[0:0::1]",
        "https://*.page.example",
        "page.example",
        "null",
    ],
)
def test_an_entry_that_is_not_an_origin_is_named(origin: str):
    """Most of them would never match, and nothing would tell the operator. Sandboxed pages send `null`."""
    said = told(ApiSettings, cors_origins=f"https://good.example,{origin}")
    assert said.startswith(f"SPEAKER_API_CORS_ORIGINS: '{origin}' is not an origin; accepted: ")


def test_origins_are_accepted():
    origins = ("*", "https://page.example", "http://localhost:3000", "http://[::1]:8443", "app+x://id")
    assert ApiSettings.model_validate({"cors_origins": ", ".join(origins)}).cors_origins == origins


def test_weights_whose_path_is_too_long_are_named():
    assert told(EmbeddedSettings, weights="a" * 5000).startswith("WEIGHTS: this folder cannot be used: File")


@pytest.mark.parametrize("value", ["inf", "nan", "1e308", "9" * 26])
def test_every_number_has_an_upper_bound(value: str):
    """Timers, dates, the kernel's limits and Redis overflow at numbers that nobody needs."""
    for settings in ALL_SETTINGS:
        for field, known in settings.model_fields.items():
            if re.search(r"\b(int|float)\b", str(known.annotation)):
                name = known.validation_alias or field
                given = {"url": "s3://voices", "weights": "untrained", str(name): value}
                assert f"{variable_of(settings, field)}: accepted: " in told(settings, **given)


def test_a_registry_requires_a_profile():
    """A lone comma is a slip. Without required profiles, uploads would be accepted and nothing made of
    them.
    """
    assert told(RegistrySettings, SPEAKER_PROFILES=" , ") == (
        "SPEAKER_PROFILES: no profile is given; name at least one, such as qwen3-tts-0.6b; it is ' , '"
    )
