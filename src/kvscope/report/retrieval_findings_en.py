"""What the design of whole document against retrieval says of its rows, in English; and its page in a terminal."""

from collections.abc import Mapping

_COSTS = (
    "The first question on the whole document waits {cold_s:s} for its first token, each later one {warm_s:s}; with "
    "{condition} each waits {each_s:s}"
)

RETRIEVAL_FINDINGS: Mapping[str, str] = {
    "finding.retrieval_even": f"{_COSTS}. From {{questions:rate}} questions on, the whole document is quicker (said "
    "before, by a law of reading: {predicted_questions:rate}).",
    "finding.retrieval_even_at_once": f"{_COSTS}: the whole document is quicker from the first question on.",
    "finding.retrieval_never_even": f"{_COSTS}: with any number of questions the whole document is not quicker.",
    "finding.retrieval_even_tokens": "In tokens that are computed both cost the same at {token_questions:rate} "
    "questions with {condition}; counted and predicted before they were sent: {predicted_token_questions:rate}.",
    "finding.retrieval_even_tokens_unknown": "The server does not state how many tokens it reused: the break-even in "
    "tokens with {condition} is known only as counted before they were sent, {predicted_token_questions:rate} "
    "questions.",
    "finding.retrieval_right": "{condition}: {right} of {scored:count} questions were answered right.",
    "finding.retrieval_guessed": "With nothing given, {right} of {scored:count} questions were answered right: so "
    "much is guessed, or known without the documents.",
    "finding.retrieval_failed": "{condition}: what was not answered right, by reason: {failures:list}.",
    "finding.retrieval_lost": "{condition}: what was not answered right, by reason: {failures:list}. Right with the "
    "whole document and not here: {lost}; right here and not there: {gained}.",
    "finding.retrieval_not_measured": "{condition} was not measured: {why}.",
    "size.questions": "95 % interval {low:rate} to {high:rate} questions, {num} repeats.",
    "size.right": "95 % interval {low:percent} to {high:percent}, {num} questions.",
}

# The answer on one page, at the end of kvscope measure retrieval.
RETRIEVAL_PAGE: Mapping[str, str] = {
    "retrieval.title": "Whole document or retrieval? {questions:count} questions, each way measured {trials} times.",
    "retrieval.title_once": "Whole document or retrieval? {questions:count} questions, each way measured once.",
    "retrieval_col.right": "right",
    "retrieval_col.interval": "95 %",
    "retrieval_col.evidence": "given",
    "retrieval_col.read": "tokens read",
    "retrieval_col.wait": "first token",
    "retrieval_col.peak": "peak",
    "retrieval.legend": "given: questions whose evidence was in the prompt. tokens read, and the wait for the first "
    "token: of the first question + of each later one. peak: all memory of the engine.",
    "retrieval.guessing": "With nothing given {right} of {scored:count} are right: so much is guessed or known.",
    "retrieval.whole": "The full input costs {cold_s:s} of waiting and {tokens:count} tokens once, then {warm_s:s} a "
    "question. {level} costs {each_s:s} a question.",
    "retrieval.even": "Break-even: from {questions:rate} questions on, the whole document is quicker{interval}.",
    "retrieval.even_at_once": "Break-even: the whole document is quicker from the first question on{interval}.",
    "retrieval.never": "Break-even: there is none, {level} is quicker for any number of questions.",
    "retrieval.interval": " (95 %: {low:rate} to {high:rate})",
    "retrieval.no_interval": " (these repeats give no interval)",
    "retrieval.said_before": "Predicted before it was measured: {questions:rate}, {law_from}.",
    "retrieval.not_said_before": "Predicted before it was measured: unknown.",
    "retrieval_law_from.earlier_designs": "from earlier designs in this record",
    "retrieval_law_from.first_trial": "from the first trial of the whole document",
    "retrieval.tokens": "In tokens: {questions:rate} questions; counted before they were sent: {predicted:rate}.",
    "retrieval.tokens_stated": "In tokens: {questions:rate} questions.",
    "retrieval.sizes": "By size the whole document is quicker: {sizes}.",
    "retrieval.size": "for {questions} up to {tokens:count} tokens",
    "retrieval.size_any": "for {questions} at any size",
    "retrieval.one_question": "1 question",
    "retrieval.several_questions": "{count:count} questions",
    "retrieval.memory_less": "{level} peaks {difference:mib} below the whole document in memory ({cache:mib} less "
    "for keys and values, by prediction).",
    "retrieval.memory_more": "{level} peaks {difference:mib} above the whole document in memory, though keys and "
    "values need {cache:mib} less, by prediction.",
    "retrieval.memory": "{level} peaks {difference:signed_mib} against the whole document in memory.",
    "retrieval.answers": "Right answers of {level} against the whole document: {difference} points{interval}: "
    "{verdict}.",
    "retrieval.answers_interval": " (95 %: {low} to {high})",
    "retrieval_verdict.loss": "a loss",
    "retrieval_verdict.gain": "a gain",
    "retrieval_verdict.no_loss_beyond": "no loss larger than {bound} points",
    "retrieval_verdict.cannot_tell": "cannot tell{reason}{needed}",
    "retrieval_because.floor": ", the whole document is answered too seldom for a loss to show",
    "retrieval_because.guessing": ", as much is right by guessing",
    "retrieval_because.ceiling": ", all is right with the whole document",
    "retrieval_because.too_few": ", these are too few questions",
    "retrieval_because.unread": ", too many answers could not be read",
    "retrieval_because.no_baseline": ", the whole document was not measured",
    "retrieval.needed": "; a loss of 5 points needs about {items:count}",
    "retrieval.lost": "{level} lost {count} that the whole document got right:",
    "retrieval.lost_none": "{level} lost nothing that the whole document got right.",
    "retrieval.gained": "The whole document lost {count} that {level} got right:",
    "retrieval.fact": "{question} ({expected}): {failure}",
    "retrieval.more": "… and {count} more",
    "retrieval.reasons": "Not right with {level}: {reasons}.",
    "retrieval.reason": "{count} {failure}",
    "retrieval.failures": "Not used: the evidence was in the prompt, and the answer names nothing of it. Buried: it "
    "was, and the answer names another value.",
    "retrieval.not_measured": "{level} was not measured: {why}",
    "failure.not_given": "not given",
    "failure.not_retrieved": "not retrieved",
    "failure.retrieved_not_used": "not used",
    "failure.buried": "buried",
    "failure.cut": "cut",
    "failure.failed": "request failed",
    "failure.evidence_unknown": "place not known",
}
