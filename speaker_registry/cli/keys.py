"""The commands for API keys and quotas: `keys create|list|rotate|revoke` and `quota`."""

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING

from speaker_registry.cli.command import (
    Command,
    Output,
    add_limit,
    add_yes,
    argument,
    confirm,
    count,
    first_of,
    list_document,
    when,
)
from speaker_registry.scopes import SCOPES
from speaker_registry.terminal import field_lines, printable, table

if TYPE_CHECKING:
    from speaker_registry import NewApiKey, Rate, RegistryClient, Usage

DAY_SECONDS = 86_400
_LONGEST_LIFE_DAYS = 36_500
_LONGEST_GRACE_SECONDS = 90 * DAY_SECONDS
"""Longest grace period that the registry accepts."""


def create_key(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    days = arguments.expires_in_days
    made = client.create_key(
        arguments.name,
        arguments.scope,
        namespace=arguments.namespace,
        expires_at=int(time.time() + days * DAY_SECONDS) if days is not None else None,
        requests_per_minute=arguments.requests_per_minute,
        uploads_per_minute=arguments.uploads_per_minute,
    )
    return _made(made)


def rotate_key(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    return _made(client.rotate_key(arguments.key_id, grace_seconds=arguments.grace))


def _made(key: "NewApiKey") -> Output:
    head = field_lines(
        [
            ("id", key.id),
            ("name", key.name),
            ("namespace", key.namespace),
            ("scopes", ", ".join(key.scopes)),
            ("expires", when(key.expires_at) if key.expires_at is not None else None),
        ]
    )
    text = f"{head}\n\n{printable(key.key)}\n\nStore this key now: it is not shown again."
    return Output(key.model_dump(mode="json"), text)


def list_keys(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    found, more = first_of(lambda limit: client.api_keys(limit=limit), arguments)
    head = ("ID", "NAME", "NAMESPACE", "SCOPES", "STATE", "ENDS", "LAST USED", "MADE BY")
    rows = [
        (
            key.id,
            key.name,
            key.namespace,
            ",".join(key.scopes),
            key.state,
            _moment(key.expires_at),
            _moment(key.last_used_at),
            key.created_by,
        )
        for key in found
    ]
    return Output(list_document(found, more=bool(more)), table(head, rows), warnings=more)


def _moment(unix_seconds: int | None) -> str:
    return "-" if unix_seconds is None else when(unix_seconds)


def revoke_key(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    from speaker_registry.paths import key_id_of  # noqa: PLC0415  loaded by the client, not by --help

    key_id, children = key_id_of(arguments.key_id), arguments.children  # a whole key must not be shown
    what = f"{key_id} and every key that was made with it" if children else key_id
    if not arguments.yes:
        confirm("revoke", f"Revoke {what}? This cannot be undone.")
    client.revoke_key(key_id, children=children)
    return Output({"id": key_id, "revoked": True, "children": children}, f"revoked {what}")


def show_quota(client: "RegistryClient", _: argparse.Namespace) -> Output:
    quota = client.quota()
    rows = [
        ("voices", *_usage(quota.voices)),
        ("bytes of uploads", *_usage(quota.bytes)),
        ("bytes of texts", *_usage(quota.text_bytes)),
        *(("bytes of deleted uploads", *_usage(one)) for one in [quota.deleted_bytes] if one),
        *(("bytes of deleted texts", *_usage(one)) for one in [quota.deleted_text_bytes] if one),
        ("requests a minute, this key", *_rate(quota.requests_per_minute)),
        ("uploads a minute, this key", *_rate(quota.uploads_per_minute)),
        ("requests a minute, namespace", *_rate(quota.namespace_requests_per_minute)),
        ("uploads a minute, namespace", *_rate(quota.namespace_uploads_per_minute)),
    ]
    text = table((f"NAMESPACE {printable(quota.namespace)}", "LIMIT", "LEFT"), rows)
    return Output(quota.model_dump(mode="json"), text)


def _usage(usage: "Usage") -> tuple[str, str]:
    if usage.limit is None:
        return "-", "-"
    return str(usage.limit), str(max(0, usage.limit - usage.used))


def _rate(rate: "Rate") -> tuple[str, str]:
    return ("-", "-") if rate.limit is None else (str(rate.limit), str(rate.remaining))


def _add_create(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="a text that tells people what the key is for")
    command.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        required=True,
        help="permission of the key; can be given several times. engine: everything a TTS server needs",
    )
    command.add_argument(
        "--namespace",
        metavar="N",
        help="namespace whose voices the key can use, or '*' for all (default: your own)",
    )
    command.add_argument(
        "--expires-in-days",
        metavar="DAYS",
        type=partial(count, most=_LONGEST_LIFE_DAYS),
        help="lifetime of the key (default: it expires together with the key that makes it)",
    )
    command.add_argument("--requests-per-minute", metavar="N", type=count, help="rate limit of the key")
    command.add_argument("--uploads-per-minute", metavar="N", type=count, help="upload limit of the key")


_add_key_id = argument(
    "key_id",
    metavar="ID",
    help="id of the key, see keys list. A whole key is accepted too, but only its id is sent",
)
_add_grace = argument(
    "--grace",
    metavar="SECONDS",
    type=partial(count, least=0, most=_LONGEST_GRACE_SECONDS),
    default=DAY_SECONDS,
    help="how long the old key is still accepted (default: one day)",
)
_add_children = argument(
    "--children",
    action="store_true",
    help="also revoke the keys that were made with it, the keys made with those, and so on",
)
_KEY_COMMANDS = (
    Command("create", create_key, "Create an API key and print it. It is not shown again.", [_add_create]),
    Command("list", list_keys, "List the API keys without their secrets.", [add_limit]),
    Command(
        "rotate",
        rotate_key,
        "Replace an API key with one of the same permissions.",
        [_add_key_id, _add_grace],
    ),
    Command("revoke", revoke_key, "Revoke an API key.", [_add_key_id, _add_children, add_yes]),
)

COMMANDS = (
    Command("quota", show_quota, "Show the limits and what is left of them."),
    Command("keys", None, "Create, list, rotate and revoke API keys.", commands=_KEY_COMMANDS),
)
