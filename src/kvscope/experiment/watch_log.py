"""The log of a running llama.cpp server, read on from where the last look ended.

A file may hold the logs of several starts, one after another, and grow for months. Only what was written since the
last start counts; of that, the load and what the server says that it keeps of earlier prompts.
"""

from dataclasses import dataclass
from pathlib import Path

from kvscope.engine.llama_log import begins_load, begins_request, begins_start, states_what_is_kept

# Of a longer log only the end is read; where no start is in it, the load is not known.
MOST_READ_BYTES = 256 * 1024**2
_CHUNK_BYTES = 1024**2
_MOST_LOAD_LINES = 20_000
_MOST_KEPT_LINES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeen:
    """``load``: the lines from the last start to the first request (empty where that was not read). ``kept``: the
    lines about copies of earlier prompts since then."""

    load: str
    kept: str


class ServerLog:
    """One log file. ``path`` None: there is none that can be read."""

    def __init__(self, path: Path | None, *, most_read_bytes: int = MOST_READ_BYTES) -> None:
        self._path = path
        self._most = most_read_bytes
        self._begin(0, is_whole=True)
        self._file: tuple[int, int] | None = None

    def read(self) -> LogSeen | None:
        """What is there now; None where no log can be read."""
        if self._path is None:
            return None
        try:
            self._read_on(self._path)
        except OSError:
            return None
        return LogSeen(load="\n".join(self._load), kept="\n".join(self._kept))

    def _begin(self, at: int, *, is_whole: bool) -> None:
        self._read_to = at
        self._rest = b""
        self._load: list[str] = []
        self._kept: list[str] = []
        self._has_start = is_whole
        self._is_loaded = False

    def _read_on(self, path: Path) -> None:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            status = path.stat()
            if self._file != (status.st_dev, status.st_ino) or size < self._read_to:
                self._file = status.st_dev, status.st_ino
                first = max(0, size - self._most)
                self._begin(first, is_whole=first == 0)
            file.seek(self._read_to)
            while self._read_to < size and (chunk := file.read(min(_CHUNK_BYTES, size - self._read_to))):
                self._read_to += len(chunk)
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                self._rest = self._rest[-_CHUNK_BYTES:]
                for line in lines:
                    self._add(line.decode(errors="replace"))

    def _add(self, line: str) -> None:
        if begins_start(line):
            self._load, self._kept, self._has_start, self._is_loaded = [], [], True, False
        elif begins_load(line):
            self._kept = []  # loaded anew, after sleep: what was kept is gone
        if not self._has_start:
            return
        self._is_loaded = self._is_loaded or begins_request(line)
        if not self._is_loaded and len(self._load) < _MOST_LOAD_LINES:
            self._load.append(line)
        if states_what_is_kept(line) and len(self._kept) < _MOST_KEPT_LINES:
            self._kept.append(line)
        elif states_what_is_kept(line):
            self._kept = [*self._kept[_MOST_KEPT_LINES // 2 :], line]
