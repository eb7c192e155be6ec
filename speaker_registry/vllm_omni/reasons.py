"""Remembers why voices cannot be had, so that each reason is logged once and not at every look."""

from collections.abc import Container


class Reasons:
    """The last reason of each voice that cannot be had now, by the ids of the voices."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def is_news(self, voice_id: str, reason: str) -> bool:
        """Remember a reason. Returns whether it differs from the last one of this voice."""
        is_news = self._reasons.get(voice_id) != reason
        self._reasons[voice_id] = reason
        return is_news

    def drop(self, voice_id: str) -> None:
        """Forget the reason of a voice, which can be had again."""
        self._reasons.pop(voice_id, None)

    def keep(self, voices: Container[str]) -> None:
        """Forget the reasons of all voices but these."""
        self._reasons = {voice_id: one for voice_id, one in self._reasons.items() if voice_id in voices}
