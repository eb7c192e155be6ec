"""The keys of a generation in Redis. All of them begin with `sr:` and the generation.

s:{speaker}     the copy of a document, and what the speaker adds to the usage of its namespace
o:{speaker}     its open jobs: version, profile and fingerprint -> job, state and end of the claim
a:{speaker}     announced writes: token -> time
k:{speaker}:{key}   the version that a request with an Idempotency-Key was answered with
n:{namespace}   the names of live speakers, sorted
p:{namespace}   the names of pinned live speakers, sorted
c:{namespace}   the usage of the namespace: sums over its speakers
r:{namespace}   reservations for voices that are about to be registered (speaker and token), by the time at
                which they were made
job:{id}        the record of a job
jobs:{namespace}, jobs:{namespace}:{state}   jobs, by the time at which they were created
jobs:{namespace}:{state}:{profile}   jobs, by the time at which they ended or, before that, were created
due             speakers, by the time at which housekeeping checks them next
events          the stream of events
taken           the id of the last event that took something away from readers
leases          processes that may answer from memory: process -> the last event that it had applied
b:{namespace}   the artifacts of live versions: digest of the file -> speaker
complete        exists once every document of a listing has been applied: times of the first and last listing
marks           inode, size and time of documents in a local folder, whose listings have no ETags, by speaker
words           the word that each process wrote at its last check, see `words`
shared          copies of profiles' and API keys' documents: path -> revision, ETag and, for some, the JSON.
                `number` is the number of the last recorded change
told            the paths of these documents, in the order of their last recorded changes
workers:{profile}, failed:{profile}   live workers, and failed proofs, by time
worker:{name}   the last report of a worker, as JSON
campaigns       the progress of campaigns that are not over: id -> JSON
errors:{namespace}:{hour}   answers with a status of 500 or above: Unix seconds of the minute -> number
keys_used       API keys: id -> Unix seconds of the last use
seal_secret     the secret of the cookies of pages
ended:{session} exists once a person has ended the session, until its cookies expire

Beside the generations, `sr:former` names the last one whose view was complete.
"""

import re
from collections.abc import Callable

from services.shared.model.speaker import SpeakerId

FORMER = "sr:former"
_OF_GENERATION = re.compile(r"sr:([0-9a-f]{32}):.*", re.DOTALL)


def generation_of(key: str) -> str | None:
    """Return the generation that a key belongs to, or None if it belongs to none."""
    match = _OF_GENERATION.fullmatch(key)
    return match[1] if match else None


def copy_key(generation: str, speaker_id: SpeakerId) -> str:
    return f"{copy_prefix(generation)}{speaker_id}"


def copy_prefix(generation: str) -> str:
    return f"sr:{generation}:s:"


def open_jobs_key(generation: str, speaker_id: SpeakerId) -> str:
    return f"sr:{generation}:o:{speaker_id}"


def announcements_key(generation: str, speaker_id: SpeakerId) -> str:
    return f"sr:{generation}:a:{speaker_id}"


def answer_key(generation: str, speaker_id: SpeakerId, key: str) -> str:
    return f"sr:{generation}:k:{speaker_id}:{key}"


def jobs_key(generation: str, namespace: str, state: str = "", profile: str = "") -> str:
    """Return the key of the jobs of a namespace: of all, of those in a state, or of those in a state with a
    profile.
    """
    return ":".join(part for part in (f"sr:{generation}:jobs:{namespace}", state, profile) if part)


def record_key(generation: str, job_id: str) -> str:
    """Return the key of a job's record. For an empty id, return the prefix of all such keys."""
    return f"sr:{generation}:job:{job_id}"


def server_errors_key(generation: str, namespace: str, hour: int) -> str:
    """Return the key of the errors of a namespace in an hour, which is counted since 1970."""
    return f"sr:{generation}:errors:{namespace}:{hour}"


def _key(name: str) -> Callable[[str], str]:
    """Return the function that makes this key of a generation."""
    return lambda generation: f"sr:{generation}:{name}"


def _key_for_each(name: str) -> Callable[[str, str], str]:
    """Return the function that makes this key of a generation for a namespace, profile, worker or session."""
    return lambda generation, of: f"sr:{generation}:{name}:{of}"


agenda_key = _key("due")
events_key = _key("events")
taken_key = _key("taken")
leases_key = _key("leases")
complete_key = _key("complete")
marks_key = _key("marks")
words_key = _key("words")
shared_key = _key("shared")
told_key = _key("told")
keys_used_key = _key("keys_used")
seal_secret_key = _key("seal_secret")
campaigns_key = _key("campaigns")
names_key = _key_for_each("n")
pinned_key = _key_for_each("p")
counts_key = _key_for_each("c")
reservations_key = _key_for_each("r")
digests_key = _key_for_each("b")
workers_key = _key_for_each("workers")
worker_report_key = _key_for_each("worker")
failed_proofs_key = _key_for_each("failed")
ended_session_key = _key_for_each("ended")
