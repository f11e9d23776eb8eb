"""The truth server as a child process: started beside the client, asked for its log, always ended."""

import http.client
import json
import sys
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from kvscope.engine.process import EngineProcess
from kvscope.errors import ConnectionLost, EngineReplyError, EngineStartFailed
from kvscope.selftest.processors import Apart
from kvscope.selftest.sent import SentAnswer, read_sent

_PROGRAM = "kvscope.selftest.truth_server"
# A slow machine compiles it in some seconds.
_READY_WITHIN_S = 90.0
_ANSWERS_WITHIN_S = 60.0
# A process that is killed closes its connections a little before it has ended.
_ENDS_WITHIN_S = 0.5
_NAME = "the truth server"


class TruthServer:
    """Use as a context: it runs inside, and is gone after, also when kvscope is killed (``engine/process.py``)."""

    def __init__(self, apart: Apart, *, in_python: bool) -> None:
        words = ["--core", str(apart.server)] if apart.server is not None else ["--spin-us", "0"]
        words += ["--python"] if in_python else []
        # -P: a file of the same name in the current folder is not run instead.
        self._process = EngineProcess((sys.executable, "-P", "-m", _PROGRAM, *words), name=_NAME, talks=True)
        self.url = ""

    def __enter__(self) -> "TruthServer":
        """Raises EngineStartFailed, EngineDied or EngineTimeout where it does not come up."""
        self._process.start()
        try:
            self.url = self._process.receive(_READY_WITHIN_S, doing="being started").strip()
            if not self.url.startswith("http://"):
                raise EngineStartFailed(
                    f"{_NAME} said {self.url[:200]!r} instead of its address.",
                    hint="This is a fault of kvscope; please report it.",
                    evidence={"known_by": "message"},
                )
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.stop()

    @property
    def pid(self) -> int | None:
        """Its process; None after its end."""
        return self._process.pid

    def about(self) -> dict[str, Any]:
        """What it says of itself: native or python, its processor, whether the kernel stamps what comes in."""
        found = json.loads(self._get("/truth/about"))
        if not isinstance(found, dict):
            raise EngineReplyError(f"{_NAME} said of itself what is not understood.", hint="Please report it.")
        return found

    def take_sent(self) -> dict[str, SentAnswer]:
        """Id → answer, of those that ended since the last call. To be called when nothing is under way."""
        return read_sent(self._get("/truth/log"))

    def _get(self, path: str) -> str:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_ANSWERS_WITHIN_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as error:
            if self._process.exits_within(_ENDS_WITHIN_S):
                raise self._process.death(while_doing="being asked for its log") from error
            raise ConnectionLost(f"{_NAME} did not give its log: {error}", hint="Run the self-test again.") from error
        finally:
            connection.close()
