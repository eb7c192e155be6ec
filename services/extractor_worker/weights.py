"""Where a model's weights come from, and reading them so strictly that a wrong file is refused by name.

Sources: a folder in the published layout, the Hugging Face hub pinned by commit, or `untrained`. What is
published as a pickle is read once, by torch's reader that runs no code, and kept as safetensors. Knows no
architecture: callers say which tensors they expect.

Messages name files within the checkpoint and never where it lies; the exception they come from does.
"""

import errno
import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from services.shared.published_weights import PublishedWeights
from speaker_registry.errors import WeightsInvalid, WeightsMissing

_COMMIT = re.compile(r"[0-9a-f]{40}")
PICKLES = frozenset({".pth", ".pt", ".ckpt"})
_WRAPPERS = ("state_dict", "generator", "model")
"""Names under which training code puts the tensors it saves."""
_NAMED = 3
"""Keys an error lists before it only counts."""


@dataclass(frozen=True, slots=True)
class LocalWeights:
    """A folder that is a checkpoint, or that holds one per profile in sub-folders named like the profiles."""

    folder: Path


@dataclass(frozen=True, slots=True)
class HubWeights:
    """The Hugging Face hub. The library's own settings apply (HF_TOKEN, HF_HOME, HF_HUB_OFFLINE)."""

    revision: str | None = None
    """Commit to use instead of the one the catalogue names."""
    local_files_only: bool = False
    cache: Path | None = None
    """Instead of the library's default."""


@dataclass(frozen=True, slots=True)
class UntrainedWeights:
    """Seeded random weights in the published architecture."""

    seed: int = 0


WeightsSource = LocalWeights | HubWeights | UntrainedWeights


def parse_weights(text: str) -> WeightsSource:
    """Read the setting WEIGHTS: `untrained`, `hub`, `hub:<commit>`, or the path of a folder.

    Raises:
        WeightsInvalid: empty, or a hub revision that is not a commit.
    """
    source, _, revision = text.strip().partition(":")
    if not source:
        raise WeightsInvalid("WEIGHTS is empty: `untrained`, `hub`, `hub:<commit>` or a folder is expected")
    if source == "untrained" and not revision:
        return UntrainedWeights()
    if source == "hub":
        return HubWeights(_commit(revision) if revision else None)
    return LocalWeights(Path(text.strip()).expanduser())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of one published model on this machine."""

    folder: Path
    repo: str | None
    """Where on the hub they are from; None for a folder, which could be from anywhere."""
    revision: str | None

    def read_json(self, name: str) -> dict[str, Any]:
        """Raises WeightsInvalid for a file that is not a JSON object."""
        try:
            content = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise WeightsInvalid(f"{name} is not JSON") from error
        if not isinstance(content, dict):
            raise WeightsInvalid(f"{name} is not a JSON object")
        return content

    def read_tensors(
        self, name: str, prefix: str, layout: Mapping[str, tuple[int, ...]], if_none: str = "of another model"
    ) -> dict[str, Tensor]:
        """Read the tensors under `prefix`, which must be exactly those of `layout`; others are left alone.

        Args:
            name: of the file: safetensors, or a pickle (`.pth`, `.pt`, `.ckpt`) of tensors by name.
            prefix: of the keys in the file; `layout` and the result go without.
            layout: key -> shape.
            if_none: what the file is when no key has the prefix.

        Raises:
            WeightsInvalid: the file is damaged, or keys are missing, unexpected or of another shape.
        """
        try:
            with safe_open(self._safetensors(name), framework="pt") as file:
                keys = [key for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118 — not a dict
                if not keys:
                    raise WeightsInvalid(f"{name} has no {prefix}* tensors: it is {if_none}")
                found = {key: tuple(file.get_slice(key).get_shape()) for key in keys}
                _check_layout(name, found, {prefix + key: shape for key, shape in layout.items()})
                return {key.removeprefix(prefix): file.get_tensor(key) for key in keys}
        except (SafetensorError, OSError) as error:
            raise WeightsInvalid(f"{name} is damaged, cut short or not a safetensors file") from error

    def _safetensors(self, name: str) -> Path:
        path = self.folder / name
        return converted(path, name) if path.suffix in PICKLES else path

    def facts(self, names: Iterable[str]) -> dict[str, Any]:
        """What a fingerprint says of weights: source and sha256 of each file."""
        files = {name: sha256_of_file(self.folder / name) for name in names}
        return {"untrained": False, "repo": self.repo, "revision": self.revision, "files": files}


def locate(source: LocalWeights | HubWeights, *, profile: str, weights: PublishedWeights) -> Checkpoint:
    """Find the checkpoint of a profile, from the hub if need be, and see that all its files are there.

    Args:
        source: where to look.
        profile: name of the sub-folder, where the folder holds several checkpoints.
        weights: which files of which repository.

    Raises:
        WeightsMissing: naming the first missing file, what is expected where, and how to get it.
        WeightsInvalid: no commit is known, the hub delivered another one, or a file is not the published one.
    """
    repo, files = weights.repo, list(weights.files)
    if isinstance(source, HubWeights):
        checkpoint, advice = (
            _from_hub(source, repo, weights.commit, files),
            f"{repo} does not have it at that commit",
        )
    else:
        own = source.folder / profile
        checkpoint = Checkpoint(own if own.is_dir() else source.folder, None, None)
        advice = (
            f"The folder that WEIGHTS names must hold {', '.join(files)}, either itself or in a sub-folder "
            f"{profile}/. Get them with `hf download {repo} {' '.join(files)} --local-dir <folder>`, or set "
            f"WEIGHTS=untrained to try things out"
        )
    missing = [name for name in files if not (checkpoint.folder / name).is_file()]
    if missing:
        cause = FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(checkpoint.folder / missing[0])
        )
        raise WeightsMissing(f"{profile}: {_few(missing)} missing. {advice}") from cause
    for name, sha256 in weights.files.items():
        if sha256 is not None and sha256_of_file(checkpoint.folder / name) != sha256:
            raise WeightsInvalid(
                f"{profile}: {name} is not the file that {repo} published: its sha256 is "
                f"{sha256_of_file(checkpoint.folder / name)}, {sha256} is expected"
            )
    return checkpoint


def converted(path: Path, name: str) -> Path:
    """The tensors of a pickle as a safetensors file, made the first time it is asked for.

    Only torch's own types are unpickled (`weights_only`), so a hostile file can be no more than wrong.

    Args:
        name: of the file, for messages.

    Raises:
        WeightsInvalid: it is no pickle of tensors by name.
    """
    cache = Path(os.environ.get("SPEAKER_EXTRACTOR_CACHE", "~/.cache/speaker-registry")).expanduser()
    target = cache / f"{sha256_of_file(path)}.safetensors"
    if not target.is_file():
        tensors = _unpickle(path, name)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            part = Path(folder) / target.name
            # Cloned: safetensors refuses tensors that share memory.
            save_file({key: tensor.clone().contiguous() for key, tensor in tensors.items()}, part)
            part.replace(target)
    return target


def _unpickle(path: Path, name: str) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        raise WeightsInvalid(f"{name} is damaged, cut short or holds more than tensors") from error
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    found = content if isinstance(content, Mapping) else {}
    tensors = {str(key): value for key, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsInvalid(f"{name} holds no tensors by name")
    return tensors


def sha256_of_file(path: Path) -> str:
    """Hex digest. Remembered for as long as path, size and time of change stay the same."""
    status = path.stat()
    return _sha256(path.resolve(), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, _size: int, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_hub(source: HubWeights, repo: str, revision: str | None, files: Sequence[str]) -> Checkpoint:
    wanted = source.revision or revision
    if wanted is None:
        raise WeightsInvalid(
            f"no commit of {repo} is pinned: set WEIGHTS=hub:<commit>, the 40 hex digits the hub shows for it"
        )
    commit = _commit(wanted)
    try:
        folder = snapshot_download(
            repo,
            revision=commit,
            allow_patterns=list(files),
            cache_dir=source.cache,
            local_files_only=source.local_files_only,
        )
    except (HfHubHTTPError, OSError) as error:  # LocalEntryNotFoundError is an OSError
        raise WeightsMissing(
            f"{repo} at commit {commit} is neither cached nor to be had from the hub ({type(error).__name__})"
        ) from error
    if Path(folder).name != commit:
        raise WeightsInvalid(
            f"asked for {repo} at commit {commit}, the hub delivered {Path(folder).name:.40}"
        )
    return Checkpoint(Path(folder), repo, commit)


def _commit(text: str) -> str:
    """Branches and tags move, and an artifact must say what made it."""
    if not _COMMIT.fullmatch(text):
        raise WeightsInvalid(
            f"{text[:60]!a} is not a commit: 40 hex digits are expected, not a branch or tag"
        )
    return text


def _check_layout(
    name: str, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    if missing := expected.keys() - found.keys():
        raise WeightsInvalid(f"{name} lacks {_few(missing)}")
    if unexpected := found.keys() - expected.keys():
        raise WeightsInvalid(f"{name} has {_few(unexpected)}, which this architecture does not")
    wrong = [
        f"{key} {list(found[key])} ({list(expected[key])})" for key in expected if found[key] != expected[key]
    ]
    if wrong:
        raise WeightsInvalid(f"{name} has wrong shapes (expected in brackets): {_few(wrong)}")


def _few(names: Collection[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(sorted(names)[:_NAMED]) + more
