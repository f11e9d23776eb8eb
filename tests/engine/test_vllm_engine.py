"""A real vLLM with a pool that two requests do not fit into together, and one whose worker is killed. Which vLLM:
tests/engine/vllm_here.py. A start takes half a minute, so one server goes through both."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_here import BYTES_PER_TOKEN, PYTHON, SETTINGS, needs_vllm, write_tiny_model

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.http_client import run
from kvscope.engine.vllm import VllmEngine
from kvscope.engine.vllm_program import find_program
from kvscope.errors import EngineDied
from kvscope.model.load import load_model
from kvscope.predict.memory import predict
from kvscope.probe.proc import process_exists, process_tree

pytestmark = [pytest.mark.vllm, needs_vllm]

BLOCKS, BLOCK_TOKENS = 24, 32


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[VllmEngine]:
    model = load_model(str(write_tiny_model(tmp_path / "tiny")))
    settings = {**SETTINGS, "max_model_len": 512, "num_gpu_blocks_override": BLOCKS}
    made = VllmEngine(program=find_program(PYTHON), model=model, settings=settings)
    made.launch()
    made.load()
    pids = process_tree(made.pids())
    yield made
    made.stop()
    assert not [pid for pid in pids if process_exists(pid)]


def long_request(word: str) -> ChatRequest:
    """A prompt of more than 260 tokens and 200 of answer: 16 blocks of 32."""
    return ChatRequest(messages=(Message(role="user", content=f"{word} " * 260),), max_output_tokens=200)


def keep_it_busy(engine: VllmEngine) -> None:
    for _ in range(100):
        engine.generate(long_request("leaf"))


def test_a_pool_too_small_for_two_and_then_a_worker_killed(engine: VllmEngine, tmp_path: Path) -> None:
    predicted = predict(
        load_model(str(tmp_path / "tiny")), engine="vllm", tokens=500, sequences=2, settings=dict(engine.settings)
    ).to_dict()["pool"]
    stated = engine.statistics()
    assert stated["kv_cache_pool_tokens"] == predicted["capacity_tokens"] == BLOCKS * BLOCK_TOKENS
    assert predicted["bytes_per_block"] == BLOCK_TOKENS * BYTES_PER_TOKEN

    async def both() -> list[int | None]:
        answers = await asyncio.gather(*(engine.generate_async(long_request(word)) for word in ("river", "stone")))
        return [answer.output_tokens for answer in answers]

    # 2 × 16 blocks are asked of 23 (one is always kept free): one request is put back, and both are answered in full.
    assert run(both()) == [200, 200]
    after = engine.statistics()
    assert after["preemptions"] >= 1
    assert after["output_tokens"] - stated["output_tokens"] == 400
    assert after["requests_running"] == after["requests_waiting"] == 0

    worker = next(
        pid for pid in process_tree(engine.pids()) if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::Worker")
    )

    def kill_while_it_works() -> None:
        until_s = time.monotonic() + 60
        while not engine.statistics()["requests_running"] and time.monotonic() < until_s:
            time.sleep(0.01)
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill_while_it_works)
    killer.start()
    with pytest.raises(EngineDied, match="EngineCore encountered an issue"):
        keep_it_busy(engine)
    killer.join()
    assert engine.pids() == ()
