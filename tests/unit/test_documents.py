"""Tests of documents that are changed by compare-and-swap: lost replies, conflicts, nodes that are
behind, and deadlines. The store is in memory and misbehaves as a test says.
"""

import hashlib
import json
from collections.abc import Callable

import pytest

from services.shared.bucket.documents import CHANGE_SECONDS, NOTHING, Base, Documents
from services.shared.bucket.store import Moved, Object, StoreFull, WritesRefused
from services.shared.model.clock import Clock
from services.shared.model.records import seal, unseal
from speaker_registry.errors import Unavailable, VersionNotFound

KEY = "n/s/wren.json"

Weather = Callable[[], None]


class OwnTime(Clock):
    """A clock that only pauses move on."""

    seconds = 1000.0

    def since_boot(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class FakeStore:
    """One object in memory. Each read and each swap meets the next of the faults that a test planned."""

    def __init__(self) -> None:
        self.states: list[bytes] = []
        self.reads: list[object] = []
        """For each coming read an exception to raise, a body to return, or None."""
        self.swaps: list[tuple[str, object]] = []
        """For each coming swap `before` or `after` it, and what happens then: an exception or a function."""
        self.asked: list[bytes] = []

    def read(self, key: str) -> Object:
        fault = self.reads.pop(0) if self.reads else None
        if isinstance(fault, Exception):
            raise fault
        if isinstance(fault, bytes):
            return Object(fault, _etag(fault))
        if not self.states:
            raise FileNotFoundError
        return Object(self.states[-1], _etag(self.states[-1]))

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        self.asked.append(data)
        when, fault = self.swaps.pop(0) if self.swaps else ("", None)
        if when == "before":
            _let(fault)
        if etag != (_etag(self.states[-1]) if self.states else None):
            raise Moved
        self.states.append(data)
        if when == "after":
            _let(fault)
        return _etag(data)


def _let(fault: object) -> None:
    if isinstance(fault, Exception):
        raise fault
    assert callable(fault)
    fault()


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def clock() -> OwnTime:
    return OwnTime()


@pytest.fixture
def documents(store: FakeStore, clock: OwnTime) -> Documents:
    return Documents(store, clock)


class Adding:
    """A change that adds one word to a list. `decided` are the lists on which it was decided."""

    def __init__(self, word: str, *, unless: str | None = None, needs: str | None = None) -> None:
        self.word, self.unless, self.needs = word, unless, needs
        self.decided: list[list[str]] = []

    def decide(self, base: Base) -> bytes | None:
        words = words_of(base.body)
        self.decided.append(words)
        if self.needs and self.needs not in words:
            raise VersionNotFound("it is not there")
        return None if self.unless in words else body_of([*words, self.word])

    def done(self, body: bytes, _: int) -> bool:
        return self.word in words_of(body)


def body_of(words: list[str]) -> bytes:
    return seal({"words": words, "revision": len(words)})


def words_of(body: bytes | None) -> list[str]:
    return list(unseal(body)["words"]) if body else []


def base_of(words: list[str]) -> Base:
    return Base(body_of(words), _etag(body_of(words)), len(words), sound=True)


def added(documents: Documents, change: Adding, **options: object) -> list[str]:
    """Make a change. Returns the words in the document that it leads to."""
    return words_of(documents.change(KEY, change.decide, is_made=change.done, **options).body)  # type: ignore[arg-type]


def other(store: FakeStore, *words: str) -> Weather:
    """Return a step in which another process adds words."""
    return lambda: [store.states.append(body_of([*words_of(store.states[-1]), w])) for w in words] and None


def test_a_change_makes_the_document_and_the_next_one_replaces_it(documents: Documents, store: FakeStore):
    """The first change of a speaker needs no other preparation than a later one."""
    assert documents.read(KEY) == NOTHING
    assert added(documents, Adding("a")) == ["a"]
    assert added(documents, Adding("b")) == ["a", "b"]
    assert documents.read(KEY) == base_of(["a", "b"])
    assert len(store.states) == 2


def test_a_change_that_meets_another_one_is_decided_again(documents: Documents, store: FakeStore):
    """A decision holds only for the state on which it was made, so no other change is lost."""
    store.states.append(body_of(["a"]))
    store.swaps.append(("before", other(store, "other")))
    change = Adding("b")
    assert added(documents, change) == ["a", "other", "b"]
    assert change.decided == [["a"], ["a", "other"]]


@pytest.mark.parametrize("reply", [Unavailable("lost"), Moved()], ids=["lost", "refused at the repeat"])
def test_a_change_whose_reply_is_lost_is_made_once(documents: Documents, store: FakeStore, reply: Exception):
    """If the reply is lost, the document itself says that the change was made."""
    store.swaps.append(("after", reply))
    change = Adding("a")
    assert added(documents, change) == ["a"]
    assert (len(change.decided), len(store.states)) == (1, 1)


@pytest.mark.parametrize("error", [StoreFull, WritesRefused])
def test_a_store_that_takes_no_writes_is_told_at_once(
    documents: Documents, store: FakeStore, clock: OwnTime, error: type[WritesRefused]
):
    """Until it takes writes again, no repetition helps, so nobody should wait for one."""
    store.swaps.append(("before", error("The disk is full or read-only.")))
    began = clock.seconds
    with pytest.raises(error, match="The disk is full or read-only"):
        added(documents, Adding("a"))
    assert (len(store.asked), clock.seconds - began < 1) == (1, True)


def test_a_change_of_a_full_store_that_was_made_stands(documents: Documents, store: FakeStore):
    """The earlier of two tries may have reached the store, or the disk was full just after the last step."""
    store.swaps.append(("after", StoreFull("The disk is full.")))
    assert added(documents, Adding("a")) == ["a"]


def test_a_change_whose_reply_is_lost_is_found_under_later_ones(documents: Documents, store: FakeStore):
    """Others may have changed the document since. Made again, an alias would move back to where the first try
    had put it.
    """

    def lost() -> None:
        other(store, "other")()
        raise Unavailable("lost")

    store.swaps.append(("after", lost))
    assert added(documents, Adding("a")) == ["a", "other"]


def test_a_lost_change_that_the_document_can_no_longer_tell_is_not_decided_again(
    documents: Documents, store: FakeStore
):
    """The document keeps the ids of the last changes only. Made twice, a delete would also take the voice
    that was registered after it.
    """

    def lost() -> None:
        other(store, "other")()
        raise Unavailable("lost")

    store.states.append(body_of(["a"]))
    store.swaps.append(("after", lost))
    change, revisions = Adding("b"), list[int]()
    with pytest.raises(Unavailable, match="not known whether the change was made"):
        documents.change(KEY, change.decide, is_made=lambda _, revision: revisions.append(revision))
    assert (change.decided, revisions) == ([["a"]], [2])
    assert len(store.asked) == 1


def test_a_conflict_is_decided_again_although_the_document_can_no_longer_tell(
    documents: Documents, store: FakeStore
):
    """Its swap was refused, so it was not made. Many writers of one document have many conflicts. A reply
    that was lost on an earlier state no longer matters.
    """

    def lost() -> None:
        other(store, "other")()
        raise Unavailable("lost")

    store.states.append(body_of(["a"]))
    store.swaps += [("before", lost), ("before", other(store, "another"))]
    change, answers = Adding("b"), iter([False, None])
    documents.change(KEY, change.decide, is_made=lambda *_: next(answers))
    assert [len(words) for words in change.decided] == [1, 2, 3]
    assert words_of(store.states[-1]) == ["a", "other", "another", "b"]


def test_a_change_that_was_not_carried_out_is_sent_again_as_it_was(documents: Documents, store: FakeStore):
    """While nothing has changed, the same bytes are sent on the same condition. Then a late first try and the
    second one cannot both be carried out with different content.
    """
    store.swaps += [("before", Unavailable("away")), ("before", Unavailable("away"))]
    change = Adding("a")
    assert added(documents, change) == ["a"]
    assert len(change.decided) == 1
    assert len(store.asked) == 3
    assert len(set(store.asked)) == 1


def test_an_older_document_refuses_no_change_that_was_made(documents: Documents, store: FakeStore):
    """A node that is behind shows a document from before the one that the change was decided on. Decided on
    it, a change that was carried out would be refused.
    """
    store.states.append(body_of(["a", "needed"]))
    store.swaps.append(("after", Unavailable("lost")))
    store.reads += [None, body_of(["a"]), FileNotFoundError(), FileNotFoundError()]
    assert added(documents, Adding("b", needs="needed")) == ["a", "needed", "b"]
    assert len(store.states) == 2


def test_what_a_copy_would_refuse_is_decided_again_on_the_document(documents: Documents, store: FakeStore):
    """A copy may be outdated, and neither a refusal nor a change that changes nothing meets a conflict."""
    store.states.append(body_of(["a", "needed"]))
    assert added(documents, Adding("b", needs="needed"), base=base_of(["a"])) == ["a", "needed", "b"]
    outdated = base_of(["a", "gone"])
    assert added(documents, Adding("c", unless="gone"), base=outdated) == ["a", "needed", "b", "c"]


def test_a_copy_saves_reading_the_document(documents: Documents, store: FakeStore):
    """A change on a copy that is up to date reads nothing. An outdated copy costs one conflict."""
    store.states.append(body_of(["a"]))
    store.reads.append(AssertionError("nothing needs to be read"))
    assert added(documents, Adding("b"), base=base_of(["a"])) == ["a", "b"]
    store.reads.clear()
    assert added(documents, Adding("c"), base=base_of(["a"])) == ["a", "b", "c"]


def test_what_the_document_refuses_is_refused(documents: Documents, store: FakeStore):
    """A refusal on the bucket's own document is final, and stores nothing."""
    store.states.append(body_of(["a"]))
    with pytest.raises(VersionNotFound):
        added(documents, Adding("b", needs="needed"))
    assert added(documents, Adding("b", unless="a")) == ["a"]
    assert store.asked == []


@pytest.mark.parametrize("copied", [False, True])
def test_a_request_that_stood_still_decides_nothing(
    documents: Documents, store: FakeStore, clock: OwnTime, copied: bool
):
    """A process that stood still for two days must not carry out a delete: the voice that is there now was
    registered since.
    """
    store.states.append(body_of(["a"]))
    until = documents.deadline()
    clock.sleep(2 * 24 * 3600)
    change = Adding("b")
    with pytest.raises(Unavailable, match="was not made"):
        added(documents, change, until=until, base=base_of(["a"]) if copied else None)
    assert change.decided == []
    assert store.asked == []


def test_a_machine_that_was_suspended_while_it_read_decides_nothing(
    documents: Documents, store: FakeStore, clock: OwnTime
):
    """The time is looked at after the document was read, too, because a process may stand still there."""
    store.states.append(body_of(["a"]))
    read = store.read

    def slow(key: str) -> Object:
        clock.sleep(CHANGE_SECONDS + 1)
        return read(key)

    store.read = slow  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="was not made"):
        added(documents, Adding("b"))
    assert store.asked == []


@pytest.mark.parametrize("readable", [True, False])
def test_a_store_that_stays_away_ends_a_change_in_time(
    documents: Documents, store: FakeStore, clock: OwnTime, readable: bool
):
    """A caller is told after 30 seconds that the outcome is unknown, whether the store can be read or not."""
    store.swaps += [("before", Unavailable("away"))] * 1000
    store.reads += [FileNotFoundError()] * 2
    store.reads += [] if readable else [Unavailable("away")] * 1000
    began = clock.seconds
    with pytest.raises(Unavailable, match=r"not known whether the change was made.*look first") as caught:
        added(documents, Adding("a"))
    assert caught.value.retry_after_seconds
    assert CHANGE_SECONDS < clock.seconds - began < CHANGE_SECONDS + 5


@pytest.mark.parametrize("older", [[], [body_of(["a"])]], ids=["lost", "older"])
def test_a_document_that_the_store_has_lost_or_put_back_is_not_waited_for_long(
    documents: Documents, store: FakeStore, clock: OwnTime, older: list[bytes]
):
    """The copy that the change starts from is newer than what the store has, so waiting does not help, and
    the request would keep a slot of the bucket from other tenants.
    """
    store.states += older
    began = clock.seconds
    with pytest.raises(Unavailable, match="or has lost it"):
        added(documents, Adding("c"), base=base_of(["a", "b"]))
    assert clock.seconds - began < 4
    assert store.states == older


@pytest.mark.parametrize("fault", [None, Unavailable("away")], ids=["older", "away"])
def test_a_change_that_was_not_sent_was_not_made(
    documents: Documents, store: FakeStore, fault: Unavailable | None
):
    """The caller need not look for a change of which the store has never been asked."""
    store.states.append(body_of(["a"]))
    store.reads += [None, *[fault] * 1000]
    with pytest.raises(Unavailable, match=r"the change was not made|took too long and was not made"):
        added(documents, Adding("c"), known_revision=2)
    assert store.asked == []


def test_an_outdated_node_has_time_to_catch_up(documents: Documents, store: FakeStore, clock: OwnTime):
    """Also if the store could not be reached at first, which takes most of the time of the change."""
    clock.up_to = lambda seconds: seconds  # type: ignore[method-assign]
    store.states.append(body_of(["a", "b"]))
    store.swaps.append(("before", Unavailable("away")))
    store.reads += [Unavailable("away")] * 20 + [body_of(["a"])] * 2
    began = clock.seconds
    assert added(documents, Adding("c"), base=base_of(["a", "b"])) == ["a", "b", "c"]
    assert clock.seconds - began > 10


def test_a_change_that_conflicts_for_ever_ends_in_time(
    documents: Documents, store: FakeStore, clock: OwnTime
):
    """A document that others change all the time must not hold a request for ever."""
    store.states.append(body_of(["a"]))
    store.swaps += [("before", other(store, f"other{n}")) for n in range(1000)]
    began = clock.seconds
    with pytest.raises(Unavailable):
        added(documents, Adding("b"))
    assert clock.seconds - began < CHANGE_SECONDS + 5


def test_pauses_between_tries_are_random_and_grow(documents: Documents, store: FakeStore, clock: OwnTime):
    """Writers that met once must not meet again at every further try."""
    pauses: list[float] = []
    clock.up_to = lambda seconds: pauses.append(seconds) or 0.0  # type: ignore[method-assign,func-returns-value]
    store.states.append(body_of(["a"]))
    store.swaps += [("before", other(store, f"other{n}")) for n in range(8)]
    added(documents, Adding("b"))
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.025, 1.0)


def test_one_answer_that_there_is_nothing_is_not_believed(documents: Documents, store: FakeStore):
    """A node that is behind may answer once that there is no such document."""
    store.states.append(body_of(["a"]))
    store.reads.append(FileNotFoundError())
    assert documents.read(KEY) == base_of(["a"])


def test_a_document_that_is_damaged_on_the_way_is_read_again(documents: Documents, store: FakeStore):
    """A damaged answer does not make a damaged document, so different bytes are an error of the moment."""
    store.states.append(body_of(["a"]))
    store.reads.append(body_of(["a"])[:-20])
    assert documents.read(KEY) == base_of(["a"])
    store.reads += [body_of(["a"])[:-20], body_of(["a"])[:-10]]
    with pytest.raises(Unavailable, match="could not be read as a whole"):
        documents.read(KEY)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        body_of(["a"]).replace(b'"a"', b'"b"'),
        body_of(["a"])[:-1],
        body_of(["a"]).decode().encode("utf-16"),
        json.dumps({**unseal(body_of(["a"])), "digest": 7}).encode(),
        seal({"revision": None}),
        seal({"revision": "many"}),
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_the_same_wrong_bytes_twice_are_a_damaged_document(
    documents: Documents, store: FakeStore, body: bytes
):
    """A document that was cut or edited by hand is told to the decision, which refuses to guess. It is never
    taken for one that holds the change.
    """
    store.states.append(body)
    found = documents.read(KEY)
    assert (found.damaged, found.body) == (True, body)
    seen: list[bool] = []
    store.swaps.append(("before", Moved()))
    replaced = documents.change(
        KEY,
        lambda base: seen.append(base.damaged) or body_of(["new"]),  # type: ignore[func-returns-value]
        is_made=lambda body, _: "new" in words_of(body),
    )
    assert seen == [True]
    assert replaced.body == body_of(["new"])


def test_a_digest_does_not_depend_on_the_order_or_the_spacing_of_members():
    """An editor may store the same members in another form. What they say is what is verified."""
    body = json.dumps(dict(reversed(json.loads(body_of(["a", "é"])).items())), indent=4).encode()
    assert unseal(body) == unseal(body_of(["a", "é"]))
    assert seal(unseal(body)) == body_of(["a", "é"])


def test_a_digest_within_another_member_is_not_taken_for_that_of_the_body():
    """Artifacts have digests too. A body is as intact with them as without, and as damaged."""
    members = {"made": [{"digest": f"sha256:{number}", "size": number} for number in range(3)], "zone": "é"}
    body = seal(members)
    assert unseal(body) == members
    for other in (body.replace(b"sha256:1", b"sha256:2"), body.replace(b'"zone"', b'"zona"')):
        with pytest.raises(ValueError, match="digest"):
            unseal(other)
