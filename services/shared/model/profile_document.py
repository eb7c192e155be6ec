"""The document that holds everything about one profile: its encoders, its campaigns, and the decisions that
made encoders current. Pure.

`_profiles/{profile}.json` holds the current encoder, the former ones, the candidates that workers announced,
and the campaigns that prepare a promotion. Campaigns are kept beside the encoders, because one change then
decides both: a campaign is only started for an encoder that is known and not current, and a canceled campaign
can no longer promote its encoder. The functions of this module are the changes of the document. Each returns
its argument if there is nothing to change, and refuses by raising. `encoders` has the rules.

The document stays small, since every process reads it every second: it has at most `MAX_FORMER` former
encoders, `MAX_CANDIDATES` candidates and `MAX_CAMPAIGNS` campaigns, of some kilobytes each at most, and
`KEPT_DECISIONS` decisions. The progress of a running campaign is kept in Redis alone.
"""

from typing import Any, ClassVar, Literal, Self

from services.shared.model.decisions import KEPT_DECISIONS, Decision
from services.shared.model.encoders import Encoder, former_after, takes_over
from services.shared.model.records import Record
from services.shared.model.stored_document import FAR_ABOVE, StoredDocument
from speaker_registry.errors import (
    CampaignEnded,
    CampaignNotFound,
    CampaignOpen,
    EncoderCurrent,
    EncoderUnknown,
)
from speaker_registry.schemas import CampaignState

MAX_CANDIDATES = 32
"""Largest number of candidates that are remembered. A forgotten one returns when a worker with it starts."""
MAX_CAMPAIGNS = 50
"""Largest number of campaigns that are remembered. The oldest finished campaign is forgotten first."""


class CampaignRecord(Record):
    """The stored state of a campaign."""

    id: str
    profile: str
    fingerprint: str
    """The encoder whose workers prepare the voices."""
    sample: int
    """The number of voices whose old and new artifacts are compared."""
    rate: float | None = None
    """Largest number of voices per second. None sets no limit."""
    promotes: bool = False
    """True if the encoder is promoted once it has made an artifact for every voice."""
    promotes_by: str = ""
    """Id of the caller that asked for this promotion."""
    force: bool = False
    """True if the encoder is promoted even if voices failed or no live worker has the encoder."""
    state: CampaignState = "running"
    created_at: int = 0
    changed_at: int = 0
    result: dict[str, Any] | None = None
    """The final progress of a campaign that is over."""

    @property
    def open(self) -> bool:
        """True if the campaign is not over."""
        return self.state in {"running", "paused"}


class ProfileDocument(StoredDocument):
    """Everything that is true about one profile. A change makes a new document with the next revision."""

    UPDATED: ClassVar[str] = "profile.updated"
    PROMOTED: ClassVar[str] = "profile.promoted"

    current: Encoder | None = None
    """The encoder whose artifacts are made and served."""
    former: tuple[Encoder, ...] = ()
    """The former encoders, newest first."""
    candidates: tuple[Encoder, ...] = ()
    """The encoders that workers announced and that were never current, newest last."""
    campaigns: tuple[CampaignRecord, ...] = ()
    """The campaigns, newest last."""
    decisions: tuple[Decision, ...] = ()
    """The last decisions that made an encoder the current one, newest last."""

    def following(self, before: Self, change_id: str | None, *, at: int, by: str, did: str) -> Self:
        after = super().following(before, change_id, at=at, by=by, did=did)
        return after.having(decisions=_decided(before, after))

    @property
    def named(self) -> str | None:
        encoders = (*filter(None, [self.current]), *self.former, *self.candidates)
        return next((one.profile for one in encoders), None)

    @property
    def news(self) -> tuple[dict[str, str], ...]:
        return tuple(
            {
                "revision": str(one.revision),
                "what": self.PROMOTED,
                "fingerprint": one.fingerprint,
                "former_fingerprint": one.former_fingerprint,
            }
            for one in self.decisions
            if one.is_promotion
        )

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the current encoder. It is empty until a worker has announced the
        profile.
        """
        return self.current.fingerprint if self.current else ""

    @property
    def former_fingerprints(self) -> tuple[str, ...]:
        return tuple(one.fingerprint for one in self.former)

    @property
    def kept_fingerprints(self) -> frozenset[str]:
        """Return the fingerprints whose artifacts are kept: those of the current encoder, the previous one,
        candidates that campaigns have prepared, and the encoder of the newest campaign, which may be a former
        one.
        """
        prepared = self.prepared_fingerprints & {one.fingerprint for one in self.candidates}
        newest = {one.fingerprint for one in self.campaigns[-1:]}
        return frozenset({self.fingerprint, *self.former_fingerprints[:1], *prepared, *newest} - {""})

    @property
    def prepared_fingerprints(self) -> frozenset[str]:
        """Return the fingerprints of the encoders of all remembered campaigns."""
        return frozenset(one.fingerprint for one in self.campaigns)

    def encoder(self, fingerprint: str) -> Encoder | None:
        """Return a known encoder: the current one, a former one or a candidate."""
        known = (*filter(None, [self.current]), *self.former, *self.candidates)
        return next((one for one in known if one.fingerprint == fingerprint), None)

    def campaign(self, campaign_id: str) -> CampaignRecord | None:
        return next((one for one in self.campaigns if one.id == campaign_id), None)

    @property
    def open_campaign(self) -> CampaignRecord | None:
        """Return the campaign that is not over. A campaign whose encoder is current has nothing left to
        do.
        """
        found = (one for one in self.campaigns if one.open and one.fingerprint != self.fingerprint)
        return next(found, None)

    @classmethod
    def after_damage(cls, known: Self | None, now: int) -> Self:
        """Return the document that takes the place of a damaged one.

        Args:
            known: the last known copy of the document.
            now: the store's time.
        """
        known = known or cls()
        return known.having(revision=max(now, known.revision + FAR_ABOVE))


# Decisions


def _decided(before: ProfileDocument, after: ProfileDocument) -> tuple[Decision, ...]:
    """Return the decisions of a document, including the change that made it from `before`."""
    if after.fingerprint == before.fingerprint:
        return after.decisions
    campaign = _preparation(after)
    asked_by = campaign.promotes_by if campaign and campaign.state == "promoted" else ""
    decision = Decision(
        revision=after.revision,
        at=after.at,
        by=asked_by or after.by,
        did=_kind(before, after),
        fingerprint=after.fingerprint,
        former_fingerprint=before.fingerprint,
        campaign=campaign.id if campaign else None,
    )
    return (*after.decisions, decision)[-KEPT_DECISIONS:]


def _kind(before: ProfileDocument, after: ProfileDocument) -> str:
    """Return the value of `Decision.did`."""
    if after.did == "announce":
        return "replace_untrained" if before.current else "announce"
    return "roll_back" if after.fingerprint in before.former_fingerprints else "promote"


def _preparation(after: ProfileDocument) -> CampaignRecord | None:
    """Return the campaign that prepared the voices for the encoder that has become current.

    A campaign prepares one promotion. If the encoder becomes current again later, that is a separate
    decision.
    """
    named = {one.campaign for one in after.decisions}
    found = [one for one in after.campaigns if one.fingerprint == after.fingerprint]
    return next((one for one in found[::-1] if one.state != "canceled" and one.id not in named), None)


# Encoders

Standing = Literal["current", "first", "candidate"]
"""What an encoder will be once a worker has announced it. `first` also becomes the current one."""


def standing(document: ProfileDocument, fingerprint: str, *, untrained: bool) -> Standing:
    """Return what an encoder with this fingerprint will be when a worker announces it."""
    if document.revision == 0:
        return "first"
    after = announced(document, Encoder(profile="", fingerprint=fingerprint, untrained=untrained))
    return "current" if after.fingerprint == fingerprint else "candidate"


def announced(document: ProfileDocument, encoder: Encoder) -> ProfileDocument:
    """Record that a worker announced an encoder, which becomes current if `takes_over` says so."""
    if document.fingerprint == encoder.fingerprint:
        return document
    if takes_over(document.current, encoder, first=document.revision == 0):
        return _with_current(document, encoder)
    if document.encoder(encoder.fingerprint) is not None:
        return document
    return document.having(candidates=_trimmed(document, (*document.candidates, encoder)))


def promoted(document: ProfileDocument, fingerprint: str) -> ProfileDocument:
    """Make an encoder the current one. A former encoder can become current again.

    Raises:
        EncoderCurrent: it is already the current one.
        EncoderUnknown: no worker has announced it.
    """
    return _with_current(document, another_encoder(document, fingerprint))


def another_encoder(document: ProfileDocument, fingerprint: str) -> Encoder:
    """Return a known encoder that is not the current one. Raises the same errors as `promoted`."""
    if document.fingerprint == fingerprint:
        raise EncoderCurrent(f"{fingerprint} is already the current fingerprint.", param="fingerprint")
    encoder = document.encoder(fingerprint)
    if encoder is None:
        raise EncoderUnknown(f"No worker has ever announced {fingerprint}.", param="fingerprint")
    return encoder


def _with_current(document: ProfileDocument, encoder: Encoder) -> ProfileDocument:
    kept = former_after(document.current, document.former_fingerprints, encoder.fingerprint)
    former = tuple(one for fingerprint in kept if (one := document.encoder(fingerprint)))
    candidates = tuple(one for one in document.candidates if one.fingerprint != encoder.fingerprint)
    return document.having(current=encoder, former=former, candidates=candidates)


def _trimmed(document: ProfileDocument, candidates: tuple[Encoder, ...]) -> tuple[Encoder, ...]:
    """If there are too many candidates, remove the oldest one that no campaign has prepared. If campaigns
    have prepared all of them, remove the oldest one that no open campaign prepares.
    """
    if len(candidates) <= MAX_CANDIDATES:
        return candidates
    going = document.open_campaign
    others = [one for one in candidates if going is None or one.fingerprint != going.fingerprint]
    unprepared = (one for one in others if one.fingerprint not in document.prepared_fingerprints)
    oldest = next(unprepared, others[0])
    return tuple(one for one in candidates if one is not oldest)


# Campaigns


def with_campaign(document: ProfileDocument, campaign: CampaignRecord) -> ProfileDocument:
    """Start a campaign.

    Raises:
        EncoderUnknown, EncoderCurrent: as `promoted` does.
        CampaignOpen: another campaign of the profile is not over.
    """
    another_encoder(document, campaign.fingerprint)
    if (going := document.open_campaign) is not None:
        raise CampaignOpen(
            f"Campaign '{going.id}' of profile '{going.profile}' for {going.fingerprint} is {going.state}. "
            "Wait until it is over, or cancel it first.",
            param="fingerprint",
        )
    return document.having(campaigns=_with_room((*document.campaigns, campaign)))


def with_promotion_at_the_end(document: ProfileDocument, campaign: CampaignRecord) -> ProfileDocument:
    """Make the open campaign of an encoder promote it at the end. If there is none, start `campaign`.

    Raises the same errors as `with_campaign`. `CampaignOpen` is only raised if the open campaign has another
    encoder.
    """
    going = document.open_campaign
    if going is None or going.fingerprint != campaign.fingerprint:
        return with_campaign(document, campaign)
    another_encoder(document, campaign.fingerprint)
    if going.promotes and going.force == campaign.force:
        return document
    changed = going.having(promotes=True, force=campaign.force, promotes_by=campaign.promotes_by)
    return _replaced(document, changed, campaign.created_at)


def with_campaign_state(
    document: ProfileDocument,
    campaign_id: str,
    state: CampaignState,
    *,
    now: int,
    result: dict[str, Any] | None = None,
) -> ProfileDocument:
    """Change the state of a campaign that is not over. If the campaign already has this state, nothing
    changes.

    Raises `CampaignNotFound` or `CampaignEnded`.
    """
    campaign = known_campaign(document, campaign_id)
    if campaign.state == state:
        return document
    if not campaign.open:
        raise CampaignEnded(
            f"Campaign '{campaign_id}' is {campaign.state}; only one that is running or paused can be "
            "changed.",
            param="campaign_id",
        )
    return _replaced(document, campaign.having(state=state, result=result), now)


def promoted_by_campaign(
    document: ProfileDocument, campaign_id: str, *, now: int, result: dict[str, Any]
) -> ProfileDocument:
    """Promote the encoder of a campaign, and end the campaign. If the campaign is no longer running, nothing
    changes.

    Raises `CampaignNotFound`, and the errors of `promoted`.
    """
    campaign = known_campaign(document, campaign_id)
    if campaign.state != "running":
        return document
    after = promoted(document, campaign.fingerprint)
    return with_campaign_state(after, campaign_id, "promoted", now=now, result=result)


def known_campaign(document: ProfileDocument, campaign_id: str) -> CampaignRecord:
    """Return a campaign. Raises `CampaignNotFound`."""
    campaign = document.campaign(campaign_id)
    if campaign is None:
        raise CampaignNotFound(f"There is no campaign {campaign_id[:80]!a}.", param="campaign_id")
    return campaign


def _replaced(document: ProfileDocument, campaign: CampaignRecord, now: int) -> ProfileDocument:
    dated = campaign.having(changed_at=now)
    return document.having(
        campaigns=tuple(dated if one.id == campaign.id else one for one in document.campaigns)
    )


def _with_room(campaigns: tuple[CampaignRecord, ...]) -> tuple[CampaignRecord, ...]:
    if len(campaigns) <= MAX_CAMPAIGNS:
        return campaigns
    oldest = next(one for one in campaigns if not one.open)
    return tuple(one for one in campaigns if one is not oldest)
