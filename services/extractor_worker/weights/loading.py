"""Finds and reads a model's weights, so strictly that a wrong file is refused by name.

Weights come from a folder in the published layout, from the Hugging Face hub at a pinned commit, or are
`untrained`. They are safetensors files, pickles of tensors or ONNX graphs. This module knows no architecture:
callers say which tensors they expect. It imports no torch until tensors are read.

Messages name files within the checkpoint, never its location. The exception behind the message does.
"""

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from safetensors import SafetensorError, safe_open

from services.extractor_worker.weights.file_digest import sha256_of_file
from services.extractor_worker.weights.hub import HubFile
from speaker_registry.engine import PublishedWeights
from speaker_registry.errors import WeightsInvalid, WeightsMissing

if TYPE_CHECKING:
    from torch import Tensor

log = structlog.get_logger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PICKLE_OR_ONNX_SUFFIXES = frozenset({".pth", ".pt", ".ckpt", ".onnx"})
"""File name extensions of pickles and ONNX graphs. Every other file is expected to be safetensors."""
_OF_ANOTHER_MODEL = "of another model"
_CUSTOM_SETTING = "SPEAKER_EXTRACTOR_CUSTOM_WEIGHTS"
"""The setting that names the profiles whose folder holds other weights than the published ones."""
_MAX_LISTED = 3
"""The number of keys that an error message lists. Of further keys it gives only the number."""
_FLOATS = ("float32", "bfloat16", "float16")
"""The accepted types of weights. Integers and 8-bit types belong to quantised weights, whose scales are
unknown here.
"""
_COUNTER_SUFFIX = ".num_batches_tracked"
"""The end of the keys of batch norm's counters, which are integers that no result depends on."""
_MAX_JSON_BYTES = 64 * 1024**2
"""The largest accepted configuration file, a thousand times the usual size."""


@dataclass(frozen=True, slots=True)
class LocalWeights:
    """A folder with a checkpoint, or with a sub-folder for each profile that holds its checkpoint."""

    folder: Path
    custom: bool = False
    """True if the files differ from the published ones on purpose, for example because they are fine-tuned.
    """


@dataclass(frozen=True, slots=True)
class HubWeights:
    """Weights from the Hugging Face hub. The library's own settings apply (HF_TOKEN, HF_HOME,
    HF_HUB_OFFLINE).
    """

    revision: str | None = None
    """The commit to use instead of the catalogue's."""


@dataclass(frozen=True, slots=True)
class UntrainedWeights:
    """Seeded random weights in the published architecture."""

    seed: int = 0


WeightsSource = LocalWeights | HubWeights | UntrainedWeights


def parse_weights(text: str, *, custom: bool = False) -> WeightsSource:
    """Read the setting WEIGHTS: `untrained`, `hub`, `hub:<commit>`, or the path of a folder.

    Args:
        custom: see `LocalWeights`. Only a folder can be custom.

    Raises:
        WeightsInvalid: the text is empty, the hub revision is not a commit, or custom weights are not in a
            folder.
    """
    source, _, revision = text.strip().partition(":")
    if not source:
        raise WeightsInvalid("WEIGHTS is empty: `untrained`, `hub`, `hub:<commit>` or a folder is expected")
    if custom and source in {"untrained", "hub"}:
        raise WeightsInvalid(
            f"custom weights are expected in a folder, and WEIGHTS is {text.strip()!a}: name the folder "
            f"there, or take the profile out of {_CUSTOM_SETTING}"
        )
    if source == "untrained" and not revision:
        return UntrainedWeights()
    if source == "hub":
        return HubWeights(_commit(revision) if revision else None)
    return LocalWeights(Path(text.strip()).expanduser(), custom)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of one published model on this machine."""

    folder: Path
    repo: str | None
    """The repository on the hub. None for a folder, whose origin is unknown."""
    revision: str | None
    custom: bool = False
    """True if the files differ from the published ones on purpose, as in `LocalWeights`."""

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file. Raises WeightsInvalid if it is not a JSON object."""
        if (self.folder / name).stat().st_size > _MAX_JSON_BYTES:
            raise WeightsInvalid(f"{name} is larger than any configuration")
        try:
            content = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise WeightsInvalid(f"{name} is not JSON") from error
        if not isinstance(content, dict):
            raise WeightsInvalid(f"{name} is not a JSON object")
        return content

    def read_tensors(
        self,
        name: str,
        prefix: str,
        layout: Mapping[str, tuple[int, ...]],
        if_none: str = _OF_ANOTHER_MODEL,
        renamed: Callable[[str], str] = str,
        *,
        ignored: re.Pattern[str] | None = None,
    ) -> "dict[str, Tensor]":
        """Read the tensors under `prefix`, which must be exactly those of `layout`. Others are not read.

        Weights are returned as float32, which represents every value of the narrower types exactly. Counters
        that batch norm keeps for training are returned unchanged. On torch's `meta` device the
        result has no values.

        Args:
            name: the name of the file, which is safetensors, a pickle (`.pth`, `.pt`, `.ckpt`) of tensors by
                name, or an ONNX graph (`.onnx`), whose keys are
                `<node>:<index among its inputs>:<initialiser>`.
            prefix: the start of the keys in the file. `layout` and the result have keys without it.
            layout: maps each key to its shape.
            if_none: the description of a file without that prefix, for the message.
            renamed: returns the key of `layout`, with prefix, for a key in the file.
            ignored: matches keys under the prefix whose tensors are not read either.

        Raises:
            WeightsInvalid: the file is damaged; keys are missing, unexpected or of another shape; or a tensor
                is not of floating-point numbers, or has a value that is not finite.
        """
        with _opened(self.folder / name, name) as opened:
            return _selected(opened, name, _Wanted(prefix, layout, if_none, renamed, ignored))

    def read_parts(
        self, name: str, parts: Iterable[str], layout: Mapping[str, tuple[int, ...]], **options: Any
    ) -> "dict[str, Tensor]":
        """Read several parts of a file as `read_tensors` does, and keep the prefixes of their keys. The file
        is opened once.

        Args:
            name: the name of the file.
            parts: the prefix of each part. Tensors under other prefixes are not read.
            layout: maps each key, with its prefix, to its shape.
            options: further arguments of `read_tensors`.
        """
        tensors: dict[str, Tensor] = {}
        with _opened(self.folder / name, name) as opened:
            for part in parts:
                keys = [key for key in layout if key.startswith(part)]
                expected = {key.removeprefix(part): layout[key] for key in keys}
                found = _selected(opened, name, _Wanted(part, expected, **options))
                tensors |= {part + key: tensor for key, tensor in found.items()}
        return tensors

    def fingerprint_inputs(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the fingerprint inputs of weights: the source and SHA-256 of each file, and whether they are
        custom.
        """
        files = {name: sha256_of_file(self.folder / name) for name in names}
        inputs = {"untrained": False, "repo": self.repo, "revision": self.revision, "files": files}
        return inputs | ({"custom": True} if self.custom else {})


def locate(source: LocalWeights | HubWeights, *, profile: str, weights: PublishedWeights) -> Checkpoint:
    """Find the checkpoint of a profile, if necessary from the hub, and check that it has all its files.

    Args:
        source: the source of the weights.
        profile: the name of the profile, and of the sub-folder if the folder holds several checkpoints.
        weights: the files of the profile, and their repository.

    Raises:
        WeightsMissing: a file is missing. The message says which, where it is expected, and how to get it.
        WeightsInvalid: no commit is known, the hub delivered another one, or a file is not the published one.
    """
    if isinstance(source, HubWeights):
        checkpoint = _from_hub(source, profile, weights)
    else:
        checkpoint = _from_folder(source, profile, weights)
    advice = f"; to use another file on purpose, name the profile in {_CUSTOM_SETTING}"
    for name, sha256 in known_digests(source, weights).items():
        try:
            check_digest(checkpoint.folder / name, name, sha256, profile=profile, repo=weights.repo)
        except WeightsInvalid as error:
            raise WeightsInvalid(
                error.message + (advice if isinstance(source, LocalWeights) else "")
            ) from None
    return checkpoint


def known_digests(source: LocalWeights | HubWeights, weights: PublishedWeights) -> dict[str, str]:
    """Return the known SHA-256 digests by file name.

    None are known for files of another commit, and for custom files, which differ on purpose.
    """
    if isinstance(source, LocalWeights) and source.custom:
        return {}
    if isinstance(source, HubWeights) and source.revision not in {None, weights.commit}:
        return {}
    return {name: sha256 for name, sha256 in weights.files.items() if sha256 is not None}


def check_digest(path: Path, name: str, sha256: str, *, profile: str, repo: str) -> None:
    """Raise WeightsInvalid if the file's content does not have this SHA-256."""
    if (found := sha256_of_file(path)) != sha256:
        raise WeightsInvalid(
            f"{profile}: {name} is not the file that {repo} published: its sha256 is {found}, "
            f"{sha256} is expected"
        )


def download_command(profile: str, *, to: str | None = None, commit: str | None = None) -> str:
    """Return the command that fetches a profile's files, for the working directory of this process."""
    python, here = Path(sys.executable), Path.cwd()
    words = [str(python.relative_to(here)) if python.is_relative_to(here) else "python"]
    words += ["-m", "services.extractor_worker", "download", "--profiles", profile]
    words += ["--to", to] if to else []
    words += ["--commit", commit] if commit else []
    return shlex.join(words)


def commit_of(source: HubWeights, weights: PublishedWeights) -> str:
    """Return the commit to use. Raises WeightsInvalid if none is known, or the setting is no commit."""
    wanted = source.revision or weights.commit
    if wanted is None:
        raise WeightsInvalid(
            f"no commit of {weights.repo} is pinned: set WEIGHTS=hub:<commit>, the 40 hex digits the hub "
            f"shows for it"
        )
    return _commit(wanted)


def _from_hub(source: HubWeights, profile: str, weights: PublishedWeights) -> Checkpoint:
    commit, folder = commit_of(source, weights), Path()
    advice = download_command(profile, commit=source.revision)
    for name in weights.files:
        file = HubFile(repo=weights.repo, commit=commit, name=name)
        try:
            # Gigabytes take minutes, during which a worker would seem to hang.
            announce = partial(_announce, weights.repo, name)
            path = file.fetched(announce=announce)
        except WeightsMissing as error:
            raise type(error)(
                f"{profile}: {error.message}. Where the hub can be reached, `{advice}` gets it"
            ) from error
        except OSError as error:
            raise WeightsMissing(
                f"{profile}: {name} cannot be stored in the hub's cache ({error.strerror or error})"
            ) from error
        folder = path.parents[len(Path(name).parts) - 1]
    return Checkpoint(folder, weights.repo, commit)


def _announce(repo: str, name: str, size: int | None) -> None:
    log.info("weights.fetching", repo=repo, file=name, bytes=size)


def _from_folder(source: LocalWeights, profile: str, weights: PublishedWeights) -> Checkpoint:
    folder = source.folder
    own = folder / profile if (folder / profile).is_dir() else folder
    missing = [name for name in weights.files if not (own / name).is_file()]
    if missing:
        cause = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(own / missing[0]))
        command = download_command(profile, to="FOLDER", commit=None if weights.commit else "HEX")
        unpinned = "" if weights.commit else " (HEX: of the commit to take, the 40 digits that the hub shows)"
        raise WeightsMissing(
            f"{profile}: {_abbreviated(missing)} missing. The folder that WEIGHTS names must hold "
            f"{', '.join(weights.files)}, either itself or in a sub-folder {profile}/. Get them with "
            f"`{command}`{unpinned}, or set WEIGHTS=untrained to try things out"
        ) from cause
    return Checkpoint(own, None, None, source.custom)


def _commit(text: str) -> str:
    """Return a commit unchanged. Branches and tags are refused, because they move, and an artifact must name
    the exact weights that made it.
    """
    if not _COMMIT.fullmatch(text):
        raise WeightsInvalid(
            f"{text[:60]!a} is not a commit: 40 hex digits are expected, not a branch or tag"
        )
    return text


class _Opened(NamedTuple):
    """An open file of tensors: the shape of each, and a function that reads one."""

    shapes: Mapping[str, tuple[int, ...]]
    get_tensor: "Callable[[str], Tensor]"


@contextmanager
def _opened(path: Path, name: str) -> Iterator[_Opened]:
    """Open a file of tensors. Raises WeightsInvalid, also from the block, if it is damaged."""
    kind = "damaged or cut short"
    if path.suffix not in _PICKLE_OR_ONNX_SUFFIXES:
        kind = "damaged, cut short or not a safetensors file"
    try:
        with _opened_by_suffix(path, name) as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise WeightsInvalid(f"{name} is {kind}") from error


@contextmanager
def _opened_by_suffix(path: Path, name: str) -> Iterator[_Opened]:
    if path.suffix in _PICKLE_OR_ONNX_SUFFIXES:
        from services.extractor_worker.weights.tensor_files import tensors_of  # noqa: PLC0415 — it brings torch

        tensors = tensors_of(path, name)
        yield _Opened({key: tuple(tensor.shape) for key, tensor in tensors.items()}, tensors.__getitem__)
        return
    with safe_open(path, framework="pt") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 — not a dict
        yield _Opened(shapes, file.get_tensor)


class _Wanted(NamedTuple):
    """The tensors to read from a file, as the arguments of `Checkpoint.read_tensors` describe them."""

    prefix: str
    layout: Mapping[str, tuple[int, ...]]
    if_none: str = _OF_ANOTHER_MODEL
    renamed: Callable[[str], str] = str
    ignored: re.Pattern[str] | None = None

    def takes(self, key: str) -> bool:
        """Return whether a key in the file is that of a tensor to read."""
        return key.startswith(self.prefix) and not (self.ignored and self.ignored.search(key))


def _selected(opened: _Opened, name: str, wanted: _Wanted) -> "dict[str, Tensor]":
    """Return the wanted tensors of an open file, as `Checkpoint.read_tensors` does."""
    prefix, layout, renamed = wanted.prefix, wanted.layout, wanted.renamed
    keys = [key for key in opened.shapes if wanted.takes(key)]
    if not keys:
        raise WeightsInvalid(f"{name} has no {prefix}* tensors: it is {wanted.if_none}")
    found = {renamed(key): opened.shapes[key] for key in keys}
    if len(found) < len(keys):
        raise WeightsInvalid(f"{name} has two tensors where this architecture has one")
    _check_layout(name, found, {prefix + key: shape for key, shape in layout.items()})
    if _on_meta_device():
        return _empty_tensors(layout)
    return {renamed(key).removeprefix(prefix): _weight(name, key, opened.get_tensor(key)) for key in keys}


def _weight(name: str, key: str, tensor: "Tensor") -> "Tensor":
    """Return a weight as float32. Raises WeightsInvalid with file and key if it cannot be a weight."""
    if key.endswith(_COUNTER_SUFFIX):
        return tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _FLOATS:
        raise WeightsInvalid(f"{name}: {key} is of type {dtype}; accepted are {', '.join(_FLOATS)}")
    tensor = tensor.float()
    if not (finite := tensor.isfinite()).all():
        wrong = int((~finite).sum())
        raise WeightsInvalid(f"{name}: {key} has {wrong} of {tensor.numel()} values that are not finite")
    return tensor


def _on_meta_device() -> bool:
    import torch  # noqa: PLC0415 — this module imports no torch until tensors are read

    return torch.get_default_device().type == "meta"


def _empty_tensors(layout: Mapping[str, tuple[int, ...]]) -> "dict[str, Tensor]":
    import torch  # noqa: PLC0415 — as above

    return {key: torch.empty(shape) for key, shape in layout.items()}


def _check_layout(
    name: str, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    if missing := expected.keys() - found.keys():
        raise WeightsInvalid(f"{name} lacks {_abbreviated(missing)}")
    if unexpected := found.keys() - expected.keys():
        raise WeightsInvalid(f"{name} has {_abbreviated(unexpected)}, which this architecture does not")
    wrong = [
        f"{key} {list(found[key])} ({list(expected[key])})" for key in expected if found[key] != expected[key]
    ]
    if wrong:
        raise WeightsInvalid(f"{name} has wrong shapes (expected in brackets): {_abbreviated(wrong)}")


def _abbreviated(names: Collection[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(sorted(names)[:_MAX_LISTED]) + more
