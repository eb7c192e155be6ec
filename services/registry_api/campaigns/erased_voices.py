"""Removes the names of erased voices from the failures that campaigns list."""

from collections.abc import Collection, Iterable
from functools import partial

from services.registry_api.campaigns.campaign import Progress
from services.registry_api.campaigns.kept_progress import KeptProgress
from services.registry_api.maintenance.erase import BY
from services.shared.model.profile_document import CampaignRecord, ProfileDocument
from services.shared.model.speaker import SpeakerId
from services.shared.registry.profile_records import ProfileRecords


def forget_voice(
    profiles: ProfileRecords, names: Iterable[str], kept: KeptProgress, speaker_id: SpeakerId
) -> None:
    """Remove the name of an erased voice from the failures of the campaigns of these profiles.

    Nothing is changed, and only documents in memory are read, if no campaign is open or lists the voice.
    Raises `Unavailable`. If the call fails, another one goes on.
    """
    for name in names:
        document = profiles.read(name)
        if going := [one for one in document.campaigns if one.open]:
            _forget_in_progress(kept, going, speaker_id)
            document = profiles.read_uncached(name)  # a campaign that has just ended has moved its failures
        if _without(document, speaker_id) is not document:
            profiles.change(name, partial(_without, speaker_id=speaker_id), by=BY, did="erase")


def _forget_in_progress(
    kept: KeptProgress, campaigns: Collection[CampaignRecord], speaker_id: SpeakerId
) -> None:
    """Remove the name from the progress of open campaigns. Without the lock, a runner could write it back."""
    if _changed(kept, campaigns, speaker_id):
        with kept.lock(wait=True):
            for campaign, progress in _changed(kept, campaigns, speaker_id):
                kept.write(campaign, progress)


def _changed(
    kept: KeptProgress, campaigns: Iterable[CampaignRecord], speaker_id: SpeakerId
) -> list[tuple[CampaignRecord, Progress]]:
    """Return the campaigns that list the voice, each with its progress without it."""
    before = kept.of(campaigns)
    after = [(one, before[one.id].without(speaker_id)) for one in campaigns]
    return [(one, progress) for one, progress in after if progress is not before[one.id]]


def _without(document: ProfileDocument, speaker_id: SpeakerId) -> ProfileDocument:
    """Return the document without the name in the results of campaigns, or itself if none has it."""
    campaigns = tuple(_without_in_result(one, speaker_id) for one in document.campaigns)
    return document if campaigns == document.campaigns else document.having(campaigns=campaigns)


def _without_in_result(campaign: CampaignRecord, speaker_id: SpeakerId) -> CampaignRecord:
    before = Progress.at_the_end(campaign)
    after = before.without(speaker_id) if before else None
    return campaign if after is before or after is None else campaign.having(result=after.at_its_end())
