"""The command line `speaker-registry`. It turns arguments into calls of `RegistryClient`, and answers into
text or JSON.

The exit codes are listed in `command.EXIT_CODES` and by `--help`. The client is only loaded when it is
needed, so that `--help` and completion are fast.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import speaker_registry
from speaker_registry.cli import completion
from speaker_registry.cli.command import (
    HINTS,
    INTERRUPTED,
    OK,
    PIPE_CLOSED,
    USAGE,
    CommandError,
    Output,
    Parser,
    add_common,
    add_limit,
    confirm,
    exit_codes,
    list_document,
    seconds,
    status_of,
    when,
)
from speaker_registry.cli.files import (
    check_output,
    deliver,
    open_clip,
    read_artifact,
    read_embedding,
    read_ref_text,
)
from speaker_registry.cli.keys import add_keys, show_quota
from speaker_registry.cli.text import (
    extraction_text,
    fetched,
    readiness_text,
    ready_profiles,
    reason_of,
    registered_text,
    remarks_on,
    version_text,
    voice_text,
    weights_of,
)
from speaker_registry.errors import ArtifactFailed, SpeakerRegistryError
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry import (
        Readiness,
        RegistryClient,
    )


_PROGRAM = "speaker-registry"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A name with characters that the terminal's encoding lacks must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(words)
    except SystemExit:  # after --help and --version
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout at its end, which would raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _run(words: list[str]) -> int:
    if completion.is_asked():
        completion.complete(parser())
    if not words:
        words = ["--help"]
    as_json = "--json" in words
    try:
        arguments = parser().parse_args(words)
        output: Output | None
        if arguments.command is print_completion:
            output = print_completion(arguments)
        else:
            with _client(arguments.url) as client:
                output = arguments.command(client, arguments)
    except BrokenPipeError:
        raise
    except (CommandError, SpeakerRegistryError, OSError) as error:
        print(_complaint(error, as_json), file=sys.stderr)
        return status_of(error)
    if output is not None:
        print(json.dumps(output.document, indent=2) if as_json else output.text, flush=True)
    return OK


def _client(url: str | None) -> "RegistryClient":
    try:
        return speaker_registry.RegistryClient(url)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _complaint(error: Exception, as_json: bool) -> str:
    message, request_id = _message(error), getattr(error, "request_id", None)
    if as_json:
        code = error.code if isinstance(error, SpeakerRegistryError) else _local_code(error)
        param = getattr(error, "param", None)
        body = {"code": code, "message": message, "param": param, "request_id": request_id}
        return json.dumps({"error": body})
    lines = [
        f"speaker-registry: {printable(message)}" + (f" ({printable(request_id)})" if request_id else "")
    ]
    advice = HINTS.get(error.code, "") if isinstance(error, SpeakerRegistryError) else ""
    return "\n".join([*lines, *filter(None, [getattr(error, "usage", ""), advice and f"hint: {advice}"])])


def _local_code(error: Exception) -> str:
    return "usage" if status_of(error) == USAGE else "local_error"


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


# Commands.


def register(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    if (arguments.clip is None) == (arguments.embedding is None):
        raise CommandError("register needs either CLIP or --embedding FILE")
    registered = client.register(
        arguments.name,
        open_clip(arguments.clip),
        embedding=read_embedding(arguments.embedding),
        consent=arguments.consent,
        ref_text=read_ref_text(arguments),
        description=arguments.description,
    )
    document: dict[str, Any] = {**registered.model_dump(mode="json"), "reference": registered.reference}
    text = registered_text(registered)
    if arguments.wait:
        ready = _waited(client, registered.reference, None, arguments)
        document["ready"] = ready.model_dump(mode="json")
        text += "\n" + readiness_text(ready)
    return Output(document, text)


def list_voices(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    voices = list(client.list(profile=arguments.profile, state=arguments.state, limit=arguments.limit))
    head = ("NAME", "VERSION", "NEWEST", "STATE", "READY FOR", "CREATED", "REASON")
    rows = [
        (
            voice.name,
            voice.version,
            voice.latest,
            voice.state,
            ready_profiles(voice),
            when(voice.created_at),
            reason_of(voice),
        )
        for voice in voices
    ]
    return Output(list_document(voices), table(head, rows))


def show(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    if "@" in arguments.speaker:
        version = client.version(arguments.speaker)
        return Output(version.model_dump(mode="json"), version_text(version))
    voice = client.get(arguments.speaker)
    return Output(voice.model_dump(mode="json"), voice_text(voice))


def fetch(client: "RegistryClient", arguments: argparse.Namespace) -> Output | None:
    check_output(arguments, "an artifact")
    file = client.download(arguments.speaker, arguments.profile, wait=arguments.wait)
    deliver(arguments, file.data)
    if file.artifact.manifest.untrained:
        print("speaker-registry: made with untrained weights, the voice is useless", file=sys.stderr)
    if file.artifact.manifest.custom_weights:
        print("speaker-registry: made with custom weights, not with the published ones", file=sys.stderr)
    return None if arguments.output == "-" else fetched(arguments.output, file)


def clip(client: "RegistryClient", arguments: argparse.Namespace) -> Output | None:
    check_output(arguments, "a clip")
    found = client.clip(arguments.speaker)
    deliver(arguments, found.data)
    if arguments.output == "-":
        return None
    document = {"path": arguments.output, "size": len(found.data), "mime_type": found.mime_type}
    text = f"{arguments.speaker}: {len(found.data)} bytes of {found.mime_type} in {arguments.output}"
    return Output(document, printable(text))


def put(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    data = read_artifact(arguments.file)
    made = client.put(arguments.speaker, arguments.profile, data, fingerprint=arguments.fingerprint)
    text = (
        f"{printable(made.voice)}@{made.version} is {made.state} for {printable(made.profile)}: {made.digest}"
    )
    return Output(made.model_dump(mode="json"), text)


def wait(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    ready = _waited(client, arguments.speaker, arguments.profile, arguments)
    return Output(ready.model_dump(mode="json"), readiness_text(ready))


def jobs(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    found = list(
        client.jobs(
            state=arguments.state, voice=arguments.voice, profile=arguments.profile, limit=arguments.limit
        )
    )
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
    return Output(list_document(found), table(head, rows))


def extract(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    made = client.extract(arguments.speaker, arguments.profile, force=arguments.force)
    if not arguments.wait:
        if made.state == "failed":
            raise ArtifactFailed(f"{made.voice}@{made.version}: {made.error}")
        return Output(made.model_dump(mode="json"), extraction_text(made))
    if made.job_id is not None:
        # An older artifact may be ready all the time, so only the job tells how this extraction ends.
        job = client.wait_job(made.job_id, arguments.timeout)
        if job.error is not None and job.state == "failed":
            raise ArtifactFailed(f"{job.voice}@{job.version}: {job.error.code}: {job.error.message}")
        if job.state == "canceled":
            raise ArtifactFailed(f"{job.voice}@{job.version}: job {job.id} was canceled")
    ready = _waited(client, f"{made.voice}@{made.version}", arguments.profile, arguments)
    return Output(ready.model_dump(mode="json"), readiness_text(ready))


def cancel(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    job = client.cancel(arguments.job)
    text = f"canceled {printable(job.id)}: {printable(f'{job.voice}@{job.version}')} for {job.profile}"
    return Output(job.model_dump(mode="json"), text)


def delete(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    if not arguments.yes:
        confirm("delete", f"Delete {printable(arguments.name)} with all its versions?")
    client.delete(arguments.name)
    return Output({"name": arguments.name, "deleted": True}, f"deleted {printable(arguments.name)}")


def print_completion(arguments: argparse.Namespace) -> Output:
    code = completion.script(_PROGRAM, arguments.shell)
    return Output({"shell": arguments.shell, "script": code}, code.rstrip("\n"))


def profiles(client: "RegistryClient", _: argparse.Namespace) -> Output:
    found = list(client.profiles())
    head = ("PROFILE", "MODEL TYPE", "REQUIRED", "WORKERS", "CLIP", "WEIGHTS", "LICENCE")
    rows = [
        (
            profile.id,
            profile.model_type,
            "yes" if profile.required else "no",
            profile.workers,
            f"{profile.sample_rate} Hz",
            weights_of(profile),
            profile.licence,
        )
        for profile in found
    ]
    remarks = "\n".join(remarks_on(found))
    return Output(list_document(found), table(head, rows) + (f"\n\n{remarks}" if remarks else ""))


def _waited(
    client: "RegistryClient", speaker: str, profile: str | None, arguments: argparse.Namespace
) -> "Readiness":
    with _progress(speaker, quiet=arguments.json or not sys.stderr.isatty()) as on_progress:
        return client.wait_ready(speaker, profile, arguments.timeout, on_progress)


@contextlib.contextmanager
def _progress(speaker: str, *, quiet: bool) -> Iterator[Callable[["Readiness"], object] | None]:
    """Show a progress bar on stderr, unless `quiet` is set."""
    if quiet:
        yield None
        return
    from tqdm import tqdm  # noqa: PLC0415  only this command needs it

    with tqdm(desc=printable(speaker), unit="profile", leave=False, file=sys.stderr) as bar:

        def update(seen: "Readiness") -> None:
            bar.total, bar.n = len(seen.artifacts), sum(status.state == "ready" for status in seen.artifacts)
            if seen.job:
                bar.set_postfix_str(
                    printable(f"{seen.job.profile}: {seen.job.progress.stage}"), refresh=False
                )
            bar.refresh()

        yield update


# Arguments.


class _Version(argparse.Action):
    """The option `--version`. The version is only looked up if the option is given, because that takes
    time.
    """

    def __call__(self, *_: object) -> NoReturn:
        print(f"speaker-registry {speaker_registry.__version__}")
        raise SystemExit


def parser() -> argparse.ArgumentParser:
    root = Parser(
        prog=_PROGRAM,
        description="Register voices and fetch their artifacts.",
        epilog="environment:\n"
        "  SPEAKER_REGISTRY_URL, SPEAKER_REGISTRY_API_KEY, SPEAKER_REGISTRY_NAMESPACE\n\n"
        f"{exit_codes()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.set_defaults(json=False, url=None)
    add_common(root)
    root.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    for name, run, explanation, add_arguments in _COMMANDS:
        command = commands.add_parser(name, help=explanation, description=explanation)
        if run is not None:
            command.set_defaults(command=run)
            add_common(command)
        add_arguments(command)
    return root


def _add_register(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME")
    command.add_argument("clip", metavar="CLIP", nargs="?", help="audio file, or - for standard input")
    command.add_argument(
        "--consent", required=True, help="who agreed to what, or the id of a recorded consent"
    )
    spoken = command.add_mutually_exclusive_group()
    spoken.add_argument("--ref-text", metavar="T", help="transcript of the clip, word for word")
    spoken.add_argument("--ref-text-file", metavar="FILE", help="file with the transcript, in UTF-8")
    command.add_argument("--description", metavar="D", help="a free text about the voice")
    command.add_argument(
        "--embedding",
        metavar="FILE",
        help="speaker embedding instead of a clip: a JSON list of numbers, or - for standard input",
    )
    command.add_argument("--wait", action="store_true", help="wait until all required profiles are ready")
    _add_timeout(command)


def _add_list(command: argparse.ArgumentParser) -> None:
    command.add_argument("--profile", metavar="P", help="only voices that are ready for this profile")
    command.add_argument("--state", choices=("pending", "processing", "ready", "failed"))
    add_limit(command)


def _add_show(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")


def _add_fetch(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")
    command.add_argument("--profile", metavar="P", required=True)
    _add_output(command)
    command.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=0.0,
        help="wait for an artifact that is not ready (default: 0)",
    )


def _add_clip(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")
    _add_output(command)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file to write, or - for standard output"
    )


def _add_put(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")
    command.add_argument("file", metavar="FILE", help="safetensors file, or - for standard input")
    command.add_argument("--profile", metavar="P", required=True)
    command.add_argument(
        "--fingerprint",
        metavar="SHA256",
        help="fingerprint of what made the artifact, if the file has no manifest with it",
    )


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]", help="voice; without REF, its newest version")
    command.add_argument(
        "--profile", metavar="P", help="profile to wait for (default: all required profiles)"
    )
    _add_timeout(command)


def _add_jobs(command: argparse.ArgumentParser) -> None:
    states = ("queued", "processing", "succeeded", "failed", "canceled", "superseded")
    command.add_argument("--state", choices=states)
    command.add_argument("--voice", metavar="NAME")
    command.add_argument("--profile", metavar="P")
    add_limit(command)


def _add_extract(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")
    command.add_argument("--profile", metavar="P", required=True)
    command.add_argument(
        "--force",
        action="store_true",
        help="extract again, even if the artifact exists, has failed or was canceled",
    )
    command.add_argument("--wait", action="store_true", help="wait until the artifact is ready")
    _add_timeout(command)


def _add_cancel(command: argparse.ArgumentParser) -> None:
    command.add_argument("job", metavar="JOB", help="id of the job, see jobs")


def _add_delete(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME")
    command.add_argument("--yes", action="store_true", help="skip the confirmation")


def _add_completion(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=completion.SHELLS)


def _add_nothing(command: argparse.ArgumentParser) -> None:
    pass


def _add_timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=600.0,
        help="maximum time to wait (default: 600)",
    )


_COMMANDS = (
    ("register", register, "Upload a clip as a new version of a voice.", _add_register),
    ("list", list_voices, "List the voices.", _add_list),
    ("show", show, "Show a voice, or one version of it.", _add_show),
    ("fetch", fetch, "Write an artifact to a file.", _add_fetch),
    ("clip", clip, "Write the clip of a version to a file.", _add_clip),
    ("put", put, "Upload an artifact that was made elsewhere.", _add_put),
    ("wait", wait, "Wait until a version is ready.", _add_wait),
    ("jobs", jobs, "List the extraction jobs.", _add_jobs),
    ("extract", extract, "Extract an artifact of a version.", _add_extract),
    ("cancel", cancel, "Cancel an extraction job.", _add_cancel),
    ("delete", delete, "Delete a voice with all its versions.", _add_delete),
    ("profiles", profiles, "List the profiles and the number of workers that serve them.", _add_nothing),
    ("quota", show_quota, "Show the limits and what is left of them.", _add_nothing),
    ("keys", None, "Create, list, rotate and revoke API keys.", add_keys),
    ("completion", print_completion, "Print the completion script for a shell.", _add_completion),
)
