"""Tests of compare-and-swap, on a local folder and on a real S3 server, and of the probe that refuses a store
without it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.embedded.managed_process import ROOT
from services.registry_api.commands import try_store
from services.registry_api.commands.exit_statuses import DONE, NOT_NOW, WRONG_SETTINGS
from services.shared.bucket import probe
from services.shared.bucket.connection import StoreUnfit, StoreUnreachable
from services.shared.bucket.documents import Documents
from services.shared.bucket.durable_folder import DurableFolder
from services.shared.bucket.folder_store import FolderStore
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import WRITERS, probe_swaps
from services.shared.bucket.store import MAX_READ_BYTES, Moved, Object, ObjectStore, TooLarge
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.model.clock import Clock
from services.shared.model.records import seal, unseal
from services.shared.registry import opening
from speaker_registry.errors import Unavailable
from tests.integration.conftest import bucket_settings
from tests.ports import free_port
from tests.servers import KEY_ID, SECRET, CutOff, Request, Response, S3Proxy, S3Server

KEY = "n/s/wren.json"


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_an_object_is_replaced_only_while_it_is_what_was_read(swapping_store: ObjectStore) -> None:
    """A swap is refused if the object changed since it was read, because a change that was decided on an old
    document would take back what others have acknowledged meanwhile.
    """
    store = swapping_store
    first = store.swap(KEY, b"1", etag=None)
    second = store.swap(KEY, b"2", etag=first)
    assert second != first
    for outdated in (first, None):
        with pytest.raises(Moved):
            store.swap(KEY, b"3", etag=outdated)
    assert store.read(KEY) == Object(b"2", second)
    assert store.get(KEY) == b"2"


def test_nothing_is_stored_in_place_of_what_is_not_there(swapping_store: ObjectStore) -> None:
    """A swap with an ETag is refused where there is no object. A voice must not come back by a late write."""
    with pytest.raises(Moved):
        swapping_store.swap(KEY, b"1", etag="0" * 32)
    for look in (swapping_store.read, swapping_store.get):
        with pytest.raises(FileNotFoundError):
            look(KEY)


def test_of_many_writers_at_once_none_loses_a_change(
    swapping_store: ObjectStore, threads: ThreadPoolExecutor
) -> None:
    """Writers that count up one object at once lose no count. This is what replaces every lock and every
    order that Redis gave out.
    """
    etag = swapping_store.swap(KEY, b"0", etag=None)
    list(threads.map(lambda _: [count_up(swapping_store) for _ in range(5)], range(8)))
    found = swapping_store.read(KEY)
    assert found.data == b"%d" % (5 * 8)
    assert found.etag != etag


def count_up(store: ObjectStore) -> None:
    while True:
        found = store.read(KEY)
        try:
            store.swap(KEY, b"%d" % (int(found.data) + 1), etag=found.etag)
            return
        except Moved:
            pass


def test_a_swap_is_a_whole_file_that_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a folder the new content is synced before it takes the name, and the name afterwards. Otherwise an
    acknowledged change could be lost, or a document be half of one.
    """
    folder, synced = DurableFolder(tmp_path), []
    sync = os.fsync

    def note(descriptor: int) -> None:
        there = (tmp_path / KEY).read_bytes() if (tmp_path / KEY).exists() else b""
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().parent.name, there))
        sync(descriptor)

    assert folder.swap(KEY, b"1", None)
    monkeypatch.setattr(os, "fsync", note)
    etag = folder.read(KEY)
    assert not folder.swap(KEY, b"2", "not the ETag")
    assert folder.read(KEY) == etag
    synced.clear()
    assert folder.swap(KEY, b"2", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b")
    assert synced == [(".tmp", b"1"), ("n", b"2")]
    assert list((tmp_path / ".tmp").iterdir()) == []


class LosesReplies(S3Proxy):
    """A store whose first answer to a PUT never arrives, although it carried the PUT out. A gateway
    may answer in its place.
    """

    gateway: Response | None

    def answer(self, request: Request) -> Response:
        answer = self.forward(request)
        if request.method == "PUT" and [seen.method for seen in self.seen].count("PUT") == 1:
            if self.gateway is None:
                raise CutOff
            return self.gateway
        return answer


@pytest.mark.parametrize("gateway", [None, Response(500), Response(503)])
def test_a_swap_whose_reply_is_lost_is_not_taken_for_one_that_was_never_made(
    seaweedfs_server: S3Server, gateway: Response | None
) -> None:
    """If the reply to a swap is lost, the caller is told to look again. If the client repeated the request,
    the store would refuse it as a conflict, because the first try was carried out.
    """
    settings = bucket_settings(seaweedfs_server)
    with LosesReplies(seaweedfs_server) as proxy:
        proxy.gateway = gateway
        store = open_store(settings.model_copy(update={"endpoint": proxy.endpoint}))
        with pytest.raises(Unavailable):
            store.swap(KEY, b"1", etag=None)
    assert open_store(settings).get(KEY) == b"1"


def test_the_probe_accepts_a_store_with_compare_and_swap_and_leaves_nothing(
    swapping_store: ObjectStore,
) -> None:
    """The probe accepts a store that has compare-and-swap, and removes what it stored."""
    probe_swaps(swapping_store)
    assert swapping_store.list(".probe/").objects == ()


class ForgetsConditions(FolderStore):
    """A store that ignores the condition of every swap."""

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        self.put(key, data)
        return self.read(key).etag


class CreatesAnyTime(FolderStore):
    """A store that knows `If-Match` and ignores `If-None-Match`."""

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        if etag is None:
            self.put(key, data)
            return self.read(key).etag
        return super().swap(key, data, etag=etag)


class ChecksThenActs(FolderStore):
    """A store that says it has compare-and-swap, but looks first and writes afterwards."""

    together = threading.Barrier(WRITERS)

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        if self._etag_of(key) != etag:
            raise Moved
        self.together.wait(10)
        self.put(key, data)
        return self.read(key).etag

    def _etag_of(self, key: str) -> str | None:
        try:
            return self.read(key).etag
        except FileNotFoundError:
            return None


class AcceptsAnOlderOne(FolderStore):
    """A store that replaces an object if somebody read any of its former states."""

    known: set[str | None]

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        if etag is not None and etag in self.known:
            self.put(key, data)
            return self.read(key).etag
        new = super().swap(key, data, etag=etag)
        self.known = getattr(self, "known", set()) | {etag}
        return new


@pytest.mark.parametrize("kind", [ForgetsConditions, CreatesAnyTime, ChecksThenActs, AcceptsAnOlderOne])
def test_the_probe_refuses_a_folder_whose_swaps_are_none(
    kind: type[FolderStore], tmp_path: Path, as_kind: Callable[[type[FolderStore], Path], ObjectStore]
) -> None:
    """A store without exact compare-and-swap is refused in words that name stores that have it. With such a
    store, two uploads at once would lose one of two acknowledged versions.
    """
    store = as_kind(kind, tmp_path)
    if isinstance(store, AcceptsAnOlderOne):
        store.known = set()
    with pytest.raises(StoreUnfit, match=r"compare-and-swap.*SeaweedFS 4\.48"):
        probe_swaps(store)
    assert store.list(".probe/").objects == ()


def test_a_store_that_is_refused_at_the_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who runs several registries learns which setting to change, and to what."""
    store = ForgetsConditions(tmp_path / "voices")
    monkeypatch.setattr(opening, "open_store", lambda _: store)
    settings = StoreSettings(url=(tmp_path / "voices").as_uri())
    named = (
        rf"^SPEAKER_STORE_URL: the folder '{tmp_path}/voices' cannot be used: .* Use one that has it, such as"
    )
    with pytest.raises(StoreUnfit, match=named):
        opening.open_registry(settings, RegistrySettings())
    assert store.list(".probe/").objects == ()


class AnswersTooLate(FolderStore):
    """A store whose every swap is carried out, and then refused when it is repeated."""

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        super().swap(key, data, etag=etag)
        raise Moved


def test_the_probe_forgives_replies_that_are_lost(
    tmp_path: Path, as_kind: Callable[[type[FolderStore], Path], ObjectStore]
) -> None:
    """A lost reply says nothing about compare-and-swap, and a poor connection must not end a start."""
    probe_swaps(as_kind(AnswersTooLate, tmp_path))


class FailsNowAndThen(FolderStore):
    """A store that does not answer every other swap."""

    swaps = 0

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        self.swaps += 1
        if self.swaps % 2:
            raise Unavailable("The object store is not available.")
        return super().swap(key, data, etag=etag)


def test_the_probe_repeats_swaps_that_fail(
    tmp_path: Path, as_kind: Callable[[type[FolderStore], Path], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passing fault must not end a start, and the client repeats no swap by itself."""
    monkeypatch.setattr(probe, "_PAUSES_SECONDS", [0.001] * 20)
    probe_swaps(as_kind(FailsNowAndThen, tmp_path))


@pytest.fixture
def as_kind() -> Callable[[type[FolderStore], Path], ObjectStore]:
    """Return a function that opens a folder as a store of a kind."""

    def opened(kind: type[FolderStore], folder: Path) -> ObjectStore:
        return kind(folder / "store")

    return opened


def tried(command: str = "try-store", **environment: str) -> tuple[int, str, str]:
    """Run a command on a store. Returns its exit status and what it printed."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("SPEAKER_")}
    arguments = [sys.executable, "-m", "services.registry_api", command]
    done = subprocess.run(
        arguments, env={**given, **environment}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert SECRET not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_command_says_that_a_folder_is_fit(tmp_path: Path) -> None:
    """The command prints each property that it found, so that an operator sees what was tried."""
    status, printed, _ = tried(
        SPEAKER_STORE_URL=f"file://{tmp_path}/store", SPEAKER_STORE_CREATE_BUCKET="true"
    )
    assert status == DONE
    assert printed.count("try-store: yes: ") == 2
    assert printed.endswith("the registry can use this store\n")


def test_the_command_says_why_a_store_is_unfit(rclone_server: S3Server) -> None:
    """The command names the missing property in one line and ends with a status of its own."""
    status, printed, error = tried(
        SPEAKER_STORE_URL=f"s3://{rclone_server.bucket}/tried",
        SPEAKER_STORE_ENDPOINT=rclone_server.endpoint,
        SPEAKER_STORE_ACCESS_KEY_ID=KEY_ID,
        SPEAKER_STORE_SECRET_ACCESS_KEY=SECRET,
    )
    assert (status, printed.count("try-store: yes: ")) == (WRONG_SETTINGS, 1)
    assert error.splitlines()[-1].startswith("try-store: no: the object store replaced an object")


@pytest.mark.parametrize("command", ["try-store", "adopt-bucket"])
def test_a_command_tells_a_store_that_is_away_from_an_unfit_one(command: str) -> None:
    """A store that does not answer may be fit, so the exit status says that a later try may succeed."""
    status, printed, error = tried(
        command,
        SPEAKER_STORE_URL="s3://voices",
        SPEAKER_STORE_ENDPOINT=f"http://127.0.0.1:{free_port()}",
        SPEAKER_STORE_ACCESS_KEY_ID=KEY_ID,
        SPEAKER_STORE_SECRET_ACCESS_KEY=SECRET,
    )
    assert (status, printed) == (NOT_NOW, "")
    assert "SPEAKER_STORE_ENDPOINT: " in error


@pytest.mark.parametrize("command", ["try-store", "adopt-bucket"])
def test_a_command_says_that_a_key_is_wrong(rclone_server: S3Server, command: str) -> None:
    """No later try changes the key, so the exit status is that of wrong settings."""
    status, printed, error = tried(
        command,
        SPEAKER_STORE_URL=f"s3://{rclone_server.bucket}/tried",
        SPEAKER_STORE_ENDPOINT=rclone_server.endpoint,
        SPEAKER_STORE_ACCESS_KEY_ID=KEY_ID,
        SPEAKER_STORE_SECRET_ACCESS_KEY=SECRET[:-1],
    )
    assert (status, printed) == (WRONG_SETTINGS, "")
    assert "SPEAKER_STORE_ACCESS_KEY_ID: " in error


def test_the_command_says_that_a_folder_without_rights_is_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later try changes the rights, so the exit status is that of wrong settings."""
    settings = StoreSettings(url=tmp_path.as_uri())
    try_store._check_rights(settings)
    monkeypatch.setattr(try_store.os, "access", lambda *_: False)  # the tests may run as root
    with pytest.raises(StoreUnfit, match="this user may not read and write there") as caught:
        try_store._check_rights(settings)
    assert not isinstance(caught.value, StoreUnreachable)


def test_the_command_names_a_wrong_setting() -> None:
    """A wrong setting is named with what is accepted."""
    status, _, error = tried(SPEAKER_STORE_URL="voices")
    assert status == WRONG_SETTINGS
    assert "try-store: no: SPEAKER_STORE_URL" in error


def test_changes_of_one_document_by_many_at_once_are_all_made(
    swapping_store: ObjectStore, threads: ThreadPoolExecutor
) -> None:
    """Publishers that meet at one document all get their change in, each once, in one order."""
    documents = Documents(swapping_store, Clock())

    def add(word: str) -> None:
        documents.change(
            KEY,
            lambda base: seal({"words": [*words_of(base.body), word], "revision": base.revision + 1}),
            is_made=lambda body, _: word in words_of(body),
        )

    list(threads.map(add, "abcdefgh"))
    found = documents.read(KEY)
    assert sorted(words_of(found.body)) == list("abcdefgh")
    assert found.revision == 8


def test_an_object_that_is_too_large_for_a_document_is_not_read(swapping_store: ObjectStore) -> None:
    """A foreign object in place of a document must not fill the memory. It can be replaced all the same."""
    swapping_store.put(KEY, b"x" * (MAX_READ_BYTES + 1))
    with pytest.raises(TooLarge) as caught:
        swapping_store.read(KEY)
    found = Documents(swapping_store, Clock()).read(KEY)
    assert (found.body, found.damaged, found.oversize) == (b"", True, MAX_READ_BYTES + 1)
    assert caught.value.size == found.oversize
    assert swapping_store.swap(KEY, b"1", etag=found.etag) == swapping_store.read(KEY).etag


def words_of(body: bytes | None) -> list[str]:
    return list(unseal(body)["words"]) if body else []
