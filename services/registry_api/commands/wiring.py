"""Builds what the API's routes need from an open registry. Only commands hold a whole open registry."""

from services.registry_api.campaigns.control import Campaigns
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.serving.event_stream import EventStream
from services.shared.registry.opened import Opened


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
        now=opened.clock.since_boot,
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
