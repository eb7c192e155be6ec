"""Files that must be refused, or accepted although they look odd: damaged, lying, hostile, or no audio at
all. Built in memory, byte by byte where no encoder would write them. Says of each which error is right and
what its message must name.
"""

# ruff: noqa: E501 - one case per line reads as a table

import io
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import av
import numpy as np
import soundfile
from numpy.typing import NDArray

from speaker_registry.errors import (
    AudioTooLong,
    AudioTooShort,
    AudioTruncated,
    InvalidAudio,
    UnsupportedAudio,
)
from tests.unit.audio import clips

RATE = 16000
Chunk = tuple[bytes, bytes, int | None]
"""Name, body, and the size to declare instead of the body's."""


@dataclass(frozen=True)
class BadClip:
    name: str
    make: Callable[[], bytes]
    error: type[InvalidAudio]
    says: str

    def build(self) -> bytes:
        return _built(self.make)

    def __str__(self) -> str:
        return self.name


@cache
def _built(make: Callable[[], bytes]) -> bytes:
    """Several tests go through the whole table."""
    return make()


def riff(*chunks: Chunk, size: int | None = None, magic: bytes = b"RIFF") -> bytes:
    body = b"WAVE" + b"".join(_chunk(*chunk) for chunk in chunks)
    return magic + struct.pack("<I", len(body) if size is None else size) + body


def _chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(body) if size is None else size) + body + b"\0" * (len(body) % 2)


def fmt(
    *,
    tag: int = 1,
    channels: int = 1,
    rate: int = RATE,
    bits: int = 16,
    align: int | None = None,
    extra: bytes = b"",
) -> Chunk:
    align = channels * bits // 8 if align is None else align
    body = struct.pack("<HHIIHH", tag, channels, rate, rate * align & 0xFFFFFFFF, align & 0xFFFF, bits)
    return b"fmt ", body + extra, None


def data(body: bytes, size: int | None = None) -> Chunk:
    return b"data", body, size


def pcm(seconds: float = 2.0) -> bytes:
    return (clips.tone(seconds, RATE)[:, 0] * 32767).astype("<i2").tobytes()


def with_format(**changes: int | bytes) -> Callable[[], bytes]:
    return lambda: riff(fmt(**changes), data(pcm()))  # type: ignore[arg-type]


def floats(samples: NDArray[np.float64]) -> bytes:
    return riff(fmt(tag=3, bits=32), data(samples.astype("<f4").tobytes()))


def wave() -> NDArray[np.float64]:
    return clips.tone(2.0, RATE)[:, 0].astype(np.float64)


def with_sample(value: float) -> Callable[[], bytes]:
    def build() -> bytes:
        samples = wave()
        samples[100] = value
        return floats(samples)

    return build


def infinite_on_the_right() -> bytes:
    samples = np.stack([wave(), wave()], 1)
    samples[24001, 1] = -np.inf
    return riff(fmt(tag=3, channels=2, bits=32), data(samples.astype("<f4").tobytes()))


def half(build: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: build()[: len(build()) // 2]


def head(build: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: build()[:64]


def twice(build: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: build() * 2


def flipped(build: Callable[[], bytes], start: int = 400) -> Callable[[], bytes]:
    def damage() -> bytes:
        chance, damaged = random.Random(1), bytearray(build())
        for _ in range(60):
            damaged[chance.randrange(start, len(damaged))] = chance.randrange(256)
        return bytes(damaged)

    return damage


def followed_by_zip(build: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: build() + b"PK\x03\x04" + random.Random(2).randbytes(5000)


def flac_declaring(frames: int) -> bytes:
    changed = bytearray(clips.flac())
    changed[21] = changed[21] & 0xF0 | frames >> 32
    changed[22:26] = (frames & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(changed)


def silence(seconds: int, rate: int, container: str, subtype: str) -> bytes:
    """Written piece by piece: hours of it would not fit in memory."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate, 1, subtype, format=container) as output:
        for _ in range(seconds // 60):
            output.write(np.zeros(60 * rate, np.float32))
    return file.getvalue()


def other_container(container: str, subtype: str = "PCM_16") -> Callable[[], bytes]:
    return lambda: clips.by_sndfile(clips.tone(2.0, RATE), RATE, container, subtype)


def with_video() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        video = output.add_stream("mpeg4", rate=5)
        video.width = video.height = 32
        video.pix_fmt = "yuv420p"
        audio = output.add_stream("aac", rate=24000, layout="mono")
        picture = av.VideoFrame(32, 32, "yuv420p")
        output.mux([*video.encode(picture), *video.encode(None)])
        output.mux([*audio.encode(sound(24000)), *audio.encode(None)])
    return file.getvalue()


def with_cover() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        cover: Any = output.add_stream("mjpeg", rate=1)
        cover.width = cover.height = 32
        cover.pix_fmt = "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        audio: Any = output.add_stream("aac", rate=24000, layout="mono")
        output.mux([*audio.encode(sound(24000)), *audio.encode(None)])
        output.mux([*cover.encode(av.VideoFrame(32, 32, "yuvj420p")), *cover.encode(None)])
    return file.getvalue()


def two_streams() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        streams = [output.add_stream("aac", rate=24000, layout="mono") for _ in range(2)]
        for stream in streams:
            output.mux([*stream.encode(sound(24000)), *stream.encode(None)])
    return file.getvalue()


def sound(rate: int) -> av.AudioFrame:
    samples = np.ascontiguousarray(clips.tone(2.0, rate).T)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate, frame.pts = rate, 0
    return frame


def ogg_with(packet: bytes) -> bytes:
    """One page that starts a stream."""
    return struct.pack("<4sBBqIIIBB", b"OggS", 0, 2, 0, 1, 0, 0, 1, len(packet)) + packet


def mp3_without_contents() -> bytes:
    """Return a file from an encoder that writes to a pipe. The bit rate varies, so that nothing can be
    concluded from that of one frame.
    """
    return clips.mp3()[192:]


def ape_tag(size: int) -> bytes:
    """`size` bytes with its footer, as taggers put it after the audio."""
    footer = b"APETAGEX" + struct.pack("<IIII", 2000, size, 0, 0) + bytes(8)
    return bytes(size - len(footer)) + footer


def mp3_by_libav(**options: str) -> bytes:
    return clips.by_libav(clips.tone(2.0, 24000), 24000, "mp3", "libmp3lame", **options)


def aac_cut_within_a_header() -> bytes:
    """Five bytes into the frame after the first."""
    stream = clips.adts()
    return stream[: (int.from_bytes(stream[3:6], "big") >> 5 & 0x1FFF) + 5]


def endless_mp3() -> bytes:
    """27 minutes in 1.5 MiB: silent frames of 8 kbit/s."""
    return (b"\xff\xf3\x14\xc4" + bytes(20)) * 70_000


def mpeg_layer_2() -> bytes:
    """Return a file at 32 kbit/s and 48 kHz, where a frame is as long as one of layer III."""
    return (b"\xff\xfd\x14\xc4" + bytes(92)) * 100


def adpcm_overflow() -> bytes:
    return riff(
        fmt(tag=0x11, bits=4, align=25004, extra=struct.pack("<HH", 2, 50000)),
        (b"fact", struct.pack("<I", 0x7FFFFFFF), None),
        data(bytes(100016), 0x4A817C80),
    )


def huge_rf64() -> bytes:
    sizes = struct.pack("<IQQQI", 28, 2**63, 2**63, 2**62, 0)
    return b"RF64\xff\xff\xff\xffWAVEds64" + sizes + _chunk(*fmt()) + b"data\xff\xff\xff\xff" + pcm()


def riff_fmt_cut() -> bytes:
    return clips.wav()[:20]


def lying(seconds: float) -> bytes:
    """A WAV whose data chunk declares `seconds` and holds 2."""
    return riff(fmt(), data(pcm(), round(seconds * RATE) * 2), size=0x7FFF)


_WAV, _FLAC, _OGG, _MP3 = clips.wav, clips.flac, clips.ogg, clips.mp3
_OPUS = partial(clips.ogg, subtype="OPUS")
_ALAW = other_container("WAV", "ALAW")

BAD = (
    BadClip("empty", lambda: b"", InvalidAudio, "empty (0 bytes). Accepted: WAV (PCM"),
    BadClip("one byte", lambda: b"R", UnsupportedAudio, "text"),
    BadClip("header only", lambda: riff(fmt(), data(b"")), AudioTooShort, "too short (0.0s)"),
    BadClip("riff and nothing more", lambda: b"RIFF\x24\0\0\0WAVE", AudioTruncated, "`fmt `"),
    BadClip("cut within fmt", riff_fmt_cut, AudioTruncated, "16 bytes, 0 are there"),
    BadClip("cut within data", half(_WAV), AudioTruncated, "64000 bytes, 31978 are there"),
    BadClip("data of 4 GiB", lambda: riff(fmt(), data(pcm(), 0xFFFFFFFF)), AudioTruncated, "4294967295 bytes, 64000"),
    BadClip("data of 0 bytes", lambda: riff(fmt(), data(pcm(), 0)), AudioTruncated, "declares 0 bytes"),
    BadClip("data a tenth too long", lambda: lying(2.11), AudioTruncated, "67520 bytes, 64000"),
    BadClip("riff of 0 bytes", lambda: riff(fmt(), data(pcm()), size=0), AudioTruncated, "declares 0 bytes, 64036"),
    BadClip("riff of 4 GiB", lambda: riff(fmt(), data(pcm()), size=0xFFFFFFFF), AudioTruncated, "4294967295 bytes, 64036"),
    BadClip("riff of 1 MB", lambda: riff(fmt(), data(pcm()), size=1_000_000), AudioTruncated, "1000000 bytes, 64036"),
    BadClip("no channels", with_format(channels=0), InvalidAudio, "declares 0 channels; 1 to 8"),
    BadClip("9 channels", with_format(channels=9), InvalidAudio, "9 channels"),
    BadClip("65535 channels", with_format(channels=65535), InvalidAudio, "65535 channels"),
    BadClip("1024 channels", with_format(channels=1024), InvalidAudio, "1024 channels"),
    BadClip("rate 0", with_format(rate=0), InvalidAudio, "0 Hz; accepted are 8000, 11025"),
    BadClip("rate 4 G", with_format(rate=0xFFFFFFFF), InvalidAudio, "4294967295 Hz"),
    BadClip("rate 1", with_format(rate=1), InvalidAudio, "1 Hz"),
    BadClip("0 bits", with_format(bits=0, align=2), UnsupportedAudio, "PCM) of 0 bits"),
    BadClip("7 bits", with_format(bits=7, align=1), UnsupportedAudio, "PCM) of 7 bits"),
    BadClip("wrong block align", with_format(align=3), InvalidAudio, "3 bytes per frame; 1 channels of 16 bits take 2"),
    BadClip("a NaN", with_sample(np.nan), InvalidAudio, "not finite: sample 100 (at 0.006s) is nan; finite samples are accepted"),
    BadClip("an infinity", with_sample(np.inf), InvalidAudio, "sample 100 (at 0.006s) is inf"),
    BadClip("a late infinity of one channel", infinite_on_the_right, InvalidAudio, "sample 24001 (at 1.500s) is -inf"),
    BadClip("all NaN", lambda: floats(np.full(2 * RATE, np.nan)), InvalidAudio, "sample 0 (at 0.000s) is nan"),
    BadClip(
        "all NaN, 64 bits",
        lambda: riff(fmt(tag=3, bits=64), data(np.full(2 * RATE, np.nan).astype("<f8").tobytes())),
        InvalidAudio,
        "sample 0 (at 0.000s) is nan",
    ),
    BadClip("1e38", lambda: floats(wave() * 1e38), InvalidAudio, "peaks at 5e+37"),
    BadClip(
        "channels whose sum overflows",
        lambda: clips.by_sndfile(np.full((2 * RATE, 2), 3e38), RATE, "WAV", "FLOAT"),
        InvalidAudio,
        "peaks at 3e+38",
    ),
    BadClip("9 times full scale", with_sample(-9.0), InvalidAudio, "peaks at 9 × full scale; up to 8"),
    BadClip("denormal", lambda: floats(wave() * 1e-40), InvalidAudio, "silent"),
    BadClip("constant at full scale", lambda: floats(np.ones(2 * RATE)), InvalidAudio, "silent: all samples"),
    BadClip("constant", lambda: floats(np.full(2 * RATE, 0.5)), InvalidAudio, "silent: all samples are alike"),
    BadClip("silence", lambda: floats(np.zeros(2 * RATE)), InvalidAudio, "silent: all samples are alike"),
    BadClip("almost silence", lambda: floats(wave() * 1e-3), InvalidAudio, "-69 dBFS"),
    BadClip("clipped", lambda: floats(np.sign(wave() + 1e-9)), InvalidAudio, "clipped: 100%"),
    BadClip(
        "channels that cancel out",
        lambda: clips.by_sndfile(np.stack([wave(), -wave()], 1), RATE, "WAV", "FLOAT"),
        InvalidAudio,
        "silent",
    ),
    BadClip("IMA ADPCM that overflows", adpcm_overflow, UnsupportedAudio, "0x0011 (IMA ADPCM)"),
    BadClip("IMA ADPCM, 65535 samples", with_format(tag=0x11, bits=4, align=256), UnsupportedAudio, "IMA ADPCM"),
    BadClip("Microsoft ADPCM", with_format(tag=2, bits=4, align=256), UnsupportedAudio, "0x0002 (Microsoft ADPCM)"),
    BadClip("GSM", with_format(tag=0x31, bits=0, align=65), UnsupportedAudio, "0x0031 (GSM 6.10)"),
    BadClip("A-law", _ALAW, UnsupportedAudio, "0x0006 (A-law)"),
    BadClip("two fmt chunks", lambda: riff(fmt(), fmt(channels=2), data(pcm())), InvalidAudio, "two `fmt ` chunks"),
    BadClip("two data chunks", lambda: riff(fmt(), data(pcm()), data(pcm())), InvalidAudio, "two `data` chunks"),
    BadClip("no fmt", lambda: riff(data(pcm())), InvalidAudio, "no `fmt ` chunk"),
    BadClip("data before fmt", lambda: riff(data(pcm()), fmt()), InvalidAudio, "no `fmt ` chunk before"),
    BadClip("no data", lambda: riff(fmt()), AudioTruncated, "before its `data` chunk"),
    BadClip(
        "100,000 chunks",
        lambda: riff(fmt(), *[(b"junk", b"", None)] * 100_000, data(pcm())),
        InvalidAudio,
        "more than 256 chunks",
    ),
    BadClip("unknown codec", with_format(tag=0x9999), UnsupportedAudio, "0x9999 (unknown)"),
    BadClip("MP3 in WAV", with_format(tag=0x55, bits=0, align=1), UnsupportedAudio, "0x0055 (MP3)"),
    BadClip("RF64 of 2^63", huge_rf64, UnsupportedAudio, "RF64"),
    BadClip("cut FLAC", half(_FLAC), AudioTruncated, "declares 2.0s"),
    BadClip("cut Vorbis", half(_OGG), AudioTruncated, "an Ogg page declares"),
    BadClip("cut Opus", half(_OPUS), AudioTruncated, "an Ogg page declares"),
    BadClip("cut MP3", half(_MP3), AudioTruncated, "declares 86 frames (2.1s)"),
    BadClip("cut MP3 of varying bit rate without contents", half(mp3_without_contents), AudioTruncated, "the last frame of an MP3 stream declares 24 bytes, 12 are there"),
    BadClip("cut MP3 of one bit rate without contents", half(partial(mp3_by_libav, write_xing="0")), AudioTruncated, "declares 96 bytes, 73 are there"),
    BadClip("cut AAC", half(clips.adts), AudioTruncated, "the last frame of an AAC stream declares 334 bytes, 83 are there"),
    BadClip("AAC that lacks a byte", lambda: clips.adts()[:-1], AudioTruncated, "declares 398 bytes, 397 are there"),
    BadClip("AAC cut within a header", aac_cut_within_a_header, AudioTruncated, "declares 7 bytes, 5 are there"),
    BadClip("cut AAC before a tag", lambda: clips.adts()[:-10] + b"TAG" + bytes(125), AudioTruncated, "declares 398 bytes, 388 are there"),
    BadClip("cut M4A", half(clips.m4a), AudioTruncated, "an MP4 box declares"),
    BadClip("cut WebM", half(clips.webm), AudioTruncated, "segment declares"),
    BadClip("64 bytes of WAV", head(_WAV), AudioTruncated, "64000 bytes, 20 are there"),
    BadClip("64 bytes of FLAC", head(_FLAC), AudioTruncated, "FLAC metadata block declares"),
    BadClip("64 bytes of Vorbis", head(_OGG), AudioTruncated, "cut off"),
    BadClip("64 bytes of Opus", head(_OPUS), AudioTruncated, "cut off"),
    BadClip("64 bytes of MP3", head(_MP3), AudioTruncated, "ends within its first frame"),
    BadClip("64 bytes of M4A", head(clips.m4a), AudioTruncated, "cut off"),
    BadClip("64 bytes of WebM", head(clips.webm), AudioTruncated, "cut off"),
    BadClip("flipped FLAC", flipped(_FLAC, 9000), AudioTruncated, "damaged"),
    BadClip("flipped Vorbis", flipped(_OGG), InvalidAudio, "this is not an Ogg page"),
    BadClip("flipped Opus", flipped(_OPUS), AudioTruncated, "an Ogg page declares"),
    BadClip("flipped MP3", flipped(_MP3), InvalidAudio, "this is not an MP3 stream"),
    BadClip("flipped M4A", flipped(clips.m4a, 40), InvalidAudio, "could not be decoded"),
    BadClip("two FLACs", twice(_FLAC), InvalidAudio, "several FLAC streams"),
    BadClip("two Vorbis files", twice(_OGG), InvalidAudio, "several Ogg streams"),
    BadClip("two Opus files", twice(_OPUS), InvalidAudio, "several Ogg streams"),
    BadClip("two MP3s", twice(_MP3), InvalidAudio, "declares 86 frames and holds 173"),
    BadClip("MP3s of two rates", lambda: mp3_without_contents() + clips.mp3(2.0, 44100), InvalidAudio, "not an MP3 stream"),
    BadClip("AACs of two rates", lambda: clips.adts() + clips.adts(2.0, 44100), InvalidAudio, "not an AAC stream"),
    BadClip("two M4As", twice(clips.m4a), InvalidAudio, "several MP4s"),
    BadClip("two WebMs", twice(clips.webm), InvalidAudio, "this is not a WebM segment"),
    BadClip("two WAVs", twice(_WAV), InvalidAudio, "several WAVs"),
    BadClip("FLAC of 2^36 frames", lambda: flac_declaring(2**36 - 1), AudioTruncated, "2.0s could be read"),
    BadClip("FLAC with a huge picture", lambda: _FLAC()[:42] + b"\x06\xff\xff\xff" + bytes(1000), AudioTruncated, "16777215 bytes, 1000"),
    BadClip("FLAC without audio", lambda: _FLAC()[:4] + b"\x80" + _FLAC()[5:42], AudioTruncated, "first audio frame"),
    BadClip("FLAC bomb", lambda: silence(3600, 8000, "FLAC", "PCM_16"), AudioTooLong, "too long (3600.0s)"),
    BadClip("Opus bomb", lambda: silence(60, 16000, "OGG", "OPUS"), AudioTooLong, "too long (60.0s)"),
    BadClip("MP3 bomb", endless_mp3, AudioTooLong, "more than 65536 frames"),
    BadClip("ID3 of 256 MiB", lambda: b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(100) + _MP3(), AudioTruncated, "an ID3 tag declares 268435465"),
    BadClip("PNG", lambda: b"\x89PNG\r\n\x1a\n" + bytes(2000), UnsupportedAudio, "a PNG image"),
    BadClip("JPEG", lambda: b"\xff\xd8\xff\xe0" + bytes(2000), UnsupportedAudio, "a JPEG image"),
    BadClip("HTML", lambda: b"<html>" * 200, UnsupportedAudio, "an HTML page"),
    BadClip("ZIP", lambda: b"PK\x03\x04" + bytes(500), UnsupportedAudio, "a ZIP archive"),
    BadClip("PDF", lambda: b"%PDF-1.7\n" + bytes(500), UnsupportedAudio, "a PDF"),
    BadClip("ELF", lambda: b"\x7fELF\x02\x01\x01" + bytes(500), UnsupportedAudio, "an ELF program"),
    BadClip("M3U", lambda: b"#EXTM3U\nfile:///etc/passwd\n", UnsupportedAudio, "a playlist (M3U)"),
    BadClip("ffconcat", lambda: b"ffconcat version 1.0\nfile /etc/passwd\n", UnsupportedAudio, "a playlist (ffconcat)"),
    BadClip("SDP", lambda: b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n", UnsupportedAudio, "text"),
    BadClip("JSON", lambda: b'{"audio": "\xc3\xa4"}', UnsupportedAudio, "text"),
    BadClip("AIFF", other_container("AIFF"), UnsupportedAudio, "AIFF"),
    BadClip("CAF", other_container("CAF"), UnsupportedAudio, "CAF"),
    BadClip("AU", other_container("AU"), UnsupportedAudio, "AU"),
    BadClip("W64", other_container("W64"), UnsupportedAudio, "Wave64"),
    BadClip("RF64", other_container("RF64"), UnsupportedAudio, "RF64"),
    BadClip("HTK", other_container("HTK"), UnsupportedAudio, "no audio file that we know"),
    BadClip("MATLAB", other_container("MAT5"), UnsupportedAudio, "MATLAB"),
    BadClip("VOC", other_container("VOC"), UnsupportedAudio, "VOC"),
    BadClip("noise", lambda: random.Random(3).randbytes(100_000), UnsupportedAudio, "no audio file that we know"),
    BadClip("WAV after an ID3 tag", lambda: b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + _WAV(), UnsupportedAudio, "an ID3 tag followed by WAV"),
    BadClip("WAV and ZIP", followed_by_zip(_WAV), InvalidAudio, "From byte 64044 of 69048"),
    BadClip("FLAC and ZIP", followed_by_zip(_FLAC), InvalidAudio, "could not be decoded"),
    BadClip("Ogg and ZIP", followed_by_zip(_OGG), InvalidAudio, "this is not an Ogg page"),
    BadClip("MP3 and ZIP", followed_by_zip(_MP3), InvalidAudio, "this is not an MP3 stream"),
    BadClip("AAC and ZIP", followed_by_zip(clips.adts), InvalidAudio, "this is not an AAC stream"),
    BadClip("M4A and ZIP", followed_by_zip(clips.m4a), InvalidAudio, "this is not an MP4 box"),
    BadClip("WebM and ZIP", followed_by_zip(clips.webm), InvalidAudio, "this is not a WebM segment"),
    BadClip("three samples", lambda: riff(fmt(), data(pcm()[:6])), AudioTooShort, "too short (0.0s). At least 1s"),
    BadClip(
        "huge extension of the format",
        lambda: riff(fmt(tag=0xFFFE, extra=b"\xff\xff" + bytes(30)), data(pcm())),
        InvalidAudio,
        "65535 more bytes",
    ),
    BadClip(
        "extension of unknown kind",
        lambda: riff(fmt(tag=0xFFFE, extra=b"\x16\x00" + bytes(22)), data(pcm())),
        UnsupportedAudio,
        "0xfffe",
    ),
    BadClip("384 kHz", with_format(rate=384000, bits=24), InvalidAudio, "384000 Hz"),
    BadClip("FLAC at 0 Hz", lambda: _FLAC()[:18] + bytes(3) + _FLAC()[21:], InvalidAudio, "0 Hz"),
    BadClip("Vorbis at 4 kHz in WebM", lambda: clips.rewrapped(clips.ogg(2.0, 4000), "ogg", "webm"), InvalidAudio, "4000 Hz"),
    BadClip("FLAC at 384 kHz", lambda: clips.flac(2.0, 384000), InvalidAudio, "384000 Hz"),
    BadClip("Ogg FLAC", lambda: ogg_with(b"\x7fFLAC\x01\x00"), UnsupportedAudio, "Ogg with FLAC"),
    BadClip("Speex", lambda: ogg_with(b"Speex   1.2"), UnsupportedAudio, "Ogg with Speex"),
    BadClip("Opus header of one byte", lambda: ogg_with(b"OpusHead"), InvalidAudio, "0 channels"),
    BadClip("Theora", lambda: ogg_with(b"\x80theora"), UnsupportedAudio, "Theora video"),
    BadClip("MPEG layer 2", mpeg_layer_2, UnsupportedAudio, "MPEG audio layer II"),
    BadClip("ALAC", lambda: clips.by_libav(clips.tone(2.0, 24000), 24000, "mp4", "alac"), UnsupportedAudio, "MP4 with the codec alac"),
    BadClip("MP3 in MP4", lambda: clips.by_libav(clips.tone(2.0, 24000), 24000, "mp4", "libmp3lame"), UnsupportedAudio, "MP4 with the codec mp3"),
    BadClip("FLAC in Matroska", lambda: clips.rewrapped(_FLAC(), "flac", "matroska"), UnsupportedAudio, "WebM with the codec flac"),
    BadClip("codec that nobody knows", lambda: clips.webm().replace(b"A_OPUS", b"A_OPUX"), UnsupportedAudio, "WebM with an unknown codec"),
    BadClip("video", with_video, UnsupportedAudio, "MP4 with video"),
    BadClip("two audio streams", two_streams, UnsupportedAudio, "several audio streams"),
    BadClip("QuickTime", lambda: clips.by_libav(clips.tone(2.0, 24000), 24000, "mov", "aac"), UnsupportedAudio, "a QuickTime movie"),
    BadClip("AVIF", lambda: b"\0\0\0\x1cftypavif" + bytes(500), UnsupportedAudio, "an image"),
    BadClip("MP4 without boxes", lambda: b"\0\0\0\x10ftypisom\0\0\0\0", AudioTruncated, "moov"),
    BadClip("EBML that is not WebM", lambda: b"\x1aE\xdf\xa3\x84\x42\x82\x81x", UnsupportedAudio, "neither WebM nor Matroska"),
    BadClip("WebM header alone", lambda: b"\x1aE\xdf\xa3\x87\x42\x82\x84webm", AudioTruncated, "nothing follows"),
    BadClip("too short", lambda: clips.wav(0.45), AudioTooShort, "Reference audio too short (0.4s). At least 1s of clear speech is required."),
    BadClip("too long", lambda: clips.wav(31.2), AudioTooLong, "Reference audio too long (31.2s). Maximum 30s supported — use a shorter clip."),
    BadClip("too long without saying so", lambda: clips.by_libav(clips.tone(31.0, 48000), 48000, "webm", "libopus", live="1"), AudioTooLong, "too long (more than 30s)"),
)  # fmt: skip


@dataclass(frozen=True)
class OddClip:
    """One that we accept."""

    name: str
    build: Callable[[], bytes]
    seconds: float = 2.0

    def __str__(self) -> str:
        return self.name


_WITHOUT_CONTENTS = (86 * 576 - 529) / 24000
"""Nothing says then how much silence the encoder put around the sound."""
_AAC = 48 * 1024 / 24000
"""Whole frames, as in all of ADTS."""

ODD = (
    OddClip("9 MiB of metadata", lambda: riff(fmt(), (b"LIST", b"INFO" + b"x" * (9 << 20), None), data(pcm()))),
    OddClip("a cover picture", with_cover, 2.0 + 128 / 24000),
    OddClip("a huge cue list", lambda: riff(fmt(), (b"cue ", b"\xff\xff\xff\xff" + b"x" * 240, None), data(pcm()))),
    OddClip("a chunk after the audio", lambda: riff(fmt(), data(pcm()), (b"LIST", b"INFO" * 8, None))),
    OddClip("an odd number of bytes", lambda: riff(fmt(), data(pcm()[:-1])), 2.0 - 1 / RATE),
    OddClip("the last pad byte left out", lambda: riff(fmt(), data(pcm()[:-1]))[:-1], 2.0 - 1 / RATE),
    OddClip("data a little too long", lambda: lying(2.09)),
    OddClip("zeros at the end", lambda: riff(fmt(), data(pcm())) + bytes(1000)),
    OddClip("FLAC that declares less", lambda: flac_declaring(20_000)),
    OddClip("FLAC of unknown length", lambda: flac_declaring(0)),
    OddClip("FLAC between tags", lambda: b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + _FLAC() + b"TAG" + bytes(125)),
    OddClip("MP3 between tags", lambda: b"ID3\x04\0\0\0\0\0\x0a" + bytes(60) + _MP3() + b"TAG" + bytes(125)),
    OddClip("MP3 without contents", mp3_without_contents, _WITHOUT_CONTENTS),
    OddClip("MP3 of one bit rate without contents", partial(mp3_by_libav, write_xing="0"), _WITHOUT_CONTENTS),
    OddClip("MP3 of one bit rate without contents before a tag", partial(mp3_by_libav, write_xing="0", write_id3v1="1"), _WITHOUT_CONTENTS),
    OddClip("MP3 with contents before a tag", partial(mp3_by_libav, write_id3v1="1")),
    OddClip("MP3 with contents whose last frame is cut", lambda: _MP3()[:-10], 47855 / 24000),
    OddClip("MP3 without contents before two tags", lambda: mp3_without_contents() + ape_tag(100) + b"TAG" + bytes(125), _WITHOUT_CONTENTS),
    OddClip("MP3 without contents and padding", lambda: mp3_without_contents() + bytes(417), _WITHOUT_CONTENTS),
    OddClip("AAC before two tags", lambda: clips.adts() + ape_tag(100) + b"TAG" + bytes(125), _AAC),
    OddClip("AAC between tags by libav", lambda: clips.by_libav(clips.tone(2.0, 24000), 24000, "adts", "aac", write_id3v2="1", write_apetag="1"), _AAC),
    OddClip("AAC and padding", lambda: clips.adts() + bytes(1000), _AAC),
    OddClip("AAC and three bytes", lambda: clips.adts() + b"\r\n\x1a", _AAC),
)  # fmt: skip
