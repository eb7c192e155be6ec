"""`speaker-registry-worker`: `python -m services.extractor_worker` from wherever one is. Knows only where to
look: the services are no part of the package, but of a checkout or an image in which it is installed.
"""

import importlib.util
import runpy
import sys

_MODULE = "services.extractor_worker"


def main() -> int:
    """Does not return where the services are."""
    try:
        found = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        found = None
    if found is None:
        print(
            "speaker-registry-worker: the worker is no part of the installed package; "
            "use a checkout (`pip install -e '.[worker]'`) or an image",
            file=sys.stderr,
        )
        return 2
    runpy.run_module(_MODULE, run_name="__main__")
    return 0
