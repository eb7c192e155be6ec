"""The sources of weights, and the strict reader that all extractors read their files with.

The tests of an extractor only check what it asks the reader for: which parts, and which configuration.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from structlog.testing import capture_logs

from services.extractor_worker.weights import hub
from services.extractor_worker.weights import loading as weights
from services.extractor_worker.weights.file_digest import sha256_of_file
from services.extractor_worker.weights.loading import (
    HubWeights,
    LocalWeights,
    UntrainedWeights,
    locate,
    parse_weights,
)
from speaker_registry.engine import PublishedWeights
from speaker_registry.errors import WeightsInvalid, WeightsMissing
from tests.unit.extractors.conftest import TINY

NAN, INFINITY = float("nan"), float("inf")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = (
    "config.json",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
)
REPO = "example/voice-model"


def find(source: LocalWeights | HubWeights, revision: str | None = None) -> weights.Checkpoint:
    published = PublishedWeights.model_construct(
        repo=REPO, commit=revision, licence="none", files=dict.fromkeys(FILES)
    )
    return locate(source, profile="qwen3-tts-0.6b", weights=published)


@pytest.fixture
def cache(hub_cache: Path) -> Path:
    """A hub cache that holds the tiny checkpoint as REPO at COMMIT."""
    shutil.copytree(TINY, hub_cache / f"models--{REPO.replace('/', '--')}" / "snapshots" / COMMIT)
    return hub_cache


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("untrained", UntrainedWeights(seed=0)),
        ("hub", HubWeights(None)),
        (f"hub:{COMMIT}", HubWeights(COMMIT)),
        ("/srv/weights", LocalWeights(Path("/srv/weights"))),
        (" ./hub ", LocalWeights(Path("hub"))),
    ],
)
def test_the_setting_names_a_source(text: str, source: weights.WeightsSource) -> None:
    """One variable names each of the three sources."""
    assert parse_weights(text) == source


def test_a_tilde_is_home() -> None:
    """No shell expands a tilde in an environment file."""
    assert parse_weights("~/weights") == LocalWeights(Path.home() / "weights")


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], COMMIT.upper(), COMMIT + "0"])
def test_a_branch_a_tag_or_half_a_commit_is_refused(revision: str) -> None:
    """Branches and tags move, so the same fingerprint would later stand for other weights."""
    with pytest.raises(WeightsInvalid, match=f"'{revision}' is not a commit: 40 hex digits"):
        parse_weights(f"hub:{revision}")


def test_a_folder_may_hold_custom_weights() -> None:
    assert parse_weights("/srv/weights", custom=True) == LocalWeights(Path("/srv/weights"), custom=True)


@pytest.mark.parametrize("text", ["untrained", "hub", f"hub:{COMMIT}"])
def test_custom_weights_that_are_no_folder_are_refused(text: str) -> None:
    """Otherwise published or random weights would be taken for custom ones."""
    with pytest.raises(
        WeightsInvalid, match=f"expected in a folder, and WEIGHTS is '{text}': name the folder"
    ):
        parse_weights(text, custom=True)


def another(copy: Path, *, custom: bool) -> weights.Checkpoint:
    """Locate the copy as if other files had been published."""
    published = PublishedWeights(repo=REPO, licence="none", files=dict.fromkeys(FILES, "0" * 64))
    return locate(LocalWeights(copy, custom), profile="qwen3-tts-0.6b", weights=published)


def test_a_folder_with_other_files_than_the_published_ones_is_refused_unless_that_is_meant(
    copy: Path,
) -> None:
    """The folder may hold a fine-tuned or resaved model on purpose.

    A file that is there by mistake is refused.
    """
    with pytest.raises(
        WeightsInvalid, match="to use another file on purpose, name the profile in SPEAKER_EXTR"
    ):
        another(copy, custom=False)
    checkpoint = another(copy, custom=True)
    sum_of_tensors = sha256_of_file(copy / "model.safetensors")
    assert checkpoint.fingerprint_inputs(["model.safetensors"]) == {
        "untrained": False,
        "repo": None,
        "revision": None,
        "files": {"model.safetensors": sum_of_tensors},
        "custom": True,
    }


def test_an_empty_setting_says_what_is_accepted() -> None:
    """An unset variable in a deployment file must not mean the current folder."""
    with pytest.raises(WeightsInvalid, match="WEIGHTS is empty: `untrained`, `hub`"):
        parse_weights("  ")


def test_the_folder_may_be_the_checkpoint_or_hold_it_under_the_profiles_name(tmp_path: Path) -> None:
    """A folder may hold one model or several."""
    shutil.copytree(TINY, tmp_path / "models/qwen3-tts-0.6b")
    assert find(LocalWeights(TINY)).folder == TINY
    assert find(LocalWeights(tmp_path / "models")).folder == tmp_path / "models/qwen3-tts-0.6b"


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_folder_without_weights_says_what_is_expected_where_and_how_to_get_it(
    tmp_path: Path, folder: str
) -> None:
    """Most users meet this error first."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsMissing) as caught:
        find(LocalWeights(tmp_path / folder))
    message = str(caught.value)
    assert "config.json, model.safetensors, speech_tokenizer/config.json and 1 more missing" in message
    assert "either itself or in a sub-folder qwen3-tts-0.6b/" in message
    # The name of the interpreter is that of the process.
    command = "-m services.extractor_worker download --profiles qwen3-tts-0.6b --to FOLDER --commit HEX"
    assert f"{command}` (HEX: of the commit" in message
    assert "WEIGHTS=untrained" in message


def test_a_missing_file_is_named_without_saying_where_the_folder_lies(copy: Path) -> None:
    """Job errors reach callers, so only the cause, which is logged, has the path."""
    (copy / "speech_tokenizer/model.safetensors").unlink()
    with pytest.raises(WeightsMissing, match=r"speech_tokenizer/model.safetensors missing\. ") as caught:
        find(LocalWeights(copy))
    assert str(copy) not in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.__cause__.errno == errno.ENOENT
    assert str(copy) in str(caught.value.__cause__)


@pytest.mark.usefixtures("cache")
def test_a_cached_snapshot_is_used_without_a_network() -> None:
    """Workers must be able to restart where the hub cannot be reached."""
    checkpoint = find(HubWeights(COMMIT))
    assert (checkpoint.repo, checkpoint.revision) == (REPO, COMMIT)
    assert checkpoint.read_json("config.json")["model_type"] == "qwen3_tts"


def test_a_file_that_has_to_be_fetched_is_logged_with_its_size(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes take minutes, and a worker that says nothing meanwhile seems to hang."""
    snapshot = cache / f"models--{REPO.replace('/', '--')}" / "snapshots" / COMMIT

    def delivered(_: str, name: str, *, dry_run: bool, **__: Any) -> Any:
        planned = SimpleNamespace(commit_hash=COMMIT, file_size=7, will_download=name == "config.json")
        return planned if dry_run else str(snapshot / name)

    monkeypatch.setattr(hub, "hf_hub_download", delivered)
    with capture_logs() as logs:
        find(HubWeights(COMMIT))
    [line] = logs
    assert (line["event"], line["file"], line["bytes"]) == ("weights.fetching", "config.json", 7)


@pytest.mark.usefixtures("cache")
def test_the_settings_commit_wins_over_the_catalogues() -> None:
    """Operators can try a newer commit without changing code."""
    source = HubWeights(COMMIT)
    assert find(source, revision="f" * 40).revision == COMMIT
    assert find(HubWeights(), revision=COMMIT).revision == COMMIT


@pytest.mark.usefixtures("cache")
def test_the_hub_without_a_commit_is_refused() -> None:
    """The newest commit may be any weights."""
    with pytest.raises(WeightsInvalid, match=f"no commit of {REPO} is pinned: set WEIGHTS=hub:<commit>"):
        find(HubWeights())
    with pytest.raises(WeightsInvalid, match="'main' is not a commit"):
        find(HubWeights(), revision="main")


@pytest.mark.usefixtures("cache")
def test_a_commit_that_cannot_be_had_is_missing_weights() -> None:
    """The error is a message, not the stack trace of a library."""
    with pytest.raises(
        WeightsMissing, match=f"{REPO} at commit {'f' * 40} is not cached, and the hub cannot deliver it"
    ):
        find(HubWeights("f" * 40))


def test_a_snapshot_of_another_commit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror may answer with a commit that was not asked for."""
    answer = SimpleNamespace(commit_hash="f" * 40, file_size=1, will_download=True)
    monkeypatch.setattr(hub, "hf_hub_download", lambda *_, **__: answer)
    with pytest.raises(WeightsInvalid, match=f"at commit {COMMIT}, the hub delivered {'f' * 40}"):
        find(HubWeights(COMMIT))


def test_a_snapshot_without_one_of_the_files_names_it(cache: Path) -> None:
    """The repository's layout has changed, or a download was cut off."""
    next(cache.rglob("snapshots/*/speech_tokenizer/config.json")).unlink()
    with pytest.raises(WeightsMissing, match=r"speech_tokenizer/config\.json missing") as caught:
        find(HubWeights(COMMIT))
    assert REPO in str(caught.value)


def test_the_digest_follows_the_files_content(copy: Path) -> None:
    """The digest is remembered only as long as the file does not change."""
    file = copy / "model.safetensors"
    first = sha256_of_file(file)
    assert first == hashlib.sha256(file.read_bytes()).hexdigest() == sha256_of_file(file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))
    assert sha256_of_file(file) == hashlib.sha256(content).hexdigest() != first


def one_tensor(folder: Path, tensor: torch.Tensor, key: str = "layer.weight") -> weights.Checkpoint:
    save_file({key: tensor}, folder / "model.safetensors")
    return weights.Checkpoint(folder, None, None)


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_that_is_not_finite_is_refused_by_file_and_key(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    """An encoder of codes would not fail. The entry nearest to NaN is the first, so all codes would be 0."""
    weight = torch.ones(2, 3, dtype=dtype)
    weight[1, 2] = value
    checkpoint = one_tensor(tmp_path, weight)
    with pytest.raises(WeightsInvalid) as caught:
        checkpoint.read_tensors("model.safetensors", "", {"layer.weight": (2, 3)})
    assert str(caught.value) == "model.safetensors: layer.weight has 1 of 6 values that are not finite"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "float8_e4m3fn", "float64"])
def test_a_weight_of_another_type_is_refused_by_file_and_key(tmp_path: Path, dtype: str) -> None:
    """Quantised weights mean nothing without their scales, which are not read."""
    checkpoint = one_tensor(tmp_path, torch.ones(2, 3).to(getattr(torch, dtype)))
    with pytest.raises(WeightsInvalid) as caught:
        checkpoint.read_tensors("model.safetensors", "", {"layer.weight": (2, 3)})
    assert str(caught.value) == (
        f"model.safetensors: layer.weight is of type {dtype}; accepted are float32, bfloat16, float16"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_any_published_type_are_read_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    """Encoders compute in float32 and would fail with weights of another type."""
    weight = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = one_tensor(tmp_path, weight).read_tensors("model.safetensors", "", {"layer.weight": (2, 3)})
    assert found["layer.weight"].dtype == torch.float32
    assert torch.equal(found["layer.weight"].to(dtype), weight)


def test_the_counters_of_batch_norm_may_be_integers(tmp_path: Path) -> None:
    key = "norm.num_batches_tracked"
    checkpoint = one_tensor(tmp_path, torch.tensor(7), key)
    assert checkpoint.read_tensors("model.safetensors", "", {key: ()})[key] == 7


ENCODER = {"layer.weight": (2, 3), "layer.bias": (2,)}
"""The layout that the tests below expect under `encoder.`."""
Tensors = dict[str, torch.Tensor]


def read_encoder(folder: Path, changes: Tensors, *left_out: str, **options: Any) -> Tensors:
    """Read `ENCODER` from a file that has `changes`, lacks `left_out`, and has a decoder."""
    tensors = {f"encoder.{key}": torch.ones(shape) for key, shape in ENCODER.items()}
    tensors |= {"decoder.bias": torch.ones(5), **changes}
    kept = {key: tensor for key, tensor in tensors.items() if key not in left_out}
    save_file(kept, folder / "model.safetensors")
    checkpoint = weights.Checkpoint(folder, None, None)
    return checkpoint.read_tensors("model.safetensors", "encoder.", ENCODER, **options)


def refuses(message: str) -> AbstractContextManager[object]:
    return pytest.raises(WeightsInvalid, match=f"^{re.escape(message)}$")


def test_only_tensors_under_the_prefix_are_read(tmp_path: Path) -> None:
    """Published files also hold decoders and language models."""
    assert read_encoder(tmp_path, {}).keys() == ENCODER.keys()


def test_ignored_keys_under_the_prefix_are_not_read(tmp_path: Path) -> None:
    found = read_encoder(tmp_path, {"encoder.table": torch.ones(9)}, ignored=re.compile("table$"))
    assert found.keys() == ENCODER.keys()


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    """Libraries would fill it with random numbers and carry on."""
    with refuses("model.safetensors lacks encoder.layer.bias"):
        read_encoder(tmp_path, {}, "encoder.layer.bias")


def test_an_unexpected_key_is_named(tmp_path: Path) -> None:
    """Otherwise a larger model would lose a layer unnoticed."""
    with refuses("model.safetensors has encoder.more.bias, which this architecture does not"):
        read_encoder(tmp_path, {"encoder.more.bias": torch.ones(2)})


def test_many_wrong_keys_are_counted(tmp_path: Path) -> None:
    """Three names show which model it is. A list of all would be hard to read."""
    more = {f"encoder.more.{index}": torch.ones(2) for index in range(9)}
    with refuses(
        "model.safetensors has encoder.more.0, encoder.more.1, encoder.more.2 and 6 more, "
        "which this architecture does not"
    ):
        read_encoder(tmp_path, more)


@pytest.mark.parametrize(
    ("key", "shape", "expected"), [("weight", [1, 3], [2, 3]), ("weight", [6], [2, 3]), ("bias", [3], [2])]
)
def test_a_wrong_shape_is_named_with_the_right_one(
    tmp_path: Path, key: str, shape: list[int], expected: list[int]
) -> None:
    """The usual sign of a configuration from one model beside the weights of another."""
    with refuses(
        f"model.safetensors has wrong shapes (expected in brackets): encoder.layer.{key} {shape} ({expected})"
    ):
        read_encoder(tmp_path, {f"encoder.layer.{key}": torch.ones(shape)})


def test_a_file_of_another_model_is_called_that(tmp_path: Path) -> None:
    """No key has the prefix. Callers may know which model it is then."""
    without = [f"encoder.{key}" for key in ENCODER]
    with refuses("model.safetensors has no encoder.* tensors: it is of another model"):
        read_encoder(tmp_path, {}, *without)
    with refuses("model.safetensors has no encoder.* tensors: it is a VoiceDesign model"):
        read_encoder(tmp_path, {}, *without, if_none="a VoiceDesign model")


def test_two_keys_that_are_renamed_to_one_are_refused(tmp_path: Path) -> None:
    """It cannot be known which of the two tensors is meant."""
    extra = {"encoder.other.bias": torch.ones(2)}
    with refuses("model.safetensors has two tensors where this architecture has one"):
        read_encoder(tmp_path, extra, renamed=lambda key: key.replace("other", "layer"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda _: b"",
        lambda _: b"PK\x03\x04" * 99,
    ],
)
def test_a_file_that_is_not_whole_safetensors_is_named(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    """The file is a download cut short, is empty, or is a pickle with a wrong name."""
    checkpoint = one_tensor(tmp_path, torch.ones(2, 3))
    file = tmp_path / "model.safetensors"
    content = spoil(file.read_bytes())
    file.unlink()
    file.write_bytes(content)
    with refuses("model.safetensors is damaged, cut short or not a safetensors file"):
        checkpoint.read_tensors("model.safetensors", "", {"layer.weight": (2, 3)})


@pytest.mark.parametrize(
    ("content", "what"), [("{", "not JSON"), ("", "not JSON"), ("[]", "not a JSON object")]
)
def test_a_configuration_that_is_not_a_json_object_is_refused(
    tmp_path: Path, content: str, what: str
) -> None:
    """The error of the JSON library would not name the file."""
    (tmp_path / "config.json").write_text(content)
    with refuses(f"config.json is {what}"):
        weights.Checkpoint(tmp_path, None, None).read_json("config.json")
