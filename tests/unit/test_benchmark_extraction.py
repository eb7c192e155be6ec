"""The benchmark of extraction measures, compares, and holds out when a side does not come to an end. The
smallest encoder on the shortest clip; figures do not matter here.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import encoder_timing, extraction
from benchmarks.extraction import Measured, Settings
from benchmarks.reference_encoders import REFERENCES
from services.extractor_worker.engines.catalogue import BUILT_IN as EXTRACTORS

SIDE_BY_SIDE = """#!{python}
import sys, time
from pathlib import Path
sys.path.insert(0, "{root}")
from benchmarks.encoder_timing import report, wait_for_turn

folder, name = Path(sys.argv[2].removeprefix("benchmarks.")), sys.argv[3]
other = {{"a": "b", "b": "a"}}[name]
(folder / f"loading-{{name}}").touch()
while not (folder / f"loading-{{other}}").exists():
    time.sleep(0.01)
wait_for_turn()
measuring = folder / f"measuring-{{name}}"
measuring.touch()
for _ in range(20):
    assert not (folder / f"measuring-{{other}}").exists()
    time.sleep(0.01)
measuring.unlink()
report(alone=True)
"""
PROFILE, QWEN = "ecapa-voxceleb", "qwen3-tts-0.6b"


@pytest.fixture(autouse=True)
def _small_load(monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"PROFILES": PROFILE, "CLIPS": "2", "SECONDS": "1", "DEVICE": "cpu", "LIMIT_SECONDS": "120"}
    for name, value in load.items():
        monkeypatch.setenv(f"EXTRACTION_{name}", value)
    for name in ("REFERENCE_PYTHON", "REFERENCE_PYTHON_QWEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.processes
@pytest.mark.slow
def test_without_a_reference_we_are_measured_and_nothing_fails(capsys: pytest.CaptureFixture[str]):
    assert extraction.main()
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {PROFILE}"))
    one, their_one, _, rate, their_rate, _, memory, _, share, goal = (
        row.replace(",", "").strip("| ").split(" | ")[1:]
    )
    assert float(one) > 0
    assert float(rate) > 0
    assert float(memory) > 50  # the weights alone are 80 MiB
    assert share.endswith("%")
    assert {their_one, their_rate, goal} == {"not measured"}


def test_every_extractor_has_a_reference():
    assert REFERENCES.keys() >= EXTRACTORS.keys()


@pytest.mark.processes
def test_a_reference_that_does_not_run_is_named_and_fails_nothing(tmp_path: Path):
    theirs = extraction.reference(PROFILE, Settings(REFERENCE_PYTHON=tmp_path / "python"))
    assert theirs.one_seconds is None
    assert "does not start" in theirs.problem
    assert extraction.verdict(PROFILE, "cpu", Measured(mixed_seconds=1.0), theirs) == "not measured"


@pytest.mark.processes
def test_what_was_measured_before_the_time_was_up_counts(tmp_path: Path):
    """The mixed clips of a large encoder take long on a CPU; the one clip's figure is there by then."""
    slow = tmp_path / "python"
    slow.write_text(
        "#!/bin/sh\necho 'measured {\"one_seconds\": 2.5}'\nprintf 'measured {\"mi'\nexec sleep 60\n"
    )
    slow.chmod(0o755)
    results, problem = extraction.child(slow, 1.0, "own_encoders")
    assert results == {"one_seconds": 2.5}
    assert "longer than 1 s" in problem


@pytest.mark.processes
def test_encoders_that_were_loaded_side_by_side_are_measured_one_at_a_time(tmp_path: Path):
    """Each process loads until both do, and fails if it then measures while the other one does."""
    python = tmp_path / "python"
    python.write_text(SIDE_BY_SIDE.format(python=sys.executable, root=Path(extraction.__file__).parents[1]))
    python.chmod(0o755)
    with ThreadPoolExecutor(2) as pool:
        sides = [pool.submit(extraction.child, python, 60.0, str(tmp_path), name) for name in ("a", "b")]
        assert [side.result() for side in sides] == [({"alone": True}, "")] * 2


@pytest.mark.processes
def test_a_child_that_fails_says_its_last_line():
    results, problem = extraction.child(sys.executable, 60, "no_such_benchmark")
    assert results == {}
    assert "no_such_benchmark" in problem


@pytest.mark.parametrize(
    ("profile", "device", "one", "mixed", "expected"),
    [
        (PROFILE, "cpu", 1.0, 1.2, "reached"),
        (PROFILE, "cpu", 9.0, 1.05, "missed"),
        (PROFILE, "cuda", 9.0, 3.9, "missed"),
        (PROFILE, "cuda", 1.0, 4.1, "reached"),
        (QWEN, "cpu", 1.1, 1.2, "missed"),
        (QWEN, "cpu", 1.2, 1.2, "reached"),
        (QWEN, "cuda", 1.9, 4.1, "missed"),
        (QWEN, "cuda", 2.1, 4.1, "reached"),
        (QWEN, "cpu", None, 1.2, "not measured"),
        (QWEN, "cpu", None, 1.0, "missed"),
    ],
)
def test_goals_depend_on_the_device_and_only_qwen_has_one_for_one_clip(
    profile: str, device: str, one: float | None, mixed: float, expected: str
):
    theirs = Measured(one_seconds=one, mixed_seconds=mixed)
    assert (
        extraction.verdict(profile, device, Measured(one_seconds=1.0, mixed_seconds=1.0), theirs) == expected
    )


def test_mixed_clips_are_the_same_in_every_run_and_within_bounds():
    load = Settings(clips=64, seconds=30.0).load(PROFILE)
    assert load == Settings(clips=64, seconds=30.0).load(PROFILE)
    assert len(load.mixed_seconds) == 64
    assert 1.0 <= min(load.mixed_seconds) < 5.0
    assert 25.0 < max(load.mixed_seconds) <= 30.0
    assert load.one_seconds == 10.0
    assert encoder_timing.Load.parse(load.to_json()) == load


def test_the_share_is_of_the_time_that_the_arithmetic_needs():
    assert extraction.share_of_floor(Measured(gflop=10.0, one_seconds=0.5), 100.0) == pytest.approx(0.2)
    assert extraction.share_of_floor(Measured(gflop=0.0, one_seconds=0.5), 100.0) is None
