"""Tests of variables of the environment that httpx reads, and of what is said about proxies."""

import asyncio
import io
import sys
from typing import Any

import httpx
import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient, errors
from speaker_registry.cli import main
from speaker_registry.pushing.speech_server import SpeechServer
from tests.ports import free_port

URL = "http://registry.test"
UNUSABLE = [
    ("ALL_PROXY", "socks5://user:hunter2@127.0.0.1:9", "socksio"),
    ("HTTP_PROXY", "http://hunter2@[::1", "accepted: http://host:port"),
    ("HTTPS_PROXY", "ftp://user:hunter2@127.0.0.1:9", "accepted: http://host:port"),
    ("NO_PROXY", "http://[::1", "accepted: hosts, comma-separated"),
    ("SSL_CERT_FILE", "/nope", "'/nope'; certificates cannot be read from it: No such file or directory"),
    ("SSL_CERT_FILE", __file__, "certificates cannot be read from it"),
]


@pytest.fixture(autouse=True)
def without_socksio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)


@pytest.mark.parametrize("make", [RegistryClient, AsyncRegistryClient, SpeechServer])
@pytest.mark.parametrize(("variable", "value", "told"), UNUSABLE)
def test_a_variable_that_httpx_cannot_use_is_named(
    monkeypatch: pytest.MonkeyPatch, make: Any, variable: str, value: str, told: str
):
    """httpx raises errors of many kinds, which do not say where the value comes from."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=variable) as caught:
        make(URL)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("words", [("list", "--url", URL), ("login", "--url", URL)])
def test_the_command_line_says_so_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
):
    """It is wrong usage, like an address that is none."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setattr("sys.stdin", io.StringIO("sreg_key\n"))
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("speaker-registry: ALL_PROXY cannot be used")


def test_a_variable_that_is_not_set_is_not_blamed(monkeypatch: pytest.MonkeyPatch):
    """Too many open files have nothing to do with the certificates of the environment."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("httpx.Client", fail)
    with pytest.raises(OSError, match="Too many open files"):
        RegistryClient(URL)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_error_names_the_proxy_that_was_asked(monkeypatch: pytest.MonkeyPatch, host: str):
    """Otherwise a person looks for the fault at the registry. The proxy's password is not shown."""
    port = free_port()
    monkeypatch.setenv("HTTP_PROXY", f"http://user:hunter2@{host}:{port}")
    told = f"no answer from {URL} through the proxy http://{host}:{port}: "
    with RegistryClient(URL, retries=0) as client, pytest.raises(errors.Unavailable) as caught:
        client.quota()
    assert str(caught.value).startswith(told)

    async def ask() -> None:
        async with AsyncRegistryClient(URL, retries=0) as client:
            await client.quota()

    with pytest.raises(errors.Unavailable) as caught:
        asyncio.run(ask())
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("reason", "hinted"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", True),
        ("[Errno 111] Connection refused", False),
    ],
)
def test_a_certificate_that_nobody_vouches_for_leads_to_the_variable(reason: str, hinted: bool):
    """A registry in a company's network often has a certificate of the company's own authority."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(reason, request=request)

    with (
        RegistryClient(URL, retries=0, transport=httpx.MockTransport(refuse)) as client,
        pytest.raises(errors.Unavailable, match="no answer") as caught,
    ):
        client.quota()
    assert ("set SSL_CERT_FILE" in str(caught.value)) == hinted
