"""Metrics of campaigns, read from Redis at every scrape. The newest campaign of each profile is shown."""

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily

from services.registry_api.campaigns.book import CampaignBook
from services.registry_api.campaigns.campaign import Campaign, Progress
from services.shared.telemetry import metrics
from speaker_registry.errors import Unavailable


def campaign_signals(book: CampaignBook) -> list[GaugeMetricFamily]:
    """Return the metrics of campaigns, or none while the index cannot be used."""
    try:
        newest = {one.profile: one for one in reversed(book.copied())}
        progress = book.progress(newest.values())
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


def _state(campaign: Campaign, progress: Progress) -> str:
    return "waiting" if campaign.state == "running" and progress.waits else campaign.state


def _voices(progress: Progress) -> Iterator[tuple[str, int]]:
    """Yield how many voices are in each state. Together they are all voices, as far as these are known."""
    under_way = len(progress.under_way)
    yield "ready", progress.ready
    yield "failed", progress.failed
    yield "skipped", progress.skipped
    yield "under_way", under_way
    yield "left", max(0, progress.voices - progress.done - under_way)
