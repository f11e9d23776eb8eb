"""Whose memory is watched: a process that only passes on what another one answers is doubted. Real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai_proxy import proxy
from test_served_facts import NOWHERE, SMOLLM2, llama

from kvscope.engine.listening import ProcessIdentity, family, identify
from kvscope.engine.registry import EngineChoice
from kvscope.engine.server_process import ServerProcess, too_small, with_its_shards

MIB = 2**20


@contextmanager
def holding(code: str, *arguments: str) -> Iterator[ServerProcess]:
    """A process that has run this, and waits."""
    program = f"import mmap, subprocess, sys; {code}; print('', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        yield ServerProcess(identity=identify(process.pid))
        process.stdin.close()


def test_a_process_that_holds_less_than_the_model_is_doubted() -> None:
    with holding("pass") as small:
        ((slug, message, hint),) = too_small(small, 96 * MIB)
        assert slug == "process-too-small"
        assert f"{96 * MIB:,}" in message
        assert "--pid" in hint
        assert too_small(small, 1 * MIB) == ()


def test_memory_of_children_and_a_mapped_model_count(tmp_path: Path) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'x = b\"x\" * (96 << 20); print(1, flush=True); input()'], "
    with holding(f"c = {child} stdin=subprocess.PIPE, stdout=subprocess.PIPE); c.stdout.readline()") as parent:
        assert parent.identity is not None
        assert len(family(parent.identity.pid)) == 2
        assert too_small(parent, 96 * MIB) == ()
    file = tmp_path / "model.gguf"  # its pages may not be resident
    file.write_bytes(b"GGUF")
    with holding("f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)", str(file)) as mapped:
        assert too_small(mapped, 96 * MIB) == ()


def test_what_is_not_there_is_not_doubted() -> None:
    assert too_small(ServerProcess(identity=None), 1 << 50) == ()
    assert too_small(ServerProcess(identity=ProcessIdentity(os.getpid(), 1)), 1 << 50) == ()


def test_a_forwarder_before_llama_cpp_is_told_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in forwards nothing, but states a model that this process has no room for."""
    # Another test may have left a model's file mapped in this very process, which no forwarder has.
    monkeypatch.setattr("kvscope.engine.server_process._may_hold_elsewhere", lambda folder: False)
    with proxy(NOWHERE, **llama({**SMOLLM2, "size": 1 << 40})) as server:
        engine = EngineChoice(name="llama.cpp", url=server.url).create(None, {})
        engine.launch()
        assert "process-too-small" in {slug for slug, _, _ in engine.load().warnings}


@pytest.mark.parametrize("launcher", ["text-generation", "bash"])
def test_the_router_of_text_generation_inference_is_not_where_the_model_is(tmp_path: Path, launcher: str) -> None:
    """Processes as text-generation-launcher starts them: the router and a shard beside each other. The kernel keeps 15
    bytes of a name."""
    for pid, above, name in ((700, 1, launcher), (701, 700, "text-generation"), (702, 700, "python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
        fields = f"S {above} 1 1 0 -1 0 9 0 0 0 5 6 0 0 20 0 1 0 43 99 1"
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {fields}\n")
    found = with_its_shards(ServerProcess(identity=identify(701, tmp_path)), tmp_path)
    assert found.identity is not None
    if launcher == "text-generation":
        assert (found.identity.pid, found.warnings) == (700, ())
        assert set(family(700, tmp_path)) == {700, 701, 702}
    else:
        assert found.identity.pid == 701
        assert [slug for slug, _, _ in found.warnings] == ["process-too-small"]
