"""Tests of what a process remembers of jobs, so that they can be followed when Redis has lost their
records.
"""

import json
from dataclasses import replace

from services.shared.queue.seen_jobs import SeenJobs
from services.shared.view.job_records import JobRecord


def claimed(number: int) -> dict[str, str]:
    """Return the event of a claim, as the view tells it."""
    job = {
        "id": f"job_{number}",
        "ns": "default",
        "slug": "alice",
        "name": "Alice",
        "vuid": "0" * 32,
        "number": "1",
        "profile": "ecapa",
        "fingerprint": "",
        "forced": "false",
        "max_attempts": "3",
        "queue": "extract",
        "build": "2",
    }
    return {
        "what": "job",
        "speaker": "default/alice",
        "at": "1800000000.125",
        "job": job["id"],
        "state": "queued",
        "claimed": json.dumps(job),
    }


def test_an_event_tells_what_a_job_was_claimed_for():
    jobs = SeenJobs()
    jobs.on_event(claimed(1))
    jobs.on_event({"what": "voice.deleted", "speaker": "default/alice"})
    heard = jobs.get("job_1")
    told = json.loads(claimed(1)["claimed"])
    assert heard == JobRecord.read({**told, "state": "queued", "created_at": "1800000000.125"})
    assert (heard.build, heard.created_at, heard.forced) == (2, 1800000000.125, False)


def test_what_was_seen_of_a_job_is_newer_than_its_claim():
    """A process that starts hears of claims again."""
    jobs = SeenJobs()
    jobs.on_event(claimed(1))
    done = replace(jobs.get("job_1"), state="succeeded")
    jobs.put(done)
    jobs.on_event(claimed(1))
    assert jobs.get("job_1") == done


def test_the_oldest_are_forgotten_first():
    """All processes claim, for as long as this one runs."""
    jobs = SeenJobs(most=2)
    for number in (1, 2, 1, 3):
        jobs.on_event(claimed(number))
    assert [number for number in (1, 2, 3) if jobs.get(f"job_{number}")] == [1, 3]
