"""The options of ``kvscope measure`` that say what is asked: one for each field of ``Asked``, with its words."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from kvscope.cli.options import parse_depth, parse_levels, parse_numbers, parse_settings, parse_token_list
from kvscope.errors import UsageError
from kvscope.experiment.asked import FIELDS, Asked
from kvscope.experiment.asked_fields import SAYS
from kvscope.experiment.designs import DESIGNS
from kvscope.experiment.plan import Planned, plan
from kvscope.experiment.study_file import plan_study_file

# Flags that are not called as their field is.
_FLAGS = {
    "rate_per_s": "--rate",
    "shared_prefix_tokens": "--shared-prefix",
    "key_percent": "--key-depth",
    "settings": "--set",
    "factors": "--factor",
    "reuse_prefix": "--reuse-prefix/--no-reuse-prefix",
}
_NUMBERS = ("pid", "repeats", "seed", "most_repeats", "requests", "quality_documents", "quality_output_tokens")
# How a flag's text becomes the field's value; what is not here is read by the field itself.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "levels": parse_levels,
    "input_tokens": parse_token_list,
    "output_tokens": parse_token_list,
    "concurrency": parse_token_list,
    "rate_per_s": parse_numbers,
    "key_percent": parse_depth,
    "settings": parse_settings,
    "factors": lambda pairs: parse_settings(pairs, flag="--factor"),
}


def flag_of(name: str) -> str:
    """The flag of the field called ``name``."""
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def asked_options(function: Any) -> Any:
    """The options, each None (or an empty tuple) where it is not given."""
    for name in reversed([name for name in FIELDS if name != "design"]):
        function = click.option(flag_of(name), name, **_option(name))(function)
    return function


def _option(name: str) -> dict[str, Any]:
    says, default = SAYS[name], FIELDS[name].default
    shown = f"  [default: {default}]" if isinstance(default, str | int) and not isinstance(default, bool) else ""
    option: dict[str, Any] = {"help": says.help + shown, "default": None}
    if name in ("settings", "factors"):
        return {"help": says.help, "multiple": True, "metavar": "NAME=VALUE"}
    if name == "grid":
        return {**option, "is_flag": True}
    if name == "port":
        return {**option, "type": click.IntRange(0, 65535)}
    if name in _NUMBERS:
        return {**option, "type": int}
    if says.choices:
        return {**option, "type": click.Choice(says.choices)}
    return option


def planned_studies(design: str, flags: Mapping[str, Any]) -> list[Planned]:
    """What is asked: by the flags, or by a study file and those flags that say where and how it is run. Raises
    UsageError for other flags beside a file, and as ``plan`` and ``plan_study_file``."""
    given = {
        name: _READ[name](value) if name in _READ else value for name, value in flags.items() if value not in (None, ())
    }
    if not is_study_file(design):
        return [plan(Asked(design=design, **given))]
    refused = [flag_of(name).split("/")[0] for name in FIELDS if name in given and not SAYS[name].is_where]
    if refused:
        beside = ", ".join(flag_of(name) for name in FIELDS if SAYS[name].is_where)
        raise UsageError(
            f"{design} says what is asked, and {', '.join(refused)} would ask something else.",
            hint=f"Change it in the file. What says where and how it runs can be given beside it: {beside}, --records, "
            "--max-minutes, --fail-fast, --retry-failed, --try-anyway, --keep-text.",
        )
    return plan_study_file(design, given)


def is_study_file(design: str) -> bool:
    """Whether what was given for a design is a study file."""
    return design.endswith(".toml") or (design not in DESIGNS and Path(design).is_file())
