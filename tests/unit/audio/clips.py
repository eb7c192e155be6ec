"""Clips that are fine: a tone in every container and codec that we accept. Knows nothing of our decoder."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import av
import numpy as np
import soundfile
from numpy.typing import NDArray

HERTZ = 220.0
AMPLITUDE = 0.5


def tone(seconds: float, sample_rate: int, channels: int = 1) -> NDArray[np.float32]:
    """float32 [N, channels]; each channel a little quieter than the one before."""
    time = np.arange(round(seconds * sample_rate)) / sample_rate
    wave = AMPLITUDE * np.sin(2 * np.pi * HERTZ * time)
    return np.stack([wave * 0.9**index for index in range(channels)], axis=1).astype(np.float32)


def by_sndfile(samples: NDArray[np.float32], sample_rate: int, container: str, subtype: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, sample_rate, format=container, subtype=subtype)
    return file.getvalue()


def by_libav(
    samples: NDArray[np.float32], sample_rate: int, container: str, codec: str, **options: str
) -> bytes:
    layout = "mono" if samples.shape[1] == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options) as output:
        stream: Any = output.add_stream(codec, rate=sample_rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout=layout)
        frame.sample_rate, frame.pts = sample_rate, 0
        output.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def rewrapped(data: bytes, source: str, container: str) -> bytes:
    """The same packets in another container."""
    file = io.BytesIO()
    read: Any = av.open(io.BytesIO(data), format=source)
    with read, av.open(file, "w", format=container) as written:
        stream = read.streams.audio[0]
        copy = written.add_stream_from_template(stream)
        for packet in read.demux(stream):
            if packet.dts is not None:
                packet.stream = copy
                written.mux(packet)
    return file.getvalue()


def wav(seconds: float = 2.0, sample_rate: int = 16000, channels: int = 1, subtype: str = "PCM_16") -> bytes:
    return by_sndfile(tone(seconds, sample_rate, channels), sample_rate, "WAV", subtype)


def flac(seconds: float = 2.0, sample_rate: int = 16000) -> bytes:
    return by_sndfile(tone(seconds, sample_rate), sample_rate, "FLAC", "PCM_16")


def ogg(seconds: float = 2.0, sample_rate: int = 16000, subtype: str = "VORBIS") -> bytes:
    return by_sndfile(tone(seconds, sample_rate), sample_rate, "OGG", subtype)


@cache
def mp3(seconds: float = 2.0, sample_rate: int = 24000) -> bytes:
    return by_sndfile(tone(seconds, sample_rate), sample_rate, "MP3", "MPEG_LAYER_III")


def m4a(seconds: float = 2.0, sample_rate: int = 24000) -> bytes:
    return by_libav(tone(seconds, sample_rate), sample_rate, "ipod", "aac")


def adts(seconds: float = 2.0, sample_rate: int = 24000) -> bytes:
    return by_libav(tone(seconds, sample_rate), sample_rate, "adts", "aac")


def webm(seconds: float = 2.0, sample_rate: int = 48000) -> bytes:
    return by_libav(tone(seconds, sample_rate), sample_rate, "webm", "libopus")


@dataclass(frozen=True)
class GoodClip:
    name: str
    build: Callable[[], bytes]
    container: str
    codec: str
    mime_type: str
    sample_rate: int
    channels: int = 1
    exact: bool = True
    """Decoded by libsndfile, so that soundfile.read gives the same samples."""
    says_delay: bool = True
    """True if the container can say how much silence the encoder put in front."""

    def __str__(self) -> str:
        return self.name


def _wav(subtype: str, codec: str, channels: int = 1, container: str = "WAV") -> GoodClip:
    return GoodClip(
        f"{container.lower()}-{codec}-{channels}ch",
        cache(lambda: by_sndfile(tone(2.0, 16000, channels), 16000, container, subtype)),
        "wav",
        codec,
        "audio/wav",
        16000,
        channels,
    )


def _sndfile(container: str, subtype: str, codec: str, mime_type: str, rate: int, channels: int) -> GoodClip:
    return GoodClip(
        f"{container.lower()}-{subtype.lower()}-{rate}-{channels}ch",
        cache(lambda: by_sndfile(tone(2.0, rate, channels), rate, container, subtype)),
        container.lower(),
        codec,
        mime_type,
        rate,
        channels,
    )


def _libav(
    name: str, build: Callable[[], bytes], codec: str, mime_type: str, rate: int, says_delay: bool = True
) -> GoodClip:
    container = name.partition("-")[0]
    return GoodClip(name, cache(build), container, codec, mime_type, rate, exact=False, says_delay=says_delay)


GOOD = (
    *(
        _wav(subtype, codec, channels)
        for channels in (1, 2)
        for subtype, codec in (
            ("PCM_U8", "pcm_u8"),
            ("PCM_16", "pcm_s16le"),
            ("PCM_24", "pcm_s24le"),
            ("PCM_32", "pcm_s32le"),
            ("FLOAT", "pcm_f32le"),
            ("DOUBLE", "pcm_f64le"),
        )
    ),
    _wav("PCM_16", "pcm_s16le", 2, "WAVEX"),
    _wav("PCM_24", "pcm_s24le", 6, "WAVEX"),
    _wav("FLOAT", "pcm_f32le", 1, "WAVEX"),
    *(_sndfile("FLAC", subtype, "flac", "audio/flac", 24000, 2) for subtype in ("PCM_16", "PCM_24")),
    *(_sndfile("FLAC", "PCM_16", "flac", "audio/flac", rate, 1) for rate in (8000, 192000)),
    *(
        _sndfile("MP3", "MPEG_LAYER_III", "mp3", "audio/mpeg", rate, channels)
        for rate, channels in ((8000, 1), (16000, 2), (24000, 1), (44100, 2), (48000, 1))
    ),
    *(_sndfile("OGG", "VORBIS", "vorbis", "audio/ogg", rate, 2) for rate in (16000, 44100)),
    *(_sndfile("OGG", "OPUS", "opus", "audio/ogg", rate, 2) for rate in (16000, 48000)),
    _libav("m4a", m4a, "aac", "audio/mp4", 24000),
    _libav("mp4", lambda: by_libav(tone(2.0, 24000), 24000, "mp4", "aac"), "aac", "audio/mp4", 24000),
    _libav(
        "mp4-fragmented",
        lambda: by_libav(tone(2.0, 24000), 24000, "mp4", "aac", movflags="frag_keyframe+empty_moov"),
        "aac",
        "audio/mp4",
        24000,
        says_delay=False,
    ),
    _libav("aac", adts, "aac", "audio/aac", 24000, says_delay=False),
    _libav("webm-opus", webm, "opus", "audio/webm", 48000),
    _libav(
        "webm-live",
        lambda: by_libav(tone(2.0, 48000), 48000, "webm", "libopus", live="1"),
        "opus",
        "audio/webm",
        48000,
    ),
    _libav("webm-vorbis", lambda: rewrapped(ogg(), "ogg", "webm"), "vorbis", "audio/webm", 16000),
    _libav("webm-matroska", lambda: rewrapped(ogg(), "ogg", "matroska"), "vorbis", "audio/webm", 16000),
)
