"""Builds what the API's routes need over an open registry. Nobody but a command holds the whole of it."""

from services.registry_api.access.authentication import Access
from services.registry_api.campaigns.control import Campaigns
from services.registry_api.dependencies import Housekeeping, Services
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.serving.event_stream import EventStream
from services.registry_api.serving.long_polls import LongPolls
from services.shared.audio import AudioDecoder
from services.shared.configuration.uploads import UploadLimits
from services.shared.registry.opening import Opened


def keys_of(opened: Opened) -> HeldKeys:
    """Return the API keys of a registry."""
    return HeldKeys(
        opened.shared, opened.store, opened.clock, opened.run_all, wait=opened.speakers.leases.settle
    )


def events_of(opened: Opened) -> EventStream:
    """Return the event stream of a registry, for this process."""
    return EventStream(
        opened.settings.redis_address,
        opened.generation,
        opened.speakers.leases,
        process=opened.clock.new_id(),
    )


def campaigns_of(opened: Opened) -> Campaigns:
    """Return the campaigns of a registry."""
    return Campaigns(
        store=opened.store,
        speakers=opened.speakers,
        blobs=opened.blobs,
        jobs=opened.jobs,
        profiles=opened.profiles,
        profile_records=opened.profile_records,
        workers=opened.workers,
        catalogue=opened.catalogue,
    )


def services_of(
    opened: Opened,
    *,
    keys: HeldKeys,
    key_uses: KeyUses,
    decoder: AudioDecoder,
    campaigns: Campaigns,
    housekeeping: Housekeeping | None,
    limits: UploadLimits,
    access: Access,
    deleted_grace_seconds: float,
) -> Services:
    """Return the services of one API process."""
    return Services(
        store=opened.store,
        clock=opened.clock,
        settings=opened.settings,
        catalogue=opened.catalogue,
        generation=opened.generation,
        speakers=opened.speakers,
        blobs=opened.blobs,
        jobs=opened.jobs,
        profiles=opened.profiles,
        profile_records=opened.profile_records,
        workers=opened.workers,
        dispatcher=opened.dispatcher,
        keys=keys,
        key_uses=key_uses,
        decoder=decoder,
        events=events_of(opened),
        long_polls=LongPolls(),
        housekeeping=housekeeping,
        campaigns=campaigns,
        limits=limits,
        access=access,
        deleted_grace_seconds=deleted_grace_seconds,
    )
