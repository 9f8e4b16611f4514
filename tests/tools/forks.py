"""Processes that are forked while another thread holds a lock."""

from __future__ import annotations

import subprocess
import sys
import textwrap

_HANGS = 600  # seconds, a hundred times what the slowest takes

_PROGRAM = """
import os, threading, time
{imports}

held, forks = threading.Barrier(2), threading.Event()
# The last one that is registered runs first: ahead of those that wait for a lock.
os.register_at_fork(before=forks.set)

def hold(lock):
    with lock:
        held.wait()
        forks.wait()
        time.sleep(0.05)  # others come to wait

for lock in ({locks}):
    threading.Thread(target=hold, args=(lock,)).start()
    held.wait()
    child = os.fork()
    forks.clear()
    if not child:
{work}
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def while_held(imports: str, locks: str, work: str) -> None:
    """Let a process that is forked while a lock is held do some work; all are lines of Python."""
    inside = textwrap.indent(work, " " * 8)
    program = _PROGRAM.format(imports=imports, locks=locks, work=inside)
    code = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    subprocess.run(code, check=True, timeout=_HANGS)
