"""What prefix_reuse says of its rows, in English."""

from collections.abc import Mapping

PREFIX_FINDINGS: Mapping[str, str] = {
    "finding.prefix_as_predicted": "Every request reused as many tokens as was said before it was sent: {equal:count} "
    "of {total:count} ({unknown:count} could not be compared).",
    "finding.prefix_not_as_predicted": "{differing:count} of {total:count} requests reused other than was said before "
    "they were sent; at {level}, {cached_tokens:count} tokens instead of {predicted_tokens:count}.",
    "finding.prefix_not_predicted": "Nothing was said before of what {total:count} requests would reuse; why is a "
    "warning of their trials.",
    "finding.prefix_not_stated": "The server does not state how many tokens it reused of {total:count} requests.",
    "finding.prefix_reused": "{level}: {cached_span:span} of {prompt_span:span} prompt tokens came from the "
    "cache; computed anew: {recomputed_span:span}.",
    "finding.prefix_changed_start": "One character changed at the start of the text: {recomputed_span:span} of "
    "{prompt_span:span} prompt tokens were computed again.",
    "finding.prefix_changed_middle": "One character changed in the middle of the text: {recomputed_span:span} of "
    "{prompt_span:span} prompt tokens were computed again.",
    "finding.prefix_changed_end": "One character changed at the end of the text: {recomputed_span:span} of "
    "{prompt_span:span} prompt tokens were computed again.",
    "finding.prefix_after": "{wait_s:s} after it was answered, {cached_span:span} of {prompt_span:span} prompt "
    "tokens came from the cache.",
    "finding.prefix_held": "{wait_s:s} after it was answered, the prompt was held as it was at once: "
    "{cached_span:span} of {prompt_span:span} tokens came from the cache.",
    "finding.prefix_gone": "{wait_s:s} after it was answered, {gone_tokens:count} tokens that are reused at once were "
    "gone: {cached_span:span} of {prompt_span:span} came from the cache.",
    "finding.prefix_saved": "At {level} the first token came {saved_s:s} sooner than at {baseline_level}: "
    "{per_token_s:s} for each of the {tokens:count} tokens more that were reused.",
    "size.saved_per_token": "{value:s} for each token that is reused, 95 % interval {low:s} to {high:s}, {num} pairs.",
    "also.others_requests": "Could also be: requests of others between ours, on a server that others use too.",
}
