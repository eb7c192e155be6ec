"""Keeps in Redis which workers have which encoders, what each reports, and which encoders failed their proof.

Times are those of Redis' own clock. Workers report again and again, so the data is complete again within
seconds after a loss of Redis.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from redis.client import Pipeline

from services.shared.model.records import Record
from services.shared.view.generation import Generation, redis_milliseconds
from services.shared.view.keys import failed_proofs_key, worker_report_key, workers_key

KeyOf = Callable[[str, str], str]
"""A function that returns the key of a profile in a generation."""
ALIVE_SECONDS = 20
"""A worker that has not reported for this long counts as gone."""
_KEPT_SECONDS = 600
"""A report is removed after this long."""
FAILED_SECONDS = 600
"""A failed proof is shown for this long after its worker last reported it. A worker that fails and ends is
started again within five minutes, so its failed proof is shown all the time.
"""


class FailedProof(Record):
    """The failed proof of a worker that does not serve a profile, because its encoder computes wrong
    results.
    """

    worker: str
    device: str
    """The device as torch names it, for example `cpu` or `cuda:0`."""
    reason: str
    """The tensor that differs, and by how much."""


class WorkerReport(Record):
    """A worker reports this about itself. The keys of its dictionaries are the names of its profiles."""

    device: str
    """The device as torch names it, for example `cpu` or `cuda:0`."""
    proven_at: dict[str, float]
    """When each encoder was last proven to compute correctly on this device, in Unix seconds."""
    extracted_last_hour: dict[str, int]
    """The number of artifacts that the worker has made within an hour."""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A live worker that has an encoder of a profile."""

    name: str
    fingerprint: str
    report: WorkerReport | None
    """None if the worker has sent no report yet, or one with the fields of another release."""


class Workers:
    """The reports of all workers. Every method raises `ViewAway` or `Unavailable`."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def beat(self, worker: str, encoders: Mapping[str, str], report: WorkerReport | None = None) -> None:
        """Report that a worker is alive and has these encoders (profile -> fingerprint)."""
        members = {profile: f"{fingerprint} {worker}" for profile, fingerprint in encoders.items()}
        self._report(members, workers_key)
        if report is not None:
            self._generation.read(
                lambda pipeline, generation: pipeline.set(
                    worker_report_key(generation, worker), report.model_dump_json(), ex=_KEPT_SECONDS
                )
            )

    def leave(self, worker: str, encoders: Mapping[str, str]) -> None:
        """Report that a worker no longer has these encoders (profile -> fingerprint)."""
        self._generation.read(
            lambda pipeline, generation: [
                pipeline.zrem(workers_key(generation, profile), f"{fingerprint} {worker}")
                for profile, fingerprint in encoders.items()
            ]
        )

    def of(self, profiles: Iterable[str]) -> dict[str, Counter[str]]:
        """Return, for each profile, the number of live workers with each encoder, by fingerprint."""
        found = self._alive(profiles)
        return {name: Counter(fingerprint for fingerprint, _ in pairs) for name, pairs in found.items()}

    def live(self, profiles: Iterable[str]) -> dict[str, list[LiveWorker]]:
        """Return the live workers of each profile with their reports, in the order of their names."""
        found = self._alive(profiles)
        reports = self._reports({worker for pairs in found.values() for _, worker in pairs})
        return {
            profile: sorted(
                (LiveWorker(worker, fingerprint, reports[worker]) for fingerprint, worker in pairs),
                key=lambda one: one.name,
            )
            for profile, pairs in found.items()
        }

    def _alive(self, profiles: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
        """Return, for each profile, the fingerprint and the name of every live worker."""
        found = self._since(profiles, workers_key, ALIVE_SECONDS)
        return {profile: [_pair(member) for member in members] for profile, members in found.items()}

    def _reports(self, workers: Iterable[str]) -> dict[str, WorkerReport | None]:
        names = list(workers)
        if not names:
            return {}
        found = self._generation.read(
            lambda pipeline, generation: [pipeline.get(worker_report_key(generation, name)) for name in names]
        )
        return {name: _parsed(text) for name, text in zip(names, found, strict=True)}

    def have(self, profile: str, fingerprint: str) -> bool:
        """Return whether a live worker has this encoder."""
        return self.of([profile])[profile][fingerprint] > 0

    def report_failed(self, failed: Mapping[str, FailedProof]) -> None:
        """Report, by profile, which of a worker's encoders failed their proof. Call this with every beat."""
        if failed:
            self._report(
                {profile: proof.model_dump_json() for profile, proof in failed.items()}, failed_proofs_key
            )

    def withdraw_failed(self, failed: Mapping[str, FailedProof]) -> None:
        """Remove the failed proofs of a worker that stops."""
        self._generation.read(
            lambda pipeline, generation: [
                pipeline.zrem(failed_proofs_key(generation, profile), proof.model_dump_json())
                for profile, proof in failed.items()
            ]
        )

    def failed(self, profiles: Iterable[str]) -> dict[str, list[FailedProof]]:
        """Return, by profile, the failed proofs that were reported within the last ten minutes."""
        found = self._since(profiles, failed_proofs_key, FAILED_SECONDS)
        return {
            name: [FailedProof.model_validate_json(member) for member in members]
            for name, members in found.items()
        }

    def _report(self, members: Mapping[str, str], key_of: KeyOf) -> None:
        now = redis_milliseconds(self._generation)

        def put(pipeline: Pipeline, generation: str) -> None:
            for profile, member in members.items():
                pipeline.zadd(key_of(generation, profile), {member: now})
                pipeline.zremrangebyscore(key_of(generation, profile), "-inf", now - _KEPT_SECONDS * 1000)

        self._generation.read(put)

    def _since(self, profiles: Iterable[str], key_of: KeyOf, seconds: int) -> dict[str, list[str]]:
        names, since = list(profiles), redis_milliseconds(self._generation) - seconds * 1000
        found = self._generation.read(
            lambda pipeline, generation: [
                pipeline.zrangebyscore(key_of(generation, name), since, "+inf") for name in names
            ]
        )
        return dict(zip(names, found, strict=True))


def _pair(member: str) -> tuple[str, str]:
    """Split a member that `beat` stored into the fingerprint and the worker."""
    fingerprint, _, worker = member.partition(" ")
    return fingerprint, worker


def _parsed(text: str | None) -> WorkerReport | None:
    """Parse a report. A report of another release may have other fields, and then counts as missing."""
    try:
        return WorkerReport.model_validate_json(text) if text is not None else None
    except ValidationError:
        return None
