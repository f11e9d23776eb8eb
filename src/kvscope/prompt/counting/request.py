"""Where the tokens of a request go: every part of its prompt, each tool alone, and what the chat template adds.

A token belongs to the part in which its first character lies, so the parts always sum to the whole. What the template
leaves out (reasoning of earlier turns, tools it does not know) has no tokens, and its row says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.errors import ChatTemplateError, UsageError
from kvscope.prompt.chat_template.cost import TemplateCost, template_cost
from kvscope.prompt.chat_template.template import ChatTemplate, Clock, Rendering, local_time
from kvscope.prompt.conversation import Conversation, Image
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.counting.image_tokens import ImageCost
from kvscope.prompt.counting.request_rows import (
    NOTHING,
    Amount,
    MessageTokens,
    PartRow,
    RowMaker,
    amounts_of,
    with_bos,
    with_head_in_message,
)
from kvscope.prompt.counting.request_spans import (
    PARTS,
    TEMPLATE,
    NamedFound,
    NamedText,
    added_region,
    parts_of_messages,
    spans_of,
    with_documents,
    with_named_texts,
)
from kvscope.prompt.message_fields import tool_name
from kvscope.prompt.prompt_text import PromptIds, as_read_by, continuation, ids_of_text
from kvscope.prompt.tokenizers.base import Tokenizer

# Of one request's messages. Its prompt is held several times over, and this much takes about half a minute.
MOST_CHARACTERS = 8_000_000
_TOOLS_AT_ONCE = 16  # without each of so many, a prompt is rendered in any case

CostOfImage = Callable[[Image], ImageCost]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTokens:
    """One tool on offer. ``tokens``: its own text's, None where the template mixes it with the others'.
    ``without_it_saves_tokens``: by how many the prompt is shorter without it, None where the template refuses that."""

    name: str
    tokens: int | None
    without_it_saves_tokens: int | None

    def to_dict(self) -> dict[str, Any]:
        """Its fields in JSON."""
        return {
            "name": self.name,
            "tokens": self.tokens,
            "without_it_saves_tokens": self.without_it_saves_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTokens:
    """The tokens of one request. The ``rows`` sum to ``total_tokens``.

    ``text`` is the prompt. ``bos``: "added" by the engine, "written" by the template, or None where there is none.
    ``uncounted_images``: pictures whose tokens are not known and in no row. ``uncounted``: other contents that are in
    no row (audio, files). ``not_followed``: keys of the request that change the prompt in a way not known here.
    """

    source: str
    text: str
    total_tokens: int
    rows: tuple[PartRow, ...]
    messages: tuple[MessageTokens, ...]
    tools: tuple[ToolTokens, ...]
    bos: str | None
    uncounted_images: int
    uncounted: tuple[str, ...]
    warnings: tuple[str, ...]
    not_followed: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether everything that was sent is counted."""
        return not self.uncounted_images and not self.uncounted and not self.not_followed

    def part(self, name: str) -> Amount:
        """The sum of the rows of one part."""
        return sum((row.amount for row in self.rows if row.part == name), NOTHING)

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``kvscope count --json`` that are about one request."""
        parts = []
        for name in PARTS:
            amount = self.part(name)
            parts.append(
                {
                    "name": name,
                    "characters": amount.characters,
                    "bytes": amount.bytes,
                    "tokens": amount.tokens,
                    "rows": [row.to_dict() for row in self.rows if row.part == name],
                }
            )
        return {
            "source": self.source,
            "parts": parts,
            "total_tokens": self.total_tokens,
            "messages": [each.to_dict() for each in self.messages],
            "tools": [each.to_dict() for each in self.tools],
            "bos": self.bos,
            "uncounted_images": self.uncounted_images,
            "uncounted": list(self.uncounted),
            "not_followed": list(self.not_followed),
            "warnings": list(self.warnings),
        }


def count_request(
    request: LoadedRequest,
    *,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    retrieved: Sequence[NamedText] = (),
    cost_of_image: CostOfImage | None = None,
    clock: Clock = local_time,
) -> RequestTokens:
    """The tokens of ``request`` by part. ``retrieved``: texts that were looked up, found in the messages word for word.
    ``cost_of_image``: what a picture takes, where a rule is known.

    Raises ChatTemplateError, UsageError (also for more than ``MOST_CHARACTERS``) and what the tokenizer raises.
    """
    _check_size(request)
    now = clock()
    request = as_read_by(request, template)
    conversation = request.conversation
    request, cost, notes = _taken_apart(request, template, lambda: now)
    variants = _Variants(request=request, template=template, tokenizer=tokenizer, clock=lambda: now)
    prompt = ids_of_text(cost.text, tokenizer=tokenizer)
    looked_up = with_named_texts(spans_of(cost.pieces, conversation), cost.text, retrieved)
    spans = looked_up.spans
    documents = request.extra.get("documents") or ()
    if documents:
        extra = {name: value for name, value in request.extra.items() if name != "documents"}
        region = added_region(cost.text, variants.text(conversation, extra) or "")
        spans, _ = with_documents(spans, cost.text, region, documents)
    bos = _bos(prompt, tokenizer, template.text_for(conversation))
    if bos == "written":
        spans = with_bos(spans, prompt.starts[1] if len(prompt.starts) > 1 else len(cost.text))
    else:
        spans = with_head_in_message(spans, len(template.bos or ""))
    amounts = amounts_of(spans, cost.text, prompt.starts[prompt.bos_added :])
    maker = RowMaker(
        spans=spans,
        amounts=amounts,
        text=cost.text,
        conversation=conversation,
        documents=documents,
        calls_are_dropped=variants.calls_are_dropped(cost.text),
    )
    savings = variants.saved_by_each_tool(cost.text, len(prompt.ids))
    rows = _with_savings(maker.rows(), savings)
    if prompt.bos_added:
        rows.append(_added_bos())
    images, unknown = _image_rows(conversation, cost_of_image, cost.text, variants)
    warnings = [
        *request.warnings,
        *_retrieved_warnings(looked_up),
        *_shape_warnings(maker),
        *notes,
        *variants.warnings_about_the_end(len(prompt.ids)),
    ]
    return RequestTokens(
        source=request.source,
        text=cost.text,
        total_tokens=sum(row.amount.tokens for row in (*rows, *images)),
        rows=(*rows, *images),
        messages=maker.messages(),
        tools=_tools(rows, conversation.tools, savings),
        bos=bos,
        uncounted_images=unknown,
        uncounted=request.uncounted,
        not_followed=request.not_followed,
        warnings=tuple(dict.fromkeys(warnings)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variants:
    """The same request with something changed, counted in the same way."""

    request: LoadedRequest
    template: ChatTemplate
    tokenizer: Tokenizer
    clock: Clock

    def counts(self, conversations: Sequence[Conversation]) -> list[int | None]:
        """Tokens of each; None where the template refuses it."""
        renderings = [
            Rendering(
                conversation=conversation,
                add_generation_prompt=self.request.add_generation_prompt,
                continue_final_message=continuation(self.request),
                extra=self.request.extra,
            )
            for conversation in conversations
        ]
        texts = self.template.render_each(renderings, clock=self.clock) if renderings else []
        # Tools that the template does not know leave one text, which is counted once.
        rendered = list(dict.fromkeys(text for text in texts if isinstance(text, str)))
        ids = self.tokenizer.encode_batch(rendered, parse_special=True)
        known = {text: self._with_bos(found) for text, found in zip(rendered, ids, strict=True)}
        return [known[text] if isinstance(text, str) else None for text in texts]

    def count(self, text: str) -> int:
        """Tokens of a rendered prompt."""
        return self._with_bos(self.tokenizer.encode(text, parse_special=True))

    def _with_bos(self, ids: Sequence[int]) -> int:
        return len(ids) + (self.tokenizer.adds_bos and list(ids[:1]) != [self.tokenizer.bos_id])

    def saved_by_each_tool(self, text: str, num_tokens: int) -> list[int | None]:
        """By how many tokens the prompt ``text``, of ``num_tokens``, is shorter without its first tool, its second, and
        so on."""
        conversation = self.request.conversation
        tools = conversation.tools
        is_worth_asking = len(tools) > _TOOLS_AT_ONCE
        if is_worth_asking and self.text(replace(conversation, tools=()), self.request.extra) == text:
            return [0] * len(tools)  # the template leaves all of them out
        without = [replace(conversation, tools=(*tools[:index], *tools[index + 1 :])) for index in range(len(tools))]
        return [None if count is None else num_tokens - count for count in self.counts(without)]

    def text(
        self, conversation: Conversation, extra: Mapping[str, Any], *, is_continued: bool | None = None
    ) -> str | None:
        """The prompt of another conversation, with other variables, or with its last message open or closed; None where
        the template or the engine refuses it."""
        rendering = Rendering(
            conversation=conversation,
            add_generation_prompt=self.request.add_generation_prompt,
            continue_final_message=continuation(self.request) if is_continued is None else is_continued,
            extra=extra,
        )
        text = self.template.render_each([rendering], clock=self.clock)[0]
        return None if isinstance(text, ChatTemplateError) else text

    def calls_are_dropped(self, text: str) -> bool:
        """Whether the prompt ``text`` is the same without the calls of its messages."""
        conversation = self.request.conversation
        if not any(message.tool_calls for message in conversation.messages):
            return False
        messages = tuple(replace(message, tool_calls=()) for message in conversation.messages)
        return self.text(replace(conversation, messages=messages), self.request.extra) == text

    def warnings_about_the_end(self, num_tokens: int) -> list[str]:
        """What is to be said where an assistant has the last word: engines read that in two ways."""
        last = self.request.conversation.messages[-1]
        if last.role != "assistant" or last.tool_calls or not self.request.add_generation_prompt:
            return []
        is_continued = self.template.continues(self.request.conversation, continuation(self.request))
        text = self.text(self.request.conversation, self.request.extra, is_continued=not is_continued)
        tokens = "" if text is None else f": {self.count(text):,} tokens instead of {num_tokens:,}"
        ways = (
            "closed, and a new answer begins behind it, as transformers and vLLM do",
            "left open for the model to go on with it, as llama.cpp's server does",
        )
        here, other = ways[is_continued], ways[not is_continued]
        return [
            f"The last message is the assistant's. Counted here: it is {here}. The other way, it is {other}{tokens}."
        ]


def _check_size(request: LoadedRequest) -> None:
    characters = request.conversation.characters
    if characters > MOST_CHARACTERS:
        raise UsageError(
            f"{request.source} has {characters:,} characters in its messages; at most {MOST_CHARACTERS:,} are counted.",
            hint="No model reads so much at once. Count it as text, in a file: kvscope count FILE.",
        )


def _taken_apart(
    request: LoadedRequest, template: ChatTemplate, clock: Clock
) -> tuple[LoadedRequest, TemplateCost, list[str]]:
    """The pieces of the prompt. Where the engine is known to continue the last message but not how, it is closed, and
    that is said."""

    def cost(asked: LoadedRequest) -> TemplateCost:
        return template_cost(
            template,
            asked.conversation,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=continuation(asked),
            clock=clock,
            extra=asked.extra,
        )

    try:
        return request, cost(request), []
    except ChatTemplateError as error:
        if continuation(request) is not None or not template.continues(request.conversation, None):
            raise
        closed = replace(request, continue_final_message=False)
        try:
            return closed, cost(closed), [f"{error.message} So that message is counted as closed."]
        except ChatTemplateError:
            raise error from None


def _bos(prompt: PromptIds, tokenizer: Tokenizer, template_text: str) -> str | None:
    """A template that begins every message with the token that is also BOS writes no BOS."""
    if prompt.bos_added:
        return "added"
    is_meant = tokenizer.adds_bos or "bos_token" in template_text
    begins = tokenizer.bos_id is not None and prompt.ids[:1] == (tokenizer.bos_id,)
    return "written" if is_meant and begins else None


def _added_bos() -> PartRow:
    label = "BOS, the token that begins a prompt"
    return PartRow(part=TEMPLATE, kind="bos", label=label, amount=Amount(tokens=1))


def _with_savings(rows: Sequence[PartRow], savings: Sequence[int | None]) -> list[PartRow]:
    return [
        row if row.tool_index is None else replace(row, without_it_saves_tokens=savings[row.tool_index]) for row in rows
    ]


def _tools(rows: Sequence[PartRow], tools: Sequence[Any], savings: Sequence[int | None]) -> tuple[ToolTokens, ...]:
    own = {row.tool_index: row.amount.tokens for row in rows}
    return tuple(
        ToolTokens(name=tool_name(tool) or f"tool {index + 1}", tokens=own.get(index), without_it_saves_tokens=saved)
        for index, (tool, saved) in enumerate(zip(tools, savings, strict=True))
    )


def _image_rows(
    conversation: Conversation, cost_of_image: CostOfImage | None, text: str, variants: _Variants
) -> tuple[list[PartRow], int]:
    """A row for each picture whose tokens are known, and how many others there are. A picture's tokens are what the
    prompt grows by where its processor writes them in place of its mark."""
    rows: list[PartRow] = []
    unknown = at = 0
    pictures = _images(conversation)
    tokens = variants.count(text) if pictures else 0
    parts = parts_of_messages(conversation.messages)
    for index, image in pictures:
        cost = None if cost_of_image is None else cost_of_image(image)
        place = -1 if cost is None or cost.placeholder is None else text.find(cost.placeholder, at)
        if cost is None or cost.placeholder is None or cost.expanded is None or place < 0:
            unknown += 1
            continue
        text = text[:place] + cost.expanded + text[place + len(cost.placeholder) :]
        at = place + len(cost.expanded)
        before, tokens = tokens, variants.count(text)
        size = "" if image.width is None else f" of {image.width} × {image.height}"
        rows.append(
            PartRow(
                part=parts[index],
                kind="image",
                label=f"picture{size}, message {index + 1}",
                amount=Amount(tokens=tokens - before),
                message=index,
                role=conversation.messages[index].role,
            )
        )
    return rows, unknown


def _images(conversation: Conversation) -> list[tuple[int, Image]]:
    """(index of its message, picture) of every picture."""
    return [
        (index, block)
        for index, message in enumerate(conversation.messages)
        for block in message.blocks
        if isinstance(block, Image)
    ]


def _retrieved_warnings(found: NamedFound) -> list[str]:
    missing = [
        f"{name} stands in no message word for word, so none of it is counted as retrieved." for name in found.missing
    ]
    return missing + [
        f"{'All' if is_all else 'Part'} of {name} stands where {others} does too, and is counted there."
        for name, others, is_all in found.covered
    ]


def _shape_warnings(maker: RowMaker) -> list[str]:
    if maker.told_apart:
        return []
    return ["The template writes contents in a way that cannot be taken apart: they are counted as template."]
