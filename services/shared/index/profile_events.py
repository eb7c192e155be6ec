"""Tells all processes, in the event stream of the index, which encoder of a profile became the current one.

Answers that are kept in memory are dropped by such an event. It may be told again at any time: whoever reads
a document that nobody has told of does so, because the process that changed it may have died before. Knows no
rules.
"""

from services.shared.index.leases import TAKEN, Leases, event_of_all
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import EVENTS, SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.profile_document import ProfileDocument

_TOLD = "sr:profiles"
"""Hash: profile -> the revision and the fingerprint that were told last. It belongs to one index."""
_TELL = """
-- KEYS: told, events, taken. ARGV: profile, revision, fingerprint, event
local revision, fingerprint = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) (.*)$')
if revision and tonumber(revision) >= tonumber(ARGV[2]) then return end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
if fingerprint == ARGV[3] then return end
redis.call('SET', KEYS[3], redis.call('XADD', KEYS[2], 'MAXLEN', '~', '50000', '*', 'd', ARGV[4]))
"""


class ProfileEvents:
    """The events of profiles. Events that were told already are not told again."""

    def __init__(self, index: SpeakerIndex, leases: Leases, clock: Clock) -> None:
        self._leases = leases
        self._clock = clock
        self._tell = index.ungated.register_script(_TELL)

    def tell(self, profile: str, document: ProfileDocument) -> None:
        """Tell of the current encoder, unless a document that is as new was told. Raises `Unavailable`."""
        fingerprint = document.fingerprint
        event = event_of_all(ProfileDocument.UPDATED, self._clock, profile=profile, fingerprint=fingerprint)
        with unavailable_without_redis():
            self._tell(keys=[_TOLD, EVENTS, TAKEN], args=[profile, document.revision, fingerprint, event])

    def settle(self) -> None:
        """Return when every process that answers from memory has heard of what was told before."""
        self._leases.settle()
