"""WAV: RIFF chunks, of which only `fmt ` and `data` matter. The decoder gets a newly written header, so that
no other chunk of the upload reaches the decoding library.

A WAV that was written to a pipe declares 0 or 0xFFFFFFFF bytes, because its writer could not go back and fill
in the size. It cannot be told from a truncated file, so it is refused.
"""

import struct
from dataclasses import dataclass

from .. import rules
from ..refusal import Refused, Truncated
from ..sniffed import (
    Sniffed,
    is_padding,
    refuse,
    refuse_cut_off,
    refuse_remainder,
)

MAX_CHUNKS = 256

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_CODECS = {
    (_PCM, 8): "pcm_u8",
    (_PCM, 16): "pcm_s16le",
    (_PCM, 24): "pcm_s24le",
    (_PCM, 32): "pcm_s32le",
    (_FLOAT, 32): "pcm_f32le",
    (_FLOAT, 64): "pcm_f64le",
}
_NAMES = {
    _PCM: "PCM",
    0x0002: "Microsoft ADPCM",
    _FLOAT: "float",
    0x0006: "A-law",
    0x0007: "µ-law",
    0x0011: "IMA ADPCM",
    0x0031: "GSM 6.10",
    0x0050: "MPEG layer 2",
    0x0055: "MP3",
    0x00FF: "AAC",
    0x0161: "Windows Media Audio",
    _EXTENSIBLE: "an extension that is no wave format",
}
_SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")
"""The bytes after the two bytes of the wave format in the GUID of WAVE_FORMAT_EXTENSIBLE."""
_FORMS = (b"RIFF", b"RIFX", b"RF64", b"FORM")
"""Chunk names that would begin another file."""
_UNFINISHED_SIZES = (0, 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Format:
    tag: int
    channels: int
    sample_rate: int
    bits: int
    frame_bytes: int

    @property
    def bytes_per_second(self) -> int:
        return self.sample_rate * self.frame_bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    start: int
    declared: int
    """Number of bytes that the chunk's header declares."""


def parse(data: bytes) -> Sniffed:
    chunks = _chunks(data)
    for name in (b"fmt ", b"data"):
        if name not in chunks:
            raise Truncated(f"The WAV ends before its `{name.decode()}` chunk. Upload the whole file.")
    wave, audio = _format(data, chunks[b"fmt "]), chunks[b"data"]
    _check_declared_sizes(data, audio, wave)
    found = min(audio.declared, len(data) - audio.start)
    return Sniffed(
        container="wav",
        codec=_CODECS[wave.tag, wave.bits],
        payload=(_header(wave, found), memoryview(data)[audio.start : audio.start + found]),
        declared_seconds=audio.declared / wave.bytes_per_second,
    )


def _chunks(data: bytes) -> dict[bytes, Chunk]:
    """Return the chunks by name. Every byte of the file must belong to one. Only `data` may declare more
    bytes than there are, which is checked later.
    """
    chunks: dict[bytes, Chunk] = {}
    position = 12
    for _ in range(MAX_CHUNKS):
        if is_padding(data, position):
            return chunks
        name, chunk = _chunk(data, position, chunks)
        chunks.setdefault(name, chunk)
        position = chunk.start + chunk.declared + chunk.declared % 2
    raise Refused(f"The WAV has more than {MAX_CHUNKS} chunks.")


def _chunk(data: bytes, position: int, before: dict[bytes, Chunk]) -> tuple[bytes, Chunk]:
    """Return name and extent of the chunk whose header is at `position`. `before` has the chunks before
    it.
    """
    header = data[position : position + 8]
    name, chunk = header[:4], Chunk(position + 8, int.from_bytes(header[4:], "little"))
    if len(header) < 8 or not all(0x20 <= byte < 0x7F for byte in name):
        if b"data" in before and not before[b"data"].declared:
            refuse_cut_off("the WAV's data chunk", 0, len(data) - position)
        refuse_remainder("a WAV chunk", position, len(data))
    if name in _FORMS:
        raise Refused("The file holds several WAVs one after the other; one is accepted.")
    if name in (b"fmt ", b"data") and name in before:
        raise Refused(f"The WAV has two `{name.decode()}` chunks; one is accepted.")
    if name == b"data" and b"fmt " not in before:
        raise Refused("The WAV has no `fmt ` chunk before its audio.")
    if name != b"data" and chunk.start + chunk.declared > len(data):
        refuse_cut_off("a WAV chunk", chunk.declared, len(data) - chunk.start)
    return name, chunk


def _format(data: bytes, chunk: Chunk) -> Format:
    body = data[chunk.start : chunk.start + chunk.declared]
    if len(body) < 16:
        refuse_cut_off("the WAV's `fmt ` chunk", max(16, chunk.declared), len(body))
    tag, channels, sample_rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE:
        tag = _extended_tag(body)
    if (tag, bits) not in _CODECS:
        refuse(f"WAV with codec 0x{tag:04x} ({_NAMES.get(tag, 'unknown')}) of {bits} bits")
    rules.check_channels(channels)
    rules.check_sample_rate(sample_rate)
    if frame_bytes != channels * bits // 8:
        raise Refused(
            f"The WAV declares {frame_bytes} bytes per frame; "
            f"{channels} channels of {bits} bits take {channels * bits // 8}."
        )
    return Format(tag, channels, sample_rate, bits, frame_bytes)


def _extended_tag(body: bytes) -> int:
    """Read the wave format of a WAVE_FORMAT_EXTENSIBLE body: `cbSize` is at 16, then come 22 bytes with a
    GUID at the end.
    """
    if len(body) < 40 or not 22 <= int.from_bytes(body[16:18], "little") <= len(body) - 18:
        raise Refused(
            f"The WAV's extended format declares {int.from_bytes(body[16:18], 'little')} more bytes; "
            f"22 are expected and {max(0, len(body) - 18)} are there."
        )
    return int.from_bytes(body[24:26], "little") if body[26:40] == _SUBFORMAT_TAIL else _EXTENSIBLE


def _check_declared_sizes(data: bytes, audio: Chunk, wave: Format) -> None:
    tolerated = int(rules.TOLERANCE_SECONDS * wave.bytes_per_second)
    found = len(data) - audio.start
    if audio.declared > found + tolerated:
        refuse_cut_off("the WAV's data chunk", audio.declared, found)
    riff = int.from_bytes(data[4:8], "little")
    if riff in _UNFINISHED_SIZES or riff > len(data) - 8 + tolerated:
        refuse_cut_off("the WAV's RIFF header", riff, len(data) - 8)


def _header(wave: Format, size: int) -> bytes:
    """Build the 44 bytes of header before `size` bytes of audio."""
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + size + size % 2,
        b"WAVE",
        b"fmt ",
        16,
        wave.tag,
        wave.channels,
        wave.sample_rate,
        wave.bytes_per_second,
        wave.frame_bytes,
        wave.bits,
        b"data",
        size,
    )
