"""`python -m tests.simulation SEED`: replay one history and tell it."""

import sys
import tempfile
from pathlib import Path

from services.embedded.valkey import ValkeyServer
from tests.simulation.history import run
from tests.simulation.server import ModelledServer

with tempfile.TemporaryDirectory() as folder, ValkeyServer(Path(folder)) as server:
    for kind, count in sorted(run(int(sys.argv[1]), ModelledServer(server.url)).items()):
        print(f"{count:6d}  {kind}")
