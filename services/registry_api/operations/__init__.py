"""Builds everything that the API does to speakers over the open parts of a registry."""

from dataclasses import dataclass
from typing import Self

from services.registry_api.operations.artifact_upload import ArtifactUploads
from services.registry_api.operations.artifacts import Artifacts
from services.registry_api.operations.deletion import Deletions
from services.registry_api.operations.extractions import Extractions
from services.registry_api.operations.followed_jobs import FollowedJobs
from services.registry_api.operations.pictures import Pictures
from services.registry_api.operations.registration import Registrations
from services.registry_api.operations.speaker_pages import SpeakerPages
from services.registry_api.operations.speakers import Speakers
from services.shared.registry.parts import RegistryParts
from services.shared.registry.promotion import Promoter
from services.shared.registry.status import Statuses


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """A process builds these once, and hands each object those that it needs."""

    statuses: Statuses
    speakers: Speakers
    artifacts: Artifacts
    pages: SpeakerPages
    pictures: Pictures
    promoter: Promoter
    extractions: Extractions
    registrations: Registrations
    uploads: ArtifactUploads
    deletions: Deletions
    jobs: FollowedJobs

    @classmethod
    def over(cls, parts: RegistryParts) -> Self:
        store, index, clock = parts.store, parts.index, parts.clock
        statuses = Statuses(parts.catalogue, parts.profile_records, parts.served)
        speakers = Speakers(store, index, statuses)
        promoter = Promoter(store, index, statuses, clock)
        extractions = Extractions(parts)
        return cls(
            statuses=statuses,
            speakers=speakers,
            artifacts=Artifacts(speakers, index, statuses, parts.catalogue),
            pages=SpeakerPages(speakers, store, index, parts.run_all),
            pictures=Pictures(store, parts.dispatcher),
            promoter=promoter,
            extractions=extractions,
            registrations=Registrations(parts, extractions, promoter),
            uploads=ArtifactUploads(parts, promoter),
            deletions=Deletions(speakers, store, index, parts.leases, clock),
            jobs=FollowedJobs(
                index=index,
                profiles=parts.profile_records,
                leases=parts.leases,
                clock=clock,
                speakers=speakers,
                statuses=statuses,
                seen_jobs=extractions.seen_jobs,
            ),
        )
