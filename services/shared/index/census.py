"""The census of a speaker: which versions count after a loss of Redis.

Redis gives out the numbers of versions. An upload that had reserved one when Redis was lost may still be
storing its clip, and the new index gives the same number out again. So before the first upload to a speaker
after a loss, the versions that the facts show are written down in a fact of their own. What was reserved
before the loss and lands after that never happened (`domain.fold`), and its uploader is told to send it
again. A version from before the loss is not acknowledged any more until a census counts it. So a number that
was acknowledged stays one version's for ever, however often Redis is lost and however late anything lands.
"""

from services.shared.bucket.facts import commit, read_certain
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.index.script_arguments import SpeakerUpdate
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.model.clock import Clock


def take_census(store: Store, index: SpeakerIndex, speaker_id: SpeakerId, clock: Clock) -> None:
    """Take the census that is due, or end one that was begun. Do nothing if there is neither.

    Raises:
        VoiceDamaged, VoiceUnreadable: a version cannot be read, and a census would leave it out for ever.
        Unavailable.
    """
    epoch, listed = index.epoch, clock.now()
    truth = read_certain(store, speaker_id, listings=2)
    index.tell(speaker_id, SpeakerUpdate(truth, listed), epoch=epoch)
    begun = index.begin_census(speaker_id)
    if begun is not None:
        high, body = begun
        commit(store, speaker_id.census_key(high, body), body)
        index.end_census(speaker_id, high)
