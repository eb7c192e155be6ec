"""The dependencies of routes: the long-lived services, which are built once, and common parameters."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator, Field

from services.registry_api.access.authentication import Access
from services.registry_api.campaigns.control import Campaigns
from services.registry_api.express.lane import ExpressLane
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.keys.seal import Seal
from services.registry_api.maintenance.housekeeping import Housekeeping
from services.registry_api.protocol.callers import Caller
from services.registry_api.serving.concurrency_limits import ByteBudget
from services.registry_api.serving.event_feed import EventFeed, Frames
from services.registry_api.serving.event_stream import EventStream
from services.registry_api.serving.fair_queue import FairQueue
from services.registry_api.serving.long_polls import LongPolls
from services.registry_api.serving.readiness import Readiness
from services.registry_api.serving.server_errors import ServerErrors
from services.registry_api.serving.shared_reads import SharedReads
from services.registry_api.serving.slots import Slots
from services.shared.audio import AudioDecoder
from services.shared.configuration.uploads import UploadLimits
from services.shared.model.past import POSITION_PATTERN
from services.shared.model.speaker import SpeakerId
from services.shared.registry.lookup import locate
from services.shared.registry.opened import Opened
from speaker_registry.errors import InvalidReference
from speaker_registry.names import (
    DIGEST_PATTERN,
    SpeakerName,
    parse_reference,
    parse_speaker_name,
    parse_voice_id,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(Opened):
    """All long-lived objects of an API process. Routes pass each operation only the parts that it needs."""

    keys: HeldKeys
    key_uses: KeyUses
    decoder: AudioDecoder
    events: EventStream
    long_polls: LongPolls = field(default_factory=LongPolls)
    housekeeping: Housekeeping | None
    """None in tests that do the housekeeping themselves."""
    campaigns: Campaigns
    limits: UploadLimits
    deleted_grace_seconds: float
    """A deleted voice can be undeleted within this time."""
    access: Access = field(default_factory=Access)
    """By default no keys are required, and every caller may do everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """These objects are shared by all requests of an application. `app.state` holds them as `parts`."""

    services: Services
    server_errors: ServerErrors
    lane: ExpressLane
    event_feed: EventFeed
    event_frames: Frames
    heartbeat_seconds: float
    shared_reads: SharedReads = field(default_factory=SharedReads)
    sending: ByteBudget
    redirect_seconds: int
    readiness: Readiness
    seal: Seal
    upload_slots: Slots
    store_slots: Slots
    search_slots: Slots
    whole_lists: FairQueue
    large_resolves: FairQueue


def parts_of(request: Request) -> Parts:
    parts = request.app.state.parts
    assert isinstance(parts, Parts)
    return parts


# Dependencies are coroutines, because FastAPI runs plain functions in threads, one after the other.
async def _services(request: Request) -> Services:
    return parts_of(request).services


async def _upload_slots(request: Request) -> Slots:
    return parts_of(request).upload_slots


async def _store_slots(request: Request) -> Slots:
    return parts_of(request).store_slots


async def _at_store(request: Request, slots: Annotated[Slots, Depends(_store_slots)]) -> AsyncIterator[None]:
    await request.body()  # read before a slot is taken, so that a slow sender holds none
    async with slots.hold():
        yield


async def _searching(request: Request) -> AsyncIterator[None]:
    if request.query_params.keys() & {"q", "state", "profile", "ready", "label"}:
        async with parts_of(request).search_slots.hold():
            yield
    else:
        yield


async def _namespace(request: Request) -> str:
    """Return the namespace that the request is about, which `access.rules` determined."""
    namespace = request.scope["namespace"]
    assert isinstance(namespace, str)
    return namespace


async def _caller(request: Request) -> Caller:
    caller = request.scope["caller"]
    assert isinstance(caller, Caller)
    return caller


ServicesDep = Annotated[Services, Depends(_services)]
UploadSlotsDep = Annotated[Slots, Depends(_upload_slots)]
StoreSlotsDep = Annotated[Slots, Depends(_store_slots)]
AT_STORE = Depends(_at_store, scope="function")
"""Holds a slot of the bucket, for routes that use the bucket. The whole body is read before, and the slot is
released before the answer is sent. So a client that sends or reads slowly keeps no other request from the
bucket. If the caller's key has ended meanwhile, the request is refused with `InvalidApiKey`, unless it has
begun a change.
"""
SEARCHING = Depends(_searching, scope="function")
"""Holds the slot of searches, for routes of lists. Waiting searches do not count as active requests, so other
requests go on.
"""
NamespaceDep = Annotated[str, Depends(_namespace)]
CallerDep = Annotated[Caller, Depends(_caller)]
WaitSeconds = Annotated[
    float, Query(ge=0, le=60, alias="wait", description="Hold the answer back for up to this many seconds.")
]


async def _voice_name(
    services: ServicesDep,
    caller: CallerDep,
    name: Annotated[
        str,
        Path(
            description="The voice's name in percent-encoded UTF-8, without '/' and '@'. Case does not "
            "matter. If no voice has that name, it is read as a voice's id.",
            examples=["Alice"],
            json_schema_extra={"format": "voice-name"},
        ),
    ],
) -> SpeakerName:
    """Parse the name in a path. Raises `InvalidVoiceName` or `RateLimited`."""
    services.access.unknown_names.check(caller)
    return parse_speaker_name(name)


def speaker_named(services: Services, caller: Caller, namespace: str, voice: str) -> SpeakerId:
    """Return the id of the speaker that a query names, by the voice's name or id. It need not exist.

    An id is looked up, if necessary in the bucket. So an id without a voice is counted like an unknown name
    in a path. Raises `InvalidVoiceName`, `RateLimited` or `Unavailable`.
    """
    name = parse_speaker_name(voice)
    if parse_voice_id(name.key) is None:
        return SpeakerId.of(namespace, name)
    services.access.unknown_names.check(caller)
    speaker = locate(services.speakers, namespace, name)
    if not speaker.document.live:
        services.access.unknown_names.note(caller, voice)
    return speaker.id


async def _reference(
    ref: Annotated[
        str,
        Path(
            description="The number of a version, `default`, `latest` or another alias.",
            examples=["default"],
            json_schema_extra={"format": "voice-reference"},
        ),
    ],
) -> int | str:
    """Parse the reference to a version in a path. Raises `InvalidRequest`."""
    return parse_reference(ref)


async def _version_number(
    ref: Annotated[
        str,
        Path(
            description="The number of a version.",
            examples=["3"],
            json_schema_extra={"format": "voice-version"},
        ),
    ],
) -> int:
    """Parse the number of a version in a path. Raises `InvalidReference`."""
    number = parse_reference(ref)
    if isinstance(number, int):
        return number
    raise InvalidReference(
        f"Version '{ref}' is an alias. Accepted: the number of a version, as in …/versions/3.",
        param="ref",
    )


VoiceName = Annotated[SpeakerName, Depends(_voice_name)]
Reference = Annotated[int | str, Depends(_reference)]
VersionNumber = Annotated[int, Depends(_version_number)]
ProfileName = Annotated[
    str, Path(description="The profile that the artifact is for.", examples=["qwen3-tts-0.6b"])
]
Usable = Annotated[str | None, Query(alias="profile", description="Only voices that this profile can use.")]
OnlyCurrent = Annotated[
    bool, Query(alias="current", description="Only accept an artifact of the profile's current encoder.")
]
OnlyFingerprint = Annotated[
    str | None,
    Query(
        alias="fingerprint",
        pattern=DIGEST_PATTERN,
        description="Only accept an artifact that was made with this fingerprint.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=100, description="The page size.")]
After = Annotated[str, Query(max_length=512, description="`last_id` of the previous page.")]
AfterNumber = Annotated[
    int,
    Field(ge=0),  # before the validator: after it, the limit would be missing in the OpenAPI document
    BeforeValidator(lambda text: text or 0),
    Query(description="`last_id` of the previous page."),
]
"""The `last_id` of a page whose items are known by numbers. It may be empty, like `After`."""
AfterChange = Annotated[
    str,
    Query(
        max_length=512,
        description="`last_id` of the previous page.",
        # Only described, because `position_in_history` refuses other texts with a clearer message.
        json_schema_extra={"pattern": f"^(?:{POSITION_PATTERN})?$"},
    ),
]
"""The `last_id` of a page of a voice's history, which `position_in_history` parses."""
