"""Tests that the two implementations of the rules agree: what the scripts make of facts on a real Valkey
equals what `fold` makes of them.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.embedded.valkey import ValkeyServer
from services.shared.bucket.keys import SpeakerId
from services.shared.index import redis_access
from services.shared.index.gate import BOOT
from services.shared.index.script_arguments import SpeakerUpdate
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection, names_key, speaker_key
from services.shared.model.domain import (
    AliasFact,
    ArtifactFact,
    CensusFact,
    Fact,
    FailureFact,
    Speaker,
    TombstoneFact,
    VersionFact,
    VoidFact,
    fold,
)
from speaker_registry.errors import Unavailable
from tests.integration.storage import NoEpochs
from tests.speaker_facts import histories, without_losers

EXAMPLES = settings(derandomize=True, max_examples=150)
_numbers = itertools.count(1)
_facts: dict[SpeakerId, list[Fact]] = {}
"""The facts that the bucket holds of each speaker."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeakerIndex]:
    """An index on a server of its own, because its gate is opened and closed all the time. However slow the
    machine is, the server is not taken for a silent one, whose commands fail at once.
    """
    patient = patch.multiple(redis_access, SUSPECT_SECONDS=60.0, ANSWER_SECONDS=60.0)
    with patient, ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        index = SpeakerIndex(server.url, "a bucket", lambda one: fold(_facts[one]), NoEpochs())
        index.open()
        yield index
        index.close()


@dataclass
class Telling:
    """A speaker of its own in a namespace of its own, and the facts that the index was told about it."""

    index: SpeakerIndex
    speaker_id: SpeakerId
    facts: list[Fact]

    @classmethod
    def nothing(cls, index: SpeakerIndex) -> "Telling":
        told = cls(index, SpeakerId(f"n{next(_numbers)}", "alice"), [])
        _facts[told.speaker_id] = []
        told.admit_all()
        return told

    def tell(self, fact: Fact) -> None:
        """Tell the index one fact, as the process that wrote it does."""
        self.facts.append(fact)
        index, speaker_id = self.index, self.speaker_id
        match fact:
            case VersionFact(seq, record):
                with suppress(Unavailable):  # its uploader is to send it again
                    index.apply_version(speaker_id, seq, record)
            case CensusFact():
                index.tell(speaker_id, SpeakerUpdate(fold([fact]), time.time()), epoch=index.epoch)
            case TombstoneFact(seq, number, created_at):
                index.apply_tombstone(speaker_id, seq, number, created_at)
            case AliasFact():
                index.apply_alias(speaker_id, fact)
            case ArtifactFact(vuid, akey, _, record):
                index.apply_artifact(speaker_id, vuid, akey, record)
            case VoidFact():
                index.apply_void(speaker_id, fact)
            case FailureFact(vuid, akey, record):
                index.apply_failure(speaker_id, vuid, akey, record)

    def tell_all(self, facts: Iterable[Fact]) -> None:
        """Tell the index many facts at once, as housekeeping does."""
        facts = list(facts)
        self.facts += facts
        self.index.tell(self.speaker_id, SpeakerUpdate(fold(facts), time.time()), epoch=self.index.epoch)

    def lose_redis(self, landed: Iterable[Fact]) -> None:
        """Restart the index's server over a bucket that holds the landed facts. The index then may know more
        than it was told.
        """
        self.facts = list(landed)
        _facts[self.speaker_id] = self.facts
        self.index.ungated.delete(BOOT)
        self.index.open()

    def admit_all(self) -> None:
        """Admit the speaker and complete the index, as housekeeping ends a rebuild. Other tests' speakers are
        admitted when they are needed.
        """
        self.index.admit(self.speaker_id)
        self.index.set_complete(self.index.epoch)

    def check(self) -> None:
        told = fold(self.facts)
        indexed = self.index.load(self.speaker_id).speaker
        assert indexed.number >= told.number, "higher where a census leaves out what was told before"
        assert indexed.created_at >= told.created_at
        assert replace(indexed, number=told.number, created_at=told.created_at) == told
        self.admit_all()
        assert self.index.names(self.speaker_id.namespace, limit=9) == ["alice"] * told.live
        records = [version.record for version in told.versions]
        texts = sum(record.text_bytes for record in records)
        sources = [part.size for record in records for part in (record.clip, *record.given) if part]
        uploaded = sum(sources) + texts
        assert self.index.usage(self.speaker_id.namespace) == (told.live, uploaded, texts)
        assert self.remembered() <= {version.vuid for version in told.versions}
        assert self.findable() == {
            (record.digest.removeprefix("sha256:")[:32], f"alice:{version.vuid}")
            for version in told.versions
            for record in (*version.record.given, *version.artifacts.values())
        }
        self.check_looks(told)

    def check_looks(self, told: Speaker) -> None:
        """Check that a look at few versions returns the same about them, and about the
        speaker, as a look at all.
        """
        looks = [(VersionSelection(vuid=one.vuid), one) for one in told.versions]
        looks += [(VersionSelection(number=one.number), told.resolve(one.number)) for one in told.versions]
        for selection, wanted in [*looks, (None, None)]:
            indexed = self.index.look(self.speaker_id, selection)
            seen = indexed.speaker
            assert wanted is None or seen.by_vuid(wanted.vuid) == wanted
            assert indexed.version_count == len(told.versions)
            assert (seen.versions[:1], seen.versions[-1:]) == (told.versions[:1], told.versions[-1:])
            assert (seen.aliases, seen.alias_facts) == (told.aliases, told.alias_facts)
            for mark in ("tombstone", "damaged", "seq", "live"):
                assert getattr(seen, mark) == getattr(told, mark)
            assert (seen.number, seen.created_at) >= (told.number, told.created_at)
        newest = self.index.look(self.speaker_id, VersionSelection(limit=2)).speaker.versions
        assert newest[-2:] == told.versions[-2:]

    def findable(self) -> set[tuple[str, str]]:
        """Return the artifacts that the index finds by digest, each with where it is."""
        names = names_key(self.speaker_id.namespace)
        return set(self.index.redis.hgetall(f"{names}:{self.index.epoch}:blobs").items())

    def remembered(self) -> set[str]:
        """Return the versions of which the index keeps anything."""
        fields = self.index.redis.hkeys(speaker_key(self.speaker_id))
        kinds = {"v:", "r:", "b:", "g:", "x:", "w:", "f:", "k:"}
        return {field.split(":")[1] for field in fields if field[:2] in kinds and field != "k:"}


def possible(order: list[Fact]) -> Iterator[Fact]:
    """Reorder the facts so that those about a version's results come after it. Nothing can be made from a
    version before it exists.
    """
    coming = {fact.record.vuid for fact in order if isinstance(fact, VersionFact)}
    waiting: list[ArtifactFact | FailureFact | VoidFact] = []
    for fact in order:
        if isinstance(fact, ArtifactFact | FailureFact | VoidFact) and fact.vuid in coming:
            waiting.append(fact)
            continue
        yield fact
        if isinstance(fact, VersionFact):
            coming.discard(fact.record.vuid)
            yield from (one for one in waiting if one.vuid == fact.record.vuid)


@EXAMPLES
@given(history=histories(), data=st.data())
def test_each_fact_that_is_told_says_what_the_fold_says(
    index: SpeakerIndex, history: list[Fact], data: st.DataObject
):
    """The index equals the fold after each fact, in whatever order the facts arrive and however often,
    because requests are answered from it at every moment.
    """
    order = list(possible(data.draw(st.permutations(without_losers(history)))))
    told = Telling.nothing(index)
    for fact in order:
        told.tell(fact)
        told.check()
    for fact in data.draw(st.permutations(history)):  # again, and artifacts that lost to one in force
        told.tell(fact)
    told.check()


@EXAMPLES
@given(history=histories(), data=st.data())
def test_parts_in_any_order_end_in_what_all_of_them_say(
    index: SpeakerIndex, history: list[Fact], data: st.DataObject
):
    """Parts in any order lead to the result of all of them. Requests, workers and several housekeepers tell
    what each has seen, and the last look has seen all.
    """
    told, parts = Telling.nothing(index), without_losers(history)
    some = st.lists(st.sampled_from(parts), max_size=5) if parts else st.just([])
    for part in data.draw(st.lists(some, max_size=4)):
        if data.draw(st.booleans()):
            told.tell_all(part)
        else:
            for fact in part:
                told.tell(fact)
    told.tell_all(history)
    told.check()


@EXAMPLES
@given(history=histories(), data=st.data())
def test_a_loss_at_any_moment_changes_nothing(index: SpeakerIndex, history: list[Fact], data: st.DataObject):
    """A loss at any moment changes nothing. The listing may know more than the index was told, and pending
    facts are told again after it.
    """
    order = list(possible(data.draw(st.permutations(without_losers(history)))))
    told = Telling.nothing(index)
    now, listed = sorted(data.draw(st.tuples(*[st.integers(0, len(order))] * 2)))
    for fact in order[:now]:
        told.tell(fact)
    told.lose_redis(order[:listed])
    told.check()
    for fact in order[now:]:
        told.tell(fact)
    told.tell_all(history)
    told.check()


@EXAMPLES
@given(history=histories(), data=st.data())
def test_an_index_of_a_new_epoch_forgets_what_the_bucket_does_not_hold(
    index: SpeakerIndex, history: list[Fact], data: st.DataObject
):
    """An index of a new epoch forgets what the bucket does not hold, as after an operator restored the bucket
    from a backup. Only the marks stay: they never fall.
    """
    told = Telling.nothing(index)
    told.tell_all(history)
    before = index.load(told.speaker_id).speaker
    told.lose_redis([fact for fact in history if data.draw(st.booleans())])
    after, held = index.load(told.speaker_id).speaker, fold(told.facts)
    assert (after.versions, after.alias_facts) == (held.versions, held.alias_facts)
    marks = [(after.seq, before.seq), (after.number, before.number), (after.created_at, before.created_at)]
    assert all(now >= then for now, then in marks), "higher where a census was forgotten"


@EXAMPLES
@given(history=histories())
def test_an_index_that_counted_no_bytes_does_in_its_next_epoch(index: SpeakerIndex, history: list[Fact]):
    """An index that counted no bytes, from an older version, counts them in its next epoch. Its namespaces
    must not seem to have room for ever.
    """
    told = Telling.nothing(index)
    told.tell_all(history)
    names = f"{names_key(told.speaker_id.namespace)}:{index.epoch}"
    index.redis.hdel(speaker_key(told.speaker_id), "bytes", "texts")
    index.redis.delete(f"{names}:bytes", f"{names}:texts")
    told.lose_redis(history)
    told.check()


@EXAMPLES
@given(history=histories())
def test_a_speaker_is_admitted_with_everything_that_its_facts_say(index: SpeakerIndex, history: list[Fact]):
    """A speaker is admitted with everything that its facts say, and the index holds nothing else."""
    told = Telling.nothing(index)
    told.lose_redis(history)
    told.check()
