"""The commands `import` and `export`, and `register --batch`, which shares the machinery of `import`."""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from speaker_registry.atomic_files import check_replaceable
from speaker_registry.cli import INTERRUPTED
from speaker_registry.cli.command import (
    OK,
    REFUSED,
    Command,
    CommandError,
    Output,
    about_weights,
    argument,
    count,
    status_of,
    when_to_retry,
)
from speaker_registry.cli.progress import counting
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.moving import FORMATS, MAX_JOBS
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry import RegistryClient
    from speaker_registry.moving.candidates import Found
    from speaker_registry.moving.transfer import Report, Result, Task

_MOST_EQUAL = 10
"""Largest number of voices that are listed one by one although they were refused for the same reason, or have
the same note.
"""


def import_voices(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    from speaker_registry.moving.sources import recognize  # noqa: PLC0415  see `_import`

    path = Path(arguments.path)
    _check_there(path)
    form = arguments.format or recognize(path)
    return _restore(client, arguments, path) if form == "archive" else _import(client, arguments, path, form)


def export(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    from speaker_registry.moving.exporting import Export  # noqa: PLC0415  see `_import`

    path = Path(arguments.file)
    only_new = not arguments.force
    try:
        check_replaceable(path, only_new=only_new)  # before the registry is asked for anything
        quota = client.quota()
        with counting("export", quota.voices.used, quiet=arguments.json) as on_voice:
            exporting = Export(
                client, artifacts=arguments.artifacts, on_voice=on_voice, on_pause=arguments.on_pause
            )
            made = exporting.write(path, quota.namespace, only_new=only_new)
    except FileExistsError:  # it was there before, or appeared meanwhile
        raise CommandError(f"{path} exists; pass --force to replace it", status=REFUSED) from None
    missing = [{"name": one.name, "error": _error(one.error)} for one in made.missing]
    counts = {**made.end.model_dump(mode="json"), "artifacts": made.artifacts, "size": made.size}
    text = (
        f"{made.end.voices} voices, {made.end.versions} versions and {made.artifacts} artifacts in {path}: "
        f"{made.size} bytes\ncontent {made.end.content}"
    )
    if missing:
        rows = [(one.name, str(one.error)) for one in made.missing]
        text += "\n\n" + table(("NOT EXPORTED", "REASON"), rows)
    return Output({"path": str(path), **counts, "missing": missing}, text, REFUSED if missing else OK)


def _restore(client: "RegistryClient", arguments: argparse.Namespace, path: Path) -> Output:
    from speaker_registry.moving.archive import Archive  # noqa: PLC0415  see `_import`
    from speaker_registry.moving.restoring import Permission, Restoring  # noqa: PLC0415

    if arguments.consent is not None or arguments.ignore_column:
        raise CommandError(
            "an archive has its own consents and no columns; leave out --consent, --ignore-column"
        )
    with Archive(path) as archive:
        permission = Permission()
        tasks = [
            Restoring(archive=archive, voice=voice, artifacts=arguments.artifacts, permission=permission)
            for voice in archive.voices
        ]
        return _run(client, arguments, tasks)


def register_batch(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    """Register the voices of a table. The options for a single voice are refused."""
    single = ("name", "clip", "ref_text", "ref_text_file", "description", "embedding")
    given = [option for option in single if getattr(arguments, option) is not None]
    if given or arguments.wait:
        names = ", ".join(given or ["wait"])
        raise CommandError(f"--batch takes everything from its file; leave out: {names.replace('_', '-')}")
    path = Path(arguments.batch)
    _check_there(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in {"csv", "jsonl"}:
        raise CommandError(f"--batch is {str(path)!a}; accepted: a .csv or .jsonl file")
    arguments.dry_run, arguments.ignore_column = False, []
    return _import(client, arguments, path, form)


def _import(client: "RegistryClient", arguments: argparse.Namespace, path: Path, form: str) -> Output:
    # This package loads the HTTP client, which --help and completion do without.
    from speaker_registry.moving.candidates import check_distinct  # noqa: PLC0415
    from speaker_registry.moving.sources import read  # noqa: PLC0415

    found = list(read(path, form, arguments.consent, arguments.ignore_column))
    check_distinct(found)
    return _transfer(client, arguments, found)


def _check_there(path: Path) -> None:
    if not path.exists():
        raise CommandError(f"{path}: there is no such file or folder", status=REFUSED)


def _transfer(client: "RegistryClient", arguments: argparse.Namespace, found: "Sequence[Found]") -> Output:
    from speaker_registry.moving.candidates import Unusable  # noqa: PLC0415  see `_import`
    from speaker_registry.moving.transfer import Registering, Result  # noqa: PLC0415

    unusable = [
        Result(where=one.where, state="refused", error=one.error)
        for one in found
        if isinstance(one, Unusable)
    ]
    tasks = [Registering(one) for one in found if not isinstance(one, Unusable)]
    return _run(client, arguments, tasks, unusable)


def _run(
    client: "RegistryClient",
    arguments: argparse.Namespace,
    tasks: "Sequence[Task]",
    unusable: "Sequence[Result]" = (),
) -> Output:
    from speaker_registry.moving.transfer import Report, Transfer  # noqa: PLC0415  see `_import`

    done: list[Result] = []
    with counting("import", len(tasks), quiet=arguments.json) as on_result:

        def note(result: "Result") -> None:
            done.append(result)
            on_result(result)

        transfer = Transfer(client, arguments.jobs, arguments.dry_run, note, arguments.on_pause)
        try:
            report = transfer.run(tasks)
        except KeyboardInterrupt:
            ended = f"interrupted after {len(done)} of {len(tasks)} voices"
            message = ended + _to_continue(dry_run=arguments.dry_run)
            raise CommandError(message, status=INTERRUPTED) from None
    not_tried = len(tasks) - len(report.results)
    whole = Report(results=(*unusable, *report.results), stopped=report.stopped)
    return _output(whole, not_tried, dry_run=arguments.dry_run)


def _output(report: "Report", not_tried: int, *, dry_run: bool) -> Output:
    counts = {state: report.count(state) for state in ("registered", "planned", "unchanged", "refused")}
    document = {
        **counts,
        "not_tried": not_tried,
        "stopped": _error(report.stopped),
        "voices": [_entry(result) for result in report.results],
    }
    status, warnings = REFUSED if counts["refused"] else OK, about_weights(report.results)
    if report.stopped is not None:
        status, when = status_of(report.stopped), when_to_retry(report.stopped)
        warnings.append(f"ended early: {printable(report.stopped)}{_to_continue(when, dry_run=dry_run)}")
    return Output(document, _text(report, not_tried, dry_run=dry_run), status, warnings)


def _to_continue(when: str = "", *, dry_run: bool) -> str:
    if dry_run:
        return ""
    return f"; run the same command again{when} to continue, what is registered is not sent again"


def _entry(result: "Result") -> dict[str, object]:
    return {
        "where": result.where,
        "name": result.name,
        "state": result.state,
        "versions": list(result.versions),
        "error": _error(result.error),
        "notes": list(result.notes),
        **({"untrained": True} if result.untrained else {}),
    }


def _error(error: SpeakerRegistryError | None) -> dict[str, object] | None:
    return None if error is None else {"code": error.code, "message": str(error)}


def _text(report: "Report", not_tried: int, *, dry_run: bool) -> str:
    lines = [", ".join(_counted(report, not_tried, dry_run=dry_run))]
    refused = [(one.where, one.name or "-", str(one.error)) for one in report.results if one.error]
    if refused:
        lines += ["", table(("REFUSED", "NAME", "REASON"), _shortened(refused))]
    notes = [(one.name or one.where, note) for one in report.results for note in one.notes]
    if notes:
        lines += ["", table(("VOICE", "NOTE"), _shortened(notes))]
    return "\n".join(lines)


def _shortened(rows: Sequence[tuple[str, ...]]) -> Iterable[tuple[str, ...]]:
    """Yield rows that begin with a voice and end with a text. Many voices with the same text share a row."""
    equal = Counter(text for *_, text in rows)
    told = set[str]()
    for voice, *cells, text in rows:
        if equal[text] <= _MOST_EQUAL:
            yield voice, *cells, text
        elif text not in told:
            told.add(text)
            yield f"{voice} and {equal[text] - 1} more", *("-" for _ in cells), text


def _counted(report: "Report", not_tried: int, *, dry_run: bool) -> Iterable[str]:
    if dry_run:
        yield f"would register {report.count('planned')}"
    else:
        yield f"registered {report.count('registered')}"
    yield f"already there {report.count('unchanged')}"
    yield f"refused {report.count('refused')}"
    if not_tried:
        yield f"not tried {not_tried}"


add_jobs = argument(
    "--jobs",
    metavar="N",
    type=partial(count, most=MAX_JOBS),
    default=4,
    help=f"number of voices to send at a time, up to {MAX_JOBS} (default: 4)",
)


def _add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument("path", metavar="PATH", help="folder or table of voices, or exported .tar")
    command.add_argument(
        "--format", choices=FORMATS, help="what PATH holds (default: detected from its content)"
    )
    command.add_argument("--consent", help="consent of the voices that come without one")
    command.add_argument("--dry-run", action="store_true", help="read and compare everything, send nothing")
    command.add_argument(
        "--ignore-column",
        metavar="NAME",
        action="append",
        default=[],
        help="column of a table that the registry does not keep; can be given several times",
    )


def _add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="archive to write, such as voices.tar")
    command.add_argument("--force", action="store_true", help="replace FILE if it exists")


_add_artifacts = argument(
    "--no-artifacts",
    dest="artifacts",
    action="store_false",
    help="leave out the artifacts of an archive, which are then extracted again",
)
COMMANDS = (
    Command(
        "import",
        import_voices,
        "Register the voices of a folder, table or archive.",
        [_add_import, _add_artifacts, add_jobs],
    ),
    Command(
        "export", export, "Write all voices of a namespace to an archive.", [_add_export, _add_artifacts]
    ),
)
