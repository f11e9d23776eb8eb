"""Which kvscopes use a model of an Ollama server now, so that none unloads it under another, and a second one asks for
it as the first had it loaded.

Ollama knows nothing of its users. Each kvscope of one person on one machine keeps a locked file for as long as it uses
a model; a file that is not locked is left over from one that was killed. On Windows, where files are locked otherwise,
nobody is seen.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_MOST_TRIES = 5


class ModelUse:
    """Our use of a model, from now until ``end``. ``loaded_as``: what requests say so that it is not loaded anew."""

    def __init__(self, url: str, model: str, loaded_as: Mapping[str, Any]) -> None:
        self.loaded_as = dict(loaded_as)
        self._folder = _folder(url, model)
        self._path = self._folder / f"{uuid.uuid4().hex}.json"
        self._file: IO[str] | None = None
        with contextlib.suppress(OSError):  # a full disk: then others do not see us, as on Windows
            self._file = self._opened()
            _lock(self._file)
            json.dump(self.loaded_as, self._file)
            self._file.flush()

    def _opened(self) -> IO[str]:
        for _ in range(_MOST_TRIES):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # the last of others took the folder away meanwhile
                return self._path.open("x")
        raise FileNotFoundError(self._folder)

    @property
    def options(self) -> dict[str, Any]:
        """The options of its loading."""
        options = self.loaded_as.get("options")
        return dict(options) if isinstance(options, Mapping) else {}

    def is_shared(self) -> bool:
        """Whether another kvscope uses the model too."""
        return next(_users(self._folder, besides=self._path), None) is not None

    def end(self) -> None:
        """We use it no more. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            self._path.unlink(missing_ok=True)
            file.close()
            with contextlib.suppress(OSError):  # others use the model
                self._folder.rmdir()


def joined(url: str, model: str) -> ModelUse | None:
    """Our use of a model that another kvscope has loaded; None where none uses it."""
    loaded_as = next(_users(_folder(url, model), besides=None), None)
    return None if loaded_as is None else ModelUse(url, model, loaded_as)


def _folder(url: str, model: str) -> Path:
    person = str(os.getuid()) if hasattr(os, "getuid") else "user"
    named = hashlib.sha256(f"{url}\n{model}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"kvscope-{person}" / f"ollama-{named}"


def _users(folder: Path, *, besides: Path | None) -> Iterator[Mapping[str, Any]]:
    """What each other kvscope that uses it says that it was loaded as. Files of those that were killed are removed."""
    if sys.platform == "win32":
        return
    for path in sorted(folder.glob("*.json")):
        if path == besides:
            continue
        try:
            with path.open() as file:
                if _lock(file):
                    path.unlink(missing_ok=True)
                    continue
                said = json.load(file)
        except (OSError, ValueError):  # gone meanwhile, or not written yet
            continue
        if isinstance(said, dict):
            yield said


def _lock(file: IO[str]) -> bool:
    """Lock it, where nobody has; whether that was so."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
