"""Print the README's table of profiles, made from services/shared/profiles.py.

.venv/bin/python -m tools.profiles_table
"""

from services.shared.profiles import BUILT_IN, Profile


def table() -> str:
    """Markdown, a row a profile."""
    rows = ["| profile | what it holds | tensors | transcript |", "|---|---|---|---|"]
    rows += [_row(profile) for profile in BUILT_IN.values()]
    return "\n".join(rows)


def _row(profile: Profile) -> str:
    tensors = ", ".join(
        f"`{name}` [{', '.join(map(str, spec.shape))}]" for name, spec in profile.tensors.items()
    )
    text = "needed" if profile.ref_text_required else "–"
    return f"| `{profile.name}` | {profile.description} | {tensors} | {text} |"


if __name__ == "__main__":
    print(table())
