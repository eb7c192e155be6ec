"""Folders that TTS servers read at their start, kept equal to the voices of a registry.

`folder` owns the files on disk, `custom_voices` and `samples` say what is in them, and `synchronization` asks
the registry what belongs there. This package knows neither arguments nor terminals.
"""

FORMATS = ("custom-voice-dir", "speaker-samples")
"""The kinds of folders that can be written."""
