"""The plan that reads a manifest page by page.

A manifest that was read before makes the next reading cheap: unchanged pages are not sent again.
"""

import dataclasses
from collections.abc import Mapping

from speaker_registry.calls import parsed
from speaker_registry.errors import Unavailable
from speaker_registry.exchange import Plan, Request, RetryPolicy, exchange
from speaker_registry.manifests import Manifest, ManifestPage, ReceivedPage
from speaker_registry.paths import manifest_path

MAX_VOICES = 100_000
"""A manifest with more entries is refused, so that a broken registry cannot fill a client's memory."""
_FIRST_PAGE = ""


def read_manifest(policy: RetryPolicy, profile: str, known: Manifest | None) -> Plan[Manifest]:
    """Read the manifest of a profile.

    Args:
        known: The manifest that was read before. It is returned again if nothing has changed.

    Raises:
        Unavailable: The registry answered with the manifest of another profile or namespace, or with more
            than `MAX_VOICES` voices. Or another registry answered than the one that `known` comes from.
    """
    path = manifest_path(profile)
    before: Mapping[str, ReceivedPage] = known.pages if known else {}
    pages: dict[str, ReceivedPage] = {}
    cursor: str | None = _FIRST_PAGE
    while cursor is not None:
        pages[cursor] = yield from _read_page(policy, path, cursor, before.get(cursor))
        _check(pages, profile)
        _check_registry(pages, known.registry if known else None)
        cursor = _following(pages, cursor)
    if known is not None and pages == before:
        return known
    first = pages[_FIRST_PAGE].page
    return Manifest(first.registry, first.namespace, first.profile, first.model_type, pages)


def read_manifest_page(
    policy: RetryPolicy, profile: str, limit: int, registry: str | None
) -> Plan[ManifestPage]:
    """Read the first page of the manifest of a profile.

    Args:
        limit: Maximum number of voices on the page.
        registry: Identity of the registry that should answer, if it is known.

    Raises:
        Unavailable: The registry answered with the manifest of another profile. Or another registry answered.
    """
    reply = yield from exchange(policy, Request(path=manifest_path(profile), params={"limit": str(limit)}))
    page = parsed(ManifestPage, reply)
    pages = {_FIRST_PAGE: ReceivedPage(None, page)}
    _check(pages, profile)
    _check_registry(pages, registry)
    return page


def _read_page(policy: RetryPolicy, path: str, cursor: str, known: ReceivedPage | None) -> Plan[ReceivedPage]:
    request = Request(path=path, params={"after": cursor} if cursor else {})
    if known is not None and known.etag is not None:
        request = dataclasses.replace(request, headers={"if-none-match": known.etag})
    reply = yield from exchange(policy, request)
    if reply.status == 304 and known is not None:
        return known
    return ReceivedPage(reply.headers.get("etag"), parsed(ManifestPage, reply))


def _check(pages: Mapping[str, ReceivedPage], profile: str) -> None:
    """Check that all pages belong together, and that they have no more than `MAX_VOICES` voices."""
    belongings = {(one.page.profile, one.page.namespace) for one in pages.values()}
    if len(belongings) > 1 or {name for name, _ in belongings} != {profile}:
        raise Unavailable(
            f"the registry answered with pages of {sorted(belongings)} (profile, namespace), "
            f"but the manifest of profile {profile!a} was asked for"
        )
    if sum(len(one.page.data) for one in pages.values()) > MAX_VOICES or len(pages) > MAX_VOICES:
        raise Unavailable(f"the manifest has more than {MAX_VOICES} voices; no more are accepted")


def _check_registry(pages: Mapping[str, ReceivedPage], expected: str | None) -> None:
    """Check that all pages come from the registry that the manifest was read from before, if that is known.

    A wrong DNS entry can lead to a registry with the same profile and namespace, and engines would drop all
    their voices.
    """
    for found in (one.page.registry for one in pages.values()):
        if expected and found != expected:
            raise Unavailable(
                f"another registry answered, {found[:80]!a} instead of {expected[:80]!a}; its voices are not "
                "taken. Check where the address of the registry leads. If another registry is to be followed "
                "from now on, restart this process"
            )
        expected = found


def _following(pages: Mapping[str, ReceivedPage], cursor: str) -> str | None:
    page = pages[cursor].page
    # A page that leads to one that was read would be read forever.
    return page.last_id if page.has_more and page.last_id and page.last_id not in pages else None
