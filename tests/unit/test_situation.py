"""Tests of what the overview counts."""

from services.registry_api.pages.situation import (
    KEPT_SECONDS,
    LONG_KEPT_SECONDS,
    VoiceCounts,
    kept_until,
)


def test_counts_of_many_voices_are_kept_longer():
    """They cost more to make, and fifty people who look at them must not cost the registry a core."""
    assert kept_until("ours", VoiceCounts(examined=100), 7.0) == 7.0 + KEPT_SECONDS
    assert kept_until("ours", VoiceCounts(examined=500, more=True), 7.0) == 7.0 + LONG_KEPT_SECONDS
