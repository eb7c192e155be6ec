"""Metrics of campaigns, read from Redis at every scrape. The newest campaign of each profile is shown."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily

from services.registry_api.campaigns.campaign import NO_WORKER, Progress
from services.registry_api.campaigns.kept_progress import KeptProgress
from services.shared.model.profile_document import CampaignRecord, ProfileDocument
from services.shared.telemetry import metrics
from speaker_registry.errors import Unavailable


def campaign_signals(
    documents: Callable[[], Iterable[ProfileDocument]], kept: KeptProgress
) -> list[GaugeMetricFamily]:
    """Return the metrics of campaigns, or none while Redis cannot be used.

    Args:
        documents: returns the copies of the profiles' documents in Redis. The bucket is not read.
    """
    try:
        newest = {one.campaigns[-1].profile: one.campaigns[-1] for one in documents() if one.campaigns}
        progress = kept.of(newest.values())
    except Unavailable:
        return []
    state, voices, rate = (
        gauge.family() for gauge in (metrics.CAMPAIGN_STATE, metrics.CAMPAIGN_VOICES, metrics.CAMPAIGN_RATE)
    )
    for profile, campaign in sorted(newest.items()):
        seen = progress[campaign.id]
        state.add_metric([profile, _state(campaign, seen)], 1)
        for name, count in _voices(seen):
            voices.add_metric([profile, name], count)
        rate.add_metric([profile], (campaign.open and seen.per_second) or 0)
    return [state, voices, rate]


def _state(campaign: CampaignRecord, progress: Progress) -> str:
    return "waiting" if campaign.state == "running" and progress.waits == NO_WORKER else campaign.state


def _voices(progress: Progress) -> Iterator[tuple[str, int]]:
    """Yield the number of voices in each state. The numbers add up to all known voices."""
    under_way = len(progress.under_way)
    yield "ready", progress.ready
    yield "failed", progress.failed
    yield "skipped", progress.skipped
    yield "under_way", under_way
    yield "left", max(0, progress.voices - progress.done - under_way)
