"""Reading a Dockerfile: its stages, each with its instructions. Knows the forms that ours has."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).parents[2] / "deploy" / "docker" / "Dockerfile"


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)
    """(`RUN`, the rest of it), in order."""

    def all(self, word: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == word]

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for rest in self.all("ENV") for pair in shlex.split(rest))


def read(file: Path = FILE) -> dict[str, Stage]:
    """Stages by name, in the file's order."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
    stages: dict[str, Stage] = {}
    stage = None
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif word and stage is not None:
            stage.instructions.append((word, rest.strip()))
    return stages


def lineage(stages: dict[str, Stage], name: str) -> list[Stage]:
    """A stage after all that it is built on."""
    stage = stages[name]
    return [*(lineage(stages, stage.base) if stage.base in stages else []), stage]
