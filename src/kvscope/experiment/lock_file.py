"""Files that are locked (flock), one for each device of the machine, and the note of its holder that each may hold.

They lie where all users of a machine can write and only an owner can delete (/tmp), or in the folder that
KVSCOPE_LOCKS names, such as one that several containers share. Whoever can write a note can as well hold the lock: what
a note says is shown only where the kernel says the same, and its mark at most makes others wait (device_holder.py).
"""

import errno
import fcntl
import json
import os
import re
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from kvscope.engine.inherited import forget_inherited
from kvscope.errors import UsageError

VARIABLE = "KVSCOPE_LOCKS"
_MOST_READ = 1000
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

# All that this process has open of them. A forked copy of it closes them: the locks are the original's, and its copy
# must not keep them when the original gives them back. No copy is made in the moment in which one is opened or closed.
_open_here: set[int] = set()
_changing = threading.RLock()


def _in_forked_copy() -> None:
    for file in _open_here:
        with suppress(OSError):
            os.close(file)
    _open_here.clear()
    forget_inherited()
    _changing.release()


os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_in_forked_copy)


def lock_path(name: str) -> Path:
    """Where the lock of a device is."""
    folder = os.environ.get(VARIABLE) or ("/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir())
    return Path(folder) / f"kvscope-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.lock"


def make_folder() -> None:
    """Make the folder that KVSCOPE_LOCKS names, where it is not there. Raises UsageError where that cannot be done: no
    trial could lock anything."""
    named = os.environ.get(VARIABLE)
    if not named:
        return
    try:
        Path(named).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{VARIABLE} names {named}, and no folder can be made there ({error.strerror}).",
            hint=f"Set {VARIABLE} to a folder that you may write to, or unset it: locks are in /tmp then.",
        ) from error


def open_lock(path: Path) -> int:
    """The open file, made where it is not there. Raises UsageError where what is there is no plain file of one name,
    and OSError where none can be made."""
    while True:
        try:
            with _changing:
                file = _open_or_create(path)
                _open_here.add(file)
        except FileExistsError:  # made by another a moment ago
            continue
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise _foreign(path) from error
            raise
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            close_lock(file)
            raise _foreign(path)
        return file


def close_lock(file: int) -> None:
    """Closed, not unlocked: a program that inherited the file and still runs keeps the lock."""
    with _changing:
        _open_here.discard(file)
        os.close(file)


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Whether the lock was to be had at once."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_still_there(path: Path, file: int) -> bool:
    """Whether the open file is the one of that name; somebody may have tidied up."""
    try:
        found = path.lstat()
    except OSError:
        return False
    mine = os.fstat(file)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def read_note(file: int) -> dict[str, object]:
    """What is written in the file; {} for what is no note."""
    try:
        note = json.loads(os.pread(file, _MOST_READ, 0) or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def write_note(file: int, text: str) -> None:
    """Write it, where that can be done."""
    with suppress(OSError):  # another user's file, or a full disk: the lock holds all the same
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)


def _open_or_create(path: Path) -> int:
    """What is there is opened without O_CREAT: with it, Linux refuses another user's in /tmp (fs.protected_regular)."""
    try:
        return os.open(path, _OPEN)
    except PermissionError:  # it can be locked all the same
        return os.open(path, (_OPEN & ~os.O_RDWR) | os.O_RDONLY)
    except FileNotFoundError:
        file = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):
            os.fchmod(file, 0o666)  # every user's trials take turns on a device; see the module's words
        return file


def _foreign(path: Path) -> UsageError:
    return UsageError(
        f"{path} is where kvscope locks a device, and something else is there.",
        hint=f"Remove it, or name a folder for the locks with the environment variable {VARIABLE}.",
    )
