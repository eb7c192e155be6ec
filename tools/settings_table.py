"""Print docs/settings.md's table of environment variables, made from the settings classes and the docstrings
under their fields.

.venv/bin/python -m tools.settings_table
"""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from services.embedded.settings import EmbeddedSettings
from services.shared.configuration.all_settings import ALL_SETTINGS
from services.shared.configuration.explanation import variable_of


def table() -> str:
    """Return the table as Markdown, with one row for each variable."""
    rows = ["| variable | default | what it does |", "|---|---|---|"]
    for cls in (EmbeddedSettings, *ALL_SETTINGS):
        rows += [f"| **{cls.__name__}** | | {_first_sentence(cls)} |"]
        rows += [f"| `{name}` | {default} | {text} |" for name, default, text in _variables(cls)]
    return "\n".join(rows)


def _first_sentence(cls: type[BaseSettings]) -> str:
    return (cls.__doc__ or "").partition("Environment:")[0].strip()


def _variables(cls: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    texts = _docstrings(cls)
    for field, info in cls.model_fields.items():
        yield variable_of(cls, field), _default(info), texts.get(field, "")


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "must be set"
    if info.default in (None, "", ()):
        return "–"
    value = ",".join(info.default) if isinstance(info.default, tuple) else info.default
    return f"`{value}`"


def _docstrings(cls: type[BaseSettings]) -> dict[str, str]:
    """Return the docstring of each field, by the name of the field."""
    tree = ast.parse(Path(inspect.getsourcefile(cls) or "").read_text())
    body = next(
        node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    texts = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            texts[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return texts


if __name__ == "__main__":
    print(table())
