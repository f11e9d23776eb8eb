"""What do several requests at once do to the wait for the first token, and to memory?"""

from dataclasses import replace

from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

KIND = DesignKind(
    name="concurrency",
    version=1,
    question="What do several requests at once do to the wait for the first token, to speed and to memory?",
    factor="concurrency",
    says="That memory stays as it is in a pool that is fixed, while each request waits longer; what one request costs "
    "of the pool, and tokens per second of one request and of all together. With a shared beginning: how many "
    "tokens of it were reused.",
    holds=(
        holds.LOAD_PROCESS,
        holds.SLOTS,
        holds.NO_HOST_CACHE,
        holds.LOAD_WARM_UP,
        holds.SAME_REQUEST,
        holds.ALL_ELSE,
    ),
    confounders=(
        "A level with more streams sends more requests (four for each stream, unless --requests says how many).",
        "At a rate, all levels of one block have the same gaps between requests, drawn anew for each block (poisson).",
        "On a server that runs already the slots are what they are; requests beyond them wait, and that is in the time "
        "to the first token.",
        "Prompts that arrive together are computed in turn or together, as the engine batches: the wait of the first "
        "and of the last of them differ.",
        "kvscope's own client takes processor time from an engine on the same machine.",
    ),
    default_levels=(1, 2, 4, 8),
    default_condition=Condition(settings={}, prompt_tokens=256, output_tokens=32, as_load=True),
)


def open_loop() -> DesignKind:
    """The same question at a fixed rate of arrival: how many requests are under way then follows from the rate."""
    return replace(
        KIND,
        factor="rate_per_s",
        says="How the wait for the first token grows with the rate at which requests arrive, whatever is still under "
        "way, and that memory stays as it is in a pool that is fixed.",
        default_levels=(0.5, 1.0, 2.0),
        default_condition=replace(KIND.default_condition, as_load=False, arrival="poisson"),
    )
