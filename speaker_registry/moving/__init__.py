"""Moving many voices into a registry at once, and whole namespaces out of one and into another.

`sources` reads folders and tables into candidates, and `transfer` sends them. `archive` is the exported tar
file, which `exporting` writes and `restoring` registers; `about` restores descriptions, labels, pins and
aliases. This package knows neither arguments nor terminals.
"""

FORMATS = ("folder", "csv", "jsonl", "samples", "fish-speech", "archive")
"""The kinds of folders and files that can be read. An archive is what an export wrote."""
MAX_JOBS = 32
"""Maximum number of voices that are sent at a time."""
