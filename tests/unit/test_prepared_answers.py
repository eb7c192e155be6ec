"""Tests of which answers are kept in memory, and of which give way."""

from services.registry_api.express.prepared import ENTRY_BYTES, PreparedAnswer, PreparedAnswers

ETAG = b'"one"'


def an_answer(size: int = 100, *speakers: str, profile: str = "ecapa") -> PreparedAnswer:
    return PreparedAnswer(
        speakers=speakers or ("acme/alice",),
        profiles=(profile,),
        route="/v1/voices",
        is_file=True,
        etag=ETAG,
        unchanged=b"",
        whole=b"",
        body=bytes(size),
    )


def key(number: int) -> tuple[bytes, None]:
    return b"/v1/voices/%d" % number, None


def test_the_answer_that_was_not_asked_for_the_longest_gives_way():
    """Voices that engines use every day stay, and the others are read again when they are needed."""
    size = ENTRY_BYTES + 100 + len(key(0)[0])
    kept = PreparedAnswers(3 * size, 100)
    for number in range(3):
        kept.put("acme", key(number), an_answer())
    assert kept.get("acme", key(0)) is not None
    kept.put("acme", key(3), an_answer())
    assert [number for number in range(4) if kept.get("acme", key(number))] == [0, 2, 3]
    assert kept.bytes == 3 * size


def test_a_namespace_that_asks_for_much_displaces_only_its_own_answers():
    """A tenant could otherwise slow down all others by asking for ever new voices."""
    kept = PreparedAnswers(1 << 30, 10)
    kept.put("small", key(0), an_answer())
    for number in range(100):
        kept.put("large", key(number), an_answer())
    assert kept.get("small", key(0)) is not None
    assert kept.count == 10


def test_an_answer_that_is_larger_than_all_the_room_is_not_kept():
    """It would displace everything, and then not fit."""
    kept = PreparedAnswers(2000, 10)
    kept.put("acme", key(0), an_answer())
    kept.put("acme", key(1), an_answer(5000))
    assert kept.get("acme", key(0)) is not None
    assert kept.get("acme", key(1)) is None


def test_what_a_client_writes_into_its_request_takes_room_as_well():
    """A key holder could otherwise fill a hundred times the memory with targets and headers of 16 KiB."""
    kept = PreparedAnswers(3 * (ENTRY_BYTES + 10_000), 1000)
    for number in range(100):
        kept.put("acme", (b"/v1/voices/%d" % number, b"gzip," + bytes(10_000)), an_answer())
    assert kept.count == 2
    assert kept.bytes <= 3 * (ENTRY_BYTES + 10_000)
    kept.drop_speaker("acme/alice")
    assert (kept.bytes, kept.count) == (0, 0)


def test_nothing_is_kept_where_there_is_no_room():
    """An operator may turn the memory off."""
    for kept in (PreparedAnswers(0, 10), PreparedAnswers(1 << 20, 0)):
        kept.put("acme", key(0), an_answer())
        assert kept.get("acme", key(0)) is None
        assert (kept.bytes, kept.count) == (0, 0)


def test_an_event_drops_every_answer_about_its_speaker():
    """Two requests for one voice may be written in different ways."""
    kept = PreparedAnswers(1 << 20, 10)
    kept.put("acme", key(0), an_answer(100, "acme/alice"))
    kept.put("acme", key(1), an_answer(100, "acme/alice", "acme/bob"))
    kept.put("acme", key(2), an_answer(100, "acme/bob"))
    kept.drop_speaker("acme/alice")
    kept.drop_speaker("acme/nobody")
    assert [number for number in range(3) if kept.get("acme", key(number))] == [2]
    kept.drop_speaker("acme/bob")
    assert (kept.bytes, kept.count) == (0, 0)


def test_an_announcement_drops_the_answers_of_its_profile():
    """The artifacts of other profiles are as right as before."""
    kept = PreparedAnswers(1 << 20, 10)
    kept.put("acme", key(0), an_answer(profile="ecapa"))
    kept.put("acme", key(1), an_answer(profile="codec"))
    kept.drop_profile("ecapa")
    assert [number for number in range(2) if kept.get("acme", key(number))] == [1]


def test_a_namespace_has_answers_of_its_own():
    """Two tenants may have voices of the same name."""
    kept = PreparedAnswers(1 << 20, 10)
    kept.put("acme", key(0), an_answer())
    assert kept.get("other", key(0)) is None
    kept.clear()
    assert kept.get("acme", key(0)) is None
    assert (kept.bytes, kept.count) == (0, 0)
