"""Print docs/engines.md's table of profiles, made from services/shared/model/profiles.py.

.venv/bin/python -m tools.profiles_table
"""

from services.shared.model.profiles import BUILT_IN
from speaker_registry.engine import Profile


def table() -> str:
    """Return the table as Markdown, with one row for each profile."""
    rows = ["| profile | what it holds | tensors | transcript |", "|---|---|---|---|"]
    rows += [_row(profile) for profile in BUILT_IN.values()]
    return "\n".join(rows)


def _row(profile: Profile) -> str:
    tensors = ", ".join(
        f"`{name}` [{', '.join(map(str, spec.shape))}]" for name, spec in profile.tensors.items()
    )
    return f"| `{profile.name}` | {profile.description} | {tensors} | {_transcript(profile)} |"


def _transcript(profile: Profile) -> str:
    if profile.ref_text_required:
        return "needed"
    needing = [f"`{name}`" for name, spec in profile.tensors.items() if spec.needs_ref_text]
    return f"for {', '.join(needing)}" if needing else "–"


if __name__ == "__main__":
    print(table())
