"""`python -m tests.simulation.documents SEED [THEME] [STEPS]` replays a history and tells what happened."""

import sys

from tests.simulation.documents.history import STEPS, run

seed, *rest = sys.argv[1:]
theme = rest[0] if rest else None
steps = int(rest[1]) if len(rest) > 1 else STEPS
for kind, count in sorted(run(int(seed), theme=theme, steps=steps).counts.items()):
    print(f"{count:6d}  {kind}")
