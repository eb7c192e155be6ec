"""The commands for extractions: `extract`, `jobs` and `cancel`."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from speaker_registry.cli.command import (
    Command,
    CommandError,
    Output,
    about_weights,
    add_limit,
    add_speaker,
    add_timeout,
    argument,
    first_of,
    list_document,
    moment,
    when,
)
from speaker_registry.cli.progress import wait_ready
from speaker_registry.cli.text import extraction_text, readiness_text
from speaker_registry.errors import ArtifactFailed
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry import RegistryClient
    from speaker_registry.schemas import JobSummary, ProfileJobs

STATES = ("queued", "processing", "succeeded", "failed", "canceled", "superseded")
_FILTERS = ("state", "voice", "profile", "created-after")


def extract(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    made = client.extract(arguments.speaker, arguments.profile, force=arguments.force)
    if not arguments.wait:
        if made.state == "failed":
            raise ArtifactFailed(f"{made.voice}@{made.version}: {made.error}")
        return Output(made.model_dump(mode="json"), extraction_text(made), warnings=about_weights([made]))
    if made.job_id is not None:
        # An older artifact may be ready all the time, so only the job tells how this extraction ends.
        job = client.wait_job(made.job_id, arguments.timeout)
        if job.error is not None and job.state == "failed":
            raise ArtifactFailed(f"{job.voice}@{job.version}: {job.error.code}: {job.error.message}")
        if job.state == "canceled":
            raise ArtifactFailed(f"{job.voice}@{job.version}: job {job.id} was canceled")
    ready = wait_ready(client, f"{made.voice}@{made.version}", arguments.profile, arguments)
    return Output(ready.model_dump(mode="json"), readiness_text(ready), warnings=about_weights([ready]))


def jobs(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    if arguments.summary:
        return _summary(client, arguments)
    wanted = partial(
        client.jobs,
        state=arguments.state,
        voice=arguments.voice,
        profile=arguments.profile,
        created_after=arguments.created_after,
    )
    found, more = first_of(lambda limit: wanted(limit=limit), arguments)
    head = ("JOB", "VOICE", "PROFILE", "STATE", "ATTEMPT", "REASON")
    rows = [
        (
            job.id,
            f"{job.voice}@{job.version}",
            job.profile,
            job.state,
            job.attempt,
            job.error.code if job.error else job.reason or "-",
        )
        for job in found
    ]
    return Output(list_document(found, more=bool(more)), table(head, rows), warnings=more)


def _summary(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    given = [f"--{name}" for name in _FILTERS if getattr(arguments, name.replace("-", "_")) is not None]
    if given:
        raise CommandError(f"jobs --summary counts all jobs, and takes no {given[0]}")
    counted = client.jobs_summary()
    rows = [_counted("all profiles", counted), *(_counted(one.profile, one) for one in counted.profiles)]
    head = ("PROFILE", *(state.upper() for state in STATES), "OLDEST QUEUED", "LAST MINUTE", "LAST HOUR")
    return Output(counted.model_dump(mode="json"), table(head, rows))


def _counted(what: str, jobs: "JobSummary | ProfileJobs") -> tuple[object, ...]:
    oldest = "-" if jobs.oldest_queued_at is None else when(jobs.oldest_queued_at)
    counts = jobs.counts.model_dump()
    return (what, *(counts[state] for state in STATES), oldest, *(one.succeeded for one in jobs.rates[:2]))


def cancel(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    job = client.cancel(arguments.job)
    text = f"canceled {printable(job.id)}: {printable(f'{job.voice}@{job.version}')} for {job.profile}"
    return Output(job.model_dump(mode="json"), text)


def _add_extract(command: argparse.ArgumentParser) -> None:
    command.add_argument("--profile", metavar="P", required=True)
    command.add_argument(
        "--force",
        action="store_true",
        help="extract again, even if the artifact exists, has failed or was canceled",
    )
    command.add_argument("--wait", action="store_true", help="wait until the artifact is ready")


def _add_jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state", choices=STATES)
    command.add_argument("--voice", metavar="NAME")
    command.add_argument("--profile", metavar="P")
    command.add_argument(
        "--created-after",
        metavar="TIME",
        type=moment,
        help="only jobs created after this time: Unix seconds, or as 2026-03-31T15:00",
    )
    add_limit(command).add_argument(
        "--summary",
        action="store_true",
        help="count the jobs by state and profile, and those that succeeded lately, instead of listing them",
    )


_add_cancel = argument("job", metavar="JOB", help="id of the job, see jobs")
COMMANDS = (
    Command(
        "extract", extract, "Extract an artifact of a version.", [add_speaker, _add_extract, add_timeout]
    ),
    Command("jobs", jobs, "List the extraction jobs.", [_add_jobs]),
    Command("cancel", cancel, "Cancel an extraction job.", [_add_cancel]),
)
