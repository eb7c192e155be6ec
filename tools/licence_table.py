"""Print docs/engines.md's table of the weights' licences, made from services/shared/model/weights.yaml.

.venv/bin/python -m tools.licence_table
"""

from services.shared.model.published_weights import published_weights


def table() -> str:
    """Return the table as Markdown, with one row for each profile."""
    rows = ["| profile | weights | licence | to be known |", "|---|---|---|---|"]
    for profile, weights in sorted(published_weights().items()):
        notes = weights.notes or "–"
        rows.append(f"| `{profile}` | {weights.repo} | {weights.licence} | {notes} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
