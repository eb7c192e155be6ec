"""A test of whole moves: many voices of each kind of folder go into one registry and on to another."""

import csv
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.integration.api.conftest import Start
from tests.integration.api.moving import Run, number_of_versions, runner
from tests.integration.api.test_moving_out import records
from tests.unit.audio import clips

VOICES = int(os.environ.get("MOVED_VOICES", "60"))
EVERY_FIFTH = 5


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


def clip_of(number: int) -> bytes:
    """Return a clip that no other voice has."""
    return clips.wav(1.2 + number / 16_000)


def text_of(number: int) -> str:
    return f"Text {number}, «é»."


def plain_folder(folder: Path) -> None:
    for number in range(VOICES):
        (folder / f"voice {number}.wav").write_bytes(clip_of(number))
        if number % EVERY_FIFTH:  # the others have no transcript
            (folder / f"voice {number}.txt").write_text(text_of(number))


def table(folder: Path) -> None:
    with (folder / "voices.csv").open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "file", "text", "consent", "description"])
        for number in range(VOICES):
            (folder / f"{number}.wav").write_bytes(clip_of(number))
            rows.writerow(
                [f"Voice {number}", f"{number}.wav", text_of(number), f"cons_{number}", "warm,\ncalm"]
            )


def samples_folder(folder: Path) -> None:
    for number in range(VOICES):
        header = {"name": f"Voice{number}", "consent": f"c{number}", "ref_text": text_of(number)}
        if number % EVERY_FIFTH:
            header["sample_rate"] = "16000"
            tensors = {"audio": clips.tone(1.2 + number / 16_000, 16_000)[:, 0]}
        else:
            header["embedding_source"] = "direct"
            tensors = {"speaker_embedding": np.linspace(-1, number, 1024, dtype=np.float32)}
        data = safetensors.numpy.save(tensors, metadata=header)
        (folder / f"Voice{number}_c{number}_{number}.safetensors").write_bytes(data)


def references_folder(folder: Path) -> None:
    for number in range(VOICES):
        voice = folder / f"voice_{number}"
        voice.mkdir()
        (voice / "clip.wav").write_bytes(clip_of(number))
        (voice / "clip.lab").write_text(text_of(number))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("write", [plain_folder, table, samples_folder, references_folder])
def test_many_voices_of_a_folder_are_equal_after_a_move(
    start: Start, run: Run, tmp_path: Path, write: Callable[[Path], None]
):
    """Nothing of what people had elsewhere is lost on the way in, out and in again."""
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder)
    first, second = start(max_uploaded=10 * VOICES), start(max_uploaded=10 * VOICES)
    source = folder / "voices.csv" if write is table else folder
    with first.worker.working():
        outcome = run(first, "import", source, "--consent", "cons_1")
        assert (outcome.status, outcome.document["registered"]) == (0, VOICES)
    first.worker.finish_all()
    assert set(run(first, "import", source, "--consent", "cons_1").states.values()) == {"unchanged"}
    exported = run(first, "export", tmp_path / "first.tar")
    assert exported.status == 0
    moved = run(second, "import", tmp_path / "first.tar")
    assert (moved.status, moved.document["registered"], number_of_versions(second)) == (0, VOICES, VOICES)
    assert second.worker.take_all() == [], "the artifacts came with the voices"
    again = run(second, "export", tmp_path / "second.tar")
    assert again.document["content"] == exported.document["content"]
    assert records(tmp_path / "first.tar") == records(tmp_path / "second.tar")
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    assert set(run(second, "import", source, "--consent", "cons_1").states.values()) == {"unchanged"}
