"""The codes are those that speechtokenizer 1.0.1 computes from the same weights.

The weights are a random tiny checkpoint in the published layout. tools/make_speech_tokenizer_goldens.py made
it and the goldens. Codes are compared wherever rounding cannot change them.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.extractor_worker.engines.speech_tokenizer import SpeechTokenizerExtractor
from services.extractor_worker.models.seanet import SeanetConfig, SeanetEncoder, published_name
from services.extractor_worker.models.weight_norm import published_layout
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights, UntrainedWeights
from services.extractor_worker.weights.modules import layout_of
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.engine import Profile
from speaker_registry.errors import AudioTooShort
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, edit_pickle, extract, golden_clip, tiny_profile
from tests.unit.extractors.parity import assert_same_codes

Tensors = dict[str, torch.Tensor]

TINY = Path(__file__).parents[2] / "data/speech_tokenizer_tiny"
CONFIG, FILE = (f"speechtokenizer_hubert_avg/{name}" for name in ("config.json", "SpeechTokenizer.pt"))
ENTRIES = 64
CLIPS = ["0.0600625", "1.003", "3.0", "7.313", "12.413"]
RATES = [24_000, 44_100]


def profile(entries: int = ENTRIES) -> Profile:
    codes = BUILT_IN["speechtokenizer"].tensors["codes"]
    return tiny_profile(
        "speechtokenizer", tensors={"codes": codes.model_copy(update={"maximum": entries - 1})}
    )


def load(folder: Path = TINY, entries: int = ENTRIES, **changes: Any) -> SpeechTokenizerExtractor:
    loading = {"profile": profile(entries), "source": LocalWeights(folder), **changes}
    return SpeechTokenizerExtractor(Loading(**loading))


@pytest.fixture(scope="module")
def extractor() -> SpeechTokenizerExtractor:
    return load()


def codes(extractor: SpeechTokenizerExtractor, *clips: ReferenceAudio) -> list[np.ndarray]:
    return [tensors["codes"] for tensors in extract(extractor, *clips)]


@pytest.mark.parametrize("name", CLIPS)
def test_the_codes_are_speech_tokenizers(
    goldens: Goldens, extractor: SpeechTokenizerExtractor, name: str
) -> None:
    """All codes are equal, for clips of any length."""
    ours = codes(extractor, golden_clip(goldens, name, 16_000))[0]
    assert_same_codes(ours, goldens, f"codes_{name}", frames=1)


@pytest.mark.parametrize("rate", RATES)
def test_another_rate_goes_through_torchaudios_kernel(
    goldens: Goldens, extractor: SpeechTokenizerExtractor, rate: int
) -> None:
    """Most clips are not 16 kHz."""
    ours = codes(extractor, golden_clip(goldens, str(rate), rate))[0]
    assert_same_codes(ours, goldens, f"codes_{rate}", frames=1)


def test_the_goldens_use_the_books(goldens: Goldens) -> None:
    """Goldens with few codes would show little."""
    assert all(len(np.unique(book)) > ENTRIES * 3 / 4 for book in goldens["codes_12.413"])


def test_it_is_what_the_profile_promises(goldens: Goldens, extractor: SpeechTokenizerExtractor) -> None:
    """The codes are contiguous int64, with the codebooks first."""
    clip = golden_clip(goldens, "7.313", 16_000)
    tensors = extractor.finish(extractor.encode([extractor.prepare(clip)])[0])
    check_tensors(tensors, profile().tensors, seconds=clip.seconds, frame_rate=50.0)
    assert tensors["codes"].shape == (8, 366)
    assert tensors["codes"].flags.c_contiguous


@pytest.mark.parametrize("samples", [15_999, 16_000, 16_001, 16_319, 16_320, 16_321])
def test_a_frame_of_codes_for_every_20_ms_begun(extractor: SpeechTokenizerExtractor, samples: int) -> None:
    """There are ceil(N / 320) frames, through four layers that each round up."""
    clip = ReferenceAudio(signals.speechlike(1.1, 16_000)[:samples], 16_000)
    assert codes(extractor, clip)[0].shape == (8, -(-samples // 320))


def test_the_number_of_threads_does_not_matter(goldens: Goldens, extractor: SpeechTokenizerExtractor) -> None:
    """Workers with different numbers of cores have the same fingerprint."""
    torch.set_num_threads(1)
    ours = codes(extractor, golden_clip(goldens, "3.0", 16_000))[0]
    assert_same_codes(ours, goldens, "codes_3.0", frames=1)


@pytest.mark.parametrize("samples", [1, 320, 960])
def test_a_clip_too_short_to_reflect_is_refused(extractor: SpeechTokenizerExtractor, samples: int) -> None:
    """A clip needs 961 samples, or the last layer would reflect more than there is.

    One golden is that long.
    """
    with pytest.raises(AudioTooShort, match=r"at least 0\.060 s"):
        extractor.prepare(ReferenceAudio(signals.speechlike(1.0, 16_000)[:samples], 16_000))


# --- the weights


def test_the_published_layout_is_the_packages() -> None:
    """This is the layout at full size.

    The package's class wrote the tiny checkpoint, which shows the names.
    """
    layout = published_layout(layout_of(partial(SeanetEncoder, SeanetConfig())), published_name)
    assert len(layout) == 70
    assert layout["model.0.conv.conv.weight_v"] == (64, 1, 7)
    assert layout["model.1.block.1.conv.conv.weight_g"] == (32, 1, 1)
    assert layout["model.4.shortcut.conv.conv.bias"] == (128,)
    assert layout["model.12.conv.conv.weight_v"] == (1024, 512, 16)
    assert layout["model.13.lstm.weight_ih_l1_reverse"] == (4096, 2048)
    assert layout["model.15.conv.conv.weight_v"] == (1024, 2048, 7)


def test_weights_are_the_packages_to_the_last_bit(extractor: SpeechTokenizerExtractor) -> None:
    """The package keeps length and direction, and multiplies them at every step."""
    published = torch.load(TINY / FILE, weights_only=True)
    convolution = torch.nn.Conv1d(*_widths(published["encoder.model.15.conv.conv.weight_v"]))
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(convolution)
    prefix = "encoder.model.15.conv.conv."
    theirs = {key.removeprefix(prefix): one for key, one in published.items() if key.startswith(prefix)}
    convolution.load_state_dict(theirs)
    convolution(torch.zeros(1, convolution.in_channels, convolution.kernel_size[0]))
    assert torch.equal(extractor._encoder.state_dict()["model.15.conv.weight"].cpu(), convolution.weight)


def test_the_checkpoint_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle is loaded as a whole, however few of its tensors are used."""
    read, loaded = torch.load, []

    def counted(path: Path, **options: Any) -> Any:
        loaded.append(path.name)
        return read(path, **options)

    monkeypatch.setattr(torch, "load", counted)
    load()
    assert loaded == ["SpeechTokenizer.pt"]


def _widths(weight: torch.Tensor) -> tuple[int, int, int]:
    width_out, width_in, kernel = weight.shape
    return width_in, width_out, kernel


def test_nothing_is_asked_of_the_decoder(copy: Path, extractor: SpeechTokenizerExtractor) -> None:
    """A file without the decoder makes the same codes."""

    def strip(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith(("decoder.", "transform."))]:
            del tensors[key]

    edit_pickle(copy / FILE, strip)
    clip = ReferenceAudio(signals.speechlike(1.0, 16_000), 16_000)
    assert np.array_equal(codes(load(copy), clip)[0], codes(extractor, clip)[0])


# --- the fingerprint


@pytest.mark.slow
def test_untrained_weights_say_so_and_name_their_seed(extractor: SpeechTokenizerExtractor) -> None:
    """Random voices must not be taken for real ones anywhere."""
    untrained = load(entries=1024, source=UntrainedWeights(seed=7)).fingerprint
    assert untrained.untrained
    assert untrained.inputs["weights"] == {"untrained": True, "seed": 7}
    assert untrained.inputs["encoder"] == {
        **dataclasses.asdict(SeanetConfig()),
        "strides": [8, 5, 4, 2],
    }
    assert not extractor.fingerprint.untrained
