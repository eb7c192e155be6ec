"""Tests of `export` and of importing what it wrote: a namespace moves to another registry with everything
that makes its voices. What people say of voices is tested in `test_moving_what_is_said.py`.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from services.embedded.valkey import ValkeyServer
from services.shared.audio import AudioDecoder
from speaker_registry import RegistryClient, Unavailable
from speaker_registry.errors import Conflict
from speaker_registry.fetching import Clip
from speaker_registry.moving.archive import Archive
from speaker_registry.moving.archive_records import VersionRecord
from speaker_registry.moving.exporting import Export, Exported
from speaker_registry.moving.restoring import Restoring
from speaker_registry.moving.transfer import Report, Transfer
from speaker_registry.schemas import VoiceVersion
from tests.integration.api.conftest import Start, empty
from tests.integration.api.moving import Run, number_of_versions, runner
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, WIDER, Registry
from tests.queue_workers import wait_until
from tests.unit.audio import clips

OTHER_FINGERPRINT = "sha256:" + "2" * 64


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


def furnish(registry: Registry) -> None:
    """Register voices of every kind: versions, an embedding, odd names, a voice that is not ready.

    People say something of each of them.
    """
    registry.ready("Alice", ref_text="Hi.", consent="cons_1", speaker_description="warm")
    registry.ready("alice", clip=OTHER_CLIP, ref_text="Ho.")
    for _ in range(2):  # equal versions are versions of their own
        registry.ready("alice", clip=CLIP, ref_text="Hi.", params={"dedupe": "false"})
    with RegistryClient(registry.url) as client:
        client.edit_voice("alice", description="Calm.", labels={"team": "blue"}, pinned=True)
        client.move_alias("alice", "prod", 2)
        client.extract("alice@3", WIDER)
        registry.worker.finish_all("alice")
        client.register("Émile 名", CLIP, consent="cons_2", description="line\nbreak")
    registry.worker.finish_all("Émile 名")
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING.replace("0.25", "0.1", 5))
    registry.upload("waiting", clip=clips.wav(1.3))
    with RegistryClient(registry.url) as client:
        client.move_alias("eve", "default", 1)
        client.edit_voice("Émile 名", description="calm «é»", labels={"lead": ""}, pinned=True)
        client.edit_voice("waiting", description="soon")


def records(path: Path) -> list[VersionRecord]:
    with Archive(path) as archive:
        return [archive.record(version) for voice in archive.voices for version in voice.versions]


@dataclass(frozen=True)
class Move:
    """A furnished registry, its export, and a registry into which the export was imported."""

    first: Registry
    second: Registry
    exported: Exported
    report: Report
    path: Path


@pytest.fixture(scope="module")
def moved(
    tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyServer, decoder: AudioDecoder
) -> Iterator[Move]:
    folder = tmp_path_factory.mktemp("moved")
    with (
        Registry(folder / "1", empty(valkey, 12), decoder) as first,
        Registry(folder / "2", empty(valkey, 13), decoder) as second,
    ):
        furnish(first)
        with RegistryClient(first.url) as client:
            exported = Export(client).write(folder / "first.tar", "default")
        yield Move(first, second, exported, restored(second, folder / "first.tar"), folder / "first.tar")


def restored(registry: Registry, path: Path, *, dry_run: bool = False) -> Report:
    with RegistryClient(registry.url) as client, Archive(path) as archive:
        tasks = [Restoring(archive=archive, voice=voice) for voice in archive.voices]
        return Transfer(client, dry_run=dry_run).run(tasks)


def test_a_round_trip_changes_nothing(moved: Move, tmp_path: Path):
    """An export that is imported into an empty registry and exported again has the same content: numbers,
    times, ids, names, texts, clips, embeddings and the files of artifacts.
    """
    assert (moved.exported.end.voices, moved.exported.end.versions, moved.exported.missing) == (4, 7, ())
    assert moved.exported.artifacts >= 6
    assert (moved.report.count("registered"), [one.notes for one in moved.report.results]) == (4, [()] * 4)
    with RegistryClient(moved.second.url) as client:
        again = Export(client).write(tmp_path / "second.tar", "default")
    assert again.end == moved.exported.end
    assert records(tmp_path / "second.tar") == records(moved.path)
    assert (tmp_path / "second.tar").read_bytes() == moved.path.read_bytes()


def test_nothing_has_to_be_extracted_again(moved: Move):
    """Only the voice that was not ready when it was exported is left for a worker."""
    assert [attempt.version.name for attempt in moved.second.worker.take_all()] == ["waiting"]
    with RegistryClient(moved.second.url) as client:
        assert client.get("alice").version == 4
        assert client.clip("alice@prod").data == OTHER_CLIP


def test_a_voice_that_is_named_like_the_id_of_another_moves_as_well(start: Start, tmp_path: Path):
    """As long as the registry has no voice of that name, it answers with the other one, which differs."""
    first, second, third = start(), start(), start()
    first.upload("alice")
    with RegistryClient(first.url) as client:
        client.edit_voice("alice", description="Calm.")
        Export(client).write(tmp_path / "alice.tar", "default")
        name = client.get("alice").id
        first.upload(name, clip=OTHER_CLIP)
        Export(client).write(tmp_path / "both.tar", "default")
    assert [one.state for one in restored(second, tmp_path / "alice.tar").results] == ["registered"]
    states = {one.name: one.state for one in restored(second, tmp_path / "both.tar").results}
    assert states == {"alice": "unchanged", name: "registered"}
    third.upload(name, clip=OTHER_CLIP)
    restored(third, tmp_path / "alice.tar")
    for registry in (second, third):
        with RegistryClient(registry.url) as client:
            assert client.clip(name).data == OTHER_CLIP
            assert client.clip("alice").data == CLIP
            assert [client.get(one).description for one in ("alice", name)] == ["Calm.", None]


@pytest.mark.parametrize("name", ["alice@1", "alice@2", "alice@3", "émile 名", "eve"])
def test_every_tensor_is_the_same_on_both_sides(moved: Move, name: str):
    """Engines of the second registry compute with the very numbers of the first."""
    with RegistryClient(moved.first.url) as here, RegistryClient(moved.second.url) as there:
        ours, theirs = here.fetch(name, PROFILE), there.fetch(name, PROFILE)
    assert ours.content_digest == theirs.content_digest
    assert all(np.array_equal(ours.tensors[key], theirs.tensors[key]) for key in ours.tensors)


def test_an_import_twice_changes_nothing(moved: Move):
    """The second import finds everything there, embeddings included, and stores nothing."""
    before = moved.second.stored()
    again = restored(moved.second, moved.path)
    assert again.count("unchanged") == 4
    assert moved.second.stored().objects == before.objects


def test_a_dry_run_registers_nothing(moved: Move, start: Start):
    """A dry run says what is missing."""
    registry = start()
    assert restored(registry, moved.path, dry_run=True).count("planned") == 4
    assert restored(moved.second, moved.path, dry_run=True).count("unchanged") == 4
    assert number_of_versions(registry) == 0


def test_a_voice_with_other_content_is_left_alone(moved: Move, start: Start, run: Run):
    """A voice of the same name that is somebody else's is refused, and the other voices are imported."""
    second = start()
    second.ready("ALICE", clip=OTHER_CLIP)
    second.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    outcome = run(second, "import", moved.path)
    assert outcome.status == 1
    assert outcome.states == {
        "alice": "refused",
        "eve": "refused",
        "waiting": "registered",
        "Émile 名": "registered",
    }
    [error] = {voice["error"]["code"] for voice in outcome.document["voices"] if voice["error"]}
    assert error == "conflict"
    with RegistryClient(second.url) as client:
        assert (client.get("alice").versions, client.get("eve").versions) == (1, 1)


def test_artifacts_of_another_encoder_are_extracted_again(start: Start, run: Run, tmp_path: Path):
    """Artifacts whose fingerprint the registry does not have are named, and the voice is registered."""
    first, second = start(), start()
    first.ready("alice")
    second.worker.announce(OTHER_FINGERPRINT)
    run(first, "export", tmp_path / "x.tar")
    outcome = run(second, "import", tmp_path / "x.tar")
    assert (outcome.status, outcome.states) == (0, {"alice": "registered"})
    [[note]] = [voice["notes"] for voice in outcome.document["voices"]]
    assert f"alice@1: the artifact for {PROFILE} was not restored" in note
    assert len(second.worker.take_all()) == 1


def test_artifacts_can_be_left_out(start: Start, run: Run, tmp_path: Path):
    """`--no-artifacts` leaves them out of the archive, or of the import."""
    first, second = start(), start()
    first.ready("alice")
    assert run(first, "export", tmp_path / "all.tar").document["artifacts"] == 1
    assert run(first, "export", tmp_path / "few.tar", "--no-artifacts").document["artifacts"] == 0
    assert records(tmp_path / "few.tar")[0].artifacts == []
    run(second, "import", tmp_path / "all.tar", "--no-artifacts")
    assert len(second.worker.take_all()) == 1


def test_what_a_killed_export_left_is_removed(start: Start, run: Run, tmp_path: Path):
    """It may take as much of the disk as the archive, and its name is hidden."""
    left = tmp_path / ".x.tar.01234567.part"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    run(start(), "export", tmp_path / "x.tar")
    assert (tmp_path / "x.tar").exists()
    assert not left.exists()


def test_an_artifact_that_met_one_of_a_worker_is_sent_again(
    start: Start, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A worker may extract a restored version before its artifact arrives. A move must not lose its bytes."""
    first, second = start(), start()
    first.ready("alice")
    out = run(first, "export", tmp_path / "x.tar")
    put, refused = RegistryClient.put, []

    def late(client: RegistryClient, *words: Any) -> Any:
        if not refused:
            refused.append(words)
            raise Conflict("another artifact was stored at the same moment")
        return put(client, *words)

    monkeypatch.setattr(RegistryClient, "put", late)
    outcome = run(second, "import", tmp_path / "x.tar")
    assert len(refused) == 1
    assert [voice["notes"] for voice in outcome.document["voices"]] == [[]]
    assert run(second, "export", tmp_path / "y.tar").document["content"] == out.document["content"]


def test_an_import_that_was_killed_in_the_middle_is_resumed(start: Start, run: Run, tmp_path: Path):
    """A second run after SIGKILL completes voices and versions, with none of them twice."""
    first, second = start(max_uploaded=1000), start(max_uploaded=1000)
    for number in range(8):
        for version in range(2):
            first.upload(f"v{number}", ref_text=f"Text {version}.")
    out = run(first, "export", tmp_path / "x.tar")
    program = Path(sys.executable).with_name("speaker-registry")
    command = [program, "--url", second.url, "import", tmp_path / "x.tar", "--jobs", "2"]
    with subprocess.Popen(command) as process:
        wait_until(lambda: number_of_versions(second) >= 3)
        process.send_signal(signal.SIGKILL)
    assert number_of_versions(second) < 16, "the first run was killed too late to tell anything"
    outcome = run(second, "import", tmp_path / "x.tar")
    assert (outcome.status, number_of_versions(second)) == (0, 16)
    assert run(second, "export", tmp_path / "y.tar").document["content"] == out.document["content"]


def test_a_damaged_archive_registers_nothing(start: Start, run: Run, tmp_path: Path):
    """An archive is verified to its end before the first voice is sent."""
    first, second = start(), start()
    first.ready("alice")
    first.ready("bob", clip=OTHER_CLIP)
    run(first, "export", tmp_path / "x.tar")
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(data[: len(data) - 1024])
    outcome = run(second, "import", tmp_path / "x.tar")
    assert (outcome.status, outcome.document["error"]["code"]) == (1, "invalid_archive")
    assert number_of_versions(second) == 0


def test_an_export_replaces_a_file_only_on_request_and_leaves_no_other(
    start: Start, run: Run, tmp_path: Path
):
    """An older backup is not lost, neither to a second export nor to one that fails."""
    registry = start()
    registry.ready("alice")
    target = tmp_path / "out" / "x.tar"
    target.parent.mkdir()
    target.write_bytes(b"backup")
    assert run(registry, "export", target).document["error"]["code"] == "local_error"
    with RegistryClient("http://127.0.0.1:1", retries=0) as nobody, pytest.raises(Unavailable):
        Export(nobody).write(target, "default")
    assert target.read_bytes() == b"backup"
    assert run(registry, "export", target, "--force").status == 0
    assert [path.name for path in target.parent.iterdir()] == ["x.tar"]
    assert len(records(target)) == 1


def test_what_cannot_be_exported_is_named(start: Start, run: Run, tmp_path: Path):
    """A clip that the bucket lost is named with the exit code 1, and the other voices are exported."""
    registry = start()
    registry.ready("alice", clip=OTHER_CLIP)
    registry.ready("bob")
    damaged = [
        path for path in registry.folder.rglob("*") if path.is_file() and path.read_bytes() == OTHER_CLIP
    ]
    assert damaged
    for path in damaged:
        path.unlink()
    outcome = run(registry, "export", tmp_path / "x.tar")
    assert (outcome.status, outcome.document.get("voices")) == (1, 1), outcome.document
    [missing] = outcome.document["missing"]
    assert missing["name"] == "alice@1"
    assert [record.name for record in records(tmp_path / "x.tar")] == ["bob"]


def test_what_is_deleted_while_an_export_runs_is_not_missing(start: Start, tmp_path: Path):
    """A voice, one in the middle of its versions with an alias, and a single version."""
    registry = start()
    registry.ready("alice")
    registry.ready("bob")
    for name in ("carol", "dave"):
        registry.ready(name)
        registry.ready(name, clip=OTHER_CLIP)

    class Deleting(RegistryClient):
        def clip(self, speaker: str, version: int | str | None = None) -> Clip:
            clip = super().clip(speaker, version)
            if speaker == "carol@1":
                self.delete("carol")
            return clip

        def versions(self, name: str, *, limit: int | None = None) -> Iterator[VoiceVersion]:
            listed = list(super().versions(name, limit=limit))
            if name == "dave":
                self.delete_version("dave", 1)
            return iter(listed)

    with Deleting(registry.url) as client:
        client.move_alias("carol", "prod", 2)
        export = Export(client, on_voice=lambda name: name == "alice" and client.delete("bob"))
        exported = export.write(tmp_path / "x.tar", "default")
    assert exported.missing == ()
    kept = [(record.name, record.version) for record in records(tmp_path / "x.tar")]
    assert kept == [("alice", 1), ("carol", 1), ("dave", 2)]


class Afterwards(httpx.HTTPTransport):
    """Does something once, after the first answer to a path that matches `pattern`."""

    def __init__(self, pattern: str, act: Callable[[], object]) -> None:
        super().__init__()
        self.pattern, self.act, self.done = pattern, act, False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        response.read()
        if not self.done and re.search(self.pattern, request.url.path):
            self.done = True
            self.act()
        return response


@pytest.mark.parametrize("path", ["/v1/voices/[^/]+$", "/aliases$", "/versions$", "/audio$"])
def test_a_voice_that_takes_a_name_during_an_export_gets_nothing_of_the_former_one(
    start: Start, tmp_path: Path, path: str
):
    """They may be two persons, and the description and the labels may say who the former one was."""
    registry = start()
    registry.ready("alice")
    registry.ready("alice", clip=clips.wav(1.3))

    def replace() -> None:
        with RegistryClient(registry.url) as client:
            client.delete("alice")
        registry.ready("alice", clip=OTHER_CLIP)

    with RegistryClient(registry.url) as client:
        client.edit_voice("alice", description="the former one", pinned=True)
        client.move_alias("alice", "prod", 2)
    transport = Afterwards(path, replace)
    with RegistryClient(registry.url, transport=transport) as client:
        exported = Export(client).write(tmp_path / "x.tar", "default")
    assert transport.done
    assert exported.missing == ()
    assert OTHER_CLIP not in (tmp_path / "x.tar").read_bytes()
