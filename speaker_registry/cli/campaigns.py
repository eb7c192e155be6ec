"""The commands for campaigns: `campaigns start|list|show|wait|pause|resume|cancel`."""

import argparse
import math
import time
from functools import partial
from typing import TYPE_CHECKING

from speaker_registry.cli import INTERRUPTED
from speaker_registry.cli.command import (
    FAILED,
    NOT_READY,
    OK,
    Command,
    CommandError,
    Output,
    add_fingerprint,
    add_limit,
    add_profile,
    argument,
    count,
    first_of,
    list_document,
    seconds,
    when,
)
from speaker_registry.cli.progress import covering
from speaker_registry.errors import NotFound, SpeakerRegistryError, Unavailable
from speaker_registry.terminal import field_lines, printable, table

if TYPE_CHECKING:
    from speaker_registry import Campaign, RegistryClient

_POLL_SECONDS = 1.0
_LARGEST_SAMPLE = 200


def start(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    started = client.start_campaign(
        arguments.profile, arguments.fingerprint, sample=arguments.sample, rate=arguments.rate
    )
    return _waited(client, started, arguments) if arguments.wait else _shown(started)


def list_campaigns(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    found, more = first_of(lambda limit: client.campaigns(arguments.profile, limit=limit), arguments)
    head = ("CAMPAIGN", "STATE", "COVERAGE", "FAILED", "STARTED", "FINGERPRINT")
    rows = [
        (
            one.id,
            one.state,
            _percent(one.coverage),
            one.progress.failed,
            when(one.created_at),
            one.fingerprint,
        )
        for one in found
    ]
    return Output(list_document(found, more=bool(more)), table(head, rows), warnings=more)


def show(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _shown(client.campaign(arguments.profile, arguments.campaign))


def wait(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _waited(client, client.campaign(arguments.profile, arguments.campaign), arguments)


def pause(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _shown(client.pause_campaign(arguments.profile, arguments.campaign))


def resume(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _shown(client.resume_campaign(arguments.profile, arguments.campaign))


def cancel(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _shown(client.cancel_campaign(arguments.profile, arguments.campaign))


def _waited(client: "RegistryClient", campaign: "Campaign", arguments: argparse.Namespace) -> Output:
    """Wait until a campaign is over. The exit code says whether it was canceled or voices failed.

    Raises:
        CommandError: The wait ended before the campaign, at Ctrl-C or its timeout. The message names the
            campaign, because `start --wait` did not show its id before.
    """
    try:
        campaign = _over(client, campaign, arguments)
    except KeyboardInterrupt:
        message = f"interrupted; campaign {campaign.id} continues without this command"
        raise CommandError(message, status=INTERRUPTED) from None
    failed = campaign.state == "canceled" or campaign.progress.failed > 0
    return _shown(campaign)._replace(status=FAILED if failed else OK)


def _over(client: "RegistryClient", campaign: "Campaign", arguments: argparse.Namespace) -> "Campaign":
    deadline = math.inf if arguments.timeout is None else time.monotonic() + arguments.timeout
    with covering(campaign, quiet=arguments.json) as update:
        while not campaign.over:
            if time.monotonic() >= deadline:
                raise CommandError(
                    f"campaign {campaign.id} is {campaign.state} at {_percent(campaign.coverage)} after "
                    f"{arguments.timeout:g} s; it continues without this command",
                    status=NOT_READY,
                )
            time.sleep(_POLL_SECONDS)
            campaign = _looked_at_again(client, campaign, deadline)
            update(campaign)
    return campaign


def _looked_at_again(client: "RegistryClient", campaign: "Campaign", deadline: float) -> "Campaign":
    """Return a campaign as it is now, or as it was if the registry cannot be reached at the moment.

    Raises:
        SpeakerRegistryError: The wait cannot go on. The message names the campaign, because `start --wait`
            did not show its id before.
    """
    from speaker_registry.waiting import pause_of_outage  # noqa: PLC0415  --help does without numpy

    try:
        return client.campaign(campaign.profile, campaign.id)
    except NotFound:
        raise
    except SpeakerRegistryError as error:
        error.message = f"{str(error).rstrip('.')}; campaign {campaign.id} continues without this command"
        error.args = (error.message,)
        if not isinstance(error, Unavailable):
            raise
        time.sleep(pause_of_outage(error, deadline - time.monotonic()))
    return campaign


def _shown(campaign: "Campaign") -> Output:
    done = campaign.progress
    fields = [
        ("campaign", campaign.id),
        ("profile", campaign.profile),
        ("fingerprint", campaign.fingerprint),
        ("state", campaign.state),
        ("reason", campaign.reason),
        ("coverage", _percent(campaign.coverage)),
        (
            "voices",
            f"{done.voices}: {done.ready} ready, {done.failed} failed, {done.skipped} skipped, "
            f"{done.under_way} under way",
        ),
        ("rate", None if campaign.per_second is None else f"{campaign.per_second:.1f} voices/s"),
        ("ends in", None if campaign.eta_seconds is None else f"{campaign.eta_seconds:.0f} s"),
        ("limit", None if campaign.rate is None else f"{campaign.rate:g} voices/s"),
        ("promotes", "when complete" if campaign.promotes else None),
    ]
    sample = campaign.sample
    lines = [field_lines(fields), f"compared {sample.compared} of {sample.wanted} voices"]
    lines += [
        printable(f"  {name}: {_MEASURES[one.measure]} {one.mean:.4f} on average, {one.lowest:.4f} at least")
        for name, one in sample.tensors.items()
    ]
    lines += [
        printable(f"failed: {one.namespace}/{one.voice}{_version(one.version)}: {one.code}: {one.message}")
        for one in campaign.failures
    ]
    if (others := done.failed - len(campaign.failures)) > 0 and campaign.failures:
        lines.append(f"failed: {others} more")
    return Output(campaign.model_dump(mode="json"), "\n".join(lines))


_MEASURES = {"cosine": "cosine", "equal": "share of equal codes"}


def _version(number: int | None) -> str:
    return "" if number is None else f"@{number}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _rate(text: str) -> float:
    rate = seconds(text)
    if not 0.01 <= rate <= 1000:
        raise argparse.ArgumentTypeError(f"{text[:80]!a}; accepted: voices per second from 0.01 to 1000")
    return rate


_add_campaign = argument("campaign", metavar="CAMPAIGN", help="id of the campaign, see campaigns list")
_add_waiting = argument(
    "--timeout",
    metavar="SECONDS",
    type=seconds,
    help="maximum time to wait (default: as long as it takes); the campaign continues after it",
)


def _add_start(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--sample",
        metavar="N",
        type=partial(count, most=_LARGEST_SAMPLE),
        default=20,
        help="number of voices whose old and new artifacts are compared (default: 20)",
    )
    command.add_argument(
        "--rate", metavar="N", type=_rate, help="maximum number of voices per second (default: no limit)"
    )
    command.add_argument("--wait", action="store_true", help="wait until the campaign is over")


_ONE_CAMPAIGN = (add_profile, _add_campaign)
_CAMPAIGN_COMMANDS = (
    Command(
        "start",
        start,
        "Have a candidate's workers extract every voice ahead of its promotion.",
        [add_profile, add_fingerprint, _add_start, _add_waiting],
    ),
    Command(
        "list", list_campaigns, "List the campaigns of a profile, newest first.", [add_profile, add_limit]
    ),
    Command("show", show, "Show a campaign, its progress and its sample.", _ONE_CAMPAIGN),
    Command("wait", wait, "Wait until a campaign is over.", [*_ONE_CAMPAIGN, _add_waiting]),
    Command("pause", pause, "Pause a campaign, so that it begins no further voices.", _ONE_CAMPAIGN),
    Command("resume", resume, "Resume a paused campaign.", _ONE_CAMPAIGN),
    Command("cancel", cancel, "Cancel a campaign. The artifacts that it has made stay.", _ONE_CAMPAIGN),
)

COMMANDS = (Command("campaigns", None, "Prepare the promotion of an encoder.", commands=_CAMPAIGN_COMMANDS),)
