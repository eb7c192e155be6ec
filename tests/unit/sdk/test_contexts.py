"""Contexts: which registry and key a command uses, where they are kept, and that no key leaks."""

import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient
from speaker_registry.contexts import (
    Context,
    ContextError,
    changing_contexts,
    config_path,
    connection,
    read_contexts,
)
from tests.unit.sdk.conftest import Run
from tests.unit.sdk.fake_registry import URL, FakeRegistry, error_answer

KEY = "sreg_4dtqrws3_" + "k" * 43
Enter = Callable[[str], None]


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Makes standard input hold a text."""

    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return give


@pytest.fixture(autouse=True)
def no_address(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEAKER_REGISTRY_URL")


def keep(name: str, url: str = URL, **more: str) -> None:
    with changing_contexts() as change:
        change.contexts = change.contexts.with_current(name, Context(url=url, **more))


def key_of(registry: FakeRegistry) -> str | None:
    sent: str | None = registry.requests[-1].headers.get("authorization")
    return sent


def test_login_keeps_a_key_that_the_registry_accepts(run: Run, registry: FakeRegistry, enter: Enter):
    """The next command needs neither address nor key."""
    enter(f"{KEY}\n")
    outcome = run("login", "prod", "--url", URL, "--namespace", "tenant-1")
    assert outcome.status == 0
    assert KEY not in outcome.out + outcome.err
    assert run("list").status == 0
    assert key_of(registry) == f"Bearer {KEY}"
    assert registry.requests[-1].headers["x-speaker-namespace"] == "tenant-1"


def test_only_the_user_can_read_the_file(run: Run, enter: Enter):
    """It holds keys; a umask that is too open must not show them."""
    before = os.umask(0)
    try:
        enter(KEY)
        assert run("login", "prod", "--url", URL).status == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(config_path().parent.stat().st_mode) == 0o700


def test_a_file_that_others_can_read_is_refused_with_the_command_that_mends_it(run: Run):
    """Like ssh with its keys: whoever could read it may have the key."""
    keep("prod", api_key=KEY)
    config_path().chmod(0o640)
    outcome = run("list")
    assert outcome.status == 2
    assert f"chmod 600 {config_path()}" in outcome.err
    assert KEY not in outcome.err


def test_a_refused_key_is_not_kept(run: Run, registry: FakeRegistry, enter: Enter):
    """A typing error shows at once, and does not replace the key that works."""
    keep("prod", api_key=KEY)
    registry.faults.append(error_answer(401, "invalid_api_key"))
    enter("sreg_other")
    assert run("login", "prod").status == 4
    assert read_contexts().get("prod").api_key == KEY


def test_a_key_is_asked_for_on_a_terminal_and_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch):
    """The prompt names the registry that will get the key."""
    prompts: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: prompts.append(prompt) or KEY)
    assert run("login", "--url", URL).status == 0
    assert URL in prompts[0]
    assert read_contexts().current == "registry.test"


def test_no_command_takes_a_key_as_an_argument(run: Run):
    """Other users of the machine see arguments in the list of processes."""
    assert run("login", "prod", "--url", URL, "--api-key", KEY).status == 2
    assert run("login", "prod", KEY, "--url", URL).status == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("login",), "login NAME --url URL"),
        (("login", "a b", "--url", URL), "'a b'; accepted: 1 to 64 letters"),
        (("login", "prod", "--url", "ftp://x"), "https://host"),
        (("login", "prod", "--url", URL, "--namespace", "A!"), "'A!'; accepted"),
        (("logout",), "logout NAME"),
        (("logout", "prod"), "'prod'; known: none"),
        (("contexts", "use", "prod"), "login NAME --url URL"),
        (("contexts", "remove", "prod"), "'prod'; known: none"),
        (("list", "--context", "prod"), "'prod'; known: none"),
        (("list", "--context", "prod", "--url", URL), "either an address or a context"),
        (("list",), "login NAME --url URL"),
    ],
)
def test_each_error_names_what_helps(run: Run, enter: Enter, words: tuple[str, ...], said: str):
    """Nobody has to look for the next step."""
    enter("")
    outcome = run(*words)
    assert outcome.status == 2
    assert said in outcome.err
    assert not config_path().exists() or not read_contexts().by_name


def test_a_key_that_is_too_long_is_not_read(run: Run, enter: Enter):
    """Somebody gave the wrong file."""
    enter("k" * 100_000)
    outcome = run("login", "prod", "--url", URL)
    assert outcome.status == 2
    assert "8192" in outcome.err


def test_contexts_are_listed_chosen_and_removed(run: Run, enter: Enter):
    """The list shows the ids of keys, and never a key."""
    keep("prod", api_key=KEY)
    keep("lab", "http://lab.test", api_key="a-token")
    outcome = run("contexts", "list")
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["CURRENT", "NAME", "URL", "NAMESPACE", "KEY"],
        ["*", "lab", "http://lab.test", "-", "token"],
        ["prod", URL, "-", "4dtqrws3"],
    ]
    assert run("contexts", "use", "prod").status == 0
    assert read_contexts().current == "prod"
    enter("")
    assert run("contexts", "remove", "prod").status == 2  # asks first
    assert run("contexts", "remove", "prod", "--yes").status == 0
    assert (set(read_contexts().by_name), read_contexts().current) == ({"lab"}, None)
    assert "contexts use NAME" in run("list").err


def test_logout_forgets_the_key_and_says_that_it_is_still_accepted(run: Run, registry: FakeRegistry):
    """A key that was left on a lost laptop must be revoked, not only forgotten."""
    keep("prod", api_key=KEY)
    outcome = run("logout")
    assert outcome.status == 0
    assert "keys revoke 4dtqrws3" in outcome.err
    assert "the bootstrap key, until the API is started with another one" in outcome.err
    assert KEY not in config_path().read_text()
    assert run("list").status == 0
    assert key_of(registry) is None


def test_logout_advises_nobody_to_revoke_a_token(run: Run):
    """A token of an OpenID provider is no key of the registry, and has no id."""
    keep("prod", api_key="eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl")
    outcome = run("logout")
    assert "the registry still accepts the token until it expires" in outcome.err
    assert "keys revoke" not in outcome.err


def test_what_wins_over_what(monkeypatch: pytest.MonkeyPatch):
    """The most explicit choice wins, and a key never goes to another address than the one it is kept with."""
    keep("lab", "http://lab.test", api_key="lab-key")
    keep("prod", "http://prod.test", api_key="prod-key", namespace="n")
    prod = {"url": "http://prod.test", "api_key": "prod-key", "namespace": "n"}
    lab = {"url": "http://lab.test", "api_key": "lab-key", "namespace": ""}
    assert connection() == prod
    monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", "other-key")
    assert connection() == prod | {"api_key": "other-key"}
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", "http://environment.test")
    assert connection() == {}
    monkeypatch.setenv("SPEAKER_REGISTRY_CONTEXT", "lab")
    assert connection() == lab
    assert connection(context="prod") == prod
    assert connection("http://argument.test") == {"url": "http://argument.test"}


def test_the_environment_lends_no_key_to_a_named_context(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """The key of one registry would otherwise be shown to another."""
    keep("open")
    monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", "key-of-another")
    monkeypatch.setenv("SPEAKER_REGISTRY_NAMESPACE", "another")
    assert run("list", "--context", "open").status == 0
    assert key_of(registry) is None
    assert "x-speaker-namespace" not in registry.requests[-1].headers


def test_login_warns_of_what_the_environment_overrides_and_of_open_networks(
    run: Run,
    enter: Enter,
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise the next command would surprise."""
    monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", "other")
    enter(KEY)
    outcome = run("login", "prod", "--url", "http://far.test")
    assert "SPEAKER_REGISTRY_API_KEY" in outcome.err
    assert "unencrypted" in outcome.err


@pytest.mark.parametrize("client_class", [RegistryClient, AsyncRegistryClient])
def test_the_sdk_uses_a_context_when_asked_to(client_class: type[RegistryClient | AsyncRegistryClient]):
    """A notebook gets the registry of the command line; a service never does by accident."""
    keep("prod", api_key=KEY)
    assert client_class.from_context(timeout=5).url == URL
    assert client_class.from_context("prod").url == URL
    with pytest.raises(ValueError, match="'lab'; known: prod"):
        client_class.from_context("lab")
    with pytest.raises(ValueError, match="SPEAKER_REGISTRY_URL"):
        client_class()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff", "not a TOML file"),
        (b"api_key = sreg_secret", "not a TOML file"),
        (b"[" * 100_000, "not a TOML file"),
        (b"#" * 1024**2 + b"\n#", "more than 1048576 bytes"),
        (b"[context.prod]\n", "no setting 'context'; accepted: current, contexts"),
        (b"contexts = 1\n", "[contexts.NAME]"),
        (b"current = 'prod'\n", "'prod', which is not among"),
        (b"[contexts.prod]\nkey = ''\n", "unknown field 'key'; accepted: api_key, namespace, url"),
        (b"[contexts.prod]\nurl = 1\n", "strings"),
        (b"[contexts.prod]\n", "no registry address"),
        (b"[contexts.'a b']\n", "'a b'; accepted"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_the_reason(content: bytes, said: str):
    """People write it by hand, too. It may hold keys, so it is not quoted."""
    config_path().parent.mkdir(mode=0o700)
    config_path().write_bytes(content)
    with pytest.raises(ContextError) as caught:
        read_contexts()
    assert str(config_path()) in str(caught.value)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_file_lies_where_the_xdg_specification_says(monkeypatch: pytest.MonkeyPatch):
    """An unset, empty or relative variable means ~/.config."""
    monkeypatch.delenv("SPEAKER_REGISTRY_CONFIG")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/ada")
    assert config_path() == Path("/etc/ada/speaker-registry/config.toml")
    for unusable in ("", "ada"):
        monkeypatch.setenv("XDG_CONFIG_HOME", unusable)
        assert config_path() == Path("/home/ada/.config/speaker-registry/config.toml")


def test_a_link_to_the_file_stays_a_link(tmp_path: Path):
    """People keep such files in a repository of their own."""
    config_path().parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere.toml").touch()
    config_path().symlink_to(tmp_path / "elsewhere.toml")
    keep("prod")
    assert config_path().is_symlink()
    assert "prod" in (tmp_path / "elsewhere.toml").read_text()


_KEEP_MANY = """
import sys
from speaker_registry.contexts import Context, changing_contexts
for number in range(10):
    with changing_contexts() as change:
        change.contexts = change.contexts.with_current(f"{sys.argv[1]}{number}", Context(url="http://a.test"))
"""


@pytest.mark.processes
def test_two_logins_at_once_lose_nothing():
    """Each reads, changes and writes the whole file."""
    processes = [subprocess.Popen([sys.executable, "-c", _KEEP_MANY, prefix]) for prefix in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(read_contexts().by_name) == 20
