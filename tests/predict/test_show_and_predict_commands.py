"""kvscope show and kvscope predict, from the command line's side: text, JSON, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from golden_gguf import GOLDEN, writer

from kvscope.cli.predict import predict
from kvscope.cli.show import show
from kvscope.errors import UnknownName, UsageError

CONFIG = GOLDEN.parent / "models" / "gemma-3-4b-it" / "config.json"


@pytest.fixture(scope="module")
def gemma3_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(writer("gemma3-270m-q4_k_m").write(tmp_path_factory.mktemp("cli") / "gemma3.gguf"))


def run(command: Any, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show(gemma3_file: str) -> None:
    text = run(show, gemma3_file)
    assert "     0  sssssFsssssFsssssF" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(("  s  ", "  F  "))}
    # Cells are folded where the row has no room; the first line of each.
    assert "15: 0-4, 6-10, " in rows["s"]
    assert "3: 5, 11, 17" in rows["F"]
    # One layer: 1 KV head × (256 + 256) × 2 B
    assert "4 Q, 1 KV × (256" in rows["s"]
    assert rows["s"].endswith("1,024 B, up to 512")
    assert max(map(len, text.splitlines())) <= 80
    assert "One more token costs 18,432 B in float16, and 3,072 B once every window is full." in text
    assert "q4_k" in text
    assert "GGUF key gemma3.attention.sliding_window" in text


def test_show_json(gemma3_file: str) -> None:
    found = json.loads(run(show, gemma3_file, "--json"))
    assert (found["bytes_per_token"], found["bytes_per_token_beyond_windows"]) == (18_432, 3072)
    assert found["weights_bytes"] == sum(row["bytes"] for row in found["tensors_by_type"]) == 246_587_904
    assert [group["layers"] for group in found["groups"]][1] == [5, 11, 17]


def test_show_of_a_bare_config_says_what_it_does_not_know() -> None:
    text = run(show, str(CONFIG))
    facts = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith(("  parameters", "  weights")))
    assert facts["weights"] == "not known"
    assert "no weight file was read" in text
    assert "class default of transformers 5.24.0 Gemma3TextConfig" in text


def test_show_draws_every_kind_of_layer() -> None:
    layers = (
        "2 x [recurrent state=16x8 state_dtype=float32; full kv_heads=2 head_dim=4]; shared layer=1; none;"
        "latent latent_dim=8 rope_dim=4; cross kv_heads=2 head_dim=4 tokens=100"
    )
    text = run(show, str(CONFIG), "--layers", layers)
    assert "     0  rFrF-.Lx" in text
    assert "reads layer 1's" in text
    assert "latent 8 + rope 4" in text
    # 2 × 16 × 8 × 4 B of state, and 2 × 100 × 8 × 2 B of the other input
    assert "holds 4.1 KiB whatever its length" in " ".join(text.split())


def test_predict_one_length(gemma3_file: str) -> None:
    text = run(predict, gemma3_file, "--engine", "llama.cpp", "--tokens", "2k", "--set", "n_ctx=8k", "--set", "np=4")
    assert "2,048 tokens in one sequence" in text
    assert "8,192 cells in 4 streams of 2,048, 4 slots" in text
    # Full: 4 × 2048 cells × 3 layers × 1,024 B; sliding: 4 × 1024 × 15 × 1,024 B.
    assert f"{4 * 1024 * (3 * 2048 + 15 * 1024):,}" in text
    assert "not known" in text
    assert "The slope changes at 512 tokens: sliding window full." in text
    assert "each of layers 5, 11, 17:" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_predict_several_lengths_is_a_table_and_a_list(gemma3_file: str) -> None:
    arguments = (gemma3_file, "--engine", "llama.cpp", "--tokens", "512,2k,64k")
    text = run(predict, *arguments)
    firsts = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert [first for first in firsts if first.replace(",", "").isdigit()] == ["512", "2,048", "65,536"]
    assert "65536 tokens do not fit" in text
    found = json.loads(run(predict, *arguments, "--json"))
    assert [entry["scenario"]["tokens"] for entry in found] == [512, 2048, 65_536]
    assert found[0]["totals"]["kv_cache_bytes"] == found[2]["totals"]["kv_cache_bytes"]


def test_predict_json_is_one_object(gemma3_file: str) -> None:
    found = json.loads(run(predict, gemma3_file, "--engine", "llama.cpp", "--json"))
    assert found["schema"] == "kvscope.prediction/1"
    assert found["scenario"]["tokens"] == 32_768
    assert "Tokens not given" in found["notes"][0]


def test_predict_without_an_engine() -> None:
    text = run(predict, str(CONFIG), "--engine", "logical", "--tokens", "8k", "--dtype", "bfloat16")
    assert "289,406,976" in text  # 5 × 8192 × 4096 + 29 × 1024 × 4096, as in expected.toml


def test_load_mode_none_is_a_load_mode(gemma3_file: str) -> None:
    """Without mapping, the weights are the program's own memory; "none" is not the absence of a setting."""
    found = json.loads(run(predict, gemma3_file, "--engine", "llama.cpp", "--set", "lm=none", "--json"))
    assert found["scenario"]["settings"] == {"load_mode": "none"}
    assert found["effective"]["load_mode"] == "none"
    assert {item["backing"] for item in found["items"] if item["component"] == "weights"} == {"anonymous"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--engine", "llama.cpp", "--set", "n_ctxx=1"), UnknownName),
        (("--engine", "llama.cpp", "--set", "n_ctx"), UsageError),
        (("--engine", "llama.cpp", "--set", "n_ctx="), UsageError),
        (("--engine", "llama.cpp", "--set", "n_ctx=1k", "--set", "n_ctx=2k"), UsageError),
        (("--engine", "llama.cpp", "--set", "n_ctx=1k,2k"), UsageError),
        (("--engine", "llama.cpp", "--set", "n_ctx=" + "9" * 5000), UsageError),
        (("--engine", "llama.cpp", "--set", "load_mode="), UsageError),
        (("--engine", "llama.cpp", "--tokens", "9" * 5000), UsageError),
        (("--engine", "llama.cpp", "--tokens", "1k,,2k"), UsageError),
        (("--engine", "llama.cpp", "--tokens", "many"), UsageError),
        (("--engine", "llama.cpp", "--phase", "later"), UnknownName),
        (("--engine", "llama.cpp", "--available-bytes", "24GiB"), UsageError),
        (("--engine", "vllm"), UsageError),
        (("--engine", "nothing"), UnknownName),
    ],
)
def test_wrong_questions(gemma3_file: str, arguments: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        CliRunner().invoke(predict, [gemma3_file, *arguments], catch_exceptions=False)


def test_a_missing_model_is_our_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(show, [str(tmp_path / "absent.gguf")])
    assert type(result.exception).__name__ == "ModelNotFound"


@pytest.mark.parametrize("name", ["qwen3.5-35b-a3b", "llama-4-scout", "deepseek-v3", "jamba-1.5-mini"])
def test_show_fits_the_screen(name: str) -> None:
    config = Path(__file__).parents[1] / "golden" / "models" / name / "config.json"
    result = CliRunner().invoke(show, [str(config)])
    assert result.exit_code == 0
    table = result.output[: result.output.index("Where this comes from")].splitlines()[1:]
    assert max(map(len, table)) <= 110
    if name == "qwen3.5-35b-a3b":
        assert "256 in each layer that has any" in result.output


@pytest.mark.parametrize("extra", [("--dtype", "bfloat16"), ("--available-bytes", "1GiB"), ("--phase", "sideways")])
def test_with_a_draft_too_what_cannot_be_asked_is_refused(gemma3_file: str, extra: tuple[str, str]) -> None:
    arguments = (gemma3_file, "--engine", "llama.cpp", "--draft", gemma3_file, "--set", "n_ctx=1k")
    assert "draft" in run(predict, *arguments)
    with pytest.raises(UsageError):
        run(predict, *arguments, *extra)
