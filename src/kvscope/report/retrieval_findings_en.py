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
    "finding.retrieval_even_not_told": f"{_COSTS}. These repeats do not tell the two apart, and so not from how many "
    "questions on the whole document is quicker.",
    "finding.retrieval_never_even_tokens": "In tokens that are computed {condition} is cheaper for any number of "
    "questions.",
    "finding.retrieval_even_tokens": "In tokens that are computed both cost the same at {token_questions:rate} "
    "questions with {condition}; counted and predicted before they were sent: {predicted_token_questions:rate}.",
    "finding.retrieval_even_tokens_unknown": "The server does not state how many tokens it reused: the break-even in "
    "tokens with {condition} is known only as counted before they were sent, {predicted_token_questions:rate} "
    "questions.",
    "finding.retrieval_right": "{condition}: {right} of {scored:count} questions were answered right.",
    "finding.retrieval_right_sent": "{condition}: {right} of {scored:count} questions were answered right; it is not "
    "known whether the prompts reached the model whole.",
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
    "retrieval.title": "Whole document or retrieval? {questions}, each way measured {trials} times.",
    "retrieval.title_once": "Whole document or retrieval? {questions}, each way measured once.",
    "retrieval_col.right": "right",
    "retrieval_col.interval": "95 %",
    "retrieval_col.evidence": "given",
    "retrieval_col.sent": "sent",
    "retrieval_col.read": "tokens read",
    "retrieval_col.wait": "first token",
    "retrieval_col.peak": "peak",
    "retrieval.legend": "{evidence}. tokens read, and the wait for the first token: of the first question + of each "
    "later one, means. peak: all memory of the engine.{why_no_interval}",
    "retrieval.given": "given: questions whose evidence was in the prompt",
    "retrieval.sent": "sent: questions whose evidence was in the prompt as it was sent; it is not known whether it "
    "reached the model whole ({levels})",
    "retrieval.one_document": " 95 %: ?, as all questions are of one document; ask of several.",
    "retrieval.guessing": "With nothing given {right} of {scored:count} are right: so much is guessed or known.",
    "retrieval.whole": "The full input costs {cold_s:s} of waiting and {tokens:count} tokens once, then {warm_s:s} a "
    "question. {level} costs {each_s:s} a question.",
    "retrieval.even": "Break-even: from {questions:rate} questions on, the whole document is quicker{interval}.",
    "retrieval.even_at_once": "Break-even: the whole document is quicker from the first question on{interval}.",
    "retrieval.never": "Break-even: there is none, {level} is quicker for any number of questions.",
    "retrieval.not_told": "Break-even: cannot tell, these repeats do not tell the wait for {level} from that of a "
    "later question on the whole document{least}.",
    "retrieval.not_told_once": "Break-even: cannot tell, in the one repeat a question on {level} waited no longer than "
    "a later one on the whole document.",
    "retrieval.by_means": "; by their means alone it is at {questions:rate} questions",
    "retrieval.at_least": "; if there is one, it is beyond {low:rate} questions",
    "retrieval.at_most": " (95 %: at most from {high:rate} on)",
    "retrieval.even_unknown": "Break-even: unknown, {why}.",
    "retrieval_why_unknown.no_whole": "the level whole was not asked for",
    "retrieval_why_unknown.no_passages": "no level gives passages",
    "retrieval_why_unknown.whole_not_measured": "the whole document was not measured",
    "retrieval_why_unknown.passages_not_measured": "no way of passages was measured",
    "retrieval_why_unknown.one_question": "it takes two questions or more",
    "retrieval_why_unknown.not_all_known": "not all that it is made of was measured",
    "retrieval.interval": " (95 %: {low:rate} to {high:rate})",
    "retrieval.no_interval": " (these repeats give no interval)",
    "retrieval.said_before": "Predicted before it was measured: {questions}, {law_from}.",
    "retrieval.not_said_before": "Predicted before it was measured: unknown.",
    "retrieval_law_from.earlier_designs": "from earlier designs in this record",
    "retrieval_law_from.first_trial": "from the warm-up trial of the whole document",
    "retrieval.tokens": "In tokens: {questions}; counted before they were sent: {predicted}.",
    "retrieval.tokens_stated": "In tokens: {questions}.",
    "retrieval.number": "{questions:rate}",
    "retrieval.number_of_questions": "{questions:rate} questions",
    "retrieval.none": "there is none",
    "retrieval.not_stated": "the server does not state it",
    "retrieval.sizes": "By size the whole document is quicker: {sizes}.",
    "retrieval.size": "for {questions} up to {tokens:count} tokens",
    "retrieval.size_any": "for {questions} at any size",
    "retrieval.size_none": "for {questions} at no size",
    "retrieval.size_window": "for {questions} at any size that the model's window holds ({tokens:count} tokens)",
    "retrieval.left_out": "Of {levels} no more is told here: kvscope report tells it.",
    "retrieval.cut": "… and {count} more lines, for which there is no room: see kvscope report.",
    "retrieval.one_question": "1 question",
    "retrieval.several_questions": "{count:count} questions",
    "retrieval.memory_less": "{level} peaks {difference:mib} below the whole document in memory ({cache:mib} less "
    "for keys and values, by prediction).",
    "retrieval.memory_more": "{level} peaks {difference:mib} above the whole document in memory, though keys and "
    "values need {cache:mib} less, by prediction.",
    "retrieval.memory_alike": "{level} peaks like the whole document in memory: {cache:mib} less for keys and values "
    "is predicted and not seen, as where a server holds all of its cache from the start, or elsewhere.",
    "retrieval.memory": "{level} peaks {difference:signed_mib} against the whole document in memory.",
    "retrieval.answers": "Right answers of {level} against the whole document, over the {items} read of both: "
    "{difference} points{interval}: {verdict}.",
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
    "retrieval_because.one_document": ", the questions are all of one document; ask of several",
    "retrieval_because.maybe_cut": ", it is not known whether the prompts reached the model whole",
    "retrieval_because.no_baseline": ", the whole document was not measured",
    "retrieval.needed": "; a loss of 5 points needs about {items:count}",
    "retrieval.lost": "{level} lost {count} that the whole document got right:",
    "retrieval.lost_none": "{level} lost nothing that the whole document got right.",
    "retrieval.lost_none_of_none": "The whole document got nothing right, so that {level} had nothing to lose.",
    "retrieval.lost_none_unread": "No answer with the whole document could be read, so that it is not known what "
    "{level} lost.",
    "retrieval.gained": "The whole document lost {count} that {level} got right:",
    "retrieval.gained_number": "The whole document lost {count} that {level} got right.",
    "retrieval.lost_number": "{level} lost {count} that the whole document got right.",
    "retrieval.fact": "{question} ({expected}): {failure}",
    "retrieval.more": "… and {count} more",
    "retrieval.reasons": "Not right with {level}: {reasons}.",
    "retrieval.reason": "{count} {failure}",
    "retrieval.failures": "Not used: the evidence was in the prompt, and the answer names neither what was asked for "
    "nor another value. Buried: it names another. Partly right: it names what was asked for, but not all of it, or "
    "another value too.",
    "retrieval.cut_answers": "Answer cut: it ran into the limit of output tokens; raise --output-tokens.",
    "retrieval.cut_prompts": "Prompt cut: the server did not read all of it; nothing is said of the model.",
    "retrieval.maybe_cut_prompts": "Perhaps cut: wrong, or the evidence was lost on its way; it is not known which.",
    "retrieval.not_measured": "{level} was not measured: {why}",
    "failure.not_given": "not given",
    "failure.not_retrieved": "not retrieved",
    "failure.retrieved_not_used": "not used",
    "failure.buried": "buried",
    "failure.partly_right": "partly right",
    "failure.no_answer": "no answer",
    "failure.cut": "prompt cut",
    "failure.cut_answer": "answer cut",
    "failure.maybe_cut": "perhaps cut",
    "failure.failed": "request failed",
    "failure.evidence_unknown": "place not known",
}
