"""`python -m tests.simulation.documents SEED` replays one history and tells what happened in it."""

import sys

from tests.simulation.documents.history import run

for kind, count in sorted(run(int(sys.argv[1])).counts.items()):
    print(f"{count:6d}  {kind}")
