"""How many tokens one text is, as the engine sees it: raw, or as one user message in the model's chat template.

The template is rendered once, around a text that stands for any other, and its two ends are kept: a search for an exact
length counts a dozen texts, and each rendering costs a process. A template that does something to the text is rendered
anew for every count.
"""

from bisect import bisect_left
from collections.abc import Sequence

from kvscope.errors import UsageError
from kvscope.prompt.chat_template.template import (
    ChatTemplate,
    Rendering,
    load_other_template,
    load_template,
)
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.prompt_text import ids_of_text
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer

# What a template might change: spaces within a line, empty lines, what HTML or JSON would escape, other scripts.
_STAND_IN = "q  Q\n\n\"<&>'\\ {{ x }} %} 가나다 é 😀.\t#\nz"


class TextCount:
    """Counts, with a tokenizer of ours, texts as an engine would be sent them: special tokens read as such, BOS once
    where the model wants one. ``template`` None: the text alone. Call it with a list of one user message."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._ends = ("", "") if template is None else _ends(template)

    def __call__(self, messages: Sequence[Message]) -> int:
        if len(messages) != 1 or messages[0].role != "user":
            raise UsageError("This counts one user message, and no other conversation.")
        return self.tokens(messages[0].content)

    def tokens(self, text: str) -> int:
        """The prompt's tokens, template and BOS included."""
        tokenizer = self.tokenizer
        # As ids_of_text, without what takes the time there.
        ids = tokenizer.encode(self.rendered(text), parse_special=True)
        return len(ids) + (tokenizer.adds_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id])

    def tokens_before(self, text: str, places: Sequence[int]) -> list[int] | None:
        """For each place in ``text`` (in characters), the tokens of the whole prompt that begin before it: those of the
        template and BOS are among them. None where the template changes the text, so that its place is not known."""
        whole = self.rendered(text)
        if not text or whole.count(text) != 1:
            return None
        begins = whole.index(text)
        found = ids_of_text(whole, tokenizer=self.tokenizer)
        starts = found.starts[found.bos_added :]
        return [found.bos_added + bisect_left(starts, begins + place) for place in places]

    def rendered(self, text: str) -> str:
        """The whole text that is tokenized, BOS not written."""
        if self._ends is not None:
            return text.join(self._ends)
        assert self.template is not None
        return self.template.render(_asked(text))


def _asked(text: str) -> Conversation:
    return Conversation(messages=(Message(role="user", content=text),))


def _ends(template: ChatTemplate) -> tuple[str, str] | None:
    """What the template puts before and behind a user's text; None where that depends on the text."""
    answers = template.render_each([Rendering(conversation=_asked(text)) for text in (_STAND_IN, "q", "")])
    for answer in answers[:2]:
        if not isinstance(answer, str):
            raise answer
    whole, short, empty = answers
    if not isinstance(whole, str) or whole.count(_STAND_IN) != 1:
        return None
    before, after = whole.split(_STAND_IN)
    same = short == f"{before}q{after}" and empty == before + after
    return (before, after) if same else None


def load_text_count(model: str, *, is_raw: bool = False, template: str | None = None) -> TextCount:
    """The count of ``model``, a reference that both load_tokenizer and load_template take (a .gguf, ``pkg:NAME``, a
    model folder). A GGUF without a template is counted with ChatML, as llama.cpp does. ``template``:
    where another is. Raises what those two raise."""
    tokenizer = load_tokenizer(model)
    if is_raw:
        return TextCount(tokenizer, None)
    if template is not None:
        return TextCount(tokenizer, load_other_template(template, model))
    return TextCount(tokenizer, load_template(model, or_chatml=tokenizer.kind == "gguf"))
