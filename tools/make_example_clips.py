"""Makes the clips in examples/clips anew, from the transcripts beside them, with two speech synthesisers.

Only needed when a text or a voice changes: the clips are in the repository, and neither tests nor demo need
a synthesiser. On Debian: `apt-get install flite espeak-ng`; run it with the Python of .venv.
"""

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile

CLIPS = Path(__file__).parent.parent / "examples" / "clips"

COMMANDS = {
    "wren": ["flite", "-voice", "slt", "-f", "{text}", "-o", "{wav}"],
    "rowan": ["flite", "-voice", "awb", "-f", "{text}", "-o", "{wav}"],
    "robin": ["espeak-ng", "-v", "en-gb-x-rp", "-s", "150", "-f", "{text}", "-w", "{wav}"],
}
"""Clip -> what speaks it. Sample rates stay as synthesised, 16, 16 and 22.05 kHz: real uploads differ too."""


def main() -> None:
    for name, command in COMMANDS.items():
        samples, sample_rate = _speak(command, CLIPS / f"{name}.txt")
        clip = CLIPS / f"{name}.flac"
        soundfile.write(clip, samples, sample_rate, subtype="PCM_16")
        _verify(clip)


def _speak(command: list[str], text: Path) -> tuple[np.ndarray, int]:
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "speech.wav"
        subprocess.run([part.format(text=text, wav=wav) for part in command], check=True)
        samples, sample_rate = soundfile.read(wav, dtype="int16")
    return samples, sample_rate


def _verify(clip: Path) -> None:
    """Refuse what would make a poor reference: too short or long, stereo, clipped, quiet, mostly silence."""
    samples, sample_rate = soundfile.read(clip, dtype="float32")
    seconds = len(samples) / sample_rate
    peak = float(np.abs(samples).max())
    frames = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    voiced = float((np.sqrt((frames**2).mean(axis=1)) > 0.01).mean())
    level = 20 * np.log10(np.sqrt((samples**2).mean()))
    print(
        f"{clip.name}: {seconds:.2f} s, {sample_rate} Hz, {clip.stat().st_size} bytes, "
        f"peak {peak:.2f}, {level:.1f} dBFS, {voiced:.0%} of the frames louder than -40 dBFS"
    )
    assert samples.ndim == 1
    assert 4 <= seconds <= 8
    assert clip.stat().st_size <= 150 * 1024
    assert 0.3 <= peak < 0.99
    assert -27 <= level <= -12
    assert voiced > 0.6


if __name__ == "__main__":
    main()
