"""What a chat template adds to each message and each tool, found by rendering variants and comparing the texts.

Nothing is read out of the template itself. Contents are found by putting marks in their place; where one message ends
and the next begins, by rendering the messages up to there; tools, by rendering without them and with one of them
twice. The pieces lie side by side and cover the whole text, so counts over them sum to the whole. Text that cannot be
told apart in this way stays with the message that follows it, or with none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.files import LLAMA_CPP
from kvscope.prompt.chat_template.llama_cpp import continued_content
from kvscope.prompt.chat_template.marks import Located, Marks, find_contents
from kvscope.prompt.chat_template.render import DEFAULT_LIMITS, RenderLimits
from kvscope.prompt.chat_template.template import ChatTemplate, Clock, Rendering, local_time
from kvscope.prompt.conversation import Conversation, Message

# So many are rendered with one of them twice in any case. Of more it is asked first whether the template leaves them
# out, in another process, for that many renderings cost more.
_TOOLS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePiece:
    """``text[start:end]`` (code points). ``kind``: content or reasoning of a message, tool_calls (what its calls add),
    tool (one tool's own text), tools (what the template puts around them), generation_prompt, or template.
    ``message`` and ``tool`` are indexes, None where it belongs to none."""

    start: int
    end: int
    kind: str
    message: int | None = None
    tool: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCost:
    """``pieces`` are in order, without gaps, from the first character of ``text`` to the last."""

    text: str
    pieces: tuple[TemplatePiece, ...]

    def characters(self, kind: str, *, message: int | None = None, tool: int | None = None) -> int:
        """Code points of all pieces of ``kind``; of one message or tool where it is given."""
        return sum(
            piece.end - piece.start
            for piece in self.pieces
            if piece.kind == kind and message in (None, piece.message) and tool in (None, piece.tool)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Renderer:
    """Renders variants of one conversation; None in place of those that the template refuses."""

    template: ChatTemplate
    clock: Clock
    limits: RenderLimits
    extra: Mapping[str, Any]

    def each(self, conversations: Sequence[Conversation]) -> list[str | None]:
        return self._texts(list(map(self._closed, conversations)))

    def with_whole(self, whole: Rendering, conversations: Sequence[Conversation]) -> tuple[str, list[str | None]]:
        """``whole`` and ``each`` in one process. Raises what the template says of ``whole``."""
        renderings = [whole, *map(self._closed, conversations)]
        text, *others = self.template.render_each(renderings, clock=self.clock, limits=self.limits)
        if isinstance(text, ChatTemplateError):
            raise text
        return text, [None if isinstance(other, ChatTemplateError) else other for other in others]

    def _closed(self, conversation: Conversation) -> Rendering:
        return Rendering(
            conversation=conversation, add_generation_prompt=False, continue_final_message=False, extra=self.extra
        )

    def _texts(self, renderings: Sequence[Rendering]) -> list[str | None]:
        texts = self.template.render_each(renderings, clock=self.clock, limits=self.limits) if renderings else []
        return [None if isinstance(text, ChatTemplateError) else text for text in texts]


def template_cost(
    template: ChatTemplate,
    conversation: Conversation,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool | None = None,
    clock: Clock = local_time,
    limits: RenderLimits = DEFAULT_LIMITS,
    extra: Mapping[str, Any] | None = None,
    **more: Any,
) -> TemplateCost:
    """The text of ``conversation`` as ``template`` renders it, in pieces. Raises what ``ChatTemplate.render`` does."""
    now = clock()
    extra = {**(extra or {}), **more}
    renderer = _Renderer(template=template, clock=lambda: now, limits=limits, extra=extra)
    whole = Rendering(
        conversation=conversation,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        extra=extra,
    )
    if not template.continues(conversation, continue_final_message):
        text, pieces = _text_and_pieces(whole, renderer)
        return TemplateCost(text=text, pieces=tuple(piece for piece in pieces if piece.start < piece.end))
    text, _ = renderer.with_whole(whole, [])
    if template.style == LLAMA_CPP:
        pieces = _pieces_before_continued(text, conversation, renderer, template.bos or "")
    else:
        closed = renderer.each([conversation])[0]
        shared = closed if closed is not None and closed.startswith(text) else text
        pieces = _cut(_pieces(shared, conversation, renderer, template.bos or ""), len(text))
    # A content of blanks may be trimmed to nothing.
    return TemplateCost(text=text, pieces=tuple(piece for piece in pieces if piece.start < piece.end))


def _text_and_pieces(whole: Rendering, renderer: _Renderer) -> tuple[str, list[TemplatePiece]]:
    """A conversation whose messages are all closed. Its text and its variants are rendered together, with marks that
    its text will hardly hold; should it hold them, the variants are rendered anew."""
    conversation, bos = whole.conversation, renderer.template.bos or ""
    marks = Marks.not_in("")
    variants = _variants(conversation, marks)
    text, bodies = renderer.with_whole(whole, list(variants.values()))
    if marks.opening in text or marks.closing in text:
        return text, _pieces(text, conversation, renderer, bos)
    return text, _pieces_of(text, conversation, renderer, bos, marks, dict(zip(variants, bodies, strict=True)))


def _pieces(text: str, conversation: Conversation, renderer: _Renderer, bos: str) -> list[TemplatePiece]:
    """``text`` of a conversation whose messages are all closed."""
    marks = Marks.not_in(text)
    variants = _variants(conversation, marks)
    bodies = dict(zip(variants, renderer.each(list(variants.values())), strict=True))
    return _pieces_of(text, conversation, renderer, bos, marks, bodies)


def _pieces_of(
    text: str,
    conversation: Conversation,
    renderer: _Renderer,
    bos: str,
    marks: Marks,
    bodies: dict[str, str | None],
) -> list[TemplatePiece]:
    body = bodies["whole"]
    if len(conversation.tools) > _TOOLS_AT_ONCE and bodies["no tools"] not in (None, body):
        repeated = _with_one_tool_twice(conversation)
        bodies |= dict(zip(repeated, renderer.each(list(repeated.values())), strict=True))
    end = len(body) if body is not None and text.startswith(body) else len(text)
    body = text[:end]
    located = find_contents(body, bodies["marked"], conversation, marks) or find_contents(
        body, bodies["wrapped"], conversation, marks
    )
    pieces = _message_pieces(body, conversation, located, renderer, marks, bos)
    if located and bodies.get("no calls") is not None:
        pieces = _with_calls(pieces, body, bodies["no calls"] or "", conversation, marks)
    if conversation.tools and bodies["no tools"] is not None:
        pieces = _with_tools(pieces, body, bodies, len(conversation.tools))
    return [*pieces, TemplatePiece(start=end, end=len(text), kind="generation_prompt")]


def _pieces_before_continued(
    text: str, conversation: Conversation, renderer: _Renderer, bos: str
) -> list[TemplatePiece]:
    """``text`` that ends in a message which llama.cpp continues: what stands before it, the generation prompt, and its
    content."""
    *before, last = conversation.messages
    start = len(text) - len(continued_content(last))
    pieces = [TemplatePiece(start=0, end=start, kind="generation_prompt")]
    if before:
        rest = Conversation(messages=tuple(before), tools=conversation.tools)
        pieces = _pieces(text[:start], rest, renderer, bos)
    return [*pieces, TemplatePiece(start=start, end=len(text), kind="content", message=len(before))]


def _cut(pieces: list[TemplatePiece], end: int) -> list[TemplatePiece]:
    return [replace(piece, start=min(piece.start, end), end=min(piece.end, end)) for piece in pieces]


def _variants(conversation: Conversation, marks: Marks) -> dict[str, Conversation]:
    messages, tools = conversation.messages, conversation.tools
    variants = {
        "whole": conversation,
        "marked": Conversation(messages=marks.put(messages), tools=tools),
        "wrapped": Conversation(messages=marks.put(messages, around=True), tools=tools),
    }
    if any(message.tool_calls for message in messages):
        variants["no calls"] = Conversation(messages=marks.put(messages, calls=False), tools=tools)
    if tools:
        variants["no tools"] = Conversation(messages=messages)
        if len(tools) <= _TOOLS_AT_ONCE:
            variants |= _with_one_tool_twice(conversation)
    return variants


def _with_one_tool_twice(conversation: Conversation) -> dict[str, Conversation]:
    tools = conversation.tools
    return {
        f"tool {index}": replace(conversation, tools=(*tools[: index + 1], *tools[index:]))
        for index in range(len(tools))
    }


def _message_pieces(
    body: str,
    conversation: Conversation,
    located: list[Located] | None,
    renderer: _Renderer,
    marks: Marks,
    bos: str,
) -> list[TemplatePiece]:
    """``body`` in contents and what lies between them."""
    if not located:
        return _pieces_between(body, 0, len(body), [], None)
    cuts = _Cuts(body, conversation, renderer, marks)
    pieces: list[TemplatePiece] = []
    first = located[0]
    head = first.start - cuts.head_length(first, bos)
    pieces += _pieces_between(body, 0, head, [], None)
    pieces += _pieces_between(body, head, first.start, [], first.message)
    for index, content in enumerate(located):
        pieces.append(TemplatePiece(start=content.start, end=content.end, kind=content.kind, message=content.message))
        following = located[index + 1] if index + 1 < len(located) else None
        stop = following.start if following else len(body)
        until = following.message if following else len(conversation.messages)
        ends = cuts.ends(content, stop, until)
        rest = following.message if following else len(conversation.messages) - 1
        pieces += _pieces_between(body, content.end, stop, ends, rest)
    return pieces


def _pieces_between(
    body: str, start: int, stop: int, ends: list[tuple[int, int]], rest: int | None
) -> list[TemplatePiece]:
    """Template text from ``start`` to ``stop``: each message's up to its end in ``ends``, then ``rest``'s."""
    pieces = []
    for message, end in [*ends, (rest, stop)]:
        if start < end <= stop:
            pieces.append(TemplatePiece(start=start, end=end, kind="template", message=message))
            start = end
    return pieces


class _Cuts:
    """Where messages end in ``body``: the messages up to one are rendered, and what follows their last content is
    looked for in the same place. Equal places are asked about once."""

    def __init__(self, body: str, conversation: Conversation, renderer: _Renderer, marks: Marks) -> None:
        self._body = body
        self._tools = conversation.tools
        self._messages = conversation.messages
        self._marked = marks.put(conversation.messages)
        self._renderer = renderer
        self._marks = marks
        self._known: dict[tuple[Any, ...], list[tuple[int, int]]] = {}

    def ends(self, content: Located, stop: int, until: int) -> list[tuple[int, int]]:
        """(message, where it ends) of the messages from ``content``'s to the one before ``until``."""
        first = content.message
        if until <= first or until == len(self._messages) == first + 1:
            return []
        gap = self._body[content.end : stop]
        key = (gap, tuple((message.role, bool(message.tool_calls)) for message in self._messages[first:until]))
        if key not in self._known:
            self._known[key] = self._lengths(gap, first, until)
        return [(first + steps, content.end + length) for steps, length in self._known[key]]

    def _lengths(self, gap: str, first: int, until: int) -> list[tuple[int, int]]:
        prefixes = [self._marked[: index + 1] for index in range(first, until)]
        texts = self._renderer.each([Conversation(messages=prefix, tools=self._tools) for prefix in prefixes])
        lengths = []
        for steps, text in enumerate(texts):
            tail = None if text is None else self._marks.after_last(text, first)
            if tail is not None and gap.startswith(tail):
                lengths.append((steps, len(tail)))
        missed = [prefixes[steps] for steps in range(1, len(prefixes)) if steps not in dict(lengths)]
        if missed and lengths and lengths[0][0] == 0:
            lengths += self._lengths_before_a_question(gap, first, missed, lengths[0][1])
        return sorted(lengths)

    def _lengths_before_a_question(
        self, gap: str, first: int, prefixes: Sequence[tuple[Message, ...]], own: int
    ) -> list[tuple[int, int]]:
        """As ``_lengths``, for templates that write a last message otherwise than an earlier one: here a question of
        the user follows, whose head is taken off again. ``own`` is what follows the content of ``first`` itself."""
        question = Message(role="user", content=self._marks.mark(len(self._marked), "content"))
        asked = [(*prefix, question) for prefix in (self._marked[: first + 1], *prefixes)]
        texts = self._renderer.each([Conversation(messages=messages, tools=self._tools) for messages in asked])
        after = [None if text is None else self._marks.after_last(text, first) for text in texts]
        between = [None if text is None else self._marks.before_first(text) for text in after]
        if between[0] is None:
            return []
        head = between[0][own:]
        lengths = []
        for prefix, text in zip(prefixes, between[1:], strict=True):
            if text is not None and text.endswith(head) and gap.startswith(text[: len(text) - len(head)]):
                lengths.append((len(prefix) - 1 - first, len(text) - len(head)))
        return lengths

    def head_length(self, first: Located, bos: str) -> int:
        """How much of what stands before the first content is that message's: as much as stands before the same
        message later on. All but BOS where that cannot be seen."""
        before = self._body[: first.start]
        message = self._marked[first.message]
        if message.role == "user" and first.message == 0:
            answer = Message(role="assistant", content=self._marks.mark(len(self._marked), "content"))
            texts = self._renderer.each(
                [
                    Conversation(messages=messages, tools=self._tools)
                    for messages in ((message, answer), (message, answer, message))
                ]
            )
            shorter, longer = (
                None if text is None else self._marks.after_last(text, len(self._marked)) for text in texts
            )
            head = None
            if shorter is not None and longer is not None and longer.startswith(shorter):
                head = self._marks.before_first(longer[len(shorter) :])
            if head is not None and before.endswith(head):
                return len(head)
        return len(before) - (len(bos) if before.startswith(bos) else 0)


def _with_calls(
    pieces: list[TemplatePiece], body: str, without: str, conversation: Conversation, marks: Marks
) -> list[TemplatePiece]:
    """What is not there when the calls are left out, looked for between the same contents."""
    contents = [piece for piece in pieces if piece.kind in ("content", "reasoning")]
    gaps = marks.gaps(without)
    bounds = [0, *(bound for piece in contents for bound in (piece.start, piece.end)), len(body)]
    if len(gaps) != len(contents) + 1:
        return pieces
    for index, gap in enumerate(gaps):
        start, end = bounds[2 * index], bounds[2 * index + 1]
        first = contents[index - 1].message if index else 0
        until = contents[index].message if index < len(contents) else len(conversation.messages) - 1
        assert first is not None
        assert until is not None
        calling = [i for i in range(first, until + 1) if conversation.messages[i].tool_calls]
        if calling and body[start:end] != gap:
            begins = [piece.start for piece in pieces if piece.message == calling[0] and start <= piece.start < end]
            floor = min(begins) - start if begins else None
            added_start, added_end = _added(body[start:end], gap, floor=floor)
            pieces = _overlaid(pieces, start + added_start, start + added_end, "tool_calls", message=calling[0])
    return pieces


def _with_tools(
    pieces: list[TemplatePiece], body: str, bodies: Mapping[str, str | None], num_tools: int
) -> list[TemplatePiece]:
    start, _ = _added(body, bodies["no tools"] or "", floor=None)
    floor = max((piece.end for piece in pieces if piece.kind == "content" and piece.end <= start), default=0)
    start, end = _added(body, bodies["no tools"] or "", floor=floor)
    pieces = _overlaid(pieces, start, end, "tools")
    at = start
    for index in range(num_tools):
        twice = bodies.get(f"tool {index}")
        own = None if twice is None else _repeated(body, twice, at, end)
        if own is not None:
            pieces = _overlaid(pieces, *own, "tool", tool=index)
            at = own[1]
    return pieces


def _added(longer: str, shorter: str, *, floor: int | None) -> tuple[int, int]:
    """The part of ``longer`` that is not in ``shorter``. Where text repeats, an insertion can be seen in several
    places: the last of them, or with ``floor`` the first that does not begin before it."""
    limit = min(len(longer), len(shorter))
    start = next((i for i in range(limit) if longer[i] != shorter[i]), limit)
    same_end = 0
    while same_end < limit - start and longer[-1 - same_end] == shorter[-1 - same_end]:
        same_end += 1
    end = len(longer) - same_end
    if floor is not None and start + same_end == len(shorter):
        while start > floor and longer[start - 1] == longer[end - 1]:
            start, end = start - 1, end - 1
    return start, end


def _repeated(body: str, twice: str, at: int, end: int) -> tuple[int, int] | None:
    """The place in ``body[at:end]`` of the text that ``twice`` has once more, without what separates the two."""
    first, last = _added(twice, body, floor=0)
    if twice[:first] + twice[last:] != body:
        return None
    length, most = last - first, first
    while most + length < len(twice) and twice[most] == twice[most + length]:
        most += 1
    # Moved along the two copies, the same insertion begins anywhere in the first. A tool's text begins where brackets
    # close again at its end; otherwise the earliest place in its own part of the text is taken.
    starts = range(max(first, at), most + 1)
    best = next((start for start in starts if _is_whole(twice[start : start + length])), None)
    if best is None:
        best = starts[0] if starts else None
    if best is None:
        return None
    own = twice[best : best + length].strip(", \n")
    place = body.find(own, at, end)
    return (place, place + len(own)) if own and place >= 0 else None


def _is_whole(text: str) -> bool:
    """It begins with an opening bracket, which is closed by its last character."""
    text = text.strip(", \n")
    if not text.startswith(("{", "[", "<")):
        return False
    return text.endswith({"{": "}", "[": "]", "<": ">"}[text[0]]) and _depth_stays_open(text)


def _depth_stays_open(text: str) -> bool:
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "{[") - (character in "}]")
        if depth <= 0 and text[0] != "<" and index < len(text) - 1:
            return False
    return depth == 0


def _overlaid(
    pieces: list[TemplatePiece],
    start: int,
    end: int,
    kind: str,
    *,
    message: int | None = None,
    tool: int | None = None,
) -> list[TemplatePiece]:
    """``pieces`` with what is template or tools between ``start`` and ``end`` made ``kind``; contents stay."""
    result: list[TemplatePiece] = []
    for piece in pieces:
        low, high = max(piece.start, start), min(piece.end, end)
        if low >= high or piece.kind not in ("template", "tools"):
            result.append(piece)
            continue
        parts = [
            (piece.start, low, piece.kind, piece.message, piece.tool),
            (low, high, kind, message, tool),
            (high, piece.end, piece.kind, piece.message, piece.tool),
        ]
        result += [
            TemplatePiece(start=a, end=b, kind=name, message=owner, tool=of) for a, b, name, owner, of in parts if a < b
        ]
    return result
