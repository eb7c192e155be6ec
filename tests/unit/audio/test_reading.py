"""Tests of how the libraries are called, where only a fake or their own log can show it. Everything else is
tested through the guarded process.
"""

from types import SimpleNamespace

import av.logging
import numpy as np
import pytest

from services.shared.audio.sandbox import reading
from services.shared.audio.sandbox.sniffed import Sniffed
from services.shared.audio.sandbox.wire import Status
from tests.unit.audio import clips


def frame(sample_rate: int = 24000, channels: int = 1, layout: str = "fltp") -> SimpleNamespace:
    """Return a frame as libav decodes it."""
    return SimpleNamespace(
        sample_rate=sample_rate,
        layout=SimpleNamespace(nb_channels=channels),
        format=SimpleNamespace(name=layout),
        to_ndarray=lambda: np.zeros(
            (channels, 1024) if layout == "fltp" else (1, 1024 * channels), np.float32
        ),
    )


def blocks(*frames: SimpleNamespace) -> list[reading.Samples]:
    return list(reading._libav_blocks(frames[0], iter(frames[1:]), reading.BLOCK_SAMPLES))


@pytest.mark.parametrize("layout", ["fltp", "flt"])
def test_frames_become_blocks_with_a_column_for_each_channel(layout: str):
    """Planar or packed, the mono mix must average channels and not neighbours."""
    assert [block.shape for block in blocks(*[frame(channels=2, layout=layout)] * 3)] == [(3072, 2)]


@pytest.mark.parametrize("other", [frame(sample_rate=48000), frame(channels=2), frame(layout="s16p")])
def test_a_stream_that_changes_on_the_way_is_an_error(other: SimpleNamespace):
    """Half a clip at another rate would be another voice."""
    with pytest.raises(ValueError, match=r"change within the stream|not float"):
        blocks(frame(), other)


def test_a_codec_that_we_do_not_read_is_never_opened():
    """libav decodes the first packets of whatever it finds: with decoders that nobody asked for."""
    alac = clips.by_libav(clips.tone(1.0, 24000), 24000, "mp4", "alac")
    before = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as log:
            sniffed = Sniffed(container="mp4", payload=(alac,), reader="mp4", codecs=("aac",))
            measured, samples = reading.read_clip(sniffed, 30.0)
    finally:
        av.logging.set_level(before)
    assert (measured.status, measured.codec, samples) == (Status.WRONG_CODEC, "alac", [])
    assert any("not on whitelist" in str(line) for line in log)
