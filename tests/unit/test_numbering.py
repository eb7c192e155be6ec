"""Tests of the number, the creation time and the id of a version: those that come next, and those that an
operator wants.
"""

from dataclasses import replace
from typing import Any

import pytest

from services.registry_api.operations.register import Registered
from services.shared.model.document import Marks, SpeakerDocument
from services.shared.model.numbering import MAX_AHEAD_SECONDS, Numbering, next_marks, registered_as
from services.shared.model.records import Version
from speaker_registry.artifact import Artifact
from speaker_registry.errors import Conflict, InvalidRequest, QuotaExceeded, SpeakerRegistryError, VoiceExists
from speaker_registry.names import MAX_VERSION
from tests.faults import with_faults
from tests.memory_registry import ROOMY, Registry, World

NOW = 1_000


def left(*, number: int = 3, created_at: int = 500) -> SpeakerDocument:
    """Return the document of a name whose versions were deleted."""
    return SpeakerDocument(marks=Marks(number=number, created_at=created_at, life=4))


def wanted(number: int = 7, created_at: int = 501, id: str | None = None) -> Numbering:
    return Numbering(number=number, created_at=created_at, id=id)


@pytest.mark.parametrize(
    ("number", "created_at"),
    [(4, 501), (7, 501), (MAX_VERSION, 501), (4, NOW), (4, NOW + MAX_AHEAD_SECONDS)],
)
def test_a_number_and_a_time_above_those_before_are_taken_as_they_are(number: int, created_at: int):
    """A voice moves with the gaps in its numbers, and its life is that of the name here."""
    marks = next_marks(left(), NOW, wanted(number, created_at))
    assert marks == Marks(number=number, created_at=created_at, life=4)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (wanted(3), Conflict, "Version 3 cannot be registered.*had version 3.*from 4 to 2147483647"),
        (wanted(1), Conflict, "Version 1 cannot be registered"),
        (wanted(created_at=500), Conflict, "'created_at' is 500.*created at 500. Accepted: a later time"),
        (wanted(created_at=1), Conflict, "'created_at' is 1,"),
        (
            wanted(created_at=NOW + MAX_AHEAD_SECONDS + 1),
            InvalidRequest,
            f"'created_at' is {NOW + MAX_AHEAD_SECONDS + 1}, which is in the future: now is 1000",
        ),
    ],
)
def test_what_is_not_above_what_was_before_or_is_in_the_future_is_refused(
    asked: Numbering, error: type[SpeakerRegistryError], said: str
):
    """Numbers are never given twice, and engines tell versions of a voice apart by their times."""
    with pytest.raises(error, match=said):
        next_marks(left(), NOW, asked)


def test_the_versions_that_follow_a_restored_one_go_on_above_it():
    """Also where the restored one is a little ahead of the clock."""
    marks = next_marks(left(), NOW, wanted(9, NOW + 100))
    after = next_marks(SpeakerDocument(marks=marks), NOW)
    assert (after.number, after.created_at) == (10, NOW + 101)


@pytest.mark.parametrize("asked", [None, wanted(MAX_VERSION)])
def test_a_voice_that_has_had_the_highest_number_takes_no_version(asked: Numbering | None):
    """A version with a higher number could not be named in any path."""
    with pytest.raises(QuotaExceeded, match="had the number 2147483647"):
        next_marks(left(number=MAX_VERSION), NOW, asked)


def test_the_same_version_again_is_known_and_another_one_is_refused():
    """A repeat after a lost answer must not fail, and nothing else may pass for the version that is there."""
    made = Version(vuid="v", name="Wren", source="audio", consent="c", number=7, created_at=501, request="r")
    document = SpeakerDocument(versions=(made,), marks=Marks(number=7, created_at=501))
    assert registered_as(document, wanted(), "r") is made
    assert registered_as(document, wanted(8), "r") is None
    with pytest.raises(Conflict, match="a version 7 already, with another content"):
        registered_as(document, wanted(), "other")
    with pytest.raises(Conflict, match="with another creation time, 501"):
        registered_as(document, wanted(created_at=502), "r")
    assert registered_as(document, wanted(id="v"), "r") is made
    with pytest.raises(Conflict, match="with another id, v"):
        registered_as(document, wanted(id="w"), "r")


# In the registry


ID, OTHER_ID = "a" * 32, "b" * 32


def restored(
    registry: Registry, content: int, number: int, created_at: int, id: str | None = None, **options: Any
) -> Registered:
    return registry.register("wren", content, numbering=wanted(number, created_at, id), **options)


def test_of_two_versions_for_one_number_at_the_same_moment_one_wins(world: World, registry: Registry):
    """The other request has stored its clip already when the number is taken, and is told so."""
    slow = with_faults(world, ("put", "after", lambda: restored(registry, 1, 7, 50)))
    with pytest.raises(Conflict, match="a version 7 already, with another content"):
        restored(slow, 2, 7, 50)
    [version] = registry.document("wren").versions
    assert (version.number, version.created_at) == (7, 50)
    assert restored(registry, 1, 7, 50).created is False


def test_of_two_equal_requests_at_the_same_moment_both_get_the_one_version(world: World, registry: Registry):
    """A client that lost its connection sends the request again while the first one is on its way."""
    slow = with_faults(world, ("put", "after", lambda: restored(registry, 1, 7, 50)))
    again = restored(slow, 1, 7, 50)
    assert (again.version.number, again.created) == (7, False)
    assert len(registry.document("wren").versions) == 1


def test_equal_content_under_another_number_is_another_version(registry: Registry):
    """Two equal versions of the former registry stay two."""
    restored(registry, 1, 2, 50)
    assert restored(registry, 1, 5, 60).created
    assert [one.number for one in registry.document("wren").versions] == [2, 5]


def test_a_refused_number_stores_nothing(world: World, registry: Registry):
    """What can be refused is refused before the clip is stored."""
    restored(registry, 1, 7, 50)
    before = dict(world.store.objects)
    for number, created_at in ((7, 50), (6, 60), (8, 50)):
        with pytest.raises(Conflict):
            restored(registry, 2, number, created_at)
    assert world.store.objects == before


def test_an_embedding_is_restored_with_the_number_in_its_file(world: World, registry: Registry):
    """The file of an artifact names its version, and so is packed under the wanted number."""
    registry.register_embedding("wren", 1, numbering=wanted(7, 50))
    [file] = [data for name, (data, _) in world.store.objects.items() if "/d/" in name]
    assert Artifact.parse(file).manifest.version == 7
    assert not registry.register_embedding("wren", 1, numbering=wanted(7, 50)).created
    assert registry.register_embedding("wren", 2).version.number == 8


def test_an_immutable_voice_takes_no_restored_version(registry: Registry):
    """The operator's route keeps the policies of every upload."""
    limits = replace(ROOMY, immutable=True)
    restored(registry, 1, 2, 50, limits=limits)
    with pytest.raises(VoiceExists):
        restored(registry, 2, 3, 60, limits=limits)


def test_a_moved_version_keeps_its_id_and_so_the_files_of_its_artifacts(world: World, registry: Registry):
    """Its artifacts name it, and the digests of their files hold after a move."""
    made = registry.register_embedding("wren", 1, numbering=wanted(7, 50, ID)).version
    [(path, (file, _))] = [one for one in world.store.objects.items() if "/d/" in one[0]]
    assert (made.id, Artifact.parse(file).manifest.version_id) == (ID, ID)
    assert ID not in path, "what is stored has an id that this registry gave"
    assert registry.register("wren", 2).version.id not in {ID, made.vuid}


def test_an_id_of_another_version_of_the_voice_is_refused(world: World, registry: Registry):
    """It would name two versions. One that was deleted may be undeleted."""
    restored(registry, 1, 1, 50, ID)
    own = registry.register("wren", 2).version
    registry.delete("wren")
    later = own.created_at + 1
    restored(registry, 3, 5, later, OTHER_ID)
    before = dict(world.store.objects)
    for taken in (ID, own.vuid, OTHER_ID):
        with pytest.raises(Conflict, match=f"'id' is {taken}") as refused:
            restored(registry, 4, 6, later + 1, taken)
        assert refused.value.param == "id"
    assert world.store.objects == before


def test_two_voices_whose_versions_have_one_id_stay_apart(registry: Registry):
    """One archive may be imported into two namespaces of a registry."""
    voices = [
        registry.register(name, content, numbering=wanted(1, 50, ID)).version
        for name, content in (("wren", 1), ("robin", 2))
    ]
    registry.work()
    assert [one.id for one in voices] == [ID, ID]
    assert voices[0].vuid != voices[1].vuid
    for one in voices:
        served = registry.document(one.name).newest
        assert served.clip == one.clip
        assert served.served == {"ecapa", "codec"}
