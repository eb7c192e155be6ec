"""The command behind `make docs`.

.venv/bin/python -m tools.documentation build/documentation
"""

import sys
from pathlib import Path

from tools.documentation.screenshots import SHOWN, TAKEN_BY, missing
from tools.documentation.site import SiteFailed, build

if __name__ == "__main__":
    try:
        print(f"The documentation begins at {build(Path(sys.argv[1]).resolve()) / 'index.html'}")
    except SiteFailed as error:
        sys.exit(f"The documentation cannot be built:\n{error}")
    if left_out := missing():
        print(
            f"The page about the dashboard has {len(SHOWN) - len(left_out)} of its {len(SHOWN)} pictures. "
            f"The tests in {TAKEN_BY}, which need Chromium, take the others."
        )
