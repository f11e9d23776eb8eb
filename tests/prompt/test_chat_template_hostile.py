"""Templates that mean harm, or are merely wrong: one clear error, soon, and nothing of them left running."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.render import RenderLimits
from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation import Conversation, Message

ONE = Conversation(messages=(Message(role="user", content="x"),))
# Limits are 0.7 s of processor time and 1.6 s in all; what is more here is a busy machine; without
# limits none of these would end.
SOON_S = 60.0

ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    # Each round is one call into C of about a second; what it makes is not printed, or it would be too long first.
    "in C": "{% for i in range(999) %}{% if (messages[0].content * 30000000) | urlize %}{% endif %}{% endfor %}",
    "a number": "{{ 9 ** (9 ** (messages | length + 8)) }}",
    "a number while compiling": "{{ 9 ** (9 ** 9) }}",
}
HUGE = {
    "output": ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "longer"),
    "one string": ("{{ 'a' * (10 ** 11) }}", "memory"),
    "doubling": (
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "memory|processor time",
    ),
    "padding": ("{{ '%10000000000d' % 1 }}", "memory"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    "range": ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    "nesting": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be rendered|nested too deep|memory"),
    "blocks": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "cannot be rendered|nested too deep|memory|end"),
}
ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages | attr('__class__') }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].system('true') }}",
    "{{ self.__init__ }}",
    "{{ strftime_now.__self__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
]
WRONG = {
    "{% import 'os' as os %}": "loader",
    "{% include '/etc/passwd' %}": "loader",
    "{% if %}": r"line 1 of it",
    "{{ messages[0].nothing.more }}": "nothing",
    "{{ messages[0].content + 1 }}": "TypeError",
    "{{ open('/etc/passwd').read() }}": "'open' is undefined",
    "{{ 1 // 0 }}": "ZeroDivisionError",
}


def failure(text: str) -> ChatTemplateError:
    template = ChatTemplate(text=text, source="some/model")
    begin = time.monotonic()
    with pytest.raises(ChatTemplateError) as caught:
        template.render(ONE)
    assert time.monotonic() - begin < SOON_S
    assert multiprocessing.active_children() == []
    assert "some/model" in caught.value.message
    return caught.value


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_does_not_end_is_ended(text: str) -> None:
    error = failure(text)
    assert error.kind == "stopped"
    assert "processor time" in error.message


@pytest.mark.parametrize(("text", "told"), HUGE.values(), ids=HUGE.keys())
def test_what_grows_without_end_is_stopped(text: str, told: str) -> None:
    error = failure(text)
    assert any(part in error.message for part in told.split("|")), error.message


@pytest.mark.parametrize("text", ESCAPES)
def test_a_way_out_of_the_sandbox_is_refused_even_where_nothing_would_be_printed(text: str) -> None:
    error = failure(text)
    assert error.kind == "stopped"
    assert "no template needs" in error.message


@pytest.mark.parametrize(("text", "told"), WRONG.items())
def test_a_template_that_is_wrong_says_what_and_where(text: str, told: str) -> None:
    error = failure(text)
    assert error.kind == "broken"
    assert re.search(told, error.message), error.message


def test_what_the_template_says_itself_is_handed_on() -> None:
    error = failure("{{ raise_exception('역할은 번갈아 나온다') }}")
    assert error.kind == "refused"
    assert error.message == "The chat template of some/model refuses this conversation: 역할은 번갈아 나온다"


def test_a_very_long_message_of_the_template_is_cut() -> None:
    assert len(failure("{{ raise_exception('n' * 1000000) }}").message) <= 2_100


def test_the_output_limit_counts_what_the_template_adds() -> None:
    long = Conversation(messages=(Message(role="user", content="가" * 3_000_000),))
    limits = RenderLimits(added_characters=1000)
    echo = ChatTemplate(text="{% for m in messages %}{{ m.content }}{% endfor %}", source="t")
    assert echo.render(long, limits=limits) == "가" * 3_000_000
    with pytest.raises(ChatTemplateError, match="longer"):
        ChatTemplate(text=echo.text * 2, source="t").render(long, limits=limits)


def test_the_templates_process_sees_no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    spy = tmp_path / "python"
    spy.write_text(f'#!/bin/sh\nenv > {seen}\nexec {sys.executable} "$@"\n')
    spy.chmod(0o755)
    monkeypatch.setenv("A_SECRET", "hunter2")
    monkeypatch.setattr(sys, "executable", str(spy))
    assert ChatTemplate(text="ok", source="t").render(ONE) == "ok"
    assert "hunter2" not in seen.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_kvscope_leaves_no_renderer_behind() -> None:
    code = (
        "from kvscope.prompt.chat_template.template import *\nfrom kvscope.prompt.conversation import *\n"
        f"t = ChatTemplate(text={ENDLESS['loops']!r}, source='t')\nprint('begins', flush=True)\n"
        "t.render(Conversation(messages=(Message(role='user', content='x'),)))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    until_s = time.monotonic() + 10
    while not (pids := children.read_text().split()) and time.monotonic() < until_s:
        time.sleep(0.002)
    assert pids
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while any(_runs(int(pid)) for pid in pids) and time.monotonic() < until_s + 10:
        time.sleep(0.02)
    assert not any(_runs(int(pid)) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
