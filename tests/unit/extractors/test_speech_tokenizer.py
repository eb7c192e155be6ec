"""The codes are those speechtokenizer 1.0.1 computes from the same weights.

The weights are a random tiny checkpoint in the published layout; tools/make_speech_tokenizer_goldens.py made
it and the goldens. Codes are compared wherever rounding cannot change them.
"""

import dataclasses
import re
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
from speaker_registry.errors import AudioTooShort, WeightsInvalid, WeightsMissing
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, edit_json, edit_pickle, golden_clip, tiny_profile
from tests.unit.extractors.parity import assert_same_codes

Tensors = dict[str, torch.Tensor]

TINY = Path(__file__).parents[2] / "data/speech_tokenizer_tiny"
CONFIG, FILE = (f"speechtokenizer_hubert_avg/{name}" for name in ("config.json", "SpeechTokenizer.pt"))
BOOK = "quantizer.vq.layers.7._codebook"
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
    encoded = extractor.encode([extractor.prepare(clip) for clip in clips])
    return [extractor.finish(one)["codes"] for one in encoded]


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(folder, **options)


@pytest.mark.parametrize("name", CLIPS)
def test_the_codes_are_speech_tokenizers(
    goldens: Goldens, extractor: SpeechTokenizerExtractor, name: str
) -> None:
    """To the last one, whatever the clip's length leaves over."""
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
    """Codebooks first, int64, contiguous."""
    clip = golden_clip(goldens, "7.313", 16_000)
    tensors = extractor.finish(extractor.encode([extractor.prepare(clip)])[0])
    check_tensors(tensors, profile().tensors, seconds=clip.seconds, frame_rate=50.0)
    assert tensors["codes"].shape == (8, 366)
    assert tensors["codes"].flags.c_contiguous


@pytest.mark.parametrize("samples", [15_999, 16_000, 16_001, 16_319, 16_320, 16_321])
def test_a_frame_of_codes_for_every_20_ms_begun(extractor: SpeechTokenizerExtractor, samples: int) -> None:
    """ceil(N / 320), through four layers that each round up."""
    clip = ReferenceAudio(signals.speechlike(1.1, 16_000)[:samples], 16_000)
    assert codes(extractor, clip)[0].shape == (8, -(-samples // 320))


def test_a_clip_among_others_is_the_clip_alone(goldens: Goldens, extractor: SpeechTokenizerExtractor) -> None:
    """Whoever uploads at the same moment must not change my voice."""
    clips = [golden_clip(goldens, name, 16_000) for name in CLIPS[:4]]
    for clip, ours in zip(clips, codes(extractor, *clips), strict=True):
        assert np.array_equal(ours, codes(extractor, clip)[0])


def test_the_number_of_threads_does_not_matter(goldens: Goldens, extractor: SpeechTokenizerExtractor) -> None:
    """Workers have different numbers of cores, and one fingerprint."""
    torch.set_num_threads(1)
    ours = codes(extractor, golden_clip(goldens, "3.0", 16_000))[0]
    assert_same_codes(ours, goldens, "codes_3.0", frames=1)


@pytest.mark.parametrize("samples", [1, 320, 960])
def test_a_clip_too_short_to_reflect_is_refused(extractor: SpeechTokenizerExtractor, samples: int) -> None:
    """961 samples (a golden is that long): fewer, and the last layer would reflect more than there is."""
    with pytest.raises(AudioTooShort, match=r"at least 0\.060 s"):
        extractor.prepare(ReferenceAudio(signals.speechlike(1.0, 16_000)[:samples], 16_000))


# --- the weights


def test_the_published_layout_is_the_packages() -> None:
    """At full size; that the names are right, the tiny checkpoint shows, which the package's class wrote."""
    layout = published_layout(layout_of(partial(SeanetEncoder, SeanetConfig())), published_name)
    assert len(layout) == 70
    assert layout["model.0.conv.conv.weight_v"] == (64, 1, 7)
    assert layout["model.1.block.1.conv.conv.weight_g"] == (32, 1, 1)
    assert layout["model.4.shortcut.conv.conv.bias"] == (128,)
    assert layout["model.12.conv.conv.weight_v"] == (1024, 512, 16)
    assert layout["model.13.lstm.weight_ih_l1_reverse"] == (4096, 2048)
    assert layout["model.15.conv.conv.weight_v"] == (1024, 2048, 7)


def test_weights_are_the_packages_to_the_last_bit(extractor: SpeechTokenizerExtractor) -> None:
    """It keeps length and direction, and puts them together at every step."""
    published = torch.load(TINY / FILE, weights_only=True)
    convolution = torch.nn.Conv1d(*_widths(published["encoder.model.15.conv.conv.weight_v"]))
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(convolution)
    prefix = "encoder.model.15.conv.conv."
    theirs = {key.removeprefix(prefix): one for key, one in published.items() if key.startswith(prefix)}
    convolution.load_state_dict(theirs)
    convolution(torch.zeros(1, convolution.in_channels, convolution.kernel_size[0]))
    assert torch.equal(extractor._encoder.state_dict()["model.15.conv.weight"], convolution.weight)


def _widths(weight: torch.Tensor) -> tuple[int, int, int]:
    width_out, width_in, kernel = weight.shape
    return width_in, width_out, kernel


@pytest.mark.parametrize(
    "key",
    [
        "encoder.model.0.conv.conv.weight_g",
        "encoder.model.13.lstm.bias_hh_l1_reverse",
        "encoder.model.15.conv.conv.bias",
        f"{BOOK}.embed",
        f"{BOOK}.embed_avg",
    ],
)
def test_a_missing_key_is_named(copy: Path, key: str) -> None:
    """What only training needs is not used, and still a sign of another file."""
    edit_pickle(copy / FILE, lambda tensors: tensors.pop(key))
    refused(copy, f"{FILE} lacks {key}")


@pytest.mark.parametrize(
    "key",
    [
        "encoder.model.13.lstm.weight_ih_l2",
        "encoder.model.1.block.0.alpha",  # of the Snake activation
        "quantizer.vq.layers.8._codebook.embed",
        "quantizer.vq.layers.0.project_in.weight",
    ],
)
def test_an_unexpected_key_is_named(copy: Path, key: str) -> None:
    """A larger model would otherwise lose a layer unnoticed."""
    edit_pickle(copy / FILE, lambda tensors: tensors.update({key: torch.zeros(2)}))
    refused(copy, f"{FILE} has {key}, which this architecture does not")


def test_nothing_is_asked_of_the_decoder(copy: Path, extractor: SpeechTokenizerExtractor) -> None:
    """A file without it makes the same codes."""

    def strip(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith(("decoder.", "transform."))]:
            del tensors[key]

    edit_pickle(copy / FILE, strip)
    clip = ReferenceAudio(signals.speechlike(1.0, 16_000), 16_000)
    assert np.array_equal(codes(load(copy), clip)[0], codes(extractor, clip)[0])


def test_a_file_of_another_model_is_called_that(copy: Path) -> None:
    """Nothing under the prefix at all."""
    torch.save({"blocks.0.weight": torch.zeros(2)}, copy / FILE)
    refused(copy, f"{FILE} has no encoder.* tensors: it is of another model")


@pytest.mark.parametrize("name", [CONFIG, FILE])
def test_a_missing_file_is_missing_weights(copy: Path, name: str) -> None:
    """Both are asked for before either is read."""
    (copy / name).unlink()
    with pytest.raises(WeightsMissing, match=rf"{re.escape(name)} missing"):
        load(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "Snake"}, "activation is 'Snake', 'ELU' is expected"),
        ({"lstm_layers": 0}, "lstm_layers is less than 1"),
        ({"n_q": 4}, "n_q is 4, 8 is expected"),
        ({"codebook_size": 1024}, "codebook_size is 1024, 64 is expected"),
        ({"sample_rate": 24_000}, "sample_rate is 24000, 16000 is expected"),
        ({"strides": [8, 5, 4, 4]}, "strides make 25 frames a second, 50 are expected"),
        ({"n_filters": "2"}, "n_filters is '2', int is expected"),
        ({"bidirectional": 1}, "bidirectional is 1, bool is expected"),
    ],
)
def test_the_configuration_of_another_model_is_refused(
    copy: Path, change: dict[str, Any], message: str
) -> None:
    """Named by field."""
    edit_json(copy / CONFIG, lambda config: config.update(change))
    refused(copy, f"{CONFIG}: {message}")


def test_a_unidirectional_model_is_not_taken_for_a_bidirectional_one(copy: Path) -> None:
    """Its decoder's LSTM runs forward only, so one is easily taken for the other."""
    edit_json(copy / CONFIG, lambda config: config.update(bidirectional=False))
    refused(copy, f"{FILE} has encoder.model.13.lstm.bias_hh_l0_reverse")


# --- the fingerprint


def test_the_weights_count(copy: Path, extractor: SpeechTokenizerExtractor) -> None:
    """One value of one tensor; not where the file lies."""
    assert load(copy).fingerprint == extractor.fingerprint
    edit_pickle(copy / FILE, lambda tensors: tensors[f"{BOOK}.embed"].add_(1))
    assert load(copy).fingerprint.digest != extractor.fingerprint.digest


def test_configuration_that_shapes_do_not_show_counts(
    copy: Path, extractor: SpeechTokenizerExtractor
) -> None:
    """Dilations; and the order of strides, of which two could be swapped with their kernels."""
    edit_json(copy / CONFIG, lambda config: config.update(dilation_base=3))
    assert load(copy).fingerprint.digest != extractor.fingerprint.digest


def test_how_it_was_trained_does_not_count(copy: Path, extractor: SpeechTokenizerExtractor) -> None:
    """An edited comment must not throw away every artifact."""
    edit_json(copy / CONFIG, lambda config: config.update(batch_size=7, semantic_dimension=99))
    assert load(copy).fingerprint == extractor.fingerprint


def test_it_computes_in_float32_whatever_is_asked_for(
    goldens: Goldens, extractor: SpeechTokenizerExtractor
) -> None:
    """The package does, and the same artifact must have the same fingerprint."""
    asked = load(dtype="bfloat16")
    assert asked.fingerprint == extractor.fingerprint
    clip = golden_clip(goldens, "1.003", 16_000)
    assert np.array_equal(codes(asked, clip)[0], codes(extractor, clip)[0])


@pytest.mark.slow
def test_untrained_weights_say_so_and_name_their_seed(extractor: SpeechTokenizerExtractor) -> None:
    """No surface may take such a voice for a real one."""
    untrained = load(entries=1024, source=UntrainedWeights(seed=7)).fingerprint
    assert untrained.untrained
    assert untrained.facts["weights"] == {"untrained": True, "seed": 7}
    assert untrained.facts["encoder"] == {
        **dataclasses.asdict(SeanetConfig()),
        "strides": [8, 5, 4, 2],
    }
    assert not extractor.fingerprint.untrained
