"""Tests of what `serving/connections.py` expects of uvicorn's internals, which no version number promises."""

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


def test_only_the_minor_version_is_accepted_that_was_looked_at():
    """Another one is looked at first, and this file with it."""
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    [wanted] = [line for line in extras["api"] if line.startswith("uvicorn")]
    major, minor, _ = version("uvicorn").split(".")
    assert f">={major}.{minor}" in wanted
    assert f"<{major}.{int(minor) + 1}" in wanted


def test_a_request_is_made_of_what_we_give_it():
    """`HttpConnection` makes them itself, so that they end a connection with an unread body."""
    assert list(inspect.signature(RequestResponseCycle).parameters) == [
        "scope",
        "transport",
        "flow",
        "logger",
        "access_logger",
        "access_log",
        "default_headers",
        "message_event",
        "expect_100_continue",
        "keep_alive",
        "on_response",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "body",
        "more_body",
        "disconnected",
        "keep_alive",
        "response_started",
        "response_complete",
        "chunked_encoding",
        "expected_content_length",
    ],
)
def test_a_request_keeps_its_state_where_we_look_for_it(name: str):
    """`more_body` says that the client has not sent everything, `body` holds what nobody has read."""
    source = inspect.getsource(RequestResponseCycle)
    assert f"self.{name} = " in source
    assert f"self.{name}" in inspect.getsource(RequestResponseCycle.send) + inspect.getsource(
        RequestResponseCycle.receive
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("connection_made", ["self", "transport"]),
        ("connection_lost", ["self", "exc"]),
        ("data_received", ["self", "data"]),
        ("on_message_begin", ["self"]),
        ("on_header", ["self", "name", "value"]),
        ("on_headers_complete", ["self"]),
        ("on_body", ["self", "body"]),
        ("on_message_complete", ["self"]),
        ("on_response_complete", ["self"]),
        ("pause_writing", ["self"]),
        ("shutdown", ["self"]),
        ("_start_asgi_task", ["self", "cycle", "app"]),
    ],
)
def test_the_protocol_has_the_methods_that_we_override_or_call(name: str, parameters: list[str]):
    """One that is renamed would be overridden in vain, and a bound with it."""
    assert list(inspect.signature(getattr(HttpToolsProtocol, name)).parameters) == parameters


@pytest.mark.parametrize("name", ["pause_reading", "resume_reading"])
def test_the_flow_can_be_held(name: str):
    """Both say in `read_paused` what they have done."""
    assert "self.read_paused = " in inspect.getsource(getattr(FlowControl, name))
