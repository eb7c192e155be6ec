"""The kinds of pictures of a clip. This module knows neither the bucket nor how pictures are drawn."""

from enum import StrEnum

DRAWING = 1
"""The version of the drawing code. Raise it with every change, so that all pictures are drawn again."""


class Picture(StrEnum):
    """A kind of picture of a clip. The value is the name of its file."""

    WAVEFORM = "waveform.svg"
    MEL = "mel.png"

    @property
    def media_type(self) -> str:
        return {Picture.WAVEFORM: "image/svg+xml", Picture.MEL: "image/png"}[self]
