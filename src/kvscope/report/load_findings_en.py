"""What the design of several requests at once says of its rows, in English."""

from collections.abc import Mapping

_TOGETHER = (
    "With {condition} each request gets {each_per_s:rate} tokens/s and all together {all_per_s:rate}; with {base} it "
    "was {baseline_each_per_s:rate} and {baseline_all_per_s:rate}. Half of the requests wait up to {ttft_p50_s:s} for "
    "their first token (with {base}: {baseline_ttft_p50_s:s}), the longest {ttft_max_s:s}. Memory ÷ requests at once: "
    "{share_bytes:mib2}."
)
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
    "finding.load_capacity": f"One user's result is not a service's capacity. {_TOGETHER}",
    "finding.load_rates": _TOGETHER,
    "finding.load_rates_open": "With {condition} all requests together get {all_per_s:rate} tokens/s, and "
    "{baseline_all_per_s:rate} with {base}. Half of them wait up to {ttft_p50_s:s} for their first token (with {base}: "
    "{baseline_ttft_p50_s:s}), the longest {ttft_max_s:s}.",
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
    "size.difference_rate": "All together {value:rate} tokens/s more (less where negative), 95 % interval {low:rate} "
    "to {high:rate}, {num} pairs.",
    "also.client_on_same_machine": "kvscope's own client takes processor time too where the engine is on this machine.",
    "check_by.requests_of_load": "To check: kvscope export --rows requests has each request's stream and times.",
}
