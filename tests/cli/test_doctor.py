"""kvscope doctor: what it says, for people and for scripts, with and without an engine."""

import json
import re
import sys
import time

import pytest
from click.testing import CliRunner
from scripted_server import answering, plain

from kvscope.cli.doctor import doctor
from kvscope.probe import machine_memory as memory_module


def run(*arguments: str) -> str:
    result = CliRunner().invoke(doctor, arguments, standalone_mode=False)
    assert result.exception is None
    assert result.return_value == 0
    return result.output


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)


@pytest.mark.usefixtures("no_engine")
def test_what_is_missing_and_how_to_get_it() -> None:
    text = run()
    assert "  no   llama.cpp: " in text
    assert "pip install 'kvscope[llama-cpp]'" in text
    assert "  yes  fake" in text


@pytest.mark.usefixtures("no_engine")
def test_the_same_for_scripts() -> None:
    found = json.loads(run("--json"))
    assert found["schema"] == "kvscope.doctor/1"
    engines = {each["name"]: each for each in found["engines"]}
    assert engines["llama.cpp"]["works"] is False
    assert engines["llama.cpp"]["version"] is None
    assert engines["fake"] == {"name": "fake", "works": True, "version": "1", "why_not": None}
    probes = {each["name"]: each for each in found["probes"]}
    assert probes["process memory"] == {
        "name": "process memory",
        "works": True,
        "why_not": None,
        "detail": None,
    }
    assert all(each["works"] or each["why_not"] for each in found["probes"])
    assert found["memory"]["total_bytes"] > 0


@pytest.mark.usefixtures("no_engine")
def test_each_probe_says_what_it_reads_or_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    text = run()
    assert "  yes  process memory\n" in text
    assert "  no   NVIDIA GPU memory (NVML): " in text
    assert "pip install 'kvscope[nvidia]'" in " ".join(text.split())
    assert re.search(r"control group(  \(version [12], .* held|: )", text)


@pytest.mark.usefixtures("no_engine")
def test_what_is_not_known_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvscope.cli import doctor as doctor_module
    from kvscope.errors import ProbeUnavailable

    def unreadable() -> memory_module.MachineMemory:
        raise ProbeUnavailable("no /proc here")

    monkeypatch.setattr(doctor_module, "machine_memory", unreadable)
    assert json.loads(run("--json"))["memory"]["total_bytes"] is None
    assert "Memory: unknown" in run()


@pytest.mark.engine
def test_an_engine_that_works() -> None:
    found = {each["name"]: each for each in json.loads(run("--json"))["engines"]}
    assert found["llama.cpp"]["works"] is True
    assert found["llama.cpp"]["version"]
    assert found["llama.cpp"]["why_not"] is None


@pytest.mark.usefixtures("no_engine")
def test_whatever_one_check_fails_by_the_others_are_still_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server at OLLAMA_HOST that nests 200,000 lists, a driver's library with a fault, an unreadable machine."""
    from kvscope.cli import doctor as doctor_module
    from kvscope.probe.nvml import NvidiaProbe

    def fails(*_: object) -> None:
        raise ZeroDivisionError("in the driver")

    monkeypatch.setattr(NvidiaProbe, "unavailable", fails)
    monkeypatch.setattr(doctor_module, "machine_memory", fails)
    with answering(lambda *_: plain("200 OK", b"[" * 200_000)) as url:
        monkeypatch.setenv("OLLAMA_HOST", url)
        found = json.loads(run("--json"))
    engines = {each["name"]: each for each in found["engines"]}
    assert "what is not JSON" in engines["ollama"]["why_not"]
    assert engines["fake"]["works"] is True
    probes = {each["name"]: each for each in found["probes"]}
    assert "ZeroDivisionError: in the driver" in probes["NVIDIA GPU memory (NVML)"]["why_not"]
    assert probes["process memory"]["works"] is True
    assert found["memory"]["total_bytes"] is None


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("error", [RecursionError("too deep"), SystemExit("too deep")])
def test_an_engine_whose_check_has_a_fault_is_one_line(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    from kvscope.engine import fake

    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(fake, "check", fails)
    text = run()
    assert f"  no   fake: Looking for it failed ({type(error).__name__}: too deep)." in text
    assert "  yes  process memory\n" in text


@pytest.mark.usefixtures("no_engine")
def test_a_slow_ollama_is_not_waited_for_and_said_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvscope.engine import ollama

    monkeypatch.setattr(ollama, "LOOK_TIMEOUT_S", 0.2)
    asked: list[str] = []

    def slow(path: str, _: object) -> bytes:
        asked.append(path)
        time.sleep(1)
        return plain("200 OK", b'{"version": "0.33.0"}')

    with answering(slow) as url:
        monkeypatch.setenv("OLLAMA_HOST", url)
        text = run()
    said = " ".join(text.split())
    assert re.search(r" no ollama: http://127.0.0.1:\d+ did not say within 0\.2 s which Ollama it is", said)
    assert asked == ["/api/version"]
