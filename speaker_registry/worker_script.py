"""The command `speaker-registry-worker`, which runs `python -m services.extractor_worker` from any folder.

The services are not part of the installed package. They are part of a checkout, or of an image in which the
package is installed.
"""

import importlib.util
import runpy
import sys

_MODULE = "services.extractor_worker"


def main() -> int:
    """Run the worker. Returns an exit status only if the services cannot be found."""
    try:
        found = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        found = None
    if found is None:
        print(
            "speaker-registry-worker: the worker is not part of the installed package; "
            "use a checkout (`pip install -e '.[worker]'`) or an image",
            file=sys.stderr,
        )
        return 2
    runpy.run_module(_MODULE, run_name="__main__")
    return 0
