"""The commands for voices and their clips: `register`, `list`, `show`, `clip`, `delete` and others."""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speaker_registry.atomic_files import write_atomically
from speaker_registry.cli.command import (
    PROGRAM,
    REFUSED,
    Command,
    CommandError,
    Output,
    about_weights,
    add_limit,
    add_name,
    add_output,
    add_speaker,
    add_timeout,
    add_yes,
    argument,
    confirm,
    first_of,
    list_document,
    when,
)
from speaker_registry.cli.files import check_output, deliver, open_clip, read_embedding, read_ref_text
from speaker_registry.cli.moving import add_jobs, register_batch
from speaker_registry.cli.progress import wait_ready
from speaker_registry.cli.text import (
    marked,
    readiness_text,
    ready_profiles,
    reason_of,
    registered_text,
    version_text,
    voice_text,
)
from speaker_registry.errors import InvalidRequest, NotFound, PermissionDenied, SpeakerRegistryError
from speaker_registry.labels import parse_filters
from speaker_registry.names import parse_reference, split_reference
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry import RegistryClient, VoiceChange
    from speaker_registry.fetching import PictureKind

_KINDS: dict[str, "PictureKind"] = {".svg": "waveform", ".png": "mel"}
"""Maps the suffix of an output file to the kind of picture that is written to it."""


def register(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    if arguments.batch is not None:
        return register_batch(client, arguments)
    if arguments.name is None or arguments.consent is None:
        raise CommandError("register needs NAME and --consent, or --batch FILE")
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
    text, about = registered_text(registered), about_weights([registered])
    if arguments.wait:
        ready = wait_ready(client, registered.reference, None, arguments)
        document["ready"] = ready.model_dump(mode="json")
        text, about = f"{text}\n{readiness_text(ready)}", about_weights([registered, ready])
    return Output(document, text, warnings=about)


def sample(client: "RegistryClient", _: argparse.Namespace) -> Output:
    """Register the voice that comes with the package, under the first name that is free."""
    from speaker_registry import sample_voice  # noqa: PLC0415  only this command needs it

    name = next((one for one in sample_voice.names() if _is_free(client, one)), None)
    if name is None:
        raise CommandError(
            "all names for sample voices are taken; `speaker-registry delete Sample` frees one",
            status=REFUSED,
        )
    registered = client.register(
        name, sample_voice.clip(), consent=sample_voice.CONSENT, ref_text=sample_voice.transcript()
    )
    return Output(
        {**registered.model_dump(mode="json"), "reference": registered.reference},
        f"{registered_text(registered)}\n`speaker-registry wait {registered.name!r}` waits until it is ready",
        warnings=about_weights([registered]),
    )


def _is_free(client: "RegistryClient", name: str) -> bool:
    try:
        client.get(name)
    except NotFound:
        return True
    return False


def list_voices(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    try:
        labels = parse_filters(arguments.label) if arguments.label else None
    except InvalidRequest as error:
        raise CommandError(error.message) from error
    wanted = partial(client.list, profile=arguments.profile, state=arguments.state, labels=labels)
    voices, more = first_of(lambda limit: wanted(limit=limit), arguments)
    head = ("NAME", "VERSION", "NEWEST", "STATE", "READY FOR", "CREATED", "REASON")
    rows = [
        (
            voice.name,
            voice.version,
            voice.latest,
            marked(voice.state, voice),
            ready_profiles(voice),
            when(voice.created_at),
            reason_of(voice),
        )
        for voice in voices
    ]
    document, warnings = list_document(voices, more=bool(more)), [*about_weights(voices), *more]
    return Output(document, table(head, rows), warnings=warnings)


def show(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    shown = _shown(client, arguments)
    if arguments.picture is None:
        return shown
    kind, path = _KINDS[Path(arguments.picture).suffix.lower()], Path(arguments.picture)
    picture = client.picture(arguments.speaker, kind)
    write_atomically(path, picture.data)
    size = f"{len(picture.data)} bytes of {picture.mime_type}"
    return shown._replace(text=f"{shown.text}\n\n{printable(f'{kind}: {size} in {path}')}")


def _shown(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    if "@" in arguments.speaker:
        version = client.version(arguments.speaker)
        return Output(
            version.model_dump(mode="json"), version_text(version), warnings=about_weights([version])
        )
    voice = client.get(arguments.speaker)
    return Output(voice.model_dump(mode="json"), voice_text(voice), warnings=about_weights([voice]))


def clip(client: "RegistryClient", arguments: argparse.Namespace) -> Output | None:
    check_output(arguments, "a clip")
    found = client.clip(arguments.speaker)
    deliver(arguments, found.data)
    if arguments.output == "-":
        return None
    document = {"path": arguments.output, "size": len(found.data), "mime_type": found.mime_type}
    text = f"{arguments.speaker}: {len(found.data)} bytes of {found.mime_type} in {arguments.output}"
    return Output(document, printable(text))


def delete(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    name, reference = split_reference(arguments.name)
    if reference is not None:
        return _delete_version(client, arguments, name, reference)
    if not arguments.yes:
        confirm("delete", f"Delete {printable(arguments.name)} with all its versions?")
    client.delete(arguments.name)
    return Output({"name": name, "deleted": True}, f"deleted {printable(name)}\n{_undo_of(name)}")


def _undo_of(name: str) -> str:
    undo = f"`{PROGRAM} undelete {shlex.quote(name)}` restores it within the grace period"
    return printable(undo)


def _delete_version(
    client: "RegistryClient", arguments: argparse.Namespace, name: str, reference: str
) -> Output:
    number = parse_reference(reference)
    if not isinstance(number, int):
        raise CommandError(f"delete takes the number of a version, as in {name}@3, and no alias")
    if not arguments.yes:
        what = _what_deleting_does(client, name, number)
        confirm("delete", f"Delete version {number} of {printable(name)}? {what}")
    client.delete_version(name, number)
    left = _versions_left(client, name)
    document = {
        "name": name,
        "version": number,
        "deleted": True,
        "voice_deleted": None if left is None else left == 0,
    }
    text = printable(f"deleted {name}@{number}")
    if left == 0:
        text += f"\nthe voice had no other version and is deleted with it; {_undo_of(name)}"
    return Output(document, text)


def _what_deleting_does(client: "RegistryClient", name: str, number: int) -> str:
    """Return what deleting a version does. Raises `NotFound` if there is no such version."""
    try:
        client.version(f"{name}@{number}")
        is_last = client.get(name).versions == 1
    except PermissionDenied:
        return "It cannot be undeleted. If it is the last one, the voice is deleted with it."
    return "It is the last one, so the voice is deleted with it." if is_last else "It cannot be undeleted."


def _versions_left(client: "RegistryClient", name: str) -> int | None:
    """Return the number of versions of a voice: 0 if there is no such voice, and None if the registry does
    not say, for example because the API key may not read voices.
    """
    try:
        return client.get(name).versions
    except NotFound:
        return 0
    except SpeakerRegistryError:
        return None


def undelete(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    voice = client.undelete(arguments.name)
    versions = "1 version" if voice.versions == 1 else f"{voice.versions} versions"
    text = printable(f"{voice.name} is back, with {versions}; its default is version {voice.version}")
    return Output(voice.model_dump(mode="json"), text, warnings=about_weights([voice]))


def list_versions(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    voice = client.get(arguments.name)
    versions, more = first_of(lambda limit: client.versions(arguments.name, limit=limit), arguments)
    named = {
        number: sorted(a for a, n in voice.aliases.items() if n == number)
        for number in voice.aliases.values()
    }
    head = ("VERSION", "ALIASES", "STATE", "SOURCE", "CREATED", "DESCRIPTION")
    rows = [
        (
            one.version,
            ", ".join(named.get(one.version, ())) or "-",
            marked(one.state, one),
            one.source,
            when(one.created_at),
            one.description or "-",
        )
        for one in versions
    ]
    document, warnings = list_document(versions, more=bool(more)), [*about_weights(versions), *more]
    return Output(document, table(head, rows), warnings=warnings)


def _add_register(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?")
    command.add_argument("clip", metavar="CLIP", nargs="?", help="audio file, or - for standard input")
    command.add_argument("--consent", help="who agreed to what, or the id of a recorded consent")
    spoken = command.add_mutually_exclusive_group()
    spoken.add_argument("--ref-text", metavar="T", help="transcript of the clip, word for word")
    spoken.add_argument("--ref-text-file", metavar="FILE", help="file with the transcript, in UTF-8")
    command.add_argument("--description", metavar="D", help="free text about the voice")
    command.add_argument(
        "--embedding",
        metavar="FILE",
        help="speaker embedding instead of a clip: a JSON list of numbers, or - for standard input",
    )
    command.add_argument("--wait", action="store_true", help="wait until all required profiles are ready")
    add_timeout(command)
    command.add_argument(
        "--batch",
        metavar="FILE",
        help="register the voices of a .csv or .jsonl file with the columns name, file, text, consent, "
        "description",
    )


def _add_list(command: argparse.ArgumentParser) -> None:
    command.add_argument("--profile", metavar="P", help="only voices that this profile can use")
    command.add_argument("--state", choices=("pending", "processing", "ready", "failed"))
    command.add_argument(
        "--label",
        metavar="KEY=VALUE",
        action="append",
        help="only voices with this label; all that are given must match",
    )


def _picture_file(text: str) -> str:
    if Path(text).suffix.lower() not in _KINDS:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!a}; accepted: a file that ends with .svg (waveform) or .png (mel spectrogram)"
        )
    return text


_add_picture = argument(
    "--picture",
    metavar="FILE",
    type=_picture_file,
    help="also write a picture of the clip: its waveform to a .svg file, or its mel spectrogram to a "
    ".png file",
)


def history(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    changes, more = first_of(lambda limit: client.history(arguments.name, limit=limit), arguments)
    head, rows = ["WHEN", "BY", "DID", "ALIAS", "VERSION"], [_history_row(one) for one in changes]
    if any(one.profile for one in changes):
        head += ["PROFILE", "FINGERPRINT", "FORMER"]
        rows = [
            [*row, one.profile or "-", one.fingerprint or "-", one.former_fingerprint or "-"]
            for row, one in zip(rows, changes, strict=True)
        ]
    text = table(head, rows)
    return Output(list_document(changes, more=bool(more)), text, warnings=more)


def _history_row(one: "VoiceChange") -> list[object]:
    version = "-" if one.version is None else one.version
    return [when(one.at), one.by, one.did, one.alias or "-", version]


def edit(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    from speaker_registry.session import Default  # noqa: PLC0415  loads httpx, which --help does not need

    description, pinned, promotion = arguments.description, arguments.pin, arguments.promotion
    if description is None and pinned is None and promotion is None and not arguments.label:
        raise CommandError("edit needs --description, --label, --pin, --no-pin or --promotion")
    voice = client.edit_voice(
        arguments.name,
        description=Default.KEEP if description is None else description or None,
        labels=dict(arguments.label) if arguments.label else None,
        pinned=pinned,
        promotion=promotion,
    )
    return Output(voice.model_dump(mode="json"), voice_text(voice), warnings=about_weights([voice]))


def _label_change(text: str) -> tuple[str, str | None]:
    """Parse `KEY=VALUE`, or `KEY-`, which removes a label."""
    key, separator, value = text.partition("=")
    if not separator and not text.endswith("-"):
        raise argparse.ArgumentTypeError(f"{text[:80]!a}; accepted: KEY=VALUE, or KEY- to remove a label")
    return (key, value) if separator else (text[:-1], None)


def _add_edit(command: argparse.ArgumentParser) -> None:
    command.add_argument("--description", metavar="D", help="free text; an empty one removes it")
    command.add_argument(
        "--label",
        metavar="KEY=VALUE",
        action="append",
        type=_label_change,
        help="label to set, or KEY- to remove one; may be repeated",
    )
    command.add_argument(
        "--pin", action=argparse.BooleanOptionalAction, default=None, help="mark a voice that matters more"
    )
    command.add_argument(
        "--promotion",
        choices=("on_ready", "manual"),
        help="whether `default` moves to a new version once it is ready, or only by hand",
    )


_add_delete = argument("name", metavar="NAME[@N]", help="a voice, or one version of it")
COMMANDS = (
    Command(
        "register",
        register,
        "Upload a clip as a new version of a voice.",
        [_add_register, add_jobs],
    ),
    Command("sample", sample, "Register the sample voice that comes with the package."),
    Command("list", list_voices, "List the voices.", [_add_list, add_limit]),
    Command("show", show, "Show a voice, or one version of it.", [add_speaker, _add_picture]),
    Command("clip", clip, "Write the clip of a version to a file.", [add_speaker, add_output]),
    Command(
        "edit",
        edit,
        "Change the description, labels, pin or promotion policy of a voice.",
        [add_name, _add_edit],
    ),
    Command("versions", list_versions, "List the versions of a voice, newest first.", [add_name, add_limit]),
    Command("history", history, "List who did what to a voice, newest first.", [add_name, add_limit]),
    Command(
        "delete", delete, "Delete a voice with all its versions, or one version.", [_add_delete, add_yes]
    ),
    Command("undelete", undelete, "Restore a deleted voice within the grace period.", [add_name]),
)
