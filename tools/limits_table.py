"""Print docs/usage.md's table of the clips and texts that are accepted, made from the rules of the code.

.venv/bin/python -m tools.limits_table
"""

from services.registry_api.wire.forms import MAX_CONSENT, MAX_EMBEDDING, MAX_TEXT
from services.shared.audio.sandbox.rules import ACCEPTED, SAMPLE_RATES
from services.shared.audio.sandbox.wire import MAX_CHANNELS
from services.shared.configuration.uploads import UploadLimits


def table() -> str:
    """Return the table as Markdown."""
    limits = UploadLimits()
    rates = f"{SAMPLE_RATES[0] // 1000} to {SAMPLE_RATES[-1] // 1000} kHz, the usual ones"
    rows = {
        "format of a clip": f"{ACCEPTED}; the content decides, not the name of the file",
        "length of a clip": f"{limits.min_seconds:g} to {limits.max_seconds:g} seconds",
        "size of a clip": f"up to {limits.max_bytes / 1024**2:g} MiB",
        "channels and sample rate": f"1 to {MAX_CHANNELS} channels, which are mixed to one; {rates}",
        "speaker embedding": f"1 to {MAX_EMBEDDING} finite numbers, as many as a required profile takes",
        "`consent`": f"up to {MAX_CONSENT} characters",
        "`ref_text`, `description`": f"up to {MAX_TEXT} characters each",
    }
    lines = (f"| {what} | {accepted} |" for what, accepted in rows.items())
    return "\n".join(["| what | accepted |", "|---|---|", *lines])


if __name__ == "__main__":
    print(table())
