"""A piece of advice, and a change that is not advised: what each is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvscope.analysis.advice_axes import Harm
from kvscope.analysis.advice_pressure import Pressure
from kvscope.analysis.fit import Estimate
from kvscope.record.rows import Json

# "running": without it what was asked cannot run at all, or memory is paid for what cannot be used.
Helps = Literal["memory", "waiting", "running"]
# What the answers say of a change. "moved": the model's distributions moved by more than noise, and no question lost
# its answer, or none was asked.
QualitySlug = Literal["not_measured", "no_loss", "moved", "loss", "gain", "cannot_tell", "not_touched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """``size``: of *moved* the divergence in nats for each position; of *no_loss* and *loss* the share of right
    answers, changed − baseline."""

    slug: QualitySlug
    size: Estimate | None = None


NOT_MEASURED = Quality(slug="not_measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a change does to something else. ``verdict``: more, less, equal, no_difference_seen, cannot_tell (by the
    rule of ``effects``) or unknown (one repeat). ``difference``: changed − baseline, in the metric's unit."""

    metric: str
    verdict: str
    difference: Estimate
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change. ``change``: settings by the engine's own names; empty where it is the prompts that should
    change. ``flags``: the same as it is given to the engine. ``metric``: what is saved: "memory_bytes", or a time.
    ``saved``: as measured, above zero; None where it is only predicted (``predicted``, in the same unit).
    ``costs``: of the metrics that were measured with it. ``evidence``: attempts. ``check``: words of the command that
    would measure it (again); empty where none can. ``limited``: in so many trials kvscope itself had too little of the
    processor."""

    slug: str
    axis: str
    helps: Helps
    harm: Harm
    metric: str
    change: Mapping[str, Json] = field(default_factory=dict)
    flags: str = ""
    saved: Estimate | None = None
    predicted: float | None = None
    is_estimate: bool = False
    costs: tuple[Cost, ...] = ()
    quality: Quality = NOT_MEASURED
    evidence: tuple[str, ...] = ()
    design_id: str | None = None
    check: tuple[str, ...] = ()
    limited: int = 0
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        return self.saved is not None

    @property
    def size(self) -> float:
        """What it saves, as measured, else as predicted."""
        value = self.predicted if self.saved is None else self.saved.value
        return 0.0 if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A change that was measured and is not advised. ``reason``: *saved_nothing*, *too_small*, *lost_answers*,
    *moved* (its kind is known to cost answers, and the model moved), *memory_free* (it costs something, and memory is
    no trouble), *slower* (no less time in all), *not_sure* (among so many comparisons one such is expected by
    chance)."""

    reason: str
    axis: str
    helps: Helps
    metric: str
    change: Mapping[str, Json]
    flags: str
    difference: Estimate
    predicted: float | None = None
    costs: tuple[Cost, ...] = ()
    quality: Quality = NOT_MEASURED
    evidence: tuple[str, ...] = ()
    design_id: str | None = None
    check: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Everything that is said of what to change. ``advice``: what helps most first. ``look``: words of each command
    that would compare something, where no design of the study compared times. ``priced``: every single change that was
    predicted to save memory, the largest saving first, whether or not it is advised."""

    pressure: Pressure
    advice: tuple[Advice, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    look: tuple[tuple[str, ...], ...] = ()
    priced: tuple[Advice, ...] = ()
