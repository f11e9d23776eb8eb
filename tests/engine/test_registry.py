"""Name → engine, and what is said when there is none."""

import sys
import time
from pathlib import Path

import pytest

from kvscope.engine.fake import FakeEngine
from kvscope.engine.registry import EngineChoice, available_engines, create_engine
from kvscope.errors import EngineNotFound, MissingDependency, ModelNotFound, UnknownName, UsageError
from kvscope.model.spec import ModelSpec

DESCRIBED = ModelSpec(
    name="described",
    architecture="llama",
    source="config.json",
    file_path=None,
    num_parameters=None,
    vocab_size=1,
    hidden_size=1,
    trained_context_tokens=None,
    layers=(),
)


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match=r"no engine called 'lama\.cpp'") as caught:
        create_engine("lama.cpp", model=DESCRIBED, settings={})
    assert caught.value.hint is not None
    assert "Did you mean llama.cpp?" in caught.value.hint
    with pytest.raises(UnknownName):
        EngineChoice(name="zork").check()


def test_the_fake_needs_no_model_file() -> None:
    engine = EngineChoice(name="fake").create(DESCRIBED, {"n_ctx": 100})
    assert isinstance(engine, FakeEngine)
    assert EngineChoice(name="fake").version() == ("1", "fake")
    assert EngineChoice(name="fake").rules == "logical"


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingDependency) as caught:
        create_engine("llama.cpp", model=DESCRIBED, settings={})
    assert "kvscope[llama-cpp]" in str(caught.value.hint)
    found = {name: (version, reason) for name, version, reason in available_engines()}
    assert found["llama.cpp"][0] is None
    assert "kvscope[llama-cpp]" in str(found["llama.cpp"][1])
    assert found["fake"] == ("1", None)


def test_an_engine_that_is_only_ever_reached_by_its_address_has_nothing_to_start() -> None:
    with pytest.raises(UsageError, match="does not start openai itself") as caught:
        EngineChoice(name="openai").check()
    assert "--url" in str(caught.value.hint)


def test_what_does_not_go_together_is_refused() -> None:
    url = "http://127.0.0.1:1"
    with pytest.raises(UsageError, match="no server to be reached"):
        EngineChoice(name="fake", url=url).check()
    with pytest.raises(UsageError, match="cannot be given a command"):
        EngineChoice(name="llama.cpp", url=url, command="llama-server").check()
    with pytest.raises(UsageError, match="has its port in its address"):
        EngineChoice(name="llama.cpp", url=url, port=8080).check()
    with pytest.raises(UsageError, match="not started by a command"):
        EngineChoice(name="fake", command="x").check()
    for option in ({"pid": 1}, {"served_model": "a"}, {"api_key_env": "A"}):
        with pytest.raises(UsageError, match="for a server that runs already"):
            EngineChoice(name="llama.cpp", **option).check()  # type: ignore[arg-type]


@pytest.mark.engine
def test_the_build_tells_two_wheels_of_one_version_apart() -> None:
    version, build = EngineChoice(name="llama.cpp").version()
    assert version[0].isdigit()
    assert build.startswith("xllamacpp sha256:")


@pytest.mark.engine
def test_an_engine_that_works_is_said_to() -> None:
    found = {name: (version, reason) for name, version, reason in available_engines()}
    assert found["llama.cpp"] == (EngineChoice(name="llama.cpp").version()[0], None)


@pytest.mark.engine
def test_a_model_without_a_file_cannot_run() -> None:
    with pytest.raises(ModelNotFound, match=r"read from config\.json"):
        create_engine("llama.cpp", model=DESCRIBED, settings={})


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "does not state a version"),
        ("echo hello", "does not state a version"),
        ("sleep 987", "did not answer --version"),
    ],
)
def test_a_command_that_is_no_llama_server_is_refused_and_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setattr("kvscope.engine.llama_server._VERSION_TIMEOUT_S", 4.0)
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(EngineNotFound, match=says) as caught:
        EngineChoice(name="llama.cpp", command=str(program)).check()
    assert caught.value.exit_code == 2
    shell = int((tmp_path / "pid").read_text())
    # What was killed is gone when the kernel has taken it down, which may be a moment later.
    until = time.monotonic() + 30
    while left := [p for p in Path("/proc").glob("[0-9]*/stat") if _session(p) == shell]:
        assert time.monotonic() < until, left
        time.sleep(0.01)


def _session(stat: Path) -> int | None:
    """The session of a live process; None for one that has ended."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[3])


def test_an_unfinished_quote_is_a_usage_matter() -> None:
    with pytest.raises(EngineNotFound) as caught:
        EngineChoice(name="llama.cpp", command="'unclosed").check()
    assert caught.value.exit_code == 2
