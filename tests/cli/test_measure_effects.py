"""kvscope measure ends with what changed and by how much, and repeats until that is known closely enough."""

from pathlib import Path

from click.testing import CliRunner

from kvscope.cli.main import cli
from kvscope.record.store import open_records

ARGUMENTS = ("measure", "input_length", "--engine", "fake", "--levels", "40,80", "--output-tokens", "2")
# 10 ms and 1 ms a token: 50 ms for 40 tokens, 90 ms for 80.
LAW = ("--set", "ttft_s=0.01", "--set", "ttft_s_per_token=0.001", "--set", "load_s=0.0")


def test_repeating_ends_when_the_interval_is_narrow_enough_and_says_so(tmp_path: Path) -> None:
    records = tmp_path / "r.db"
    asked = [*ARGUMENTS, *LAW, "--until", "20%", "--most-repeats", "12", "--set", "noise_share=0.02"]
    first = CliRunner().invoke(cli, [*asked, "--records", str(records)], standalone_mode=False)
    assert first.exception is None, first.output
    said = " ".join(first.output.split())
    # Narrow at each look from the first on, and the third one is after seven blocks: 1 warm-up and 7 × 2 trials.
    assert "14 measured, 0 failed, 1 warm-up, 0 kept from before" in said
    assert "Narrow enough after 7 of at most 12 repeats" in said
    assert "80 against 40 (7 measured, 7 pairs with the baseline)" in said
    assert "not run" not in said
    line = next(line for line in first.output.splitlines() if "first token (ms)" in line)
    assert line.endswith("yes")
    with open_records(records) as found:
        assert max(trial.block for trial in found.trials()) == 6
    again = CliRunner().invoke(cli, [*asked, "--records", str(records)], standalone_mode=False)
    assert "0 measured, 0 failed, 15 kept from before" in " ".join(again.output.split())
