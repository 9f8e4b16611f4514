"""Locks of tables that threads and forked processes share."""

from __future__ import annotations

import os
import threading


def table_lock() -> threading.RLock:
    """A lock that its thread may enter again, and that no other thread holds during a fork.

    A process that is forked has the thread alone that forked it: what another one held would never
    be let go of. The garbage collector may call anything while a table changes, the same function
    too.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
