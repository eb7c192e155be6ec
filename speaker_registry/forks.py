"""Renewal of locks and connections in a forked process: a thread that exists only in the parent may hold the
locks, and the parent goes on to use the connections. This module knows no owner of either.
"""

import os
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Owner = TypeVar("Owner")
_renewals: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def renew_after_fork(owner: Owner, renew: Callable[[Owner], None]) -> None:
    """Call `renew` with the owner in each process that is forked from this one, before `os.fork` returns
    there.

    The call must take no lock of the parent. If it raises, its traceback is printed, and the other owners are
    renewed all the same. The owner is not kept alive.
    """
    _renewals[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        try:
            renew(owner)
        except Exception:  # noqa: BLE001 - the other owners would keep the locks of the parent
            traceback.print_exc()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_all)
