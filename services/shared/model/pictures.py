"""The pictures of a clip: which there are. Knows neither the bucket nor how they are drawn."""

from enum import StrEnum

DRAWING = 1
"""The number of the current way to draw. Raise it with every change, so that all pictures are made again."""


class Picture(StrEnum):
    """A picture of a clip, by the name of its file."""

    WAVEFORM = "waveform.svg"
    MEL = "mel.png"

    @property
    def media_type(self) -> str:
        return {Picture.WAVEFORM: "image/svg+xml", Picture.MEL: "image/png"}[self]
