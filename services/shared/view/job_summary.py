"""Counts the jobs of a namespace by state and profile, for dashboards.

The scripts in `lua/` keep the ids of jobs in sorted sets by state and profile, so no job is looked at. The
cost grows with the number of profiles, and with the logarithm of the number of jobs.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, get_args

from redis.client import Pipeline

from services.shared.view.generation import Generation
from services.shared.view.keys import jobs_key
from speaker_registry.schemas import JobCounts, JobRate, JobState, JobSummary, ProfileJobs

_STATES: tuple[JobState, ...] = get_args(JobState)
_UNFINISHED: tuple[JobState, ...] = ("queued", "processing")
_RATED: tuple[JobState, ...] = ("succeeded", "failed")
_WINDOWS = (60, 3600, 86_400)
"""The lengths in seconds of the windows until now in which ended jobs are counted."""


def summarize(generation: Generation, namespace: str, profiles: Iterable[str], now: float) -> JobSummary:
    """Return the counts of a namespace, and those of each of its profiles that has jobs.

    It takes one round trip, and all numbers belong to one moment.
    """
    names = sorted(profiles)

    def ask(pipeline: Pipeline, generation: str) -> None:
        for name in ["", *names]:
            _ask(pipeline, partial(jobs_key, generation, namespace, profile=name), now)

    answers = iter(generation.read(ask))
    whole = _read("", answers)
    read = [_read(name, answers) for name in names]
    return JobSummary(
        counts=whole.counts,
        oldest_queued_at=whole.oldest_queued_at,
        oldest_processing_at=whole.oldest_processing_at,
        rates=[_sum(rates) for rates in zip(*(one.rates for one in read), strict=True)],
        profiles=[one for one in read if any(dict(one.counts).values())],
    )


def _ask(pipeline: Pipeline, key_of: Callable[[JobState], str], now: float) -> None:
    for state in _STATES:
        pipeline.zcard(key_of(state))
    for state in _UNFINISHED:
        pipeline.zrange(key_of(state), 0, 0, withscores=True)
    for seconds in _WINDOWS:
        for state in _RATED:
            pipeline.zcount(key_of(state), now - seconds, "+inf")


def _read(profile: str, answers: Iterator[Any]) -> ProfileJobs:
    """Read the answers to `_ask`. The sets without a profile are sorted by creation time, so rates that are
    computed from them are meaningless.
    """
    counts = {state: next(answers) for state in _STATES}
    oldest = [entries[0][1] if (entries := next(answers)) else None for _ in _UNFINISHED]
    return ProfileJobs(
        profile=profile,
        counts=JobCounts(**counts),
        oldest_queued_at=oldest[0],
        oldest_processing_at=oldest[1],
        rates=[_rate(seconds, next(answers), next(answers)) for seconds in _WINDOWS],
    )


def _rate(seconds: int, succeeded: int, failed: int) -> JobRate:
    return JobRate(seconds=seconds, succeeded=succeeded, failed=failed, per_second=succeeded / seconds)


def _sum(rates: tuple[JobRate, ...]) -> JobRate:
    return _rate(rates[0].seconds, sum(one.succeeded for one in rates), sum(one.failed for one in rates))
