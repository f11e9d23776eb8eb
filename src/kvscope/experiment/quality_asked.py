"""What is asked of answers beside memory and time: which task, how many documents of it, and in which form."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from kvscope.engine.server_address import server_url
from kvscope.errors import BadDesign
from kvscope.quality.tasks import task_named

# auto: to the model's chat template where it has one, else as a text that it goes on with.
AskedForm = Literal["auto", "chat", "cue"]
FORMS: tuple[AskedForm, ...] = get_args(AskedForm)
# Tokens of the context that are kept free behind a question's prompt: its answer (160 at most, of the task copy in
# Korean), and the tools that are offered.
_ANSWER_ROOM = 192
_TOOLS_ROOM = 512
# More documents of a task than this in a trial are a slip of the keyboard.
MOST_DOCUMENTS = 100_000
# What a level of the factor ``quality_task`` sets.
TASK_FACTOR = "quality_task"
# The task whose positions are held against those of a reference.
FIDELITY = "fidelity"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityAsked:
    """``task``: a name of ``quality.tasks.TASKS``; empty where each level has its own. ``documents``: how many of them
    every trial asks (each with its twin, where the task has one); None: the task's own number. ``output_tokens``: the
    most of an answer, where it is more than the question's own limit: for models that think. ``judge``: the address
    of a server whose model judges answers in place of the strict reading; ``judge_model``: which of its models, its
    first where it is None."""

    task: str
    documents: int | None = None
    form: AskedForm = "auto"
    output_tokens: int | None = None
    judge: str | None = None
    judge_model: str | None = None

    def to_dict(self) -> dict[str, object]:
        """As a design's identity has it: named only where it was asked for, and the task where it is not varied."""
        return {
            **({TASK_FACTOR: self.task} if self.task else {}),
            **({} if self.documents is None else {"quality_documents": self.documents}),
            **({} if self.form == "auto" else {"quality_form": self.form}),
            **({} if self.output_tokens is None else {"quality_output_tokens": self.output_tokens}),
            # Where it is reached does not make it another judge, as far as it has a name.
            **({} if self.judge is None else {"quality_judge": self.judge_model or self.judge}),
        }

    @property
    def room_tokens(self) -> int:
        """Tokens that a prompt needs beyond the length that it is built to."""
        room = _TOOLS_ROOM if self.task == "tool_call" else _ANSWER_ROOM
        return room + (self.output_tokens or 0)

    def limit_of(self, own_limit: int) -> int:
        """The most output tokens of an answer to a question with this limit of its own."""
        return max(own_limit, self.output_tokens or 0)

    @property
    def num_documents(self) -> int:
        """How many documents a trial asks. Raises UnknownName for a task that there is not."""
        return task_named(self.task).default_documents if self.documents is None else self.documents


def judge_address(text: str) -> str:
    """The address of a judge, as it was written. Raises UsageError for one that is none, or that holds a key: it is
    recorded."""
    server_url(text)
    return text


def with_task(asked: QualityAsked | None, level: object) -> QualityAsked:
    """The same, asked of another task. Raises BadDesign for a level that is no name, UnknownName for one of no task."""
    if not isinstance(level, str):
        raise BadDesign(f"{level!r} is no quality task.", hint="Use names, like needle or keys.")
    task = task_named(level).name
    return QualityAsked(task=task) if asked is None else replace(asked, task=task)
