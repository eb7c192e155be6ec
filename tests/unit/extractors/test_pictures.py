"""Tests of the pictures of clips: what they show, how large they are, and that they are always the same."""

import io
import xml.etree.ElementTree as ElementTree

import av
import numpy as np
import pytest

from services.extractor_worker.features.pictures import draw, mel_pixels, png, waveform
from services.shared.audio import ReferenceAudio
from services.shared.model.pictures import Picture

SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" role="img" width="1000" height="160" viewBox="0 0 1000 160" '
    'preserveAspectRatio="none"><title>Waveform: 2.0 seconds, peak -6.0 dBFS</title>'
    '<path d="M500.0 0v160M0 80h1000" fill="none" stroke="#808080" stroke-opacity=".3"/>'
    '<path d="M0 2.0L333 80.0L667 119.0L1000 41.0L1000 41.0L667 119.0L333 80.0L0 2.0Z" fill="#4f7be0" '
    'stroke="#4f7be0" stroke-width=".8" stroke-linejoin="round"/></svg>\n'
)


def tone(hertz: float, seconds: float = 2.0, rate: int = 24_000) -> np.ndarray:
    moments = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * moments)).astype(np.float32)


def pixels_of(data: bytes) -> np.ndarray:
    """Decode a PNG file to uint8 [height, width, 3]."""
    with av.open(io.BytesIO(data)) as file:
        pixels: np.ndarray = next(file.decode(video=0)).to_ndarray(format="rgb24")
    return pixels


def test_a_waveform_is_the_envelope_of_its_clip():
    """Four samples at two per second: the highest point is the peak, and a line marks the first second."""
    assert waveform(np.array([0.5, 0.0, -0.25, 0.25], np.float32), 2) == GOLDEN


def test_a_waveform_has_the_extremes_of_each_column():
    """A single click among a million samples must be seen, or the picture lies about the clip."""
    samples = np.zeros(1_000_000, np.float32)
    samples[400_000] = 0.9
    path = ElementTree.fromstring(waveform(samples, 48_000)).findall(f"{SVG}path")[1].get("d", "")
    assert path.count(" 2.0") == 1, "the click is as high as the picture, in one place"
    assert path.count(" 80.0") == 999


@pytest.mark.parametrize("clip", [np.zeros(16_000, np.float32), np.zeros(1, np.float32)])
def test_silence_and_a_single_sample_have_pictures(clip: np.ndarray):
    """Nothing is divided by a peak of zero, and no window is longer than the clip."""
    drawn = draw(ReferenceAudio(clip, 16_000))
    assert "seconds, silence</title>" in drawn[Picture.WAVEFORM].decode()
    assert pixels_of(drawn[Picture.MEL]).shape[0] == 160


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000, 192_000])
def test_pictures_are_small_and_always_the_same(rate: int):
    """Noise is the worst case for both formats. What differs between two drawings would be stored twice."""
    clip = ReferenceAudio((np.random.default_rng(1).standard_normal(30 * rate) / 5).astype(np.float32), rate)
    drawn = draw(clip)
    assert drawn == draw(clip)
    assert all(0 < len(data) <= 50_000 for data in drawn.values())
    outline = ElementTree.fromstring(drawn[Picture.WAVEFORM]).findall(f"{SVG}path")[1].get("d", "")
    assert outline.count("L") + 1 <= 1000
    height, width, _ = pixels_of(drawn[Picture.MEL]).shape
    assert (height, width <= 800) == (160, True)


def test_a_waveform_has_a_title_and_no_script():
    """Screen readers say the title, and nothing in the file comes from a caller."""
    root = ElementTree.fromstring(waveform(tone(440), 24_000))
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Waveform: 2.0 seconds, peak -6.0 dBFS"
    assert {element.tag for element in root.iter()} == {f"{SVG}svg", f"{SVG}title", f"{SVG}path"}


@pytest.mark.parametrize(("hertz", "row"), [(100.0, 156), (1000.0, 112), (8000.0, 16)])
def test_a_tone_is_a_bright_line_at_its_height(hertz: float, row: int):
    """Low frequencies are at the bottom. 1 kHz is 15.0 of the 51.1 mel up to 12 kHz: 23.8 of 81 steps."""
    levels = mel_pixels(tone(hertz), 24_000)
    middle = levels[:, levels.shape[1] // 2]
    assert abs(int(middle.argmax()) - row) <= 3
    assert middle.max() >= 80, "the click at the end of the tone may be louder"
    assert np.median(middle) < 40


def test_a_spectrogram_is_told_by_its_colours():
    """The file shows silence nearly black, and the loudest band in bright yellow."""
    pixels = pixels_of(png(np.array([[0, 95]], np.uint8).repeat(2, axis=0)))
    assert pixels[0].tolist() == [[10, 8, 34], [252, 255, 164]]


def test_a_short_sound_in_a_long_clip_is_seen():
    """Where several frames become one column, the loudest counts."""
    samples = np.zeros(30 * 24_000, np.float32)
    samples[360_000:361_200] = tone(1000, 0.05)
    levels = mel_pixels(samples, 24_000)
    assert levels.shape == (160, 800)
    assert levels.max(axis=0).argmax() in range(396, 406)
    assert (levels[:, :390] == levels.min()).all()
