"""The documentation site: its pages are gathered from the repository, two references are made from the code,
and every link of the result is followed. `make docs` builds it.
"""
