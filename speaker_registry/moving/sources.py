"""Reads the folders and tables that hold voices elsewhere: clips with transcripts, CSV and JSON lines, the
sample folders of vLLM-Omni and SGLang-Omni, and the reference folders of fish-speech.

Nothing is uploaded here, and no clip is read before it is wanted. Each reader yields candidates, and an
`Unusable` with the reason for everything else.
"""

import csv
import io
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from speaker_registry.artifact import read_tensors
from speaker_registry.embeddings import MAX_EMBEDDING_BYTES, parse_embedding
from speaker_registry.errors import InvalidRequest, SpeakerRegistryError
from speaker_registry.json_objects import without_duplicates
from speaker_registry.moving import FORMATS
from speaker_registry.moving.candidates import Found, Source, Texts, Unusable, candidate
from speaker_registry.moving.plain_files import read_inside, read_text_inside
from speaker_registry.names import key_of_name
from speaker_registry.safetensors_header import MAX_HEADER_BYTES, read_metadata
from speaker_registry.session import MAX_CLIP_BYTES

CLIP_SUFFIXES = frozenset({".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aac", ".m4a", ".mp4", ".webm"})
COLUMNS = ("name", "file", "text", "consent", "description")
MAX_ENTRIES = 100_000
"""Maximum number of files in a folder, or of lines in a table."""
_MAX_TABLE_BYTES = 64 * 1024**2
_MAX_CHANNELS = 8
_MAX_SAMPLE_RATE = 384_000


def recognize(path: Path) -> str:
    """Return which of `FORMATS` a file or folder has. Raises `InvalidRequest` if that is not clear."""
    if not path.is_dir():
        suffix = path.suffix.lower()
        if suffix in {".csv", ".jsonl", ".tar"}:
            return "archive" if suffix == ".tar" else suffix[1:]
        raise InvalidRequest(f"{str(path)!a} is neither a folder nor a .csv, .jsonl or .tar file")
    entries = _entries(path)
    kinds = set(filter(None, map(_kind, entries)))
    if len(kinds) == 1:
        return kinds.pop()
    found = f"files of the formats {' and '.join(sorted(kinds))}" if kinds else "nothing that is a voice"
    raise InvalidRequest(f"{str(path)!a} holds {found}; give the format by --format {{{','.join(FORMATS)}}}")


def _kind(entry: os.DirEntry[str]) -> str | None:
    suffix = Path(entry.name).suffix.lower()
    if entry.is_dir(follow_symlinks=False):
        return "fish-speech"
    return "samples" if suffix == ".safetensors" else "folder" if suffix in CLIP_SUFFIXES else None


def read(path: Path, form: str, consent: str | None, ignored_columns: Iterable[str] = ()) -> Iterator[Found]:
    """Read the voices of a folder or table.

    Args:
        form: One of `FORMATS`.
        consent: The consent of voices that come without one.
        ignored_columns: Columns of a table that the registry does not keep.

    Raises:
        InvalidRequest: The whole folder or table cannot be used. Single voices that cannot are yielded as
            `Unusable`.
    """
    if form in {"csv", "jsonl"}:
        return _read_table(path, form, consent, frozenset(ignored_columns))
    if not path.is_dir():
        raise InvalidRequest(f"{str(path)!a} is not a folder, as the format {form!r} requires")
    readers = {"folder": _read_folder, "samples": _read_samples, "fish-speech": _read_references}
    return readers[form](path, consent)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, sorted by name, without hidden files."""
    try:
        with os.scandir(folder) as scan:
            found = [entry for entry in scan if not entry.name.startswith(".")]
    except OSError as error:
        raise InvalidRequest(f"{str(folder)!a} cannot be read: {error.strerror}") from None
    if len(found) > MAX_ENTRIES:
        raise InvalidRequest(f"{str(folder)!a} has {len(found)} entries; at most {MAX_ENTRIES} are accepted")
    return sorted(found, key=lambda entry: entry.name)


def _read_folder(folder: Path, consent: str | None) -> Iterator[Found]:
    """Read clips with their transcripts: `alice.wav` and, if there is one, `alice.txt`.

    The two are matched as names of voices are, so `Alice.TXT` is a transcript of `alice.wav` as well.
    """
    names = [entry.name for entry in _entries(folder)]
    clips = {_key(name) for name in names if Path(name).suffix.lower() in CLIP_SUFFIXES}
    transcripts: dict[str, list[str]] = {}
    for name in names:
        if Path(name).suffix.lower() == ".txt":
            transcripts.setdefault(_key(name), []).append(name)
    for name in names:
        path = Path(name)
        if path.suffix.lower() in CLIP_SUFFIXES:
            beside = transcripts.get(_key(name), [])
            texts = partial(_texts_beside, folder, beside[0] if beside else None, consent)
            yield candidate(name, path.stem, texts, partial(_clip_of_folder, folder, name, beside))
        elif path.suffix.lower() != ".txt" or _key(name) not in clips:
            reason = "there is no clip of this name" if path.suffix.lower() == ".txt" else _not_a_clip()
            yield Unusable(where=name, error=InvalidRequest(reason))


def _key(file_name: str) -> str:
    """Return the key of the voice whose name a file has."""
    return key_of_name(Path(file_name).stem.strip())


def _not_a_clip() -> str:
    return f"not a clip; accepted: {', '.join(sorted(CLIP_SUFFIXES))}, with a transcript in NAME.txt"


def _clip_of_folder(folder: Path, name: str, transcripts: Sequence[str]) -> Source:
    """Read a clip. This refuses a clip with two transcripts, and not the reading of its texts, because only
    candidates take part in `check_distinct`: two clips of one name may have a transcript each.
    """
    if len(transcripts) > 1:
        raise InvalidRequest(
            f"there are {len(transcripts)} transcripts of this clip ({', '.join(transcripts[:5])}); "
            "accepted: at most one"
        )
    return _clip(folder, name)


def _texts_beside(folder: Path, transcript: str | None, consent: str | None) -> Texts:
    return Texts.of(consent, None if transcript is None else read_text_inside(folder, transcript))


def _clip(folder: Path, name: str) -> Source:
    return read_inside(folder, name, MAX_CLIP_BYTES)


def _read_references(folder: Path, consent: str | None) -> Iterator[Found]:
    """Read fish-speech's `references`: one folder per voice, with a clip and its transcript as `.lab`."""
    for entry in _entries(folder):
        if not entry.is_dir(follow_symlinks=False):
            reason = InvalidRequest(
                "not a folder; a voice of fish-speech is a folder with a clip and a .lab file"
            )
            yield Unusable(where=entry.name, error=reason)
            continue
        try:
            clip = _only_clip(Path(entry.path))
        except SpeakerRegistryError as error:
            yield Unusable(where=entry.name, error=error)
            continue
        relative = f"{entry.name}/{clip}"
        label = str(PurePosixPath(relative).with_suffix(".lab"))
        texts = partial(_texts_beside, folder, label, consent)
        yield candidate(relative, entry.name, texts, partial(_clip, folder, relative))


def _only_clip(folder: Path) -> str:
    clips = [entry.name for entry in _entries(folder) if Path(entry.name).suffix.lower() in CLIP_SUFFIXES]
    if len(clips) != 1:
        shown = ", ".join(clips[:5]) or "none"
        raise InvalidRequest(
            f"there are {len(clips)} clips ({shown}); a version of a voice is made from exactly one"
        )
    return clips[0]


def _read_samples(folder: Path, consent: str | None) -> Iterator[Found]:
    """Read the folder in which vLLM-Omni and SGLang-Omni keep uploaded voices, one safetensors file each."""
    for entry in _entries(folder):
        if Path(entry.name).suffix.lower() != ".safetensors":
            yield Unusable(where=entry.name, error=InvalidRequest("not a safetensors file"))
            continue
        try:
            head = read_inside(folder, entry.name, 8 + MAX_HEADER_BYTES, head_only=True)
            header = read_metadata(head)
        except SpeakerRegistryError as error:
            yield Unusable(where=entry.name, error=error)
            continue
        name = header.get("name") or header.get("voice_name_lower") or ""
        yield candidate(
            entry.name, name, partial(_texts_of_header, header, consent), partial(_sample, folder, entry.name)
        )


def _texts_of_header(header: Mapping[str, str], consent: str | None) -> Texts:
    return Texts.of(
        header.get("consent") or consent, header.get("ref_text"), header.get("speaker_description")
    )


def _sample(folder: Path, name: str) -> Source:
    """Return the clip of a sample file as WAV, or its speaker embedding as float32 [D]."""
    data = read_inside(folder, name, MAX_CLIP_BYTES)
    tensors, _ = read_tensors(data)
    kept = sorted(tensors.keys() & {"audio", "speaker_embedding"})
    if len(kept) != 1:
        raise InvalidRequest(
            f"the file has the tensors {sorted(tensors)!a}; accepted: 'audio' or 'speaker_embedding'"
        )
    tensor = tensors[kept[0]]
    if tensor.dtype != np.float32 or not tensor.size:
        raise InvalidRequest(
            f"tensor {kept[0]!r} is {tensor.dtype} {list(tensor.shape)}; accepted: float32, not empty"
        )
    if kept == ["speaker_embedding"]:
        return tensor.reshape(-1)
    return wav_file(tensor, _sample_rate(read_metadata(data).get("sample_rate", "")))


def _sample_rate(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 0 < int(text) <= _MAX_SAMPLE_RATE:
        raise InvalidRequest(f"the header's sample_rate is {text[:40]!a}; accepted: 1 to {_MAX_SAMPLE_RATE}")
    return int(text)


def wav_file(samples: np.ndarray, sample_rate: int) -> bytes:
    """Encode samples as a WAV file of 32-bit floats, which rounds nothing.

    Args:
        samples: float32 [N], or [N, channels] with up to eight channels.
        sample_rate: Samples per second (Hz).

    Raises:
        InvalidRequest: The samples have another shape.
    """
    channels = 1 if samples.ndim == 1 else samples.shape[-1]
    if samples.ndim not in {1, 2} or not 1 <= channels <= _MAX_CHANNELS:
        raise InvalidRequest(
            f"tensor 'audio' has shape {list(samples.shape)}; accepted: [N], or [N, channels] with up to "
            f"{_MAX_CHANNELS} channels"
        )
    data, frame = samples.astype("<f4").tobytes(), 4 * channels
    form = struct.pack("<HHIIHH", 3, channels, sample_rate, sample_rate * frame, frame, 32)
    fact = struct.pack("<I", len(samples))
    chunks = b"".join(
        kind + struct.pack("<I", len(body)) + body
        for kind, body in ((b"fmt ", form), (b"fact", fact), (b"data", data))
    )
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def _read_table(path: Path, form: str, consent: str | None, ignored: frozenset[str]) -> Iterator[Found]:
    """Read a table whose lines name a voice each. Its files lie beside it, or in folders there."""
    try:
        text = read_inside(path.parent, path.name, _MAX_TABLE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{str(path)!a} is not UTF-8 text") from None
    rows = _csv_rows(text, ignored) if form == "csv" else _json_rows(text)
    for count, (number, row) in enumerate(rows):
        if count == MAX_ENTRIES:
            raise InvalidRequest(f"{str(path)!a} has more than {MAX_ENTRIES} voices, which is the maximum")
        where = f"line {number}"
        yield (
            Unusable(where=where, error=row)
            if isinstance(row, InvalidRequest)
            else _of_row(path.parent, where, row, consent, ignored)
        )


Row = Mapping[str, Any] | InvalidRequest


def _csv_rows(text: str, ignored: frozenset[str]) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        head = [column.strip().lower() for column in next(reader, [])]
        _check_columns(head, ignored)
        for cells in reader:
            if cells and len(cells) != len(head):
                yield reader.line_num, InvalidRequest(f"{len(cells)} cells, but the head has {len(head)}")
            elif cells:
                yield reader.line_num, dict(zip(head, cells, strict=True))
    except csv.Error as error:
        raise InvalidRequest(f"line {reader.line_num} is not valid CSV: {error}") from None


def _json_rows(text: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=without_duplicates)
        except (ValueError, RecursionError):
            row = None
        refusal = InvalidRequest("not a JSON object, or one with duplicate keys")
        yield number, row if isinstance(row, dict) else refusal


def _check_columns(head: list[str], ignored: frozenset[str]) -> None:
    """Raise `InvalidRequest` for columns that are missing, duplicated or unknown."""
    twice = sorted({column for column in head if head.count(column) > 1})
    missing = sorted({"name", "file"} - {*head})
    if twice or missing:
        wrong = f"has {twice} twice" if twice else f"lacks {missing}"
        hint = ", separated by commas, not by semicolons" if any(";" in column for column in head) else ""
        raise InvalidRequest(f"the first line {wrong}; accepted columns: {', '.join(COLUMNS)}{hint}")
    if unknown := sorted({*head} - {*COLUMNS} - ignored):
        raise InvalidRequest(
            f"the registry does not keep the columns {unknown!a}; accepted: {', '.join(COLUMNS)}. "
            "--ignore-column NAME leaves a column out"
        )


def _of_row(
    folder: Path, where: str, row: Mapping[str, Any], consent: str | None, ignored: frozenset[str]
) -> Found:
    try:
        _check_columns([*map(str, row)], ignored)
        values = {column: _value(row, column) for column in COLUMNS}
    except InvalidRequest as error:
        return Unusable(where=where, error=error)
    texts = partial(Texts.of, values["consent"] or consent, values["text"], values["description"])
    load = _embedding if values["file"].lower().endswith(".json") else _clip
    return candidate(
        f"{where} ({values['file']})", values["name"], texts, partial(load, folder, values["file"])
    )


def _value(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column) or ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{column!r} is {ascii(value)[:80]}; accepted: text")
    return value.strip()


def _embedding(folder: Path, name: str) -> Source:
    return parse_embedding(read_inside(folder, name, MAX_EMBEDDING_BYTES), ascii(name)).astype(np.float32)
