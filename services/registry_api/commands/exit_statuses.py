"""Exit statuses of the commands. Schedulers act on them: `k8s/base/housekeeping.yaml` does not retry 1."""

DONE, WRONG_SETTINGS, NOT_NOW = 0, 1, 75
"""`NOT_NOW`: a dependency is unavailable, and a later try may succeed (EX_TEMPFAIL of sysexits.h)."""
INTERRUPTED = 130
"""Ctrl-C, as shells report it."""
