"""A model of another width and clips that are too short are refused. Unknown fields are ignored."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from services.shared.audio import ReferenceAudio
from speaker_registry.errors import AudioTooShort, WeightsInvalid
from tests.unit.extractors.conftest import TINY, load_tiny
from tests.unit.extractors.signals import speechlike


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load_tiny(folder, **options)


def test_a_width_the_profile_does_not_have_names_both() -> None:
    """A 0.6B embedding does not fit into the 1.7B talker, nor the reverse."""
    refused(TINY, "the embedding is 64 wide, this profile's is 1024", width=1024)


def test_no_tensors_of_other_parts_are_read() -> None:
    """Most of the published files are the talker and the decoder, which are not read."""
    config = json.loads((TINY / "config.json").read_text())
    assert config["talker_config"]
    extractor = load_tiny()
    assert not [key for key in extractor._speaker_encoder.state_dict() if "talker" in key]


@pytest.mark.parametrize("samples", [0, 1, 383, 1023, 1279])
def test_a_clip_too_short_to_reflect_is_refused(samples: int) -> None:
    """A clip of fewer than 1280 samples, which is five mel frames, would make torch fail in the middle of the
    encoder.
    """
    clip = ReferenceAudio(speechlike(1.0, 24_000)[:samples], 24_000)
    with pytest.raises(AudioTooShort, match=r"the encoder needs at least 0\.053 s"):
        load_tiny().prepare(clip)


def test_the_shortest_clip_goes_through() -> None:
    """The limit is exactly that of the encoder."""
    extractor = load_tiny()
    prepared = extractor.prepare(ReferenceAudio(speechlike(1.0, 24_000)[:1280], 24_000))
    assert extractor.finish(extractor.encode([prepared])[0])["ref_code"].shape == (1, 16)
