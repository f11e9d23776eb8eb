"""Pairs of requests, each broken by one thing an app or a template does, with the text they have in common.

``common`` is written by hand: what the two prompts begin with under ``PLAIN``, whose text of each message is
"[role]content;". With one token for each byte, its length in UTF-8 is the common prefix.
"""

import unicodedata
from dataclasses import dataclass, field
from typing import Any

from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation import RETRIEVED, Conversation, Image, Message
from kvscope.prompt.conversation_file import LoadedRequest

PLAIN = ChatTemplate(
    text=(
        "{% if tools %}{{ tools | tojson }};{% endif %}"
        "{% for d in documents or [] %}<{{ d.text }}>{% endfor %}"
        "{% if mode is defined %}({{ mode }}){% endif %}"
        "{% for m in messages %}[{{ m.role }}{{ ' ' + m.name if m.name else '' }}]"
        "{{ '{' + m.reasoning_content + '}' if m.reasoning_content else '' }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments }}{% endfor %};"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    source="plain",
)
KIND = "Be kind."


def say(*pairs: tuple[str, str], tools: tuple[Any, ...] = (), **more: Any) -> LoadedRequest:
    """A request of (role, content) pairs."""
    return request(*(Message(role=role, content=content) for role, content in pairs), tools=tools, **more)


def request(*messages: Message, tools: tuple[Any, ...] = (), **more: Any) -> LoadedRequest:
    """A request of messages."""
    return LoadedRequest(conversation=Conversation(messages=messages, tools=tools), source="test", **more)


def tool(name: str, description: str = "d", **parameters: Any) -> dict[str, Any]:
    """A function on offer."""
    function = {"name": name, "description": description, "parameters": {"type": "object", **parameters}}
    return {"type": "function", "function": function}


@dataclass(frozen=True, kw_only=True)
class Case:
    """``part``, ``message``, ``character``: where the break must be said to be. ``later``: the causes after it."""

    slug: str
    first: LoadedRequest
    second: LoadedRequest
    common: str
    part: str
    message: int | None
    character: int
    name: str = ""
    later: tuple[str, ...] = field(default=())

    @property
    def label(self) -> str:
        return self.name or self.slug


def turn(system: str, question: str = "Hi", more: tuple[tuple[str, str], ...] = ()) -> LoadedRequest:
    """A system prompt, a question, and what follows."""
    return say(("system", system), ("user", question), *more)


NEXT = (("assistant", "Hello."), ("user", "And you?"))


def after(first: str, second: str) -> tuple[LoadedRequest, LoadedRequest]:
    """The same turn with two system prompts, and the turn after it."""
    return turn(first), turn(second, more=NEXT)


def system_case(slug: str, first: str, second: str, same: str, **more: Any) -> Case:
    """A change in the system prompt behind ``same``."""
    one, two = after(first, second)
    return Case(
        slug=slug,
        first=one,
        second=two,
        common="[system]" + same,
        part="system",
        message=0,
        character=len(same),
        **more,
    )


NFC, NFD = (unicodedata.normalize(form, "한국어로 답하라.") for form in ("NFC", "NFD"))
ALPHA, BETA = tool("alpha"), tool("beta")
HEAD = '[{"type": "function", "function": {"name": "'
ALPHA_TEXT = HEAD + 'alpha", "description": "d", "parameters": {"type": "object"}}}'
TURNED = {"type": "function", "function": dict(reversed(ALPHA["function"].items()))}
CHANGED = HEAD + 'alpha", "description": "'
LONG = (("system", KIND), ("user", "One"), ("assistant", "1"), ("user", "Two"), ("assistant", "2"), ("user", "Three"))
MORE = (("assistant", "3"), ("user", "Four"))


def tools_case(
    slug: str, first: tuple[Any, ...], second: tuple[Any, ...], common: str, character: int, **m: Any
) -> Case:
    """Two turns with other tools."""
    asked = (("user", "Hi"),)
    return Case(
        slug=slug,
        first=say(*asked, tools=first),
        second=say(*asked, *NEXT, tools=second),
        common=common,
        part="tools",
        message=None,
        character=character,
        **m,
    )


def call(arguments: Any, number: str = "call_1") -> Message:
    """An answer that calls a tool."""
    function = {"name": "alpha", "arguments": arguments}
    return Message(role="assistant", content="", tool_calls=({"id": number, "type": "function", "function": function},))


CASES = (
    system_case("clock", "Now 2026-11-29 14:05. Be kind.", "Now 2026-11-29 14:06. Be kind.", "Now 2026-11-29 14:0"),
    system_case(
        "clock",
        "지금 2026년 11월 29일 오후 3시. 짧게.",
        "지금 2026년 11월 29일 오후 4시. 짧게.",
        "지금 2026년 11월 29일 오후 ",
        name="ko",
    ),
    system_case("date", "Today: Nov 29, 2026. Be kind.", "Today: Nov 30, 2026. Be kind.", "Today: Nov "),
    system_case(
        "random-id",
        "Session 550e8400-e29b-41d4-a716-446655440000. Be kind.",
        "Session 550e8411-e29b-41d4-a716-446655440000. Be kind.",
        "Session 550e84",
    ),
    system_case("counter", "You have 3 turns. Be kind.", "You have 2 turns. Be kind.", "You have "),
    system_case("line-ends", "Be kind.\r\nBe short.", "Be kind.\nBe short.", "Be kind."),
    system_case("unicode-form", NFC, NFD, ""),
    system_case("invisible-characters", "Be\u200b kind.", "Be kind.", "Be"),
    system_case("whitespace", "Be kind. ", "Be kind.", "Be kind.", name="trailing"),
    system_case("system-edited", "Be kind. Be short.", "Be kind.", "Be kind."),
    system_case("system-edited", "Be kind.", "Be quick. Be kind.", "Be ", name="put before"),
    system_case("system-edited", "Id ab12cd34ef", "Id ab12cd34ef14:05", "Id ab12cd34ef", name="behind an identifier"),
    system_case(
        "retrieved-first",
        "Context: the river runs. Be kind.",
        "Context: a door opens. Be kind.",
        "Context: ",
        name="context",
    ),
    tools_case("tools-reordered", (ALPHA, BETA), (BETA, ALPHA), HEAD, len(HEAD) - 1, name=""),
    tools_case("tool-added", (ALPHA,), (ALPHA, BETA), ALPHA_TEXT, 0),
    tools_case("tool-key-order", (ALPHA,), (TURNED,), HEAD[:-8], len(HEAD) - 9),
    tools_case("tool-removed", (ALPHA, BETA), (ALPHA,), ALPHA_TEXT, 0),
    tools_case("tool-changed", (tool("alpha", "old"),), (tool("alpha", "new"),), CHANGED, len(CHANGED) - 1),
    Case(
        slug="history-cut",
        first=say(*LONG),
        second=say(LONG[0], *LONG[3:], *MORE),
        common="[system]Be kind.;[user]",
        part="history",
        message=1,
        character=0,
    ),
    Case(
        slug="history-summarised",
        first=say(*LONG),
        second=say(LONG[0], ("user", "So far: 1."), *LONG[3:], *MORE),
        common="[system]Be kind.;[user]",
        part="history",
        message=1,
        character=0,
    ),
    Case(
        slug="messages-taken-back",
        first=say(*LONG),
        second=say(*LONG[:3]),
        common="[system]Be kind.;[user]One;[assistant]1;[",
        part="template",
        message=None,
        character=1,
    ),
    Case(
        slug="message-inserted",
        first=say(LONG[0], LONG[1]),
        second=say(LONG[0], ("system", "Short."), LONG[1], *NEXT),
        common="[system]Be kind.;[",
        part="template",
        message=1,
        character=1,
    ),
    Case(
        slug="retrieved-first",
        name="passages before the question",
        first=request(
            Message(role="system", content=KIND),
            Message(role="user", content="The river runs.", origin=RETRIEVED),
            Message(role="user", content="Hi"),
        ),
        second=request(
            Message(role="system", content=KIND),
            Message(role="user", content="The door opens.", origin=RETRIEVED),
            Message(role="user", content="Hi"),
            *(Message(role=role, content=content) for role, content in NEXT),
        ),
        common="[system]Be kind.;[user]The ",
        part="retrieved",
        message=1,
        character=4,
    ),
    Case(
        slug="retrieved-changed",
        first=request(
            Message(role="user", content="The river.", origin=RETRIEVED), Message(role="user", content="Why?")
        ),
        second=request(
            Message(role="user", content="The door.", origin=RETRIEVED), Message(role="user", content="And how?")
        ),
        common="[user]The ",
        part="retrieved",
        message=0,
        character=4,
        later=("message-edited",),
    ),
    Case(
        slug="retrieved-first",
        name="documents",
        first=say(("user", "Hi"), extra={"documents": [{"text": "river"}]}),
        second=say(("user", "Hi"), *NEXT, extra={"documents": [{"text": "door"}]}),
        common="<",
        part="retrieved",
        message=None,
        character=1,
    ),
    Case(
        slug="template-variable-changed",
        first=say(("user", "Hi"), extra={"mode": "fast"}),
        second=say(("user", "Hi"), *NEXT, extra={"mode": "slow"}),
        common="(",
        part="template",
        message=None,
        character=1,
    ),
    Case(
        slug="message-edited",
        first=turn(KIND, "Hi there"),
        second=turn(KIND, "Hi you", more=NEXT),
        common="[system]Be kind.;[user]Hi ",
        part="history",
        message=1,
        character=3,
    ),
    Case(
        slug="other-conversation",
        first=turn(KIND, "Why?"),
        second=turn(KIND, "How?", more=NEXT),
        common="[system]Be kind.;[user]",
        part="history",
        message=1,
        character=0,
    ),
    Case(
        slug="answer-changed",
        first=say(*LONG),
        second=say(*LONG[:4], ("assistant", "2!"), LONG[5], *MORE),
        common="[system]Be kind.;[user]One;[assistant]1;[user]Two;[assistant]2",
        part="history",
        message=4,
        character=1,
    ),
    Case(
        slug="answer-left-out",
        first=turn(KIND),
        second=turn(KIND, more=(("user", "Hello?"),)),
        common="[system]Be kind.;[user]Hi;[",
        part="template",
        message=2,
        character=1,
    ),
    Case(
        slug="tool-result-changed",
        first=say(("user", "Hi"), ("assistant", "x"), ("tool", "a long result"), ("user", "So?")),
        second=say(("user", "Hi"), ("assistant", "x"), ("tool", "[cleared]"), ("user", "So?"), *NEXT),
        common="[user]Hi;[assistant]x;[tool]",
        part="retrieved",
        message=2,
        character=0,
    ),
    Case(
        slug="tool-arguments-rewritten",
        first=request(Message(role="user", content="Hi"), call('{"a":1,"b":2}'), Message(role="tool", content="r")),
        second=request(
            Message(role="user", content="Hi"),
            call('{"a": 1, "b": 2}'),
            Message(role="tool", content="r"),
            Message(role="assistant", content="Done."),
            Message(role="user", content="Thanks"),
        ),
        common='[user]Hi;[assistant]!alpha{"a":',
        part="history",
        message=1,
        character=11,
    ),
    Case(
        slug="reasoning-dropped",
        name="by the app",
        first=request(
            Message(role="user", content="Hi"),
            Message(role="assistant", content="x", reasoning="hm"),
            Message(role="user", content="So?"),
        ),
        second=say(("user", "Hi"), ("assistant", "x"), ("user", "So?"), *NEXT),
        common="[user]Hi;[assistant]",
        part="history",
        message=1,
        character=0,
    ),
    Case(
        slug="role-changed",
        first=say(("system", KIND), ("user", "Hi")),
        second=say(("developer", KIND), ("user", "Hi"), *NEXT),
        common="[",
        part="template",
        message=0,
        character=1,
    ),
    Case(
        slug="name-changed",
        first=request(Message(role="user", content="Hi", name="ann")),
        second=request(
            Message(role="user", content="Hi", name="ben"),
            Message(role="assistant", content="Hello."),
            Message(role="user", content="So?"),
        ),
        common="[user ",
        part="template",
        message=0,
        character=6,
    ),
    Case(
        slug="clock",
        name="two at once",
        first=turn("Now 14:05. Be kind.", "Hi "),
        second=turn("Now 14:06. Be kind.", "Hi", more=NEXT),
        common="[system]Now 14:0",
        part="system",
        message=0,
        character=8,
        later=("whitespace",),
    ),
)
PICTURES = (
    request(Message(role="user", content="Hi", blocks=(Image(source="a.png"), "Hi"))),
    request(
        Message(role="user", content="Hi", blocks=(Image(source="b.png"), "Hi")),
        Message(role="assistant", content="Hello."),
        Message(role="user", content="So?"),
    ),
)
