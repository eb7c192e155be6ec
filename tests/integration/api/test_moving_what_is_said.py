"""Tests that what people say about a voice moves with it: description, labels and pin, and the aliases that
were moved by hand. What people say in the registry that imports counts more.
"""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from speaker_registry import RegistryClient
from speaker_registry.moving.archive import Archive
from speaker_registry.moving.archive_records import VoiceRecord
from speaker_registry.moving.exporting import Export
from speaker_registry.moving.restoring import Restoring
from speaker_registry.moving.transfer import Report, Transfer
from tests.integration.api.conftest import Start
from tests.integration.api.moving import Run, runner
from tests.integration.api.registry import CLIP, OTHER_CLIP, Registry
from tests.unit.audio import clips
from tests.unit.sdk.fake_registry import error_answer

ABOUT = {"description": "calm", "labels": {"team": "blue"}, "pinned": True}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def path(start: Start, tmp_path: Path) -> Path:
    """Write an archive of `bob`, of whom nothing is said, and of `alice`, whose `default` is held at the
    second of three versions and whose numbers have a gap.
    """
    registry = start()
    registry.ready("bob")
    for number in range(4):
        registry.ready("alice", clip=clips.wav(1.2 + number / 10))
    with RegistryClient(registry.url) as client:
        client.delete_version("alice", 2)
        client.edit_voice("alice", description="calm", labels={"team": "blue"}, pinned=True)
        client.move_alias("alice", "default", 3)
        client.move_alias("alice", "prod", 1)
        Export(client).write(tmp_path / "x.tar", "default")
    return tmp_path / "x.tar"


class Disturbed(httpx.BaseTransport):
    """Sends requests on, unless a fault answers them first."""

    def __init__(self, fault: Callable[[httpx.Request], httpx.Response | None]) -> None:
        self._fault, self._inner = fault, httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._fault(request) or self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


def restored(
    registry: Registry,
    path: Path,
    *,
    dry_run: bool = False,
    fault: Callable[[httpx.Request], httpx.Response | None] = lambda _: None,
) -> Report:
    client = RegistryClient(registry.url, transport=Disturbed(fault), retries=0)
    with client, Archive(path) as archive:
        tasks = [Restoring(archive=archive, voice=voice) for voice in archive.voices]
        return Transfer(client, jobs=1, dry_run=dry_run).run(tasks)


def lost_after(steps: int) -> Callable[[httpx.Request], None]:
    """Return a fault: the connection is lost after so many steps that say something of a voice."""
    left = iter(range(steps))

    def lost(request: httpx.Request) -> None:
        saying = request.method == "PATCH" or (request.method == "PUT" and "/aliases/" in request.url.path)
        if saying and next(left, None) is None:
            raise httpx.ConnectError("nobody")

    return lost


def states(report: Report) -> dict[str | None, str]:
    return {one.name: one.state for one in report.results}


def aliases(client: RegistryClient) -> dict[str, tuple[int, bool]]:
    return {one.alias: (one.version, one.by_hand) for one in client.aliases("alice")}


def changes(client: RegistryClient) -> list[str]:
    """Return what was said about alice, oldest first."""
    found = [one.alias or one.did for one in client.history("alice") if one.did in {"edit", "alias"}]
    return found[::-1]


def test_everything_that_is_said_about_a_voice_moves(path: Path, start: Start, tmp_path: Path):
    """Labels that select voices, and a version that somebody went back to, count in the other registry."""
    second = start()
    report = restored(second, path)
    assert states(report) == {"alice": "registered", "bob": "registered"}
    with RegistryClient(second.url) as client:
        alice = client.get("alice")
        assert {one: getattr(alice, one) for one in ABOUT} == ABOUT
        assert aliases(client) == {"default": (3, True), "prod": (1, True)}
        assert (alice.version, alice.state) == (3, "ready")
        assert changes(client) == ["edit", "default", "prod"]
        again = Export(client).write(tmp_path / "y.tar", "default")
    with Archive(path) as archive:
        assert again.end == archive.end


def test_aliases_are_there_before_the_artifacts(path: Path, start: Start):
    """Engines never find another version under the bare name, or under an alias, while an import runs."""
    second, sent = start(), list[str]()

    def noted(request: httpx.Request) -> None:
        if request.method == "PUT" and "alice" in request.url.path:
            kinds = [kind for kind in ("aliases", "artifacts") if f"/{kind}/" in request.url.path]
            sent.extend(kinds or ["versions"])

    restored(second, path, fault=noted)
    assert sent == ["versions"] * 3 + ["aliases"] * 2 + ["artifacts"] * 3


def test_repeated_imports_say_nothing_twice(path: Path, start: Start):
    """Who is unsure whether an import was done can run it again."""
    second = start()
    assert states(restored(second, path, dry_run=True)) == {"alice": "planned", "bob": "planned"}
    restored(second, path)
    before = second.stored().objects
    for dry_run in (True, False):
        report = restored(second, path, dry_run=dry_run)
        assert states(report) == {"alice": "unchanged", "bob": "unchanged"}
        assert not [note for one in report.results for note in one.notes if "stay" in note]
    assert second.stored().objects == before


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_interrupted_import_goes_on_with_what_it_had_not_said(path: Path, start: Start, steps: int):
    """The connection is lost after each step. The second run says the rest, and no more."""
    second = start()
    assert restored(second, path, fault=lost_after(steps)).stopped is not None
    with RegistryClient(second.url) as client:
        assert changes(client) == ["edit", "default", "prod"][:steps]
        assert states(restored(second, path, dry_run=True))["alice"] == "planned"
        assert states(restored(second, path))["alice"] == "registered"
        assert changes(client) == ["edit", "default", "prod"]
        assert aliases(client) == {"default": (3, True), "prod": (1, True)}


def test_what_people_say_in_the_registry_stays(path: Path, start: Start):
    """An archive is a picture of a former time. What somebody has decided since then holds."""
    second = start()
    restored(second, path)
    with RegistryClient(second.url) as client:
        client.edit_voice("alice", description=None, labels={"team": None}, pinned=False)
        client.move_alias("alice", "default", 4)
        client.remove_alias("alice", "prod")
        before = second.stored().objects
        report = restored(second, path)
        [alice] = [one for one in report.results if one.name == "alice"]
        assert (alice.state, second.stored().objects) == ("unchanged", before)
        assert [note for note in alice.notes if "stay" in note] == [
            "description, labels, pin and promotion policy stay as they are here; the archive has others",
            "alias 'default' stays as it is here; the archive has it at version 3",
            "alias 'prod' stays as it is here; the archive has it at version 1",
        ]
        assert aliases(client) == {"default": (4, True)}


def test_a_voice_that_was_deleted_and_is_imported_again_is_as_it_was(path: Path, start: Start):
    """What was said about the deleted voice does not count: nobody has said anything about the new one."""
    second = start()
    restored(second, path)
    with RegistryClient(second.url) as client:
        client.delete("alice")
        assert states(restored(second, path))["alice"] == "registered"
        assert client.get("alice").labels == {"team": "blue"}
        assert sorted(aliases(client)) == ["default", "prod"]


def test_nothing_is_said_about_a_voice_with_further_versions(path: Path, start: Start):
    """A newer version would otherwise lose the bare name to what was decided without it."""
    second = start()

    def refused(request: httpx.Request) -> httpx.Response | None:
        return error_answer(503, "unavailable") if request.method == "PATCH" else None

    assert restored(second, path, fault=refused).stopped is not None
    second.ready("alice", clip=clips.wav(1.9))
    report = restored(second, path)
    assert states(report)["alice"] == "unchanged"
    with RegistryClient(second.url) as client:
        assert (client.get("alice").labels, aliases(client)) == ({}, {"default": (5, False)})
    assert len([note for one in report.results for note in one.notes if "stay" in note]) == 3


def test_what_a_key_may_not_say_is_reported_for_the_voice(path: Path, start: Start):
    """The versions and the other voices are imported all the same, and a later run says the rest."""
    second = start()

    def forbidden(request: httpx.Request) -> httpx.Response | None:
        saying = request.method == "PATCH" or request.url.path.endswith("/aliases/prod")
        return error_answer(403, "permission_denied", "not you") if saying else None

    report = restored(second, path, fault=forbidden)
    assert (report.stopped, states(report)) == (None, {"alice": "refused", "bob": "registered"})
    [error] = [one.error for one in report.results if one.error]
    assert (error.code, str(error)) == (
        "permission_denied",
        "the versions are there, but parts of the voice's record were refused: description, labels, "
        "pin and promotion policy (not you); alias 'prod' (not you)",
    )
    with RegistryClient(second.url) as client:
        assert {one.state for one in client.version("alice@3").artifacts} == {"ready"}
        assert aliases(client) == {"default": (3, True)}
        assert states(restored(second, path)) == {"alice": "registered", "bob": "unchanged"}
        assert client.get("alice").pinned


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limited"), (503, "voice_unreadable")])
def test_a_request_to_come_back_later_is_obeyed_in_between(path: Path, start: Start, status: int, code: str):
    """A pause loses nothing of what is said, and repeats none of it."""
    second, waits = start(), iter([1])

    def limited(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/aliases/prod") and next(waits, None):
            return error_answer(status, code, headers={"retry-after": "0"})
        return None

    assert states(restored(second, path, fault=limited))["alice"] == "registered"
    with RegistryClient(second.url) as client:
        assert changes(client) == ["edit", "default", "prod"]


@pytest.mark.parametrize("before", ["PATCH", "artifacts"])
def test_nothing_is_said_about_another_voice_that_took_the_name(path: Path, start: Start, before: str):
    """The voice is deleted when all versions are there, and somebody else registers its name."""
    second, left = start(), iter([1])

    def replaced(request: httpx.Request) -> None:
        is_next = request.method == before or f"/{before}/" in request.url.path
        if is_next and "alice" in request.url.path and next(left, None):
            second.delete("alice")
            for number in range(4):
                second.upload("alice", clip=clips.wav(2.2 + number / 10))

    report = restored(second, path, fault=replaced)
    assert states(report) == {"alice": "refused", "bob": "registered"}
    [error] = [one.error for one in report.results if one.error]
    assert "was deleted while it was imported" in str(error)
    with RegistryClient(second.url) as client:
        assert (client.get("alice").labels, client.get("alice").description) == ({}, None)
        assert sorted(aliases(client)) == ["default"]


def test_a_voice_that_gets_the_id_of_another_as_its_name_gets_nothing_else(start: Start, tmp_path: Path):
    """Voices are imported several at a time, and the registry takes an id for a name first."""
    first, second = start(), start()
    first.ready("alice")
    with RegistryClient(first.url) as client:
        client.edit_voice("alice", description="calm")
        voice_id = client.get("alice").id
        first.ready(voice_id, clip=OTHER_CLIP)
        Export(client).write(tmp_path / "x.tar", "default")
    left = iter([1])

    def overtaken(request: httpx.Request) -> None:
        if request.method == "PATCH" and next(left, None):
            second.ready(voice_id, clip=OTHER_CLIP)

    restored(second, tmp_path / "x.tar", fault=overtaken)
    with RegistryClient(second.url) as client:
        found = [(one.name, one.description, one.state) for one in client.list()]
    assert sorted(found) == sorted([("alice", "calm", "ready"), (voice_id, None, "ready")])


@pytest.mark.parametrize("step", ["PATCH", "artifacts"])
def test_a_voice_that_is_deleted_during_a_request_is_refused(path: Path, start: Start, step: str):
    """The registry says so if it notices the deletion while it makes the change."""
    second, left = start(), iter([1])

    def deleted(request: httpx.Request) -> httpx.Response | None:
        is_step = request.method == step or (request.method == "PUT" and f"/{step}/" in request.url.path)
        is_next = is_step and "alice" in request.url.path and next(left, None)
        return error_answer(409, "voice_deleted", "gone") if is_next else None

    report = restored(second, path, fault=deleted)
    assert states(report) == {"alice": "refused", "bob": "registered"}
    [error] = [one.error for one in report.results if one.error]
    assert "was deleted while it was imported" in str(error)


def test_an_alias_whose_version_cannot_be_read_is_named(start: Start, run: Run, tmp_path: Path):
    """The archive can be imported without it, and the exit code says that something is missing."""
    registry, second = start(), start()
    registry.ready("alice", clip=OTHER_CLIP)
    registry.ready("alice", clip=CLIP)
    with RegistryClient(registry.url) as client:
        client.move_alias("alice", "old", 1)
        client.move_alias("alice", "prod", 2)
    for file in registry.folder.rglob("*"):
        if file.is_file() and file.read_bytes() == OTHER_CLIP:
            file.unlink()
    outcome = run(registry, "export", tmp_path / "x.tar")
    assert outcome.status == 1
    assert [one["name"] for one in outcome.document["missing"]] == ["alice@1", "alice@old"]
    with Archive(tmp_path / "x.tar") as archive:
        assert archive.about(archive.voices[0]) == VoiceRecord(aliases={"prod": 1})
    run(second, "import", tmp_path / "x.tar")
    with RegistryClient(second.url) as client:
        assert aliases(client)["prod"] == (2, True)
