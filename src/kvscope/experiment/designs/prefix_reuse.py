"""What of a prompt need not be computed again, because much the same was sent before?"""

from kvscope.experiment.design import Condition, DesignKind

KIND = DesignKind(
    name="prefix_reuse",
    version=1,
    question="How much of a prompt is reused when it was sent before: as it is, changed in one place, or a while ago?",
    factor="prefix",
    says="Tokens served from the cache beside those that the engine's own rule predicts, what that saves of the wait "
    "for the first token, what one changed character costs by where it stands, and what was gone after a time.",
    confounders=(
        "After cold, too, the tokens that the chat template puts before every message are the same.",
        "A server that others use may have given the place of the earlier prompt away.",
        "Engines that keep blocks (vLLM) or steps (OpenAI) reuse whole ones only.",
        "A sliding window or a recurrent state cannot go back to any place: more is computed again than was changed.",
    ),
    default_levels=("cold", "warm", "changed_start", "changed_middle", "changed_end", "after_5s"),
    default_condition=Condition(settings={}, prompt_tokens=512, output_tokens=8, reuse_prefix=True),
    holds=(
        "The length of the measured prompt, in tokens.",
        "The course of a trial: a short warm-up, one earlier request, the wait, the measured request.",
        "One request at a time; the engine may reuse what it kept (its own default).",
    ),
)
