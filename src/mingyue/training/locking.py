"""Locks on files, which the system releases when the process ends, however it ends."""

from __future__ import annotations

import os
from typing import IO

if os.name == "nt":
    import msvcrt

    _BYTE = 1 << 30  # far behind the text, so that it stays readable while the lock is held

    def lock_file(file: IO[bytes]) -> None:
        """Lock an open file for this process; raises `OSError` if another one has it."""
        file.seek(_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def unlock_file(file: IO[bytes]) -> None:
        """Release the lock."""
        file.seek(_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def lock_file(file: IO[bytes]) -> None:
        """Lock an open file for this process; raises `OSError` if another one has it."""
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock_file(file: IO[bytes]) -> None:
        """Release the lock."""
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
