"""Whether the prompts of questions on documents reached the model whole, where no count tells: what stands at the head,
in the middle and at the tail of the longest of them is asked for, once all that is measured has been.

A mark that is named was there. One that is not may have been cut, or the model may be too weak to find it: what is
surely lost makes all answers of the trial say nothing of the model; what may be lost is a doubt, and nothing is then
claimed of what the model had before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.quality_cut import counts_what_it_read, lost_end
from kvscope.experiment.quality_rows import AskedItem
from kvscope.experiment.retrieval_failures import BURIED, CUT, MAYBE_CUT, NOT_USED
from kvscope.experiment.retrieval_prompts import AskedPrompt
from kvscope.quality.markers import marker_questions
from kvscope.quality.task import Document
from kvscope.record.rows import AnswerRow

TASK = "retrieval"
# Of an answer's row, whether its prompt is known to have arrived whole: true, or false for not known.
WHOLE_FACT = "prompt_whole"
_HINT = (
    "Load the model with a larger context, or give the model's own file with --model, where the server states what it "
    "reads."
)


def mark_items(prompts: Sequence[AskedPrompt], words: Sequence[str], language: str) -> list[AskedItem]:
    """The questions for the marks in the longest prompt: a server that cuts at a length cuts this one. ``words``: those
    planted."""
    longest = max(prompts, key=lambda prompt: len(prompt.messages[-1].content))
    planted = tuple(word for word in words if word in longest.given)
    if not longest.given or not planted:
        return []
    document = Document(
        name=TASK, task=TASK, language=language, text=longest.given, tokens=0, questions=(), markers=tuple(words)
    )
    return [
        AskedItem(document=document, question=question, form="chat", text=_asked_instead(longest, question.text))
        for question in marker_questions(document)
    ]


def _asked_instead(prompt: AskedPrompt, text: str) -> str:
    """The prompt with another question in place of its own, which stands before or behind what is given."""
    content, own = prompt.messages[-1].content, prompt.question.text
    before, given, behind = content.partition(prompt.given)
    if own in behind:
        return before + given + behind.replace(own, text)
    return before.replace(own, text) + given + behind


@dataclass(slots=True, kw_only=True)
class WholeCheck:
    """Of one trial's prompts, in ``rows`` once they have been asked. ``words``: those planted in them, in
    ``language``."""

    rows: AttemptRows
    engine: str
    prompts: Sequence[AskedPrompt]
    words: tuple[str, ...]
    language: str

    def run(self, ask: Callable[[Sequence[AskedItem]], Sequence[AnswerRow]]) -> None:
        """Ask, and note in the rows of all answers what is known. ``ask``: asks such questions and gives their rows.
        Raises what ends the engine."""
        if counts_what_it_read(self.rows.requests, self.engine, role="measured"):
            return
        items = mark_items(self.prompts, self.words, self.language)
        if not items:
            return
        marks = ask(items)
        missing = [mark.item.rpartition("-")[2] for mark in marks if mark.reading != "right"]
        if marks and not missing:
            self._note({WHOLE_FACT: True})
            return
        self._note({WHOLE_FACT: False, "marks_not_found": missing})
        lost = lost_end([*marks, *self._placed()])
        if lost is not None and lost.is_sure and lost.end in missing and len(missing) < len(marks):
            self._leave_out(lost.end)
        else:
            self._doubt(missing)

    def _placed(self) -> list[AnswerRow]:
        """The answers with the place of their evidence in what was given."""
        depths = {prompt.question.id: _depth(prompt) for prompt in self.prompts}
        return [replace(row, depth_percent=depths[row.item]) for row in self._own() if depths.get(row.item) is not None]

    def _own(self) -> list[AnswerRow]:
        return [row for row in self.rows.answers if row.task == TASK]

    def _note(self, facts: dict[str, object]) -> None:
        self._each(lambda row: replace(row, facts={**row.facts, **facts}))

    def _each(self, change: Callable[[AnswerRow], AnswerRow]) -> None:
        self.rows.answers = [change(row) if row.task == TASK else row for row in self.rows.answers]

    def _leave_out(self, end: str) -> None:
        self.rows.warn(
            "retrieval-cut-by-marks",
            f"The {end} of the prompts does not reach the model: neither the mark there nor any answer is found, and "
            "the rest is (by chance in less than 1 % of trials). The answers are left out of the score.",
            _HINT,
        )
        self._each(
            lambda row: (
                replace(row, reading="truncated_input", score=None, facts={**row.facts, "failure": CUT})
                if row.reading in ("right", "wrong", "no_answer")
                else row
            )
        )

    def _doubt(self, missing: Sequence[str]) -> None:
        self.rows.warn(
            "retrieval-maybe-cut",
            "It is not known whether the prompts reached the model whole: no count shows it, and asked for the marks "
            f"in the longest prompt it did not name that at the {', '.join(missing) or 'head'}. It may be too weak for "
            "that. What was sent is known, not what was read.",
            _HINT,
        )
        self._each(
            lambda row: (
                replace(row, facts={**row.facts, "failure": MAYBE_CUT})
                if row.facts.get("failure") in (BURIED, NOT_USED)
                else row
            )
        )


def _depth(prompt: AskedPrompt) -> float | None:
    places = [prompt.given.find(text) for text in prompt.evidence]
    if not places or -1 in places or not prompt.has_evidence:
        return None
    return 100 * min(places) / len(prompt.given)
