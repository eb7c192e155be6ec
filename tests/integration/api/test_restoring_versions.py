"""Tests of the route for operators that registers a version under a given number and time."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from speaker_registry import (
    AsyncRegistryClient,
    Conflict,
    PermissionDenied,
    Registration,
    RegistryClient,
    cli,
)
from speaker_registry.errors import PreconditionFailed, VoiceDeleted
from speaker_registry.moving.archive import Archive
from speaker_registry.moving.exporting import Export
from speaker_registry.moving.restoring import Permission, Restoring
from speaker_registry.moving.transfer import Report, Transfer
from tests.integration.api.access import CLOSED, bearer, key
from tests.integration.api.conftest import Start
from tests.integration.api.moving import Run, runner
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, Registry
from tests.unit.audio import clips
from tests.unit.sdk.fake_registry import error_answer

TIME = 1_790_000_000
ID = "a" * 32


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


def put(
    registry: Registry,
    name: str,
    number: object = 7,
    clip: bytes | None = CLIP,
    headers: dict[str, str] | None = None,
    **fields: object,
) -> httpx.Response:
    return registry.client.put(
        f"/v1/voices/{name}/versions/{number}",
        data={"consent": "cons_1", "created_at": str(TIME), **fields},
        files=None if clip is None else {"audio": clip},
        headers=headers,
    )


def versions_of(registry: Registry, name: str) -> list[tuple[int, int]]:
    """Return number and creation time of each version, newest first."""
    with RegistryClient(registry.url) as client:
        return [(one.version, one.created_at) for one in client.versions(name)]


def test_a_version_gets_the_number_and_the_time_that_an_operator_wants(registry: Registry, name: str):
    """Such a voice is extracted, served and counted on like every other."""
    response = put(registry, name, ref_text="Hi.", description="warm")
    made = response.json()
    assert response.status_code == 201, response.text
    assert (made["version"], made["created_at"], made["ref_text"], made["created"]) == (7, TIME, "Hi.", True)
    assert response.headers["Location"] == f"/v1/voices/{name}/versions/7"
    registry.worker.finish_all(name)
    with RegistryClient(registry.url) as client:
        manifest = client.fetch(name, PROFILE).manifest
        assert (manifest.version, manifest.created_at) == (7, TIME)
        assert [(one.did, one.version) for one in client.history(name)] == [("register", 7)]
        assert client.register(name, OTHER_CLIP, consent="c").version == 8


def test_the_same_request_again_changes_nothing(registry: Registry, name: str):
    """A repeat after a lost answer is told apart by 200 and a header."""
    put(registry, name)
    before = registry.stored().objects
    again = put(registry, name)
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (again.json()["version"], registry.stored().objects) == (7, before)


@pytest.mark.parametrize(
    ("number", "fields", "status", "code", "param", "said"),
    [
        (7, {"ref_text": "other"}, 409, "conflict", "ref", "a version 7 already, with another content"),
        (6, {"created_at": TIME + 1}, 409, "conflict", "ref", "has had version 8, and no number is given"),
        (9, {"created_at": TIME + 1}, 409, "conflict", "created_at", f"created at {TIME + 1}. Accepted: a"),
        (9, {"created_at": 99_999_999_999}, 400, "invalid_request", "created_at", "is in the future"),
        (9, {"created_at": ""}, 400, "invalid_request", "created_at", "missing or empty"),
        (9, {"created_at": "0"}, 400, "invalid_request", "created_at", "'0'; accepted: Unix seconds"),
        (9, {"created_at": "٣"}, 400, "invalid_request", "created_at", "\\u0663"),
        (
            9,
            {"created_at": TIME + 9, "id": "A" * 32},
            400,
            "invalid_request",
            "id",
            "characters of 0-9 and a-f",
        ),
        (9, {"created_at": TIME + 9, "id": ID}, 409, "conflict", "id", f"'id' is {ID}, and the voice has"),
        (9, {"consent": ""}, 400, "invalid_request", "consent", "'consent' is missing"),
        (9, {"created": 1}, 400, "invalid_request", "created", "did you mean 'created_at'?"),
        (0, {}, 400, "invalid_reference", "ref", "'0'"),
        (2**31, {}, 400, "invalid_reference", "ref", "from 1 to 2147483647"),
        ("prod", {}, 400, "invalid_reference", "ref", "'prod' is an alias. Accepted: the number"),
    ],
)
def test_a_bad_number_or_time_is_refused_with_what_is_accepted(
    registry: Registry, number: object, fields: dict[str, Any], status: int, code: str, param: str, said: str
):
    """Nothing changes, and the message says what was wrong. Version 8 was deleted before."""
    name = "numbered"
    if registry.client.get(f"/v1/voices/{name}").status_code == 404:
        put(registry, name, id=ID).raise_for_status()
        put(registry, name, 8, OTHER_CLIP, created_at=TIME + 1).raise_for_status()
        with RegistryClient(registry.url) as client:
            client.move_alias(name, "default", 7)
            client.delete_version(name, 8)
    before = registry.stored().objects
    response = put(registry, name, number, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param), error
    assert said in error["message"]
    assert registry.stored().objects == before


@pytest.mark.parametrize("number", [6, 7, 8])
def test_a_version_can_be_only_for_a_new_voice(registry: Registry, name: str, number: int):
    """Nobody else's voice gets the version, whatever its number is. A repeat is no other voice."""
    if_new = {"If-None-Match": "*"}
    assert put(registry, name, headers=if_new).status_code == 201
    assert put(registry, name, headers=if_new).status_code == 200
    voice_id = registry.client.get(f"/v1/voices/{name}").json()["id"]
    for known_as in (name, voice_id):
        refused = put(registry, known_as, number, OTHER_CLIP, if_new, created_at=TIME + 1)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (412, "precondition_failed")
        assert error["param"] == "If-None-Match"
        assert f"Voice '{name}' already exists" in error["message"]
    assert versions_of(registry, name) == [(7, TIME)]
    registry.delete(name)
    assert put(registry, name, 9, headers=if_new, created_at=TIME + 2).status_code == 201


def test_quotas_hold_for_operators(start: Start):
    """An import must not fill the bucket of all others."""
    registry = start(max_uploaded=1)
    assert put(registry, "a").status_code == 201
    assert put(registry, "b").status_code == 429


def test_the_keys_of_others_may_not_set_numbers(start: Start):
    """A key that may register versions may not choose their numbers and times."""
    registry = start(access=CLOSED)
    refused = put(registry, "a", headers=bearer(key(registry, "voices:write", "voices:delete")))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert put(registry, "a", headers=bearer(key(registry, "admin"))).status_code == 201


def test_both_clients_restore_versions(registry: Registry, name: str):
    """A name with other characters is the same for both, and so is the answer to a repeat."""
    name = f"Émile {name}"
    with RegistryClient(registry.url) as client:
        made = client.restore_version(name, 3, CLIP, created_at=TIME, consent="c", ref_text="Hi.")
        assert (made.reference, made.created_at, made.created) == (f"{name}@3", TIME, True)
        with pytest.raises(Conflict):
            client.restore_version(name, 2, CLIP, created_at=TIME + 1, consent="c")

    async def repeat() -> Registration:
        async with AsyncRegistryClient(registry.url) as client:
            return await client.restore_version(name, 3, CLIP, created_at=TIME, consent="c", ref_text="Hi.")

    again = asyncio.run(repeat())
    assert (again.version, again.created) == (3, False)


# -- numbers of archives


@pytest.fixture
def archive(start: Start, tmp_path: Path) -> Path:
    """Write an archive of `alice`, whose numbers are 2, 3 and 5, and of `eve`, an embedding."""
    registry = start()
    registry.ready("Alice")
    registry.client.delete("/v1/voices/alice").raise_for_status()
    for number in range(4):
        registry.ready("alice", clip=clips.wav(1.2 + number / 10), ref_text=f"Text {number}.")
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    with RegistryClient(registry.url) as client:
        client.delete_version("alice", 4)
        client.move_alias("alice", "prod", 3)
        Export(client).write(tmp_path / "first.tar", "default")
    return tmp_path / "first.tar"


class Counting(httpx.HTTPTransport):
    """Counts the answers by their status."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses = Counter[int]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        self.statuses[response.status_code] += 1
        return response


def restored(
    registry: Registry, path: Path, api_key: str | None = None, transport: Counting | None = None
) -> Report:
    permission = Permission()
    client = RegistryClient(registry.url, api_key=api_key, transport=transport)
    with client, Archive(path) as opened:
        tasks = [Restoring(archive=opened, voice=voice, permission=permission) for voice in opened.voices]
        return Transfer(client, jobs=1).run(tasks)


def test_a_round_trip_keeps_numbers_with_gaps_and_times(start: Start, archive: Path, tmp_path: Path):
    """With or without artifacts, both exports are equal byte for byte."""
    second, third = start(), start()
    report = restored(second, archive)
    assert [(one.versions, one.notes) for one in report.results] == [((2, 3, 5), ()), ((1,), ())]
    with RegistryClient(second.url) as client:
        again = Export(client).write(tmp_path / "second.tar", "default")
        assert client.version("alice@prod").version == 3
        Export(client, artifacts=False).write(tmp_path / "bare.tar", "default")
    assert (tmp_path / "second.tar").read_bytes() == archive.read_bytes()
    with Archive(archive) as first:
        assert again.end == first.end
    restored(third, tmp_path / "bare.tar")
    with RegistryClient(third.url) as client:
        Export(client, artifacts=False).write(tmp_path / "third.tar", "default")
    assert (tmp_path / "third.tar").read_bytes() == (tmp_path / "bare.tar").read_bytes()


def test_an_archive_without_ids_is_imported_as_before(
    start: Start, archive: Path, monkeypatch: pytest.MonkeyPatch
):
    """Former releases wrote no ids. Their versions keep numbers and times, and get ids here."""
    read = Archive.record
    monkeypatch.setattr(Archive, "record", lambda *of: read(*of).model_copy(update={"id": None}))
    registry = start()
    assert [one.notes for one in restored(registry, archive).results] == [(), ()]
    assert [number for number, _ in versions_of(registry, "alice")] == [5, 3, 2]
    assert restored(registry, archive).count("unchanged") == 2


def test_a_voice_and_its_versions_keep_their_ids(start: Start, archive: Path):
    """Programs that know a voice by its id find it in the other registry, too."""
    registry = start()
    restored(registry, archive)
    with Archive(archive) as opened, RegistryClient(registry.url) as client:
        ids = [opened.record(one).id for one in opened.voices[0].versions]
        assert [one.id for one in client.versions("alice")] == ids[::-1]
        voice = client.get("alice")
        assert voice.id == f"voice_{ids[0]}_alice"
        assert client.get(voice.id).name == "alice"
        assert client.fetch(voice.id, PROFILE).manifest.version_id == ids[-1]
        assert {job.version_id for job in client.jobs()} <= {*ids}


class Refusing(Counting):
    """Answers as a registry that refuses the id of a version, or the field `refused`."""

    def __init__(self, refused: str = "id") -> None:
        super().__init__()
        self.refused = refused
        self.puts = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        is_version = request.method == "PUT" and request.url.path.rpartition("/")[0].endswith("/versions")
        self.puts += is_version
        if is_version and f'name="{self.refused}"'.encode() in request.read():
            message = f"Field '{self.refused}' is unknown"
            return error_answer(400, "invalid_request", message, param=self.refused)
        return super().handle_request(request)


def test_a_registry_that_refuses_ids_keeps_numbers_and_times(start: Start, archive: Path):
    """It refuses the whole version because of its id, which then counts less than its number."""
    registry, refusing = start(), Refusing()
    report = restored(registry, archive, transport=refusing)
    assert [one.state for one in report.results] == ["registered", "registered"]
    with Archive(archive) as opened, RegistryClient(registry.url) as client:
        records = [opened.record(one) for one in opened.voices[0].versions]
        there = list(client.versions("alice"))[::-1]
    assert [(one.version, one.created_at) for one in there] == [
        (one.version, one.created_at) for one in records
    ]
    assert {one.id for one in there}.isdisjoint(one.id for one in records)
    assert refusing.puts == 8, "each of four versions is sent with its id and without it"
    assert {one.notes for one in report.results} == {
        (
            "ids are not those of the archive",
            "the registry refused numbers, creation times or ids of the archive: Field 'id' is unknown",
        )
    }


def test_only_a_refusal_of_the_id_is_answered_by_leaving_it_out(start: Start, archive: Path):
    """Any other refused field stays refused, and no clip is sent twice in vain."""
    registry, refusing = start(), Refusing("created_at")
    alice, _ = restored(registry, archive, transport=refusing).results
    assert (alice.versions, refusing.puts) == ((1, 2, 3), 2)
    assert alice.notes[-1].endswith("or ids of the archive: Field 'created_at' is unknown")


class Blocking(Counting):
    """Answers every version with its number as a proxy does that lets no such request through."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT" and request.url.path.rpartition("/")[0].endswith("/versions"):
            return httpx.Response(self.status, html="<html>proxy</html>", headers={"x-request-id": "r1"})
        return super().handle_request(request)


def test_a_proxy_that_refuses_a_version_renumbers_nothing(start: Start, archive: Path):
    """The registry itself may keep the numbers, times and ids, once the proxy lets the request through."""
    registry = start()
    for status in (400, 403, 404, 405, 409, 412):
        report = restored(registry, archive, transport=Blocking(status))
        assert report.stopped is not None, status
        assert (report.stopped.code, report.stopped.request_id, report.results) == ("unavailable", "r1", ())
        assert f"status {status} and no error of its own" in str(report.stopped)
    too_large = restored(registry, archive, transport=Blocking(413))
    assert [(one.state, str(one.error)) for one in too_large.results] == [
        ("refused", "the registry answered with status 413 and no error of its own")
    ] * 2
    assert [one.notes for one in restored(registry, archive).results] == [(), ()]
    assert [number for number, _ in versions_of(registry, "alice")] == [5, 3, 2]


class Meddling(Counting):
    """Does something once, after the first version of `alice` was registered."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.act: Callable[[], object] | None = act

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if response.status_code == 201 and self.act:
            act, self.act = self.act, None
            act()
        return response


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("after", ["nothing", "somebody else's", "a second import"])
def test_an_import_adds_nothing_to_a_voice_that_was_deleted_meanwhile(
    start: Start, archive: Path, after: str, *, renumbered: bool
):
    """Neither does the deleted voice come back in parts, nor does another voice of its name get versions."""
    registry = start()
    if renumbered:
        registry.upload("alice", clip=OTHER_CLIP)
        registry.upload("alice", clip=CLIP)
        registry.delete("alice")

    def act() -> None:
        registry.delete("alice")
        if after == "somebody else's":
            registry.upload("alice", clip=OTHER_CLIP)
        if after == "a second import":
            restored(registry, archive)

    alice, eve = restored(registry, archive, transport=Meddling(act)).results
    assert (alice.state, eve.state) == ("refused", "unchanged" if "import" in after else "registered")
    assert "was deleted while it was imported" in str(alice.error)
    with RegistryClient(registry.url) as client:
        count = sum(voice.versions for voice in client.list() if voice.name.lower() == "alice")
    assert count == {"nothing": 0, "somebody else's": 1, "a second import": 3}[after]
    again, _ = restored(registry, archive).results
    state = {"nothing": "registered", "somebody else's": "refused", "a second import": "unchanged"}[after]
    assert again.state == state


class Interrupted(Counting):
    """Does something once, right before the first version of `alice` is sent."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.act: Callable[[], object] | None = act

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method in {"PUT", "POST"} and self.act:
            act, self.act = self.act, None
            act()
        return super().handle_request(request)


@pytest.mark.parametrize(
    ("meanwhile", "scope"),
    [
        ("somebody else's", "admin"),
        ("a second import", "admin"),
        ("a second import", "audio:read"),
        ("a part of an import", "audio:read"),
    ],
)
def test_an_import_adds_nothing_to_a_voice_that_came_meanwhile(
    start: Start, archive: Path, meanwhile: str, scope: str
):
    """The name is registered between the look at the registry and the first version. Numbers are kept only
    with the scope `admin`, and the two imports need not have the same.
    """
    registry = start(access=CLOSED)
    scopes = ("voices:read", "voices:write", "artifacts:read")
    token, other = key(registry, *scopes, scope), key(registry, *scopes, "admin")

    def act() -> None:
        if meanwhile == "a second import":
            restored(registry, archive, other)
            return
        with RegistryClient(registry.url, api_key=other) as client, Archive(archive) as opened:
            first = opened.record(opened.voices[0].versions[0])
            clip = opened.source(opened.voices[0].versions[0], first)
            assert isinstance(clip, bytes)
            clip = clip if "part" in meanwhile else OTHER_CLIP
            client.register("alice", clip, consent=first.consent, ref_text=first.ref_text)

    alice, eve = restored(registry, archive, token, Interrupted(act)).results
    state = {"somebody else's": "refused", "a second import": "unchanged"}.get(meanwhile, "registered")
    assert alice.state == state, alice
    assert eve.state == ("unchanged" if "second" in meanwhile else "registered")
    with RegistryClient(registry.url, api_key=other) as client:
        assert client.get("alice").versions == (1 if "else" in meanwhile else 3)
    if alice.error:
        assert "the registry has a voice of this name whose version 1 differs" in str(alice.error)


def test_an_upload_for_a_voice_that_was_deleted_is_refused(registry: Registry, name: str):
    """The id tells the voice from another one that has its name now."""
    with RegistryClient(registry.url) as client:
        first = client.register(name, CLIP, consent="c")
        added = client.register(name, OTHER_CLIP, consent="c", voice_id=first.id)
        assert (added.id, added.version) == (first.id, 2)
        registry.delete(name)
        for registered_again in (False, True):
            if registered_again:
                client.register(name, OTHER_CLIP, consent="other")
            with pytest.raises(VoiceDeleted):
                client.register(name, CLIP, consent="c", voice_id=first.id)
            with pytest.raises(VoiceDeleted):
                client.restore_version(name, 9, CLIP, created_at=TIME, consent="c", voice_id=first.id)


def test_both_clients_register_only_new_voices(registry: Registry, name: str):
    """A repeat of the upload that made the voice is answered with its version."""
    with RegistryClient(registry.url) as client:
        made = [
            client.register(name, CLIP, consent="c", idempotency_key="k", only_new=True) for _ in range(2)
        ]
        assert [(one.version, one.created) for one in made] == [(1, True), (1, False)]
        with pytest.raises(PreconditionFailed, match="already exists"):
            client.register(name, OTHER_CLIP, consent="c", only_new=True)
        with pytest.raises(PreconditionFailed, match="already exists"):
            client.restore_version(name, 9, CLIP, created_at=TIME, consent="c", only_new=True)

    async def register() -> None:
        async with AsyncRegistryClient(registry.url) as client:
            await client.register(name, OTHER_CLIP, consent="c", only_new=True)

    with pytest.raises(PreconditionFailed, match="already exists"):
        asyncio.run(register())
    assert len(versions_of(registry, name)) == 1


def test_an_import_without_the_scope_numbers_anew_and_says_why(start: Start, archive: Path):
    """The key is refused once, and no further clip is sent in vain."""
    registry = start(access=CLOSED)
    time.sleep(1)  # creation times are whole seconds, and the archive may be younger than one
    token = key(registry, "voices:read", "voices:write", "artifacts:read")
    transport = Counting()
    alice, eve = restored(registry, archive, token, transport).results
    assert transport.statuses[403] == 1
    assert (alice.versions, eve.versions) == ((1, 2, 3), (1,))
    assert alice.notes[:-1] == (
        "version 2 of the archive is version 1 here",
        "version 3 of the archive is version 2 here",
        "version 5 of the archive is version 3 here",
        "creation times and ids are not those of the archive",
    )
    assert eve.notes == alice.notes[3:], "it loses as much, although its number is the same"
    assert alice.notes[-1].startswith("the registry refused numbers, creation times or ids of the archive: ")
    assert alice.notes[-1].endswith("needed: admin.")
    with RegistryClient(registry.url, api_key=token) as client:
        assert client.version("alice@prod").version == 2
        with pytest.raises(PermissionDenied):
            client.restore_version("alice", 9, CLIP, created_at=TIME, consent="c")
    assert restored(registry, archive, token).count("unchanged") == 2


def test_an_import_under_a_name_whose_numbers_have_passed_says_so(start: Start, archive: Path, run: Run):
    """A name that was used and deleted here goes on counting above its own numbers."""
    registry = start()
    for number in range(2):
        registry.upload("alice", clip=clips.wav(2 + number / 10))
    registry.client.delete("/v1/voices/alice").raise_for_status()
    outcome = run(registry, "import", archive)
    alice, eve = outcome.document["voices"]
    assert (outcome.status, alice["versions"], eve["versions"]) == (0, [3, 4, 5], [1])
    assert alice["notes"][0] == "version 2 of the archive is version 3 here"
    assert "because the voice has had version 2" in alice["notes"][-1]
    planned, again = (run(registry, "import", archive, *words).document for words in (["--dry-run"], []))
    assert again["unchanged"] == 2
    assert planned["voices"] == again["voices"], "a dry run says what the import would say"


class Busy(Counting):
    """Asks to come back soon after three versions were registered, until the client gives a request up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.statuses[201] == 3 and self.asked < 4:
            self.asked += 1
            return error_answer(429, "rate_limited", headers={"retry-after": "0"})
        return super().handle_request(request)


def test_a_pause_after_the_last_version_keeps_the_reason_for_its_number(start: Start, archive: Path):
    """The import of the voice begins again, and finds all versions there."""
    registry, busy = start(), Busy()
    for number in range(2):
        registry.upload("alice", clip=clips.wav(2 + number / 10))
    registry.delete("alice")
    alice, _ = restored(registry, archive, transport=busy).results
    assert (alice.versions, busy.asked) == ((3, 4, 5), 4)
    assert "because the voice has had version 2" in alice.notes[-1]


def test_an_interrupted_import_goes_on_with_the_numbers_of_the_archive(start: Start, archive: Path):
    """The versions that are there already are recognized, whatever their numbers are."""
    registry = start()
    with Archive(archive) as opened:
        voice = opened.voices[0]
        first = opened.record(voice.versions[0])
        clip = opened.source(voice.versions[0], first)
    assert isinstance(clip, bytes)
    with RegistryClient(registry.url) as client:
        client.restore_version(
            first.name,
            2,
            clip,
            created_at=first.created_at,
            version_id=first.id,
            consent=first.consent,
            ref_text=first.ref_text,
        )
    report = restored(registry, archive)
    assert [(one.versions, one.notes) for one in report.results] == [((2, 3, 5), ()), ((1,), ())]


def test_a_dry_run_says_only_what_is_true_of_it(
    start: Start, archive: Path, capsys: pytest.CaptureFixture[str]
):
    """It registers nothing, so it counts nothing as registered."""
    registry = start()
    cli.main(["--url", registry.url, "import", str(archive), "--dry-run"])
    assert "would register 2, already there 0, refused 0\n" in capsys.readouterr().out
    cli.main(["--url", registry.url, "import", str(archive)])
    assert "registered 2, already there 0, refused 0\n" in capsys.readouterr().out
