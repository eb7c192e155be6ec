"""Profiles, their encoders, and the campaigns that prepare the promotion of one."""

from typing import Any, Literal

from pydantic import Field

from speaker_registry.artifact import TensorSpec
from speaker_registry.names import DIGEST_PATTERN
from speaker_registry.schemas.common import RequestBody, Schema

CampaignState = Literal["running", "paused", "complete", "promoted", "canceled"]


class FailedProof(Schema):
    """A worker that does not serve a profile, because its encoder computes wrong results."""

    worker: str
    device: str
    """The worker's device: `cpu`, `cuda` or `cuda:N`."""
    reason: str
    """Names the tensor that differs, and by how much."""


class LiveWorker(Schema):
    """A worker that has an encoder of a profile loaded, and whose heartbeats arrive."""

    worker: str
    fingerprint: str
    """Fingerprint of its encoder. The worker makes artifacts while this is the profile's current one."""
    device: str | None = None
    """The worker's device: `cpu`, `cuda` or `cuda:N`. None if the worker does not report it."""
    proven_at: float | None = None
    """When the encoder was last proven to compute correctly on this device, in Unix seconds."""
    extracted_last_hour: int | None = None
    """Number of artifacts of this profile that the worker has made within an hour, in all namespaces."""


class CandidateEncoder(Schema):
    """An encoder that is not the current one of its profile. Outside campaigns, its workers make nothing
    until an operator promotes it.
    """

    fingerprint: str
    untrained: bool = False
    custom_weights: bool = False
    """True if the weights differ from the published ones on purpose, such as fine-tuned weights."""
    workers: int
    """Number of live workers that have this encoder."""
    differs: dict[str, tuple[Any, Any]] = Field(default_factory=dict)
    """Each input of the fingerprint that differs -> its value for the current encoder and for this one. A
    value is None if that encoder has no such input.
    """
    coverage: float | None = None
    """The share of voices, from 0 to 1, that its last campaign has covered. None if it had no campaign."""


class EncoderPromotion(RequestBody):
    """Request body that names the encoder to make the current one of a profile."""

    fingerprint: str = Field(pattern=DIGEST_PATTERN)
    """The fingerprint of a candidate, or of a former encoder to go back to."""
    when: Literal["now", "complete"] = "now"
    """`now` makes the encoder the current one at once, `complete` when its campaign has covered every voice.
    That campaign is started if there is none.
    """
    force: bool = False
    """Promote the encoder even if no live worker has it, after which the profile is without a worker. If
    `when` is `complete`, also promote it if voices failed, which then keep their last artifact.
    """


DEFAULT_SAMPLE = 20


class CampaignRequest(RequestBody):
    """Request body that starts a campaign."""

    fingerprint: str = Field(pattern=DIGEST_PATTERN)
    """The fingerprint of a candidate, or of a former encoder."""
    sample: int = Field(default=DEFAULT_SAMPLE, ge=1, le=200)
    """The number of voices whose old and new artifacts are compared, from the first that are ready."""
    rate: float | None = Field(default=None, ge=0.01, le=1000, allow_inf_nan=False)
    """The maximum number of voices per second. None sets no limit."""


class CampaignProgress(Schema):
    """The voices of a campaign, counted by what became of them."""

    voices: int
    """Number of voices of all namespaces, as far as it is known."""
    ready: int
    """Number of voices of which the encoder has made all that is needed."""
    failed: int
    """Number of voices whose extraction failed. They keep their last artifact."""
    skipped: int
    """Number of voices that need no artifact of the profile, or can have none."""
    under_way: int
    """Number of voices that are being extracted."""


class CampaignFailure(Schema):
    """A voice that a campaign could not prepare."""

    namespace: str
    voice: str
    version: int | None = None
    """Number of the version that failed. None if the voice could not be read."""
    code: str
    """Error code of the extraction, for example `audio_too_short`."""
    message: str
    retryable: bool
    """True if another campaign tries the voice again. It does not if the encoder refuses the clip."""


class TensorDistance(Schema):
    """The similarity of the new values of a tensor to the old ones. 1 means that they are equal."""

    measure: Literal["cosine", "equal"]
    """`cosine`: the cosine between the numbers. `equal`: the share of codes that are equal."""
    mean: float
    """Mean over the voices of the sample."""
    lowest: float
    """The value of the voice with the greatest distance."""


class CampaignSample(Schema):
    """The first voices of a campaign, whose old and new artifacts were compared."""

    wanted: int
    compared: int
    tensors: dict[str, TensorDistance]


class ProfileChange(Schema):
    """One decision that made an encoder the current one of a profile."""

    object: Literal["profile.change"] = "profile.change"
    revision: int
    """The revision of the profile's record that the decision made."""
    at: int
    by: str
    """Id of the caller that decided, such as that of an API key, or the name of a worker."""
    did: str
    """The kind of decision: `promote`, `roll_back` to an encoder that was current before, `replace_untrained`
    by a worker with trained weights, or `announce` by the first worker of the profile.
    """
    fingerprint: str
    former_fingerprint: str | None = None
    """The encoder that was current before. None if there was none."""
    campaign_id: str | None = None
    """Id of the campaign that prepared the promotion."""


class Campaign(Schema):
    """A campaign: the workers of an encoder extract every voice ahead of its promotion."""

    object: Literal["campaign"] = "campaign"
    id: str
    profile: str
    fingerprint: str
    state: CampaignState
    """`complete`: every voice was reached. `promoted`: the encoder is the current one."""
    rate: float | None = None
    """The maximum number of voices per second. None sets no limit."""
    promotes: bool
    """True if the encoder is promoted once it has covered every voice."""
    progress: CampaignProgress
    failures: list[CampaignFailure] = Field(default_factory=list)
    """The voices that failed, of which the first 20 are listed."""
    coverage: float
    """The share of voices that lack nothing, from 0 to 1."""
    per_second: float | None = None
    """Number of voices that were done in each of the last seconds. None if nothing is being done."""
    eta_seconds: float | None = None
    """The time that the rest takes at this rate. None if that is not known."""
    sample: CampaignSample
    reason: str | None = None
    """Tells why nothing is begun now, or why the encoder was not promoted."""
    created_at: float
    changed_at: float
    """Time of the last change of the state."""

    @property
    def over(self) -> bool:
        """Return whether the campaign has ended."""
        return self.state not in {"running", "paused"}


class Profile(Schema):
    """The artifact that one engine needs, and the workers that can make it now."""

    object: Literal["profile"] = "profile"
    id: str
    model_type: str
    description: str
    required: bool
    """True if this profile is extracted for every upload."""
    tensors: dict[str, TensorSpec]
    sample_rate: int
    frame_rate: float | None = None
    ref_text_required: bool = False
    model: str
    """Name of the repository that holds the weights. It is `none` for an engine without weights."""
    licence: str
    """Licence of the weights, as SPDX identifier if there is one."""
    licence_notes: str | None = None
    not_extractable: str | None = None
    """Tells why no worker can make this artifact. None if workers can make it."""
    fingerprint: str | None = None
    """Fingerprint of the profile's current encoder. None as long as no worker has announced one."""
    problem: str | None = None
    """Tells why the current encoder is unknown although workers may have announced one: the document of the
    profile in the bucket is damaged, cannot be read, or was written by a newer release.
    """
    extractor: dict[str, Any] = Field(default_factory=dict)
    untrained: bool = False
    custom_weights: bool = False
    """True if the weights differ from the published ones on purpose, such as fine-tuned weights."""
    workers: int = 0
    """Number of live workers that have the current encoder loaded and warmed up."""
    live_workers: list[LiveWorker] = Field(default_factory=list)
    """The live workers that have any encoder of this profile, in the order of their names."""
    former: list[str] = Field(default_factory=list)
    """Fingerprints that were current before, the newest first. Promote one to go back. Artifacts are kept for
    the first one; those of the others are extracted again.
    """
    candidates: list[CandidateEncoder] = Field(default_factory=list)
    """Encoders that live workers have and that are not the current one. The candidate of the newest campaign
    is also shown while it has no workers.
    """
    failed_proofs: list[FailedProof] = Field(default_factory=list)
    """Workers that do not serve this profile, because their encoder failed its proof in the last ten minutes.
    """
