"""What is varied, what is held, in which order: a question becomes a list of trials.

One thing varies at a time. Two at once is a grid, which has to be asked for and is labelled as such, because a
difference between two of its points cannot be laid to either factor alone.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from kvscope.errors import BadDesign
from kvscope.experiment.factors import REQUEST_FACTORS as REQUEST_FACTORS
from kvscope.experiment.factors import Factor as Factor
from kvscope.experiment.factors import Level as Level
from kvscope.experiment.factors import LevelSettings as LevelSettings
from kvscope.experiment.factors import check_apart, check_factor, check_not_held
from kvscope.experiment.prefix_levels import prefix_level
from kvscope.experiment.quality_asked import TASK_FACTOR, QualityAsked, with_task
from kvscope.experiment.retrieval_asked import GIVEN, RetrievalAsked, with_way
from kvscope.experiment.until import Until as Until
from kvscope.model.spec import ModelSpec
from kvscope.prompt.exact_length.source_text import SourceText
from kvscope.scenario import SettingValue

Language = Literal["en", "ko", "code"]
Arrival = Literal["closed", "constant", "poisson"]

MOST_TRIALS = 10_000

# What a chat template may add to close an answer, beyond what it added to the messages when each was counted alone.
CLOSING_TOKENS = 16
# Requests of a load where their number is not given: so many for each stream, and at least so many.
ROUNDS_PER_STREAM = 4
LEAST_REQUESTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Everything one trial is run under. ``requests``: different conversations, one after another, in one engine
    process; None: not asked for, see ``num_requests``. ``same_again``: how many times the last of them is then sent
    once more. ``reuse_prefix``: let the engine reuse what it kept of earlier requests (its own default).
    ``is_conversation``: the requests are the turns of one conversation instead, each sent with all that went before
    it, and ``prompt_tokens`` is what the user's message of one turn takes when it is sent alone. ``text``: what prompts
    are made of, the bundled text of ``language`` where it is None. ``key_percent``: how far down it their key sentence
    stands; where it is None, in the middle, and prompts that are too short go without.

    ``concurrency``: how many of the requests are under way at once (closed loop: each of so many streams sends its next
    request when its last one is answered). ``as_load``: sent as a load is, even where it is one at a time. ``arrival``
    and ``rate_per_s``: an open loop instead, requests sent at that rate whatever is still under way.
    ``shared_prefix_tokens``: so many tokens at the beginning of all of a trial's prompts are the same. ``prefix``: what
    of the measured prompt was sent before (see designs/prefix_reuse.py). ``quality``: what is asked for the answers'
    sake once all of this has been measured. ``retrieval``: questions on documents instead of prompts of a length."""

    settings: Mapping[str, SettingValue]
    prompt_tokens: int
    output_tokens: int
    requests: int | None = None
    reuse_prefix: bool = False
    language: Language = "en"
    is_conversation: bool = False
    text: SourceText | None = None
    key_percent: float | None = None
    same_again: int = 0
    concurrency: int = 1
    arrival: Arrival = "closed"
    rate_per_s: float | None = None
    shared_prefix_tokens: int = 0
    as_load: bool = False
    prefix: str | None = None
    quality: QualityAsked | None = None
    retrieval: RetrievalAsked | None = None

    @property
    def is_load(self) -> bool:
        """Whether the requests are sent as a load, in which several may be under way at once."""
        return self.as_load or self.concurrency > 1 or self.arrival != "closed"

    @property
    def num_requests(self) -> int:
        """How many requests a trial measures. Where none were asked for: one, or of a load four for each stream and at
        least eight."""
        if self.requests is not None:
            return self.requests
        return max(LEAST_REQUESTS, ROUNDS_PER_STREAM * self.concurrency) if self.is_load else 1

    @property
    def longest_tokens(self) -> int:
        """Prompt and output tokens of the longest request: an upper bound for a conversation, whose template is then
        sent once."""
        one = self.prompt_tokens + self.output_tokens
        turns = self.num_requests
        return turns * (one + CLOSING_TOKENS) if self.is_conversation and turns > 1 else one

    @property
    def context_tokens(self) -> int:
        """What one sequence has to hold: the longest request, or a question that is asked afterwards."""
        asked = 0 if self.quality is None else self.prompt_tokens + self.quality.room_tokens
        return max(self.longest_tokens, asked)

    @property
    def asked_prompt_tokens(self) -> int | None:
        """None of a conversation, whose prompts grow with the answers, and of questions on documents."""
        return None if self.is_conversation or self.retrieval is not None else self.prompt_tokens

    def with_level(self, factor: str, level: SettingValue) -> "Condition":
        """This condition with one factor set: the requests' own (REQUEST_FACTORS) or an engine setting."""
        if factor == "prefix":
            return replace(self, prefix=prefix_level(level).name)
        if factor == TASK_FACTOR:
            return replace(self, quality=with_task(self.quality, level))
        if factor == GIVEN:
            return self._given(with_way(self.retrieval, level))
        if factor == "rate_per_s":
            if not isinstance(level, int | float) or isinstance(level, bool) or not 0 < level < math.inf:
                raise BadDesign(f"{level!r} is not a number of requests per second.", hint="Use a number above 0.")
            arrival: Arrival = "poisson" if self.arrival == "closed" else self.arrival
            return replace(self, rate_per_s=float(level), arrival=arrival)
        if factor in REQUEST_FACTORS:
            if not isinstance(level, int) or isinstance(level, bool) or level < 1:
                what = {"turns": "turns", "concurrency": "requests at once"}.get(factor)
                hint = "Use whole numbers from 1" + (", like 4." if what else ", like 512 or 8k.")
                raise BadDesign(f"{level!r} is not a number of {what or f'tokens for {factor}'}.", hint=hint)
            match factor:
                case "prompt_tokens":
                    return replace(self, prompt_tokens=level)
                case "output_tokens":
                    return replace(self, output_tokens=level)
                case "concurrency":
                    return replace(self, concurrency=level, as_load=True)
                case _:
                    return replace(self, requests=level, is_conversation=True)
        return replace(self, settings={**self.settings, factor: level})

    def _given(self, asked: RetrievalAsked) -> "Condition":
        tokens = asked.longest_tokens.get(asked.given, self.prompt_tokens)
        settings = {**self.settings, **asked.context_settings(self.output_tokens)}
        return replace(self, retrieval=asked, prompt_tokens=tokens, requests=len(asked.questions), settings=settings)

    def _requests_to_dict(self) -> dict[str, object]:
        if self.is_conversation:
            return {"turns": self.num_requests, "is_conversation": True}
        # A load for which none were asked has as many as its streams need.
        return {} if self.is_load and self.requests is None else {"requests": self.num_requests}

    def to_dict(self) -> dict[str, object]:
        return {
            "settings": dict(self.settings),
            # Of questions on documents it follows from them, and from the way they are given.
            **({"prompt_tokens": self.prompt_tokens} if self.retrieval is None else self.retrieval.to_dict()),
            "output_tokens": self.output_tokens,
            **self._requests_to_dict(),
            "reuse_prefix": self.reuse_prefix,
            "language": self.language,
            # Named only where they are set, so that designs without them keep the identity they have in records.
            **({} if self.text is None else {"text_sha256": self.text.sha256}),
            **({} if self.key_percent is None else {"key_percent": self.key_percent}),
            **({"same_again": self.same_again} if self.same_again else {}),
            **({"concurrency": self.concurrency} if self.is_load and self.arrival == "closed" else {}),
            **({"arrival": self.arrival, "rate_per_s": self.rate_per_s} if self.arrival != "closed" else {}),
            **({"shared_prefix_tokens": self.shared_prefix_tokens} if self.shared_prefix_tokens else {}),
            **({} if self.prefix is None else {"prefix": self.prefix}),
            **({} if self.quality is None else self.quality.to_dict()),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignKind:
    """A question as it stands in ``experiment/designs``: its factor, what it holds fixed (``holds``), what could
    mislead (``confounders``), what it will say, its defaults. ``sets``: what a level sets of the engine, where the
    factor is not itself a setting. ``check_model`` raises BadDesign for a model of which it cannot be asked;
    ``check_levels`` for levels that the held settings do not allow. ``holds_while``: which of ``holds`` are true of
    these settings only."""

    name: str
    version: int
    question: str
    factor: str
    says: str
    confounders: tuple[str, ...]
    default_levels: tuple[Level, ...]
    default_condition: Condition
    default_repeats: int = 5
    holds: tuple[str, ...] = ()
    sets: Callable[[Level], Mapping[str, SettingValue]] | None = None
    check_model: Callable[[ModelSpec], None] | None = None
    check_levels: Callable[[Condition], None] | None = None
    holds_while: Mapping[str, Mapping[str, SettingValue]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One point of a design. ``levels`` maps each factor to its level; ``position`` is its place in the order.
    ``is_baseline``: whether others are held against it: at the first level of every factor, of a grid at that of every
    setting, because requests that differ are other work."""

    trial_id: str
    role: str
    levels: Mapping[str, Level]
    level: Level
    repeat: int
    block: int
    position: int
    condition: Condition
    is_baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A question made concrete. The first factor is the design's own; a second one makes it a grid. ``repeats``: how
    many blocks; with ``until``, how many at least."""

    kind: DesignKind
    factors: tuple[Factor, ...]
    held: Condition
    repeats: int
    seed: int
    warmups: int = 1
    until: Until | None = None

    @property
    def most_repeats(self) -> int:
        """How many blocks there can be."""
        return self.repeats if self.until is None else max(self.repeats, self.until.most_repeats)

    @property
    def factor(self) -> Factor:
        return self.factors[0]

    @property
    def is_grid(self) -> bool:
        return len(self.factors) > 1

    def _is_baseline(self, levels: Mapping[str, Level]) -> bool:
        settings = [factor for factor in self.factors if factor.name not in REQUEST_FACTORS] or self.factors
        return all(levels[factor.name] == factor.levels[0] for factor in settings)

    @property
    def baseline_level(self) -> Level:
        return self.factor.levels[0]

    def points(self) -> tuple[Mapping[str, Level], ...]:
        """Every combination of levels, the baseline first."""
        points: list[dict[str, Level]] = [{}]
        for factor in self.factors:
            points = [{**point, factor.name: level} for point in points for level in factor.levels]
        return tuple(points)

    def condition(self, levels: Mapping[str, Level]) -> Condition:
        condition = self.held
        sets = {factor.name: factor.sets for factor in self.factors}
        for name, level in levels.items():
            if sets[name]:
                condition = replace(condition, settings={**condition.settings, **sets[name][level]})
            else:
                condition = condition.with_level(name, level)
        return condition

    def definition(self) -> dict[str, object]:
        """What is asked, apart from the model, the engine and the machine: the same wherever it is run."""
        return {
            "name": self.kind.name,
            "version": self.kind.version,
            "factors": [
                [
                    factor.name,
                    list(factor.levels),
                    *([[dict(factor.sets[x]) for x in factor.levels]] if factor.sets else []),
                ]
                for factor in self.factors
            ],
            "held": {name: value for name, value in self.held.to_dict().items() if name != self.factor.name},
            "repeats": self.repeats,
            "seed": self.seed,
            "warmups": self.warmups,
            **({} if self.until is None else {"until": asdict(self.until)}),
        }

    def trials(self, study_id: str) -> tuple[Trial, ...]:
        """All trials in the order in which they run: warm-ups, then blocks that each hold every point once.

        The order within a block is random, from the seed, but for the baseline: it opens the first block, stands in the
        middle of the middle one and closes the last, so that a drift of the machine shows at the start, in the middle
        and at the end. Blocks beyond ``repeats`` (``until``) come in pairs, of which the second ends with the baseline.
        """
        planned = [("warmup", self.points()[0], number, 0) for number in range(self.warmups)]
        for block in range(self.most_repeats):
            planned += [("measured", point, block, block) for point in self._block_order(block)]
        return tuple(
            Trial(
                trial_id=_hash(study_id, role, levels, repeat),
                role=role,
                levels=levels,
                level=levels[self.factor.name],
                repeat=repeat,
                block=block,
                position=position,
                condition=self.condition(levels),
                is_baseline=self._is_baseline(levels),
            )
            for position, (role, levels, repeat, block) in enumerate(planned)
        )

    def _block_order(self, block: int) -> list[Mapping[str, Level]]:
        points = list(self.points())
        order = random.Random(f"{self.seed}/{block}")
        place = self._baseline_place(block, len(points))
        if place is None:
            order.shuffle(points)
            return points
        rest = points[1:]
        order.shuffle(rest)
        return [*rest[:place], points[0], *rest[place:]]

    def _baseline_place(self, block: int, num_points: int) -> int | None:
        """Where in a block the baseline stands; None: anywhere."""
        is_second_of_pair = block >= self.repeats and (block - self.repeats) % 2 == 1
        if block == 0:
            return 0
        if block == self.repeats - 1 or is_second_of_pair:
            return num_points - 1
        return num_points // 2 if block == self.repeats // 2 else None


def make_design(
    kind: DesignKind,
    *,
    levels: Sequence[Level] | None = None,
    second: Factor | None = None,
    held: Condition | None = None,
    repeats: int | None = None,
    seed: int = 0,
    grid: bool = False,
    warmups: int = 1,
    until: Until | None = None,
) -> Design:
    """A design of ``kind``. Raises BadDesign if it varies nothing, varies two things without ``grid``, repeats a level,
    holds what it varies, has a level that cannot be one, or would be more than MOST_TRIALS trials."""
    condition = kind.default_condition if held is None else held
    chosen = tuple(levels) if levels is not None else kind.default_levels
    own = Factor(name=kind.factor, levels=chosen, sets={x: kind.sets(x) for x in chosen} if kind.sets else {})
    factors = (own,) if second is None else (own, second)
    for factor in factors:
        check_factor(factor)
        check_not_held(factor, condition.settings)
    if second is not None:
        _check_second(kind, own, second, grid=grid)
    check_apart(factors)
    repeats = kind.default_repeats if repeats is None else repeats
    if repeats < 1:
        raise BadDesign("A design needs at least one repeat.", hint="Use --repeats 1 or more.")
    design = Design(
        kind=kind, factors=factors, held=condition, repeats=repeats, seed=seed, warmups=warmups, until=until
    )
    _check_amount(design)
    for point in design.points():
        condition = design.condition(point)
        if kind.check_levels is not None:
            kind.check_levels(condition)
    return design


def _check_second(kind: DesignKind, own: Factor, second: Factor, *, grid: bool) -> None:
    if not grid:
        raise BadDesign(
            f"This would vary two things at once: {own.name} and {second.name}.",
            hint="Give one value for all but one of them, or add --grid if you do want every combination "
            "(its differences are then labelled as a grid's).",
        )
    if second.name == own.name:
        raise BadDesign(f"{own.name} is already what {kind.name} varies.", hint="Use --levels for its values.")


def _check_amount(design: Design) -> None:
    if design.until is not None and len(design.points()) < 2:
        raise BadDesign(
            "With one level there is no difference, and so no interval to repeat for.",
            hint="Give a second level, or say how often with --repeats.",
        )
    num_trials = design.warmups + design.most_repeats * math.prod(len(factor.levels) for factor in design.factors)
    if num_trials > MOST_TRIALS:
        raise BadDesign(f"This would be {num_trials:,} trials.", hint=f"At most {MOST_TRIALS:,}: fewer --repeats.")


def _hash(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


def design_hash(facts: Mapping[str, object]) -> str:
    """The identity of a design: a hash of everything that makes its rows comparable with one another."""
    return _hash(dict(facts))
