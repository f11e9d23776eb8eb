"""Output files: written whole or not at all, and never over what is there unasked."""

import errno
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvscope.errors import OutputExists, RecordUnwritable
from kvscope.record.schema import APPLICATION_ID


def write_file(out_path: str | Path, text: str, *, force: bool) -> Path:
    """Write a text file in one step, as ``write_with`` does."""

    def write(target: Path) -> None:
        # Recorded text may hold bytes that are no UTF-8 (a file's name): written escaped, not refused.
        target.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")

    return write_with(out_path, write, force=force)


def write_with(out_path: str | Path, write: Callable[[Path], object], *, force: bool) -> Path:
    """Have ``write`` make a file in one step: what was there stays whole until the new one is complete, and keeps its
    permissions. A link is followed; what is no regular file (a pipe, a device) is written into as it is. ``write`` is
    given the file to make, which does not exist yet unless it is no regular one.

    Raises OutputExists if it exists and ``force`` is not set, or if it is a record; RecordUnwritable if it cannot be
    written.
    """
    path = Path(out_path)
    try:
        target = path.resolve()
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and stat.S_ISDIR(mode):
            raise RecordUnwritable(f"{path} is a folder.", hint="Name a file.")
        if mode is not None and not force:
            raise OutputExists(f"{path} exists already.", hint="Name another file, or add --force.")
        if mode is not None and stat.S_ISREG(mode) and _is_record(target):
            raise OutputExists(f"{path} is a record: it holds measurements.", hint="Name another file.")
        if mode is None or stat.S_ISREG(mode):
            _replace(target, write, 0o644 if mode is None else stat.S_IMODE(mode))
        else:
            write(target)
    except (OSError, RuntimeError) as error:  # a ring of links is a RuntimeError of pathlib's
        reason = getattr(error, "strerror", None) or str(error)
        raise RecordUnwritable(f"Cannot write {path}: {reason}.", hint=_hint(error)) from error
    return path


def _is_record(path: Path) -> bool:
    """Whether a file is a kvscope record, by the header of its SQLite file: name at 0, application id at 68."""
    with path.open("rb") as file:
        header = file.read(72)
    return header.startswith(b"SQLite format 3\0") and header[68:72] == APPLICATION_ID.to_bytes(4, "big")


def _replace(target: Path, write: Callable[[Path], object], mode: int) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{target.name[:50]}-", dir=target.parent) as folder:
        new = Path(folder) / target.name
        write(new)
        new.chmod(mode)
        new.replace(target)


def _hint(error: Exception) -> str:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space, or name a file on another disk."
    return "Name a file in a folder that exists and can be written to."
