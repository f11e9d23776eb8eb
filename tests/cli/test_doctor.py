"""kvscope doctor: what it says, for people and for scripts, with and without an engine."""

import json
import re
import sys

import pytest
from click.testing import CliRunner

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
    assert "pip install 'kvscope[nvidia]'" in text
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
