"""The keys of a generation in Redis. All of them begin with `sr:` and the generation.

s:{speaker}     the copy of a document, with what the speaker counts
o:{speaker}     its open jobs: what is extracted -> job, state and the end of the claim
a:{speaker}     announced writes: token -> time
n:{namespace}   the names of live speakers, sorted
c:{namespace}   the sums of what speakers count
jobs:{namespace}, job:{id}   the jobs of a namespace by time, and the record of each
due             speakers, by the time at which housekeeping looks at them
events          the stream of events
complete        there once every document that the bucket lists has been applied
words           what each process left at its last look, see `generation`
shared          copies of documents that every process keeps: path -> revision, ETag and, of some, the JSON
told            the paths of such documents, by the order in which they were last said to have changed
workers:{profile}, failed:{profile}   live workers, and failed proofs, by time
campaigns       the progress of campaigns that are not over: id -> JSON
keys_used       API keys: id -> Unix seconds of the last use
"""

from services.shared.bucket.keys import SpeakerId


def copy_key(generation: str, speaker_id: SpeakerId) -> str:
    return f"sr:{generation}:s:{speaker_id}"


def open_jobs_key(generation: str, speaker_id: SpeakerId) -> str:
    return f"sr:{generation}:o:{speaker_id}"


def announcements_key(generation: str, speaker_id: SpeakerId) -> str:
    return f"sr:{generation}:a:{speaker_id}"


def names_key(generation: str, namespace: str) -> str:
    return f"sr:{generation}:n:{namespace}"


def counts_key(generation: str, namespace: str) -> str:
    return f"sr:{generation}:c:{namespace}"


def jobs_key(generation: str, namespace: str) -> str:
    return f"sr:{generation}:jobs:{namespace}"


def record_key(generation: str, job_id: str) -> str:
    """Return the key of a job's record, or what stands before the id in such keys if that is empty."""
    return f"sr:{generation}:job:{job_id}"


def agenda_key(generation: str) -> str:
    return f"sr:{generation}:due"


def events_key(generation: str) -> str:
    return f"sr:{generation}:events"


def complete_key(generation: str) -> str:
    return f"sr:{generation}:complete"


def words_key(generation: str) -> str:
    return f"sr:{generation}:words"


def shared_key(generation: str) -> str:
    return f"sr:{generation}:shared"


def told_key(generation: str) -> str:
    return f"sr:{generation}:told"


def workers_key(generation: str, profile: str) -> str:
    return f"sr:{generation}:workers:{profile}"


def failed_proofs_key(generation: str, profile: str) -> str:
    return f"sr:{generation}:failed:{profile}"


def keys_used_key(generation: str) -> str:
    return f"sr:{generation}:keys_used"


def campaigns_key(generation: str) -> str:
    return f"sr:{generation}:campaigns"
