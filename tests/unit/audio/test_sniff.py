"""Looking at bytes ends quickly in a container or in an error for the uploader, whatever the bytes are."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.shared.audio.sandbox.refusal import Refused
from services.shared.audio.sandbox.sniff import sniff
from services.shared.audio.sandbox.sniffed import Sniffed
from tests.unit.audio import clips
from tests.unit.audio.bad_clips import BAD, endless_mp3, ogg_with

SEEDS = {
    "wav": clips.wav(1.0, 8000),
    "wavex": clips.by_sndfile(clips.tone(1.0, 8000, 2), 8000, "WAVEX", "PCM_24"),
    "flac": clips.flac(1.0, 8000),
    "ogg": clips.ogg(1.0, 8000),
    "mp3": clips.mp3(1.0, 8000),
    "m4a": clips.m4a(1.0, 8000),
    "aac": clips.adts(1.0, 8000),
    "webm": clips.webm(1.0),
}


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with some of them changed, most of them in the header; with a piece cut out; or
    without their end.
    """
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        end = len(changed) if chance.random() < 0.2 else 128
        changed[chance.randrange(min(end, len(changed)))] = chance.choice(
            (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
        )
    if chance.random() < 0.3:
        start = chance.randrange(len(changed))
        del changed[start : start + chance.randrange(1, 64)]
    return bytes(changed[: chance.randrange(len(changed)) if chance.random() < 0.3 else None])


def outcome(data: bytes) -> Sniffed | Refused:
    try:
        return sniff(data)
    except Refused as error:
        return error


@pytest.mark.parametrize("name", SEEDS)
def test_damaged_files_never_raise_anything_else(name: str):
    """An IndexError here would end the guarded process: nobody would be told what is wrong with the file."""
    chance = random.Random(name)
    outcomes = [outcome(damaged(SEEDS[name], chance)) for _ in range(1500)]
    assert any(isinstance(found, Sniffed) for found in outcomes)
    assert sum(isinstance(found, Refused) for found in outcomes) > 300


@pytest.mark.parametrize("name", SEEDS)
def test_every_beginning_of_a_file_is_refused_or_read(name: str):
    """Uploads break off anywhere."""
    for size in range(1, 600):
        outcome(SEEDS[name][:size])


MAGICS = (
    *(b"RIFF", b"WAVE", b"fmt ", b"data", b"OggS", b"ftyp", b"moov", b"mdat", b"\x1aE\xdf\xa3", b"fLaC"),
    *(b"ID3\x04\0\0\0\0\0\0", b"TAG", b"APETAGEX", b"\xff\xfb\x90\xc0", b"\xff\xf1\x50\x80", b"Xing"),
)
PIECES = st.sampled_from(MAGICS) | st.binary(max_size=40) | st.integers(0, 200).map(bytes)


@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_whatever_is_put_together_is_read_or_refused(data: bytes):
    """Marks of formats stand where their parsers do not expect them, and end too early."""
    outcome(data)


@pytest.mark.parametrize("size", range(8, 33))
def test_the_beginning_of_an_ape_tag_is_no_tag(size: int):
    """Its flags are in byte 23, which a file of eight bytes does not have."""
    assert isinstance(outcome((b"APETAGEX" + bytes(24))[:size]), Refused)


@pytest.mark.parametrize(
    "data",
    {
        "WAV of empty chunks": b"RIFF\xff\xff\x7f\0WAVE" + b"junk\0\0\0\0" * (10 * 1024**2 // 8),
        "WAV of zeros": b"RIFF\xff\xff\x7f\0WAVE" + bytes(10 * 1024**2),
        "MP3 of the smallest frames": endless_mp3(),
        "AAC of the smallest frames": b"\xff\xf1\x50\x80\x00\xff\xfc" * (10 * 1024**2 // 7),
        "Ogg of empty pages": ogg_with(b"OpusHead\x01\x01" + bytes(9)) + (b"OggS" + bytes(23)) * 388_000,
        "MP4 of empty boxes": b"\0\0\0\x10ftypisom\0\0\0\0" + b"\0\0\0\x08free" * (10 * 1024**2 // 8),
        "WebM header of empty elements": b"\x1aE\xdf\xa3\x08\x00\xa0\x00\x00" + b"\xec\x80" * (5 * 1024**2),
        "FLAC of empty blocks": clips.flac()[:42] + b"\x01\0\0\0" * (10 * 1024**2 // 4),
        "tags and nothing else": b"ID3\x04\0\0\0\0\0\0" * (1024**2),
        "text": b"a" * (10 * 1024**2),
    }.items(),
    ids=lambda case: case[0],
)
def test_a_file_made_to_be_slow_is_not(data: tuple[str, bytes]):
    """A file that keeps a decoder busy delays all clients that wait for one."""
    start = time.process_time()
    assert isinstance(outcome(data[1]), Refused)
    assert time.process_time() - start < 0.5


def test_what_is_refused_is_never_quoted():
    """A message may end up in a log or a page, and the file may hold anything."""
    for clip in (clip for clip in BAD if "bomb" not in clip.name):
        error = outcome(clip.build().replace(b"junk", b"<b>!"))
        if isinstance(error, Refused):
            assert "<b>" not in error.message
            assert error.message.isprintable()
