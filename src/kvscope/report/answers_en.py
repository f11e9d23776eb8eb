"""What was answered, at the head of a report, in English."""

from collections.abc import Mapping

ANSWERED: Mapping[str, str] = {
    "answered.right": "Right answers, of those that could be read: {shares:list}{more}.",
    "answered.more": " and {count:count} more",
    "answered.share": "{what} {right} of {read:count}",
    "answered.judged": "A loss would show in {judged} of these {total}.",
    "answered.judged_none": "A loss would show in none of these: they cannot be judged by.",
    "answered.loss": "{level} loses against {base}: {task} {size:signed_points}.",
    "answered.gain": "{level} gains against {base}: {task} {size:signed_points}.",
    "answered.moves": "{level} moves the model away from {base} by more than noise (KL {size:nats} nats per token).",
    "answered.no_loss": "No loss is seen in {count:count} comparisons.",
    "answered.cannot_tell": "{count:count} comparisons cannot tell.",
    "answered.lost_nothing": "{level} lost nothing that the whole document got right.",
    "answered.copy_gain_used": "The document is used (copy gain {gain:nats} nats per token).",
    "answered.copy_gain_not_used": "The document adds nothing to a fact in it (copy gain {gain:nats} nats per token).",
    "answered.copy_gain_cannot_tell": "Whether the document is used cannot be told (copy gain {gain:nats} nats per "
    "token).",
    "answered.lost": "{level} lost {lost} that the whole document got right.",
    "answered.retrieval_even": "The whole document is quicker than {level} from {questions:rate} questions on.",
    "answered.retrieval_even_at_once": "The whole document is quicker than {level} from the first question on.",
    "answered.retrieval_never_even": "{level} is quicker than the whole document for any number of questions.",
    "answered.retrieval_even_not_told": "Whether the whole document or {level} is quicker, these repeats cannot tell.",
    "answered.interval": "{what} {low:percent} to {high:percent}",
    "answered.intervals": "95 % intervals of the shares right: {intervals:list}.",
    "answered.no_intervals": "No interval of a share can be given: it takes several documents.",
}
