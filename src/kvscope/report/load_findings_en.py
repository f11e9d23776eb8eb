"""What the design of several requests at once says of its rows, in English."""

from collections.abc import Mapping

_MEMORY = "{metric} with {condition}: {difference_bytes:signed_mib2} against {base}"
_OWN = (
    "While the load ran it changed by {grown_bytes:signed_mib2}. Caches of their own for as many more requests would "
    "take {own_bytes:mib2}"
)
_POOL = "{slots:count} slots share a pool of {pool_tokens:count} tokens"
_REUSED = (
    "With {condition} {cached_tokens:count} of all {prompt_tokens:count} prompt tokens were reused ({share:percent}). "
    "{found:count} of {requests:count} requests found the beginning that all have in common"
)

LOAD_FINDINGS: Mapping[str, str] = {
    "finding.load_capacity": "One user's result is not a service's capacity: what each of the requests under way gets "
    "and what all get together are told apart below. All memory ÷ requests at once, with {condition}: "
    "{share_bytes:mib2}.",
    "finding.load_share": "All memory ÷ requests at once, with {condition}: {share_bytes:mib2}.",
    "finding.load_not_kept_up": "With {condition} the engine did not keep up: {asked_per_s:rate} requests a second "
    "arrived and {answered_per_s:rate} were answered. In {behind} of {trials} trials the requests under way grew to "
    "the end (halfway {halfway:count}, as the last one arrived {at_end:count}), and the last answer came {behind_s:s} "
    "after the last request was due, where the quickest took {quickest_s:s} in all. Its waits tell how many requests "
    "were sent (--requests), not what the rate does.",
    "finding.load_memory_flat": f"{_MEMORY}: it stays as it is. {_POOL}, made at load. {_OWN}.",
    "finding.load_memory_grows": f"{_MEMORY}: it grows, though {_POOL}. {_OWN}.",
    "finding.load_memory_falls": f"{_MEMORY}: it falls, though {_POOL}. {_OWN}.",
    "finding.load_memory_unclear": f"{_MEMORY}: these repeats cannot tell whether it stays as it is. {_POOL}. {_OWN}.",
    "finding.load_over_slots": "The engine has {slots:count} slots: with {levels:list} at once, the others waited for "
    "one, and their wait is in the time to the first token.",
    "finding.load_shared": f"{_REUSED}, {{shared_tokens:count}} tokens; the others came first to their slot, or it was "
    "not kept.",
    "finding.load_shared_about": f"{_REUSED}, about {{shared_tokens:count}} tokens; the others came first to their "
    "slot, or it was not kept.",
    "size.share_bytes": "95 % interval {low:mib2} to {high:mib2}, {num} trials.",
    "also.client_on_same_machine": "kvscope's own client takes processor time too where the engine is on this machine.",
    "check_by.requests_of_load": "To check: kvscope export --rows requests has each request's stream and times.",
}
