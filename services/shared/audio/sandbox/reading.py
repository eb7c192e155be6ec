"""Reading of a clip with libsndfile or libav, in blocks, until its end or until it is too long.

This module only measures, and the parent judges. It runs only in a guarded process, because the libraries may
crash.
"""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import av
import numpy as np
import soundfile
from av.stream import Disposition
from numpy.typing import NDArray

from .sniff import sniff
from .sniffed import Sniffed
from .wire import PLAUSIBLE_SECONDS, Measurements, Request, Status

Samples = NDArray[np.float32]

BLOCK_SAMPLES = 1 << 16
"""Samples per block over all channels. This bounds the memory for mixing down 8 channels at 192 kHz."""
FINE_BLOCK_SAMPLES = 1 << 9
"""Block size for a second reading of a damaged clip, which shows how far it can be read."""

FULL_SCALE = 0.99
"""Samples from this value on count as clipped. 8-bit samples end at 127/128. A sine that just reaches 1.0 is
above this value for 9 % of its time.
"""


@dataclass(frozen=True)
class OpenClip:
    """A clip whose headers have been read. Each of the `blocks` is float32 [n, channels]."""

    measured: Measurements
    blocks: Iterator[Samples] = field(default_factory=lambda: iter(()))


@dataclass
class MonoMix:
    """The mono mix of the blocks so far, and the measurements that the rules need of the original
    channels.
    """

    mono: list[Samples] = field(default_factory=list)
    frames: int = 0
    peak: float = 0.0
    not_finite_at: int = 0
    clipped: int = 0
    total: float = 0.0
    total_of_squares: float = 0.0

    def add(self, block: Samples) -> None:
        level = np.abs(block)
        finite = np.isfinite(block)
        if finite.all():
            self.peak = max(self.peak, float(level.max(initial=0.0)))
        else:
            first = int(finite.argmin())
            self.peak = float(block.flat[first])
            self.not_finite_at = self.frames + first // block.shape[1]
        self.frames += len(block)
        self.clipped += int(np.count_nonzero(level >= FULL_SCALE))
        with np.errstate(over="ignore", invalid="ignore"):  # `mix_down` stops after such a block
            mixed = block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
            wide = mixed.astype(np.float64)
            self.total += float(wide.sum())
        self.total_of_squares += float(wide @ wide)
        self.mono.append(mixed)

    def complete(self, measured: Measurements) -> Measurements:
        frames = max(1, self.frames)
        variance = self.total_of_squares / frames - (self.total / frames) ** 2
        return replace(
            measured,
            frames=self.frames,
            peak=self.peak,
            not_finite_at=self.not_finite_at,
            clipped=self.clipped / frames / max(1, measured.channels),
            rms=math.sqrt(max(0.0, variance)),
        )


def warm_up() -> Request:
    """Read a clip with each library. The libraries import modules and build tables for the first clip, and a
    guarded process can no longer open files.

    Returns:
        A small clip to read again.
    """
    silence = np.zeros((1, 1024), np.float32)
    wav, mp4 = io.BytesIO(), io.BytesIO()
    soundfile.write(wav, silence[0], 8000, format="WAV")
    with av.open(mp4, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux([*stream.encode(frame), *stream.encode(None)])
    small = Request(1.0, wav.getvalue())
    for request in (small, Request(1.0, mp4.getvalue())):
        sniffed = sniff(request.data)
        measured, _ = read_clip(sniffed, request.max_seconds)
        if measured.status is not Status.DECODED:
            raise RuntimeError(f"the {sniffed.reader} reader does not work here")
    return small


def read_clip(
    sniffed: Sniffed, max_seconds: float, block_samples: int = BLOCK_SAMPLES
) -> tuple[Measurements, list[Samples]]:
    """Decode a clip to mono. The samples are empty unless the whole clip was decoded."""
    open_clip = open_with_sndfile if sniffed.reader == "sndfile" else open_with_libav
    measured, mix = Measurements(status=Status.FAILED), MonoMix()
    try:
        with open_clip(sniffed, block_samples) as opened:
            measured = opened.measured
            if measured.status is Status.DECODED and mix_down(opened, mix, max_seconds):
                return replace(mix.complete(measured), finished=True, samples=mix.frames), mix.mono
    except (soundfile.SoundFileError, av.FFmpegError, ValueError, MemoryError):
        if block_samples > FINE_BLOCK_SAMPLES:
            return read_clip(sniffed, max_seconds, FINE_BLOCK_SAMPLES)
        measured = replace(measured, status=Status.FAILED)
    return mix.complete(measured), []


def mix_down(opened: OpenClip, mix: MonoMix, max_seconds: float) -> bool:
    """Mix a clip down. Returns True at its end, and False if reading stopped because the clip must be
    refused.
    """
    if not opened.measured.readable:
        return False
    for block in opened.blocks:
        mix.add(block)
        # The total is not finite if a sample is not, or if the sum of a frame's channels overflows.
        if mix.frames > max_seconds * opened.measured.sample_rate or not math.isfinite(mix.total):
            return False
    return True


class ForwardOnly(soundfile.SoundFile):  # type: ignore[misc]  # it ships no types
    """A sound file without seeking.

    soundfile seeks to the current position after every block of a seekable file. This makes libmpg123 lose
    its bit reservoir (errors up to 0.2 of full scale), and it fails at the end of a FLAC of unknown length.
    """

    def seekable(self) -> bool:
        return False


@contextmanager
def open_with_sndfile(sniffed: Sniffed, block_samples: int) -> Iterator[OpenClip]:
    with ForwardOnly(io.BytesIO(sniffed.data)) as file:
        # soundfile.read does this too. Without it libmpg123 rounds differently, and the samples differ in the
        # last bit from those of an engine.
        file.seek(0)
        measured = Measurements(
            status=Status.DECODED,
            channels=file.channels,
            sample_rate=file.samplerate,
            declared_seconds=_plausible(file.frames / max(1, file.samplerate)),
        )
        yield OpenClip(measured, _sndfile_blocks(file, max(1, block_samples // max(1, file.channels))))


def _sndfile_blocks(file: ForwardOnly, frames: int) -> Iterator[Samples]:
    while len(block := file.read(frames, dtype="float32", always_2d=True)):
        yield block


@contextmanager
def open_with_libav(sniffed: Sniffed, block_samples: int) -> Iterator[OpenClip]:
    # The demuxer is given and the whitelists are closed, so nothing is probed: no playlist, no URL, no other
    # file, and not even the first packet of a codec that is not accepted.
    options = {"codec_whitelist": ",".join(sniffed.codecs), "protocol_whitelist": "none"}
    with av.open(io.BytesIO(sniffed.data), mode="r", format=sniffed.reader, options=options) as container:
        streams = container.streams
        audio: Any = streams.audio[0] if streams.audio else None
        codec = getattr(getattr(audio, "codec_context", None), "name", "")  # libav may have no decoder for it
        status = _status_of(streams, codec, sniffed.codecs)
        measured = Measurements(status=status, codec=codec)
        if status is not Status.DECODED:
            yield OpenClip(measured)
            return
        audio.codec_context.thread_count = 1
        measured = replace(
            measured,
            channels=audio.codec_context.channels,
            sample_rate=audio.codec_context.sample_rate,
            declared_seconds=_declared_seconds(container, audio),
        )
        yield from _first_frame_decides(measured, container.decode(audio), block_samples)


def _status_of(streams: Any, codec: str, codecs: tuple[str, ...]) -> Status:
    if not streams.audio:
        return Status.NO_AUDIO_STREAM
    if len(streams.audio) > 1:
        return Status.SEVERAL_AUDIO_STREAMS
    if not all(video.disposition & Disposition.attached_pic for video in streams.video):
        return Status.VIDEO_STREAM
    return Status.DECODED if codec in codecs else Status.WRONG_CODEC


def _declared_seconds(container: Any, audio: Any) -> float:
    if audio.duration:
        return _plausible(float(audio.duration * audio.time_base))
    return _plausible(container.duration / av.time_base) if container.duration else math.nan


def _first_frame_decides(
    measured: Measurements, frames: Iterator[Any], block_samples: int
) -> Iterator[OpenClip]:
    """Take rate and channels from the first decoded frame. With AAC's extensions they differ from the
    header.
    """
    first = next(frames, None)
    if first is None:
        yield OpenClip(measured)
        return
    measured = replace(measured, sample_rate=first.sample_rate, channels=first.layout.nb_channels)
    yield OpenClip(measured, _libav_blocks(first, frames, block_samples))


def _libav_blocks(first: Any, rest: Iterator[Any], block_samples: int) -> Iterator[Samples]:
    """Gather frames of about a thousand samples to blocks, so that the arithmetic per block does not take
    longer than decoding.
    """
    gathered = [_channels_last(first)]
    for frame in rest:
        if (frame.sample_rate, frame.layout.nb_channels) != (first.sample_rate, first.layout.nb_channels):
            raise ValueError("rate or channels change within the stream")
        gathered.append(_channels_last(frame))
        if sum(map(len, gathered)) * first.layout.nb_channels >= block_samples:
            yield np.concatenate(gathered)
            gathered = []
    if gathered:
        yield np.concatenate(gathered)


def _channels_last(frame: Any) -> Samples:
    """Convert a frame to [n, channels]. The accepted codecs give planar or packed float samples."""
    if frame.format.name == "fltp":
        return np.ascontiguousarray(frame.to_ndarray().T)
    if frame.format.name == "flt":
        return np.ascontiguousarray(frame.to_ndarray().reshape(-1, frame.layout.nb_channels))
    raise ValueError("samples are not float")


def _plausible(seconds: float) -> float:
    return seconds if 0 <= seconds < PLAUSIBLE_SECONDS else math.nan
