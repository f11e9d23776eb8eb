"""In which form a model is asked, and by whom the tokens of such a prompt are counted."""

from collections.abc import Callable

from kvscope.engine.base import Engine
from kvscope.errors import UsageError
from kvscope.experiment.quality_asked import AskedForm
from kvscope.experiment.request_counts import RequestCounts
from kvscope.prompt.conversation import Message
from kvscope.quality.task import Form

TextCount = Callable[[str], int]


def chosen_form(asked: AskedForm, engine: Engine, counts: RequestCounts) -> Form:
    """``auto``: the chat template, unless the model's files are known to have none. A server's own template is taken
    for given. Raises UsageError where there is no such form."""
    if asked == "chat":
        return "chat"
    if asked == "cue":
        return _cue(engine, f"{engine.name} takes no text without its chat template (--quality-form cue).")
    has_template = None if counts.counter is None else counts.counter.has_template()
    if has_template is not False:
        return "chat"
    return _cue(engine, f"The model has no chat template, and {engine.name} takes no text without one.")


def _cue(engine: Engine, why_not: str) -> Form:
    if not engine.capabilities.completes_text:
        raise UsageError(why_not, hint="Measure with llama.cpp or vLLM, or ask in the form chat (--quality-form chat).")
    return "cue"


def text_count(form: Form, engine: Engine, counts: RequestCounts, asked: tuple[int, int]) -> TextCount:
    """Tokens of a prompt with this text, in this form: as the engine counts them, else by the model's own files.
    ``asked``: tokens of a whole prompt and of its answer. Raises as ``RequestCounts.prompt_counter``."""
    if form == "cue" and engine.capabilities.scores_tokens:
        return lambda text: len(engine.tokenize(text, with_special=True))
    own = counts.counter
    if form == "cue" and own is not None and own.text_tokens("") is not None:
        return lambda text: own.text_tokens(text) or 0
    count = counts.prompt_counter(asked)
    return lambda text: count((Message(role="user", content=text),))
