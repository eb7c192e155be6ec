"""Finds out whether the encoder of a profile will be the current one, if possible before it is loaded.

The fingerprint of a built-in encoder is known without its weights. The fingerprint of an encoder of another
package is only known after loading, so its profile is asked about between loading and the warm-up. This
module imports no torch.
"""

from collections.abc import Callable, Sequence

import structlog

from services.shared.model.fingerprint import Fingerprint
from services.shared.model.profile_document import Standing, standing
from services.shared.registry.profile_records import ProfileRecords
from speaker_registry.engine import Profile

log = structlog.get_logger()

_REASONS = {
    "first": "No encoder of the profile is known, so this worker's encoder becomes the current one.",
    "current": "This worker's encoder is the current one of the profile, or becomes it.",
    "candidate": "Another encoder is the current one of the profile. This worker's encoder is loaded last.",
}


class Standings:
    """Finds out what the encoders of this process will be once they are announced, and remembers it.

    Args:
        records: the documents of the profiles.
        identify: returns the fingerprint of a profile's encoder, or None if it is only known after loading.
    """

    def __init__(self, records: ProfileRecords, identify: Callable[[Profile], Fingerprint | None]) -> None:
        self._records = records
        self._identify = identify
        self._found: dict[str, Standing] = {}

    def find_out_early(self, profile: Profile) -> None:
        """Find out about a profile before it is loaded, if its fingerprint is known by then.

        Raises:
            Unavailable: neither Redis nor the bucket says which encoder is current.
            WeightsMissing, WeightsInvalid: the encoder could not be loaded either.
        """
        if (fingerprint := self._identify(profile)) is None:
            log.info("profile.standing_unknown", profile=profile.name, reason="It is known after loading.")
        else:
            self.find_out(profile, fingerprint)

    def find_out(self, profile: Profile, fingerprint: Fingerprint) -> None:
        """Find out and log what an encoder will be, unless that was done before. Raises `Unavailable`."""
        if profile.name in self._found:
            return
        document = self._records.read(profile.name)
        found = standing(document, fingerprint.digest, untrained=fingerprint.untrained)
        self._found[profile.name] = found
        log.info(
            "profile.standing",
            profile=profile.name,
            standing=found,
            fingerprint=fingerprint.digest,
            current=document.fingerprint or None,
            reason=_REASONS[found],
        )

    def in_order(self, profiles: Sequence[Profile]) -> list[Profile]:
        """Return the profiles in the order in which to load them: candidates last, and before them those
        about which nothing is known.
        """
        ranks = {"first": 0, "current": 0, None: 1, "candidate": 2}
        return sorted(profiles, key=lambda profile: ranks[self._found.get(profile.name)])
