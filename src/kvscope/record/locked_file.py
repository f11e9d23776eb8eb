"""The file that a recorder has locked for itself: kept from other recorders, and watched, since its name can come to
mean something else while it is open. What is written goes into a file that nobody finds again then."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from kvscope.errors import RecordBusy, RecordUnwritable

# The first bytes of an SQLite file: its page size stands at 16, its size in pages at 28.
_HEADER_BYTES = 100
# Device and inode of the files that this process records into. Closing a second handle of one of them would undo
# SQLite's locks on it: they are the process's, not the handle's.
_recording: set[tuple[int, int]] = set()


class LockedFile:
    """A file that this process alone records into, until it is released; made if it does not exist.

    Raises RecordBusy if another recorder has it, RecordUnwritable if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        busy = RecordBusy(
            f"Another kvscope is recording into {path}.",
            hint="Wait for it, or record elsewhere (--records FILE; --out FOLDER for the lab).",
        )
        try:
            if path.exists() and identity_of(path) in _recording:
                raise busy
            self._handle = path.open("a+b")
        except OSError as error:
            raise RecordUnwritable(
                f"Cannot write {path}: {error.strerror}.", hint="Name another file with --records FILE."
            ) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._handle.close()
            raise busy from error
        found = os.fstat(self._handle.fileno())
        # A working folder that changes does not change which file it is.
        self._path = path.absolute()
        self._identity = found.st_dev, found.st_ino
        self._most_bytes = 0
        self._beside: dict[Path, tuple[int, int]] = {}
        _recording.add(self._identity)

    def release(self) -> None:
        """Let others record into it."""
        _recording.discard(self._identity)
        self._handle.close()

    def why_lost(self) -> str | None:
        """What became of the file since it was locked; None while its name means it and it is whole."""
        try:
            if identity_of(self._path) != self._identity:
                return "was replaced by another file"
        except FileNotFoundError:
            return "was deleted"
        except OSError as error:
            return f"cannot be reached any more ({error.strerror})"
        if self._is_cut_short():
            return "was cut short"
        self._note_beside()
        return None

    def remove_beside(self) -> None:
        """Remove FILE-wal and FILE-shm where they are still those of this file, and not of what has its name by now."""
        for path, identity in self._beside.items():
            with suppress(OSError):
                if identity_of(path) == identity:
                    path.unlink()

    def _note_beside(self) -> None:
        for suffix in ("-wal", "-shm"):
            path = Path(f"{self._path.resolve()}{suffix}")
            with suppress(OSError):
                self._beside[path] = identity_of(path)

    def _is_cut_short(self) -> bool:
        """It has less than it had, and less than it says of itself: only a recorder writes, and never makes it less."""
        descriptor = self._handle.fileno()
        num_bytes = os.fstat(descriptor).st_size
        if num_bytes >= self._most_bytes:
            self._most_bytes = num_bytes
            return False
        header = os.pread(descriptor, _HEADER_BYTES, 0)
        page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
        return len(header) < _HEADER_BYTES or num_bytes < pages * (65_536 if page_bytes == 1 else page_bytes)


def identity_of(path: Path) -> tuple[int, int]:
    """Device and inode: which file a name means. OSError passes through."""
    found = path.stat()
    return found.st_dev, found.st_ino


def is_recording_here(path: Path) -> bool:
    """Whether this process records into the file. OSError passes through."""
    return identity_of(path) in _recording
