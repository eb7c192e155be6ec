"""Restores the description, labels, pin, promotion policy and aliases of a voice from an archive.

The registry takes precedence: whatever somebody has set or removed there stays, as the voice and its history
show. So a repeated import continues where an interrupted one ended, and changes nothing twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

from speaker_registry.client import RegistryClient
from speaker_registry.errors import PermissionDenied, SpeakerRegistryError, VoiceDeleted, VoiceNotFound
from speaker_registry.moving.archive_records import VoiceRecord
from speaker_registry.moving.faults import asked_pause, concerns_one_voice
from speaker_registry.schemas import VoiceChange

_TITLE = "description, labels, pin and promotion policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An archive's record of a voice says this, and the registry lacks it."""

    restorable: VoiceRecord = field(default_factory=VoiceRecord)
    """The part that can be restored. Its `aliases` hold version numbers of the registry."""
    notes: tuple[str, ...] = ()
    """Differences that cannot be restored, in words."""


def read_record(client: RegistryClient, name: str) -> VoiceRecord:
    """Return the description, labels, pin, promotion policy and hand-moved aliases that a voice has in the
    registry. The `aliases` hold version numbers, and `default` is among them if it moves only by hand.
    """
    voice = client.get(name)
    manual = voice.promotion == "manual"
    return VoiceRecord(
        description=voice.description,
        labels=voice.labels,
        pinned=voice.pinned,
        promotion=voice.promotion,
        aliases={one.alias: one.version for one in client.aliases(name) if one.by_hand or manual},
    )


def compare(
    client: RegistryClient, name: str, archived: VoiceRecord, numbers: Sequence[int], *, grown: bool
) -> Difference:
    """Compare an archive's record of a voice with the voice in the registry.

    Args:
        archived: The record of the archive, whose `aliases` hold places.
        numbers: The numbers that the archived versions have in the registry, oldest first.
        grown: The registry has further versions of the voice. Nothing is restored then, because the archive's
            record was made without them.
    """
    if not archived.has_content:
        return Difference()
    here, changes = read_record(client, name), list(_changes(client, name, since=numbers[0]))
    wanted, there, notes = archived.without_aliases(), here.without_aliases(), list[str]()
    edited = there.has_content or any(one.did == "edit" for one in changes)
    if wanted.has_content and (grown or edited):
        if wanted != there:
            notes.append(f"{_TITLE} stay as they are here; the archive has others")
        wanted = VoiceRecord()
    moved = {*here.aliases, *(one.alias for one in changes)}
    aliases = dict[str, int]()
    for alias, place in archived.aliases.items():
        number = numbers[place - 1]
        if not grown and alias not in moved:
            aliases[alias] = number
        elif here.aliases.get(alias) != number:
            notes.append(f"alias '{alias}' stays as it is here; the archive has it at version {number}")
    return Difference(restorable=wanted.model_copy(update={"aliases": aliases}), notes=tuple(notes))


def _changes(client: RegistryClient, name: str, *, since: int) -> Iterator[VoiceChange]:
    """Return the changes that people made to a voice since version `since` was registered, newest first.

    Older changes belong to a deleted voice of the same name.
    """
    return takewhile(lambda one: (one.did, one.version) != ("register", since), client.history(name))


def apply_record(client: RegistryClient, name: str, record: VoiceRecord) -> SpeakerRegistryError | None:
    """Set the description, labels, pin, promotion policy and aliases of a voice.

    Returns None, or an error that lists what the registry refused.

    Args:
        name: Name or id of the voice. With the id, no other voice that has its name by then is changed.
        record: The values to set. Its `aliases` hold version numbers.

    Raises:
        VoiceDeleted, VoiceNotFound: The voice was deleted meanwhile.
        SpeakerRegistryError: The registry asks to come back soon, cannot be reached or refuses the API key.
    """
    faults = list[tuple[str, SpeakerRegistryError]]()
    for title, step in _steps(client, name, record):
        try:
            step()
        except (VoiceDeleted, VoiceNotFound):
            raise
        except SpeakerRegistryError as error:
            # The key may register versions, so a permission that it lacks is no reason to end the import.
            concerns_record = concerns_one_voice(error) or isinstance(error, PermissionDenied)
            if asked_pause(error) is not None or not concerns_record:
                raise
            faults.append((title, error))
    if not faults:
        return None
    reasons = "; ".join(f"{title} ({error})" for title, error in faults)
    return type(faults[0][1])(
        f"the versions are there, but parts of the voice's record were refused: {reasons}"
    )


def _steps(
    client: RegistryClient, name: str, record: VoiceRecord
) -> Sequence[tuple[str, Callable[[], object]]]:
    moves = [
        (f"alias '{alias}'", partial(client.move_alias, name, alias, number))
        for alias, number in sorted(record.aliases.items())
    ]
    if not record.without_aliases().has_content:
        return moves
    manual = record.promotion == "manual"
    edit = partial(
        client.edit_voice,
        name,
        description=record.description,
        labels=record.labels,
        pinned=record.pinned,
        promotion=record.promotion,
    )
    # `manual` makes `default` look as if somebody had set it in this registry. An import that was interrupted
    # would not restore it any more.
    return [*moves, (_TITLE, edit)] if manual else [(_TITLE, edit), *moves]
