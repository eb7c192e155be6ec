"""Profiles of one's own beside the built-in ones: each name stands for one profile."""

from pathlib import Path

import pytest

from services.shared.model.profiles import ProfileAmbiguous, ProfileCatalogue


def install(folder: Path, package: str, profile: str) -> None:
    """A package that brings a profile of this name, like Ming-TTS's in all else."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(
        "from dataclasses import replace\n"
        "from services.shared.model.profiles import BUILT_IN\n"
        f"PROFILE = replace(BUILT_IN['ming-tts'], name='{profile}')\n"
    )
    facts = folder / f"{module}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[speaker_registry.profiles]\n{profile} = {module}:PROFILE\n")


def test_a_package_that_brings_a_name_of_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its tensors would be stored under our name, made by our encoder."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "brings-ours", "ming-tts")
    says = "'ming-tts' is defined by the registry itself and by the package brings-ours"
    with pytest.raises(ProfileAmbiguous, match=says):
        ProfileCatalogue.load([])


def test_two_packages_that_bring_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The order of installation would otherwise determine which one is served."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "brings-first", "mine")
    assert ProfileCatalogue.load(["mine"]).get("mine").sample_rate == 16_000
    install(tmp_path, "brings-second", "mine")
    with pytest.raises(ProfileAmbiguous, match="by the package brings-") as refusal:
        ProfileCatalogue.load([])
    assert "brings-first" in refusal.value.message
    assert "brings-second" in refusal.value.message
