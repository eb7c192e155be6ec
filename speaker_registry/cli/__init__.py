"""`speaker-registry`, the command line: arguments to calls of `RegistryClient`, answers to text or JSON.

Exit codes are listed in `command.EXIT_CODES` and by `--help`. Knows no HTTP. The client is loaded only when
it is needed, so that `--help` and completion are quick.
"""

import argparse
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import speaker_registry
from speaker_registry.cli import completion
from speaker_registry.cli.command import (
    HINTS,
    INTERRUPTED,
    OK,
    PIPE_CLOSED,
    REFUSED,
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
from speaker_registry.cli.keys import add_keys, show_quota
from speaker_registry.errors import ArtifactFailed, InvalidArtifact, SpeakerRegistryError
from speaker_registry.terminal import field_lines, printable, table

if TYPE_CHECKING:
    from speaker_registry import (
        ArtifactDescriptor,
        ArtifactStatus,
        File,
        Profile,
        Readiness,
        Registration,
        RegistryClient,
        Voice,
        VoiceVersion,
    )


_PROGRAM = "speaker-registry"
_MAX_EMBEDDING_BYTES = 1024**2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(words)
    except SystemExit:  # after --help and --version
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it ends, and would complain.
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
        _clip(arguments.clip),
        embedding=_embedding(arguments.embedding),
        consent=arguments.consent,
        ref_text=_ref_text(arguments),
        description=arguments.description,
    )
    document: dict[str, Any] = {**registered.model_dump(mode="json"), "reference": registered.reference}
    text = _registered_text(registered)
    if arguments.wait:
        ready = _waited(client, registered.reference, None, arguments)
        document["ready"] = ready.model_dump(mode="json")
        text += "\n" + _readiness_text(ready)
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
            _ready_for(voice),
            when(voice.created_at),
            _reason(voice),
        )
        for voice in voices
    ]
    return Output(list_document(voices), table(head, rows))


def show(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    if "@" in arguments.speaker:
        version = client.version(arguments.speaker)
        return Output(version.model_dump(mode="json"), _version_text(version))
    voice = client.get(arguments.speaker)
    return Output(voice.model_dump(mode="json"), _voice_text(voice))


def fetch(client: "RegistryClient", arguments: argparse.Namespace) -> Output | None:
    _check_output(arguments, "an artifact")
    file = client.download(arguments.speaker, arguments.profile, wait=arguments.wait)
    _deliver(arguments, file.data)
    if file.artifact.manifest.untrained:
        print("speaker-registry: made with untrained weights, the voice is useless", file=sys.stderr)
    if file.artifact.manifest.custom_weights:
        print("speaker-registry: made with custom weights, not with the published ones", file=sys.stderr)
    return None if arguments.output == "-" else _fetched(arguments.output, file)


def clip(client: "RegistryClient", arguments: argparse.Namespace) -> Output | None:
    _check_output(arguments, "a clip")
    found = client.clip(arguments.speaker)
    _deliver(arguments, found.data)
    if arguments.output == "-":
        return None
    document = {"path": arguments.output, "size": len(found.data), "mime_type": found.mime_type}
    text = f"{arguments.speaker}: {len(found.data)} bytes of {found.mime_type} in {arguments.output}"
    return Output(document, printable(text))


def put(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    data = _artifact(arguments.file)
    made = client.put(arguments.speaker, arguments.profile, data, fingerprint=arguments.fingerprint)
    text = (
        f"{printable(made.voice)}@{made.version} is {made.state} for {printable(made.profile)}: {made.digest}"
    )
    return Output(made.model_dump(mode="json"), text)


def wait(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    ready = _waited(client, arguments.speaker, arguments.profile, arguments)
    return Output(ready.model_dump(mode="json"), _readiness_text(ready))


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
        return Output(made.model_dump(mode="json"), _extraction_text(made))
    if made.job_id is not None:
        # What was there before may be ready all the while: only the job tells how this extraction ends.
        job = client.wait_job(made.job_id, arguments.timeout)
        if job.error is not None and job.state == "failed":
            raise ArtifactFailed(f"{job.voice}@{job.version}: {job.error.code}: {job.error.message}")
        if job.state == "canceled":
            raise ArtifactFailed(f"{job.voice}@{job.version}: job {job.id} was canceled")
    ready = _waited(client, f"{made.voice}@{made.version}", arguments.profile, arguments)
    return Output(ready.model_dump(mode="json"), _readiness_text(ready))


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
            _weights_of(profile),
            profile.licence,
        )
        for profile in found
    ]
    remarks = "\n".join(_remarks(found))
    return Output(list_document(found), table(head, rows) + (f"\n\n{remarks}" if remarks else ""))


# What commands read and do.


def _check_output(arguments: argparse.Namespace, what: str) -> None:
    """Before anything is fetched."""
    if arguments.output == "-" and arguments.json:
        raise CommandError("--json and -o - both want the standard output")
    if arguments.output == "-" and sys.stdout.isatty():
        raise CommandError(f"{what} is binary: give a file with -o, or send the output elsewhere")


def _deliver(arguments: argparse.Namespace, data: bytes) -> None:
    if arguments.output != "-":
        write_atomically(Path(arguments.output), data)
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _clip(argument: str | None) -> Path | IO[bytes] | None:
    if argument == "-":
        return sys.stdin.buffer
    return None if argument is None else Path(argument)


def _artifact(argument: str) -> bytes:
    """Raises `CommandError` for what is no safetensors file, before it is sent."""
    from speaker_registry.artifact import read_tensors  # noqa: PLC0415  only this command needs them
    from speaker_registry.session import read_clip  # noqa: PLC0415

    data = read_clip(sys.stdin.buffer if argument == "-" else Path(argument), "artifact")
    try:
        read_tensors(data)
    except InvalidArtifact as error:
        where = "standard input" if argument == "-" else argument
        message = f"{where} is no artifact: {error.message}; accepted: a safetensors file"
        raise CommandError(message, status=REFUSED) from None
    return data


def _embedding(argument: str | None) -> Any:
    if argument is None:
        return None
    where = "standard input" if argument == "-" else argument
    with contextlib.nullcontext(sys.stdin.buffer) if argument == "-" else Path(argument).open("rb") as file:
        text = file.read(_MAX_EMBEDDING_BYTES + 1)
    if len(text) > _MAX_EMBEDDING_BYTES:
        raise CommandError(f"{where} holds over {_MAX_EMBEDDING_BYTES} bytes, too many for an embedding")
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(f"{where} holds no JSON list of numbers") from None


def _ref_text(arguments: argparse.Namespace) -> str | None:
    path: str | None = arguments.ref_text_file
    if path is None:
        text: str | None = arguments.ref_text
        return text
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text") from None


def _waited(
    client: "RegistryClient", speaker: str, profile: str | None, arguments: argparse.Namespace
) -> "Readiness":
    with _progress(speaker, quiet=arguments.json or not sys.stderr.isatty()) as on_progress:
        return client.wait_ready(speaker, profile, arguments.timeout, on_progress)


@contextlib.contextmanager
def _progress(speaker: str, *, quiet: bool) -> Iterator[Callable[["Readiness"], object] | None]:
    """A bar on stderr for somebody who watches; a log gets none."""
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


def write_atomically(path: Path, data: bytes) -> None:
    """The file is there whole or not at all, whatever happens meanwhile. An OSError names `path`."""
    try:
        _write(path, data)
    except OSError as error:  # it may be about the file beside it, of which nobody knows
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file():
        path.write_bytes(data)  # /dev/null, a pipe: renaming onto it would replace the device
        return
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


# Answers as text.


def _voice_text(voice: "Voice") -> str:
    aliases = ", ".join(f"{alias}={number}" for alias, number in sorted(voice.aliases.items()))
    head = field_lines(
        [
            ("voice", voice.name),
            ("id", voice.id),
            ("version", f"{voice.version} (newest {voice.latest}, {voice.versions} in all)"),
            ("aliases", aliases or None),
            ("state", voice.state),
            ("created", when(voice.created_at)),
            ("held back", voice.held_back),
        ]
    )
    return f"{head}\n\n{_artifact_table(voice.artifacts)}"


def _extraction_text(made: "ArtifactDescriptor") -> str:
    what = f"{printable(made.voice)}@{made.version} is {made.state} for {printable(made.profile)}"
    reason = f" ({printable(made.reason)})" if made.reason else ""
    return what + reason + (f": {printable(made.job_id)}" if made.job_id else "")


def _version_text(version: "VoiceVersion") -> str:
    audio = version.audio
    head = field_lines(
        [
            ("voice", version.voice),
            ("version", version.version),
            ("id", version.id),
            ("state", version.state),
            ("created", when(version.created_at)),
            ("source", version.source),
            ("clip", f"{audio.seconds:.2f} s, {audio.sample_rate} Hz, {audio.mime_type}" if audio else None),
            ("consent", version.consent),
            ("ref_text", version.ref_text),
            ("description", version.description),
            ("held back", version.held_back),
        ]
    )
    return f"{head}\n\n{_artifact_table(version.artifacts)}"


def _artifact_table(artifacts: Iterable["ArtifactStatus"]) -> str:
    rows = [
        (a.profile, f"{a.state}, stale" if a.stale else a.state, a.digest or "-", a.error or a.reason or "-")
        for a in artifacts
    ]
    return table(("PROFILE", "STATE", "DIGEST", "REASON"), rows)


def _readiness_text(ready: "Readiness") -> str:
    return f"{printable(ready.reference)} is {ready.state}\n{_artifact_table(ready.artifacts)}"


def _weights_of(profile: "Profile") -> str:
    if profile.untrained:
        return "untrained"
    return "custom weights" if profile.custom_weights else profile.model


def _remarks(found: Iterable["Profile"]) -> Iterator[str]:
    """What must be known of a profile and fits into no column."""
    for profile in found:
        for remark in filter(None, (profile.licence_notes, profile.not_extractable)):
            yield printable(f"{profile.id}: {remark}")
        for failed in profile.failed_proofs:
            yield printable(f"{profile.id}: not served by {failed.worker} ({failed.device}). {failed.reason}")


def _registered_text(registered: "Registration") -> str:
    reference = printable(registered.reference)
    reason = f" ({printable(registered.reason)})" if registered.reason else ""
    if not registered.created:
        return f"{reference} is there already, from the same clip{reason}"
    jobs = printable(", ".join(sorted(registered.jobs))) or "nothing"
    held_back = f"\n{printable(registered.held_back)}" if registered.held_back else ""
    return f"registered {reference}; to extract: {jobs}{reason}{held_back}"


def _fetched(path: str, file: "File") -> Output:
    manifest = file.artifact.manifest
    document = {
        "path": path,
        "digest": file.artifact.digest,
        "size": len(file.data),
        "voice": manifest.voice,
        "version": manifest.version,
        "profile": manifest.profile,
        "fingerprint": manifest.fingerprint,
        "untrained": manifest.untrained,
        "custom_weights": manifest.custom_weights,
        "computed_on": manifest.computed_on.model_dump(exclude_none=True) if manifest.computed_on else None,
    }
    what = f"{manifest.voice}@{manifest.version} for {manifest.profile}"
    where = f", computed on {manifest.computed_on}" if manifest.computed_on else ""
    return Output(document, printable(f"{what}: {len(file.data)} bytes in {path}{where}"))


def _ready_for(voice: "Voice") -> str:
    return ", ".join(status.profile for status in voice.artifacts if status.state == "ready") or "-"


def _reason(voice: "Voice") -> str:
    """Why the voice is in its state, if anything says so."""
    told = (status.error or status.reason for status in voice.artifacts if status.state == voice.state)
    return next(filter(None, told), "-")


# Arguments.


class _Version(argparse.Action):
    """Looks the version up only when somebody asks."""

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
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and end")
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
    command.add_argument("clip", metavar="CLIP", nargs="?", help="audio file, - for standard input")
    command.add_argument(
        "--consent", required=True, help="who agreed to what, or the id of a recorded consent"
    )
    spoken = command.add_mutually_exclusive_group()
    spoken.add_argument("--ref-text", metavar="T", help="what is said in the clip, word for word")
    spoken.add_argument("--ref-text-file", metavar="FILE", help="the same, from a UTF-8 file")
    command.add_argument("--description", metavar="D")
    command.add_argument(
        "--embedding",
        metavar="FILE",
        help="a JSON list of numbers instead of a clip, - for standard input",
    )
    command.add_argument("--wait", action="store_true", help="until all required profiles are ready")
    _add_timeout(command)


def _add_list(command: argparse.ArgumentParser) -> None:
    command.add_argument("--profile", metavar="P", help="those usable with it")
    command.add_argument("--state", choices=("pending", "processing", "ready", "failed"))
    add_limit(command)


def _add_show(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")


def _add_fetch(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")
    command.add_argument("--profile", metavar="P", required=True)
    _add_output(command)
    command.add_argument(
        "--wait", metavar="SECONDS", type=seconds, default=0.0, help="for one that is not ready"
    )


def _add_clip(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")
    _add_output(command)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="- for standard output")


def _add_put(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]")
    command.add_argument("file", metavar="FILE", help="a safetensors file, - for standard input")
    command.add_argument("--profile", metavar="P", required=True)
    command.add_argument(
        "--fingerprint", metavar="SHA256", help="what made it, where the file has no manifest that says so"
    )


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]", help="without REF: the newest version")
    command.add_argument("--profile", metavar="P", help="without it: all required ones")
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
        "--force", action="store_true", help="again, although it is there, has failed or was canceled"
    )
    command.add_argument("--wait", action="store_true", help="until it is ready")
    _add_timeout(command)


def _add_cancel(command: argparse.ArgumentParser) -> None:
    command.add_argument("job", metavar="JOB", help="id of a job, see jobs")


def _add_delete(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME")
    command.add_argument("--yes", action="store_true", help="do not ask")


def _add_completion(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=completion.SHELLS)


def _add_nothing(command: argparse.ArgumentParser) -> None:
    pass


def _add_timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument("--timeout", metavar="SECONDS", type=seconds, default=600.0, help="of waiting (600)")


_COMMANDS = (
    ("register", register, "Upload a clip as a new version of a voice.", _add_register),
    ("list", list_voices, "List the voices.", _add_list),
    ("show", show, "Show a voice, or one version of it.", _add_show),
    ("fetch", fetch, "Write an artifact to a file.", _add_fetch),
    ("clip", clip, "Write the clip that a version was made from to a file.", _add_clip),
    ("put", put, "Bring a ready artifact that was made elsewhere.", _add_put),
    ("wait", wait, "Wait until a version is ready.", _add_wait),
    ("jobs", jobs, "List the extraction jobs.", _add_jobs),
    ("extract", extract, "Have an artifact of a version made.", _add_extract),
    ("cancel", cancel, "Cancel an extraction job.", _add_cancel),
    ("delete", delete, "Delete a voice with all its versions.", _add_delete),
    ("profiles", profiles, "List the profiles and who can make them.", _add_nothing),
    ("quota", show_quota, "Show what is left before something is refused.", _add_nothing),
    ("keys", None, "Make, list, rotate and revoke API keys.", add_keys),
    ("completion", print_completion, "Print what a shell needs to complete commands.", _add_completion),
)
