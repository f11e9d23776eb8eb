"""What can be asked: one definition, whoever fills it."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

import kvscope
from kvscope.cli.measure import measure as command
from kvscope.cli.study_options import flag_of, planned_studies
from kvscope.errors import BadDesign, UnknownName, UsageError
from kvscope.experiment.asked import FIELDS, Asked, differing
from kvscope.experiment.asked_fields import SAYS
from kvscope.experiment.measure import measure
from kvscope.experiment.plan import plan
from kvscope.record.store import open_records

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "study-files.md").read_text(encoding="utf-8")
# The keywords that kvscope.measure() had before there was one definition: they stay.
PROMISED = {
    "engine", "model", "levels", "repeats", "requests", "input_tokens", "output_tokens", "reuse_prefix", "language",
    "text", "key_percent", "settings", "seed", "engine_command", "url", "served_model", "pid", "api_key_env",
}  # fmt: skip


def test_every_field_has_its_words() -> None:
    assert list(SAYS) == [each.name for each in fields(Asked)]
    assert FIELDS.keys() >= PROMISED


def test_every_field_is_in_the_document_with_its_flag_and_words() -> None:
    for name, says in SAYS.items():
        if says.table not in ("study", "held"):
            assert f"### `[study.{says.table}]`" in PAGE
            continue
        (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE, flags=re.MULTILINE)
        assert says.help in row
        assert says.expected in row
        assert name == "design" or all(f"`{flag}`" in row for flag in flag_of(name).split("/"))
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert rows == [name for name, says in SAYS.items() if says.table in ("study", "held")]


def test_every_field_is_a_flag_with_its_words() -> None:
    flags = {param.name: param for param in command.params if isinstance(param, click.Option)}
    for name in FIELDS.keys() - {"design"}:
        option = flags[name]
        assert (option.help or "").startswith(SAYS[name].help)
        assert flag_of(name).split("/")[0] in option.opts


def test_the_examples_can_be_asked() -> None:
    for name, says in SAYS.items():
        if name != "design":
            assert getattr(Asked(design="turns", **{name: says.like}), name) not in (None, (), {})


def test_values_are_read_alike_whoever_gives_them() -> None:
    by_flags = {
        "levels": "1k,512",
        "input_tokens": "2k",
        "until": "5%",
        "shared_prefix_tokens": "1k",
        "key_percent": "middle",
        "rate_per_s": None,
        "concurrency": "4",
        "settings": ("n_ctx=4k", "cache_type_k=q8_0"),
        "factors": (),
        "seed": None,
        "grid": None,
    }
    (planned,) = planned_studies("output_length", by_flags)
    asked = planned.asked
    assert asked == Asked(
        design="output_length",
        levels=(1024, 512),
        input_tokens=(2048,),
        until=0.05,
        shared_prefix_tokens=1024,
        key_percent=50.0,
        concurrency=(4,),
        settings={"n_ctx": (4096,), "cache_type_k": ("q8_0",)},
    )
    loose: dict[str, Any] = {
        "levels": ["1k", 512],
        "input_tokens": "2k",
        "until": "5%",
        "shared_prefix_tokens": "1k",
        "key_percent": 50,
        "concurrency": 4,
        "settings": {"n_ctx": "4k", "cache_type_k": ["q8_0"], "left_out": None},
    }
    assert Asked(design="output_length", **loose) == asked


@pytest.mark.parametrize(
    ("name", "value"),
    [("repeats", 0), ("repeats", True), ("levels", ""), ("pid", "4"), ("grid", 1), ("until", float("nan")),
     ("language", "fr"), ("settings", [1]), ("settings", {"": 1}), ("input_tokens", -1), ("text", "")],
)  # fmt: skip
def test_a_wrong_value_says_what_was_expected(name: str, value: Any) -> None:
    with pytest.raises(BadDesign, match=re.escape(SAYS[name].expected)):
        Asked(design="turns", **{name: value})


def test_only_what_was_asked_is_told() -> None:
    assert differing(Asked(design="turns")) == {}
    assert differing(Asked(design="turns", repeats=3, engine="fake", seed=0)) == {"repeats": 3, "engine": "fake"}


def test_the_library_takes_the_object_or_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    asked = Asked(design="input_length", engine="fake", levels=(64,), repeats=1, settings={"load_s": (0.0,)})
    assert measure(asked, records=path).measured == 2
    kept = measure("input_length", engine="fake", levels=[64], repeats=1, settings={"load_s": 0.0}, records=path)
    assert (kept.measured, kept.kept) == (0, 2)
    with open_records(path) as records:
        first, second = records.runs()
    assert first.command == second.command
    with pytest.raises(UnknownName, match="repeat"):
        kvscope.measure("input_length", repeat=1)


def test_two_named_factors_are_a_grid() -> None:
    factors: dict[str, tuple[str | int, ...]] = {"kv_dtype": ("f16", "q8_0"), "prompt_tokens": (64, 128)}
    design = plan(Asked(design="grid", factors=factors)).design
    assert design.is_grid
    assert [factor.levels for factor in design.factors] == [("f16", "q8_0"), (64, 128)]
    # A level of kv_dtype is what that design makes of it, not a setting of that name.
    changed = design.condition({design.factor.name: "q8_0", "prompt_tokens": 128})
    assert (changed.settings["cache_type_k"], changed.settings["cache_type_v"]) == ("q8_0", "q8_0")
    assert changed.prompt_tokens == 128
    own = plan(Asked(design="grid", factors={"ub": (128, 512), "prompt_tokens": (64, 128)})).design
    assert own.factor.name == "n_ubatch"  # llama.cpp's own name for it


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"factors": {}}, "two different factors"),
        ({"factors": {"prompt_tokens": (1, 2)}}, "two different factors"),
        ({"factors": {"prompt_tokens": (1, 2), "n_ctx": (1, 2), "n_batch": (1, 2)}}, "two different factors"),
        ({"factors": {"prompt_tokens": (1, 2), "n_ctx": (256, 512)}, "levels": (1,)}, "--factor"),
        (
            {"factors": {"prompt_tokens": (1, 2), "n_ctx": (256, 512)}, "input_tokens": (1,)},
            "is what this design varies",
        ),
        (
            {"factors": {"prompt_tokens": (1, 2), "n_ctx": (256, 512)}, "url": "http://127.0.0.1:1"},
            "keeps the one it was started with",
        ),
    ],
)
def test_what_no_grid_can_be_says_so(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(Asked(design="grid", **changes))
    assert said in f"{caught.value.message} {caught.value.hint}"
