"""Objects in the bucket that are none of ours: what editors, file managers, backups and people leave.

Knows the layout of the bucket only as far as somebody does who looks at it with a file manager.
"""

from random import Random

from tests.simulation.store import PerfectStore

_NOTES = (".DS_Store", "Thumbs.db", "readme.txt", "notes about this.txt", "half.tmp", "#auto-save#", "café~")
_FOLDERS = (
    "_profiles/ecapa/",
    "_profiles/",
    "_keys/",
    "_keys/abcdefgh/",
    "_registry/",
    "",
    "default/",
    "default/v/",
)
_STRANGE = (
    "default/v/Not A Speaker/r/000000000001.ver.x",
    "default/v/-dash/d/x/blob/y",
    "default/v/..two/r/x",
    "default/w/alice/r/x",
    "Default/v/alice/r/x",
    "default/v/alice/r/3.ver.4",
    "default/v/alice/r/000000000002.ver.few.parts",
    "default/v/alice/r/x.als.y.z",
    "default/v/alice/r/000000000009.del.x.y.z",
    "default/v/alice/d/readme/blob/x",
    "default/v/alice/d/loose.wav",
    "default/v/bob/d/0/art/x.json",
    "default/v/bob/x/y",
    "_profiles/ecapa/000000000007.json",
    "_profiles/ecapa/000000000007.x.y.json",
    "_profiles/codec/zzz.json",
    "_keys/abcdefgh",
    "_keys/abcdefgh/made.x.json",
    "_keys/abcdefgh/end.1.x",
    "_registry/000",
    "_registry/" + "0" * 32,
    "_registry/" + "0" * 31 + "1",
)


def litter(random: Random, store: PerfectStore) -> str:
    """Put one somewhere. Returns its key."""
    ours = [stored.key for stored in store.list("").objects]
    key = random.choice(
        [
            random.choice(_STRANGE),
            random.choice(_FOLDERS) + random.choice(_NOTES),
            *_beside(random, ours),
            *_beside(random, ours),
        ]
    )
    if key not in store:
        store.drop(key, b"none of yours")
    return key


def _beside(random: Random, ours: list[str]) -> list[str]:
    """A copy of one of ours, or a note in its folder."""
    if not ours:
        return []
    one = random.choice(ours)
    return [f"{one}~", f"{one}.orig", f"{one.rpartition('/')[0]}/{random.choice(_NOTES)}"]
