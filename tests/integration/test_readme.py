"""Tests that run the documentation: its curl, Python and command-line examples against a registry, its tables
against the code. `test_console_examples` runs what is shown for a terminal.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.embedded.commands import _welcome
from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry
from speaker_registry import RegistryClient
from speaker_registry.cli.program import parser
from speaker_registry.environment import SDK_VARIABLES
from tests.integration.documented import PAGES, ROOT, blocks, text_of
from tools import limits_table, profiles_table
from tools.settings_table import table

KEPT_ARTIFACTS = {
    "README.md": {"wren.safetensors", "rowan.safetensors"},
    "docs/concepts.md": {"heron.safetensors"},
    "docs/usage.md": {"wren.safetensors", "rowan.safetensors"},
    "docs/moving.md": set[str](),
    "docs/vllm-omni.md": set[str](),
}
"""The pages with examples, and the artifacts that their shell examples leave in /tmp."""
WITH_EXAMPLES = tuple(KEPT_ARTIFACTS)
DEFAULT_URL = "http://127.0.0.1:8300"


def table_of(page: str, tool: str) -> str:
    """Return the table that `tool` made for the page."""
    return text_of(page).partition(f"made by tools/{tool}.py -->\n")[2].partition("\n<!--")[0]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    folder = tmp_path_factory.mktemp("readme")
    settings = EmbeddedSettings(data=folder, port=0)
    with EmbeddedRegistry(settings) as running:
        yield running


def adapted(text: str, registry: EmbeddedRegistry, folder: Path) -> str:
    """Return an example with this test's addresses and paths in place of a reader's."""
    return text.replace(DEFAULT_URL, registry.url).replace("/tmp/", f"{folder}/")


def test_only_these_pages_have_examples_to_run():
    """Only these pages have examples to run. An example on any other page would not be run."""
    assert {page for page in PAGES if blocks("bash", page) or blocks("python", page)} == set(WITH_EXAMPLES)


@pytest.mark.parametrize(
    "page",
    [page if page == "README.md" else pytest.param(page, marks=pytest.mark.slow) for page in WITH_EXAMPLES],
)
def test_the_shell_examples_work_in_their_order(page: str, registry: EmbeddedRegistry, tmp_path: Path):
    """The shell examples work in their order, because a newcomer pastes them first."""
    script = "\n".join(["set -euo pipefail", *blocks("bash", page)])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", adapted(script, registry, tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '{"error"' not in done.stdout, done.stdout
    assert {file.name for file in tmp_path.glob("*.safetensors")} == KEPT_ARTIFACTS[page]
    with RegistryClient(registry.url) as client:
        assert list(client.list()) == [], "the examples clean up behind themselves"


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Yield the address of a server that answers every request with this status and a JSON body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"state": "pending"}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing, because the output of a test is for its faults."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("status", [200, 202, 404, 503])
def test_only_an_artifact_is_kept_as_one(status: int, tmp_path: Path):
    """The example keeps a file only if it is an artifact. The JSON of a 202, saved as a safetensors file,
    fails much later, in some engine.
    """
    [fetch] = [block for block in blocks("bash", "docs/usage.md") if "/file" in block]
    assert fetch.splitlines()[0] in text_of("README.md"), "which shows the same"
    with answering(status) as url:
        script = "version=1\n" + fetch.replace(DEFAULT_URL, url).replace("/tmp/", f"{tmp_path}/")
        done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=30, check=False)
    assert (tmp_path / "wren.safetensors").exists() == (status == 200)
    assert (done.returncode == 0) == (status == 200)
    assert (b"pending" in done.stdout) == (status != 200), "whoever pasted it sees why"


def test_the_example_ends_at_an_upload_that_is_refused():
    """A voice of that name exists already. The example must neither fetch its artifact nor delete it."""
    [example] = [block for block in blocks("bash", "README.md") if "/file" in block]
    with answering(409) as url:
        done = subprocess.run(
            ["bash", "-c", example.replace(DEFAULT_URL, url)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode != 0
    assert "the upload was refused" in done.stderr
    assert '{"state"' in done.stderr, "whoever pasted it sees why"
    assert "DELETE" not in done.stderr + done.stdout


@pytest.mark.parametrize("status", [200, 202, 404])
def test_what_make_run_says_to_try_keeps_only_an_artifact_as_one(status: int, tmp_path: Path):
    """The curl line that `make run` prints keeps a file only if it is an artifact, because curl alone takes a
    202 for a success.
    """
    settings = EmbeddedSettings(data=tmp_path / "data", port=0)
    with answering(status) as url:
        said = _welcome(cast(Any, SimpleNamespace(url=url, api_key=None, key_file=None)), settings)
        [fetch] = [line for line in said.splitlines() if line.startswith("  curl ") and "/file" in line]
        done = subprocess.run(
            ["bash", "-c", fetch], cwd=tmp_path, capture_output=True, timeout=30, check=False
        )
    assert (tmp_path / "alice.safetensors").exists() == (status == 200)
    assert (b"pending" in done.stdout) == (status != 200), "whoever pasted it sees why"


@pytest.mark.parametrize("example", chain.from_iterable(blocks("python", page) for page in WITH_EXAMPLES))
def test_the_python_examples_work(example: str, registry: EmbeddedRegistry, tmp_path: Path):
    """The Python examples work, because developers who embed the SDK start from these lines."""
    done = subprocess.run(
        [sys.executable, "-c", adapted(example, registry, tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


COMMAND = re.compile(r"(?:^|\$ )(speaker-registry [^#|&\n]+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_the_words_that_the_program_accepts(page: str):
    """Commands that no test can run, such as a promotion, are parsed at least. A renamed option must not live
    on in the documentation.
    """
    examples = "\n".join(text for language in ("console", "sh", "bash") for text in blocks(language, page))
    for command in COMMAND.findall(examples.replace("\\\n", " ")):
        words = shlex.split(command.partition(" < ")[0])  # the shell reads the rest
        parser().parse_args(words[1:])


def test_every_make_target_it_names_exists():
    """Every make target in the documentation exists. A renamed target must not live on there."""
    pages = "\n".join(text_of(page) for page in (*PAGES, "CONTRIBUTING.md"))
    named = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(re.findall(r"`+[^`]*`+", pages))))
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named, "the pages name targets"
    assert named <= targets


def test_the_settings_are_documented_as_they_are():
    """The settings are documented as they are. Every variable, its default and its meaning come from the
    code; `python -m tools.settings_table` makes the table.
    """
    assert table_of("docs/settings.md", "settings_table") == table()


def test_the_variables_of_clients_are_documented():
    """README promises every variable. These are read by programs that have no class of settings."""
    read = set(SDK_VARIABLES)
    for program in (*(ROOT / "speaker_registry").rglob("*.py"), *(ROOT / "examples").rglob("*.py")):
        text = program.read_text()
        read |= set(re.findall(r'"((?:SPEAKER|GATEWAY)_[A-Z_]+|SSL_CERT_FILE|NO_COLOR)"', text))
    assert {"SPEAKER_PUSH_API_KEY", "SPEAKER_REGISTRY_PROFILE", "GATEWAY_SERVER"} <= read
    documented = set(re.findall(r"`(\w+)`", text_of("docs/settings.md").partition("## Clients")[2]))
    assert read <= documented


def test_what_is_accepted_is_documented_as_it_is():
    """A person who has recorded a clip looks up whether it is accepted. `python -m tools.limits_table` makes
    the table.
    """
    assert table_of("docs/usage.md", "limits_table") == limits_table.table()


def test_the_packages_that_the_sdk_needs_are_named():
    """Whoever installs the SDK beside a TTS server must know what comes along."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    said = re.sub(r"\s+", " ", text_of("README.md").partition("It needs anyio")[2].partition(".")[0])
    named = re.findall(r"[a-z]+", f"anyio{said}".partition(", but")[0])
    assert sorted(set(named) - {"and"}) == sorted(re.split(r"[<>=\[]", one)[0] for one in needed)


def test_every_file_the_pages_point_to_exists():
    """Every file that the pages link to exists. A link that leads nowhere costs a newcomer's trust."""
    for page in (*PAGES, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"):
        folder = (ROOT / page).parent
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", text_of(page)):
            assert (folder / link).exists(), f"{page}: {link}"


def test_every_profile_is_documented():
    """Every profile is documented. `python -m tools.profiles_table` makes the table."""
    assert table_of("docs/engines.md", "profiles_table") == profiles_table.table()


def test_every_anchor_that_the_pages_point_to_exists():
    """Every anchor that the pages link to exists, because a renamed heading breaks links silently."""
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text_of(page)):
            linked = (ROOT / page).parent / target if target else ROOT / page
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}, (
                f"{page}: {target}#{anchor}"
            )
