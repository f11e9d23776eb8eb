"""An engine that somebody kills, at every moment of its life. SIGKILL alone is not a lack of memory."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sitting import Maker, sit, sound

from kvscope.engine.base import ChatRequest, Engine, EngineReport, Generation
from kvscope.engine.http_client import run
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.openai_http import get_text
from kvscope.model.spec import ModelSpec
from kvscope.record.rows import TrialResult
from kvscope.scenario import SettingValue

pytestmark = pytest.mark.engine


class Killed(LlamaCppEngine):
    """Killed by SIGKILL: only the process that this engine itself has started."""

    asked = 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        for pid in self.pids():
            os.kill(pid, number)

    @contextmanager
    def killed_when(self, reached: Callable[[], bool], number: int = signal.SIGKILL) -> Iterator[None]:
        """Kill it (or send another signal) as soon as that is so; looked at from beside, as long as the block runs."""
        done = threading.Event()

        def watch() -> None:
            while not done.is_set() and not reached():
                time.sleep(0.002)
            self.kill(number)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def logged(self, words: str, since: int) -> bool:
        return self._process is not None and words in self._process.log_text(since)

    def log_size(self) -> int:
        return 0 if self._process is None else self._process.log_size()

    def decoded_tokens(self) -> int:
        """What the server's /slots says it has generated so far."""
        found = re.search(r'"n_decoded":\s*(\d+)', run(get_text(f"{self.url}/slots")))
        return int(found[1]) if found else 0

    def generate(self, request: ChatRequest) -> Generation:
        self.asked += 1
        return super().generate(request) if self.asked == 1 else self.generate_measured(request)

    def generate_measured(self, request: ChatRequest) -> Generation:
        return super().generate(request)


class KilledInLoad(Killed):
    def load(self) -> EngineReport:
        begin = self.log_size()
        with self.killed_when(lambda: self.log_size() > begin):
            return super().load()


class KilledBeforeTheFirstToken(Killed):
    def generate_measured(self, request: ChatRequest) -> Generation:
        begin = self.log_size()
        with self.killed_when(lambda: self.logged("processing task", begin)):
            return super().generate_measured(request)


class KilledInMidStream(Killed):
    def generate_measured(self, request: ChatRequest) -> Generation:
        with self.killed_when(lambda: self.decoded_tokens() > 2):
            return super().generate_measured(replace(request, max_output_tokens=600))


class KilledBetweenRequests(Killed):
    def generate_measured(self, request: ChatRequest) -> Generation:
        answer = super().generate_measured(request)
        self.kill()
        return answer


class KilledAfterLoad(Killed):
    def load(self) -> EngineReport:
        report = super().load()
        self.kill()
        return report


class KilledInUnload(Killed):
    def unload(self) -> None:
        self.kill()
        super().unload()


KINDS = (
    KilledInLoad,
    KilledAfterLoad,
    KilledBeforeTheFirstToken,
    KilledInMidStream,
    KilledBetweenRequests,
    KilledInUnload,
)


def of_kind(kind: type[LlamaCppEngine]) -> Maker:
    def make(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return kind(model=model, settings=settings)

    return make


@pytest.fixture(scope="module")
def results(smollm2: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrialResult]:
    folder: Path = tmp_path_factory.mktemp("killed")
    recorded = sit(folder, smollm2, [*map(of_kind, KINDS), sound], prompt_tokens=120, n_ctx=1024)
    return dict(zip([*(kind.__name__ for kind in KINDS), "after them"], recorded, strict=True))


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_it_died_and_memory_is_not_blamed(results: dict[str, TrialResult], kind: str) -> None:
    trial = results[kind].trial
    assert (trial.outcome, trial.error_slug) == ("engine_died", "engine-died")
    assert (trial.evidence["known_by"], trial.evidence["signal"]) == ("exit", "SIGKILL")
    if sys.platform == "linux":
        # The counts that would speak of memory are kept, and they stood still in the engine's group.
        counters = trial.evidence["counters"]
        before, after = counters.get("group.oom_kill", counters["machine.oom_kill"])
        assert after == before
        assert trial.evidence["predicted_bytes"] < trial.evidence["available_bytes"]
    assert trial.engine_log_tail
    assert results[kind].samples


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("KilledInLoad", []),
        ("KilledBeforeTheFirstToken", ["warmup", "measured"]),
        ("KilledInMidStream", ["warmup", "measured"]),
        ("KilledBetweenRequests", ["warmup", "measured"]),
    ],
)
def test_what_was_asked_until_then_is_kept(results: dict[str, TrialResult], kind: str, requests: list[str]) -> None:
    rows = results[kind].requests
    assert [row.role for row in rows] == requests
    if kind == "KilledBetweenRequests":
        assert rows[-1].error_slug is None
        assert rows[-1].output_tokens == 4
    elif rows:
        assert rows[-1].error_slug == "engine-died"
        # A null is a null: no time, no count of a request that was not answered.
        assert (rows[-1].completed_s, rows[-1].output_tokens, rows[-1].prompt_tokens_server) == (None, None, None)


def test_the_trial_after_them_runs(results: dict[str, TrialResult]) -> None:
    assert results["after them"].trial.outcome == "ok"


class FrozenInMidStream(Killed):
    """Stopped in the middle of its answer, so that nothing comes any more and nothing is logged. What it does not hear
    is not waited for long."""

    stop_grace_s = 0.2

    def generate_measured(self, request: ChatRequest) -> Generation:
        with self.killed_when(lambda: self.decoded_tokens() > 2, signal.SIGSTOP):
            return super().generate_measured(replace(request, max_output_tokens=600, stall_s=2.0))


class FrozenBeforeTheFirstToken(Killed):
    stop_grace_s = 0.2

    def generate_measured(self, request: ChatRequest) -> Generation:
        self.kill(signal.SIGSTOP)
        return super().generate_measured(replace(request, timeout_s=0.5))


def test_m15_a_hang_without_a_word_is_no_lack_of_memory(smollm2: ModelSpec, tmp_path: Path) -> None:
    """vllm-project/vllm#2163. The frozen engine does not hear that it is to end, and is ended all the same."""
    makers = [of_kind(FrozenInMidStream), of_kind(FrozenBeforeTheFirstToken), sound]
    results = sit(tmp_path, smollm2, makers, n_ctx=1024)
    assert [result.trial.outcome for result in results] == ["stalled", "timed_out", "ok"]
    for result in results[:2]:
        assert "engine-still-running" not in [warning.slug for warning in result.warnings]
        assert result.requests[-1].completed_s is None
