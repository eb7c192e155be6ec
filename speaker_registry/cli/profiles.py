"""The commands for profiles and their encoders: `profiles list|show|history|promote`."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from speaker_registry.cli.command import (
    Command,
    Output,
    about_weights,
    add_fingerprint,
    add_limit,
    add_profile,
    add_yes,
    confirm,
    first_of,
    list_document,
    when,
)
from speaker_registry.cli.text import remarks_on, weights_of
from speaker_registry.errors import ProfileUnknown
from speaker_registry.terminal import field_lines, printable, table

if TYPE_CHECKING:
    from speaker_registry import Profile, RegistryClient

_PROMOTION = (
    "Make another encoder the current one of a profile, for all namespaces. Every voice keeps its last "
    "artifact until its new one is ready. To go back, promote the former fingerprint."
)


def list_profiles(client: "RegistryClient", _: argparse.Namespace) -> Output:
    found = list(client.profiles())
    head = ("PROFILE", "MODEL TYPE", "REQUIRED", "WORKERS", "CANDIDATES", "CLIP", "WEIGHTS", "LICENCE")
    rows = [
        (
            profile.id,
            profile.model_type,
            "yes" if profile.required else "no",
            profile.workers,
            len(profile.candidates),
            f"{profile.sample_rate} Hz",
            weights_of(profile),
            profile.licence,
        )
        for profile in found
    ]
    remarks = "\n".join(remarks_on(found))
    return Output(list_document(found), table(head, rows) + (f"\n\n{remarks}" if remarks else ""))


def show_profile(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    profile = _find(client, arguments.profile)
    return Output(profile.model_dump(mode="json"), _profile_text(profile), warnings=about_weights([profile]))


def history(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    profile = arguments.profile
    found, more = first_of(lambda limit: client.profile_history(profile, limit=limit), arguments)
    rows = [
        (
            when(one.at),
            one.by,
            one.did,
            one.fingerprint,
            one.former_fingerprint or "-",
            one.campaign_id or "-",
        )
        for one in found
    ]
    text = table(("WHEN", "BY", "DID", "FINGERPRINT", "FORMER", "CAMPAIGN"), rows)
    return Output(list_document(found, more=bool(more)), text, warnings=more)


def promote(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    profile, fingerprint = arguments.profile, arguments.fingerprint
    if not arguments.yes:
        confirm(
            "promote",
            f"Make {printable(fingerprint)} the current encoder of {printable(profile)}? Every voice without "
            "an artifact of it is extracted again.",
        )
    promoted = client.promote_encoder(profile, fingerprint, when=arguments.when, force=arguments.force)
    done = "promoted" if arguments.when == "now" else "to be promoted when its campaign is complete:"
    text = f"{done} {printable(fingerprint)}\n\n{_profile_text(promoted)}"
    return Output(promoted.model_dump(mode="json"), text, warnings=about_weights([promoted]))


def _find(client: "RegistryClient", name: str) -> "Profile":
    found = {profile.id: profile for profile in client.profiles()}
    if name not in found:
        raise ProfileUnknown(
            f"There is no profile {name[:80]!a}; accepted: {', '.join(sorted(found))}.", param="profile"
        )
    return found[name]


def _profile_text(profile: "Profile") -> str:
    head = field_lines(
        [
            ("profile", profile.id),
            ("description", profile.description),
            ("model type", profile.model_type),
            ("required", "yes" if profile.required else "no"),
            ("weights", weights_of(profile)),
            ("licence", profile.licence),
            ("workers", profile.workers),
            ("fingerprint", profile.fingerprint),
            ("former", ", ".join(profile.former) or None),
        ]
    )
    return "\n".join([head, *remarks_on([profile]), *_candidate_lines(profile)])


def _candidate_lines(profile: "Profile") -> Iterator[str]:
    """Return a line for each candidate, and one for each input in which it differs."""
    for candidate in profile.candidates:
        weights = ", untrained weights" if candidate.untrained else ""
        custom = ", custom weights" if candidate.custom_weights else ""
        yield ""
        covered = (
            "" if candidate.coverage is None else f", {100 * candidate.coverage:.1f} % of voices covered"
        )
        yield printable(
            f"candidate {candidate.fingerprint}, live workers: {candidate.workers}{weights}{custom}{covered}"
        )
        for name, (now, then) in candidate.differs.items():
            yield printable(f"  {name}: {_value(now)} now, {_value(then)} with this candidate")


def _value(value: object) -> str:
    return "absent" if value is None else str(value)


def _add_promote(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--when",
        choices=("now", "complete"),
        default="now",
        help="promote at once (default), or when a campaign has covered every voice; it is started if needed",
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="promote the encoder even if no live worker has it, after which the profile is without one; "
        "with --when complete, also if voices could not be prepared",
    )


_PROFILE_COMMANDS = (
    Command("list", list_profiles, "List the profiles and the number of workers that serve them."),
    Command("show", show_profile, "Show the encoders of a profile and how candidates differ.", [add_profile]),
    Command(
        "history", history, "List who made which encoder current, newest first.", [add_profile, add_limit]
    ),
    Command("promote", promote, _PROMOTION, [add_profile, add_fingerprint, _add_promote, add_yes]),
)

COMMANDS = (
    Command("profiles", None, "List profiles, and promote their encoders.", commands=_PROFILE_COMMANDS),
)
