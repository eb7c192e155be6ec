"""The command `status`: the state of a registry, and the problems that need attention, with the command
that helps.

The requests are bounded, so that the command is quick with any number of voices and jobs.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from speaker_registry.cli.command import ATTENTION, OK, UNREACHABLE, Command, Output
from speaker_registry.errors import PermissionDenied
from speaker_registry.terminal import field_lines, printable, table

if TYPE_CHECKING:
    from speaker_registry import Job, Profile, Quota, RegistryClient, Voice
    from speaker_registry.schemas import Health

MAX_VOICES = 500
"""Maximum number of voices whose states are counted: the first ones in the order of their names."""
MAX_JOBS = 100
"""Maximum number of jobs that are counted in each state."""
_DAY_SECONDS = 86_400
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Need:
    """A problem that needs the attention of an operator."""

    text: str
    action: str
    """The command that helps, or what an operator can do."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs in one state."""

    count: int
    more: bool
    """True if there are more jobs than were counted."""
    oldest_at: float | None
    """Creation time of the oldest job (Unix seconds). None if there are no jobs, or more than were counted.
    """


@dataclass(frozen=True, slots=True)
class Voices:
    """Counts of voices by profile and state. Only the first `MAX_VOICES` voices by name are counted."""

    counted: int
    more: bool
    by_profile: Mapping[str, Mapping[str, int]]


def status(client: "RegistryClient", _: argparse.Namespace) -> Output:
    health = client.health()
    if health.status != "ok":
        return _unavailable(client.url, health)
    quota, profiles = client.quota(), list(client.profiles())
    voices = _permitted(lambda: _voices(client.list(limit=MAX_VOICES + 1)))
    jobs = _permitted(lambda: _jobs(client))
    needs = list(_needs(profiles, voices, jobs))
    sections = [
        _head(client.url, health, quota, jobs),
        table(_COLUMNS, _rows(profiles, voices)),
        _needs_text(needs),
        *(printable(remark) for remark in _remarks(voices, jobs)),
    ]
    document = {
        "url": client.url,
        "health": health.model_dump(mode="json"),
        "key": {"id": quota.key_id, "namespace": quota.namespace, "scopes": quota.scopes},
        "voices": {
            "total": quota.voices.used,
            "counted": voices.counted if voices else 0,
            "more": voices.more if voices else None,
        },
        "profiles": [_profile_document(profile, voices) for profile in profiles],
        "jobs": None if jobs is None else {state: asdict(found) for state, found in jobs.items()},
        "needs": [asdict(need) for need in needs],
    }
    return Output(document, "\n\n".join(sections), status=ATTENTION if needs else OK)


def _unavailable(url: str, health: "Health") -> Output:
    wrong = [f"{name}: {said}" for name, said in health.parts.items() if said != "ok"]
    lines = ["the registry cannot serve all requests now", *map(printable, wrong)]
    document = {"url": url, "health": health.model_dump(mode="json")}
    return Output(document, "\n".join(lines), status=UNREACHABLE)


def _permitted(read: Callable[[], Result]) -> Result | None:
    """Call `read` and return its result, or None if the API key lacks the permission for it."""
    try:
        return read()
    except PermissionDenied:
        return None


def _voices(found: Iterable["Voice"]) -> Voices:
    by_profile: dict[str, Counter[str]] = {}
    counted = 0
    for voice in found:
        if counted == MAX_VOICES:
            return Voices(counted, True, by_profile)
        counted += 1
        for made in voice.artifacts:
            by_profile.setdefault(made.profile, Counter())[made.state] += 1
    return Voices(counted, False, by_profile)


def _jobs(client: "RegistryClient") -> dict[str, Jobs]:
    since = time.time() - _DAY_SECONDS
    waiting, running, failed = (
        list(client.jobs(state=state, limit=MAX_JOBS + 1)) for state in ("queued", "processing", "failed")
    )
    lately = [job for job in failed if (job.finished_at or job.created_at) >= since]
    return {
        "waiting": _counted(waiting),
        "running": _counted(running),
        "failed within a day": _counted(lately),
    }


def _counted(found: Sequence["Job"]) -> Jobs:
    more = len(found) > MAX_JOBS
    oldest = None if more else min((job.created_at for job in found), default=None)
    return Jobs(min(len(found), MAX_JOBS), more, oldest)


def _needs(
    profiles: Sequence["Profile"], voices: Voices | None, jobs: Mapping[str, Jobs] | None
) -> Iterator[Need]:
    """Yield the problems that need attention, the most urgent first."""
    for profile in profiles:
        if profile.problem:
            yield Need(f"the current encoder of {profile.id} is unknown", profile.problem)
        elif profile.required and not profile.workers and not profile.not_extractable:
            waiting = _states(voices, profile.id).get("pending", 0)
            who = f"voices wait for it: {waiting}" if waiting else "new voices will wait"
            action = f"start a worker with SPEAKER_EXTRACTOR_PROFILES={profile.id}"
            yield Need(f"no worker serves {profile.id}, and {who}", action)
        for failed in profile.failed_proofs:
            yield Need(
                f"worker {failed.worker} does not serve {profile.id} on {failed.device}: {failed.reason}",
                "look at its libraries and its device, because its encoder computes wrong results",
            )
    for profile in profiles:
        if count := _states(voices, profile.id).get("failed", 0):
            what = "1 voice has" if count == 1 else f"{count} voices have"
            command = f"speaker-registry list --state failed --profile {profile.id}"
            yield Need(f"{what} failed for {profile.id}", f"`{command}` lists them with the reasons")
    if jobs and (failed_jobs := jobs["failed within a day"]).count:
        yield Need(
            f"{_number(failed_jobs)} jobs failed within a day",
            "`speaker-registry jobs --state failed` lists them with the reasons",
        )
    for profile in profiles:
        if profile.untrained and profile.required:
            yield Need(
                f"{profile.id} is made with untrained weights, so its voices are useless for speech",
                "start its worker with published weights",
            )


def _states(voices: Voices | None, profile: str) -> Mapping[str, int]:
    return voices.by_profile.get(profile, {}) if voices else {}


_COLUMNS = ("PROFILE", "REQUIRED", "WORKERS", "READY", "PROCESSING", "WAITING", "FAILED", "WEIGHTS")


def _rows(profiles: Iterable["Profile"], voices: Voices | None) -> Iterator[tuple[object, ...]]:
    """Yield a row for each profile that is required, has workers or has voices."""
    for profile in profiles:
        states = _states(voices, profile.id)
        if profile.required or profile.workers or states:
            counts = (states.get(state, 0) if voices else "-" for state in _STATES)
            required, weights = "yes" if profile.required else "no", _weights(profile)
            yield (profile.id, required, profile.workers, *counts, weights)


_STATES = ("ready", "processing", "pending", "failed")


def _weights(profile: "Profile") -> str:
    from speaker_registry.engine import kind_of_weights  # noqa: PLC0415  loads numpy; --help does not need it

    if profile.fingerprint is None:
        return "-"  # no worker has announced an encoder
    weights = profile.extractor.get("weights")
    return kind_of_weights(weights, untrained=profile.untrained, custom=profile.custom_weights)


def _profile_document(profile: "Profile", voices: Voices | None) -> dict[str, object]:
    states = _states(voices, profile.id)
    counts = {state: states.get(state, 0) if voices else None for state in _STATES}
    return {
        "id": profile.id,
        "required": profile.required,
        "workers": profile.workers,
        "untrained": profile.untrained,
        **counts,
    }


def _head(url: str, health: "Health", quota: "Quota", jobs: Mapping[str, Jobs] | None) -> str:
    fields: list[tuple[str, object]] = [
        ("registry", f"{url}, version {health.version or 'unknown'}"),
        ("namespace", quota.namespace),
        ("key", quota.key_id),
        ("may", ", ".join(quota.scopes) or None),
        ("voices", quota.voices.used),
    ]
    for state, found in (jobs or {}).items():
        fields.append((f"jobs {state}", _number(found) + _age(found)))
    return field_lines(fields)


def _number(found: Jobs) -> str:
    return f"{found.count}{' or more' if found.more else ''}"


def _age(found: Jobs) -> str:
    if found.oldest_at is None:
        return ""
    minutes, seconds = divmod(max(0, round(time.time() - found.oldest_at)), 60)
    return f", the oldest for {minutes // 60} h {minutes % 60} min {seconds} s"


def _needs_text(needs: Sequence[Need]) -> str:
    if not needs:
        return "nothing needs attention"
    lines = (f"- {printable(need.text)}\n  {printable(need.action)}" for need in needs)
    return "\n".join(["needs attention:", *lines])


def _remarks(voices: Voices | None, jobs: Mapping[str, Jobs] | None) -> Iterator[str]:
    """Yield a remark for each thing that the numbers leave out."""
    if voices is None:
        yield "the key may not list voices, so they are not counted by state"
    elif voices.more:
        yield f"the states are those of the first {MAX_VOICES} voices by name"
    if jobs is None:
        yield "the key may not list jobs, so they are not shown"


COMMANDS = (Command("status", status, "Show the state of the registry, and what needs attention."),)
