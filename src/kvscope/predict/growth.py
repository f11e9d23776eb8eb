"""GrowthLaw: bytes as a function of context length. Constant, linear, windowed, paged and quadratic growth are
settings of five numbers; predictions, charts and fits all speak in them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthLaw:
    """bytes(t) = fixed + per_token × u + per_token_pair × u², where u is t, capped, then rounded up to whole steps.

    ``cap_tokens``: no growth beyond this many tokens (a sliding window). ``step_tokens``: memory comes in steps of
    this many tokens (a page); 1 is smooth. ``per_step``: u counts finished steps instead, t / step rounded down, and
    ``bytes_per_token`` is then the bytes of one step (an entry that stands for ``step_tokens`` tokens).
    ``unfinished``: u counts the tokens since the last finished step instead, t mod step (a block that is being filled).
    ``from_tokens``: no bytes at all below this length.
    """

    fixed_bytes: int = 0
    bytes_per_token: int = 0
    bytes_per_token_pair: int = 0
    cap_tokens: int | None = None
    step_tokens: int = 1
    per_step: bool = False
    unfinished: bool = False
    from_tokens: int = 0

    def held_tokens(self, context_tokens: int) -> int:
        """Tokens (or finished steps) that take memory at this context length: capped, then in whole steps."""
        if context_tokens < self.from_tokens:
            return 0
        capped = context_tokens if self.cap_tokens is None else min(context_tokens, self.cap_tokens)
        if self.per_step:
            return capped // self.step_tokens
        if self.unfinished:
            return capped % self.step_tokens
        return round_up(capped, self.step_tokens)

    def bytes_at(self, context_tokens: int) -> int:
        if context_tokens < self.from_tokens:
            return 0
        held = self.held_tokens(context_tokens)
        return self.fixed_bytes + self.bytes_per_token * held + self.bytes_per_token_pair * held * held

    def slope_at(self, context_tokens: int) -> tuple[int, int]:
        """Bytes that one more token adds at this length, as a fraction (numerator, denominator): whole steps are spread
        over their tokens, so that a page is not a jump, and a block that fills and empties does not grow. 0 once the
        cap is reached."""
        if self.unfinished or context_tokens + 1 < self.from_tokens:
            return 0, 1
        if self.cap_tokens is not None and context_tokens >= self.cap_tokens:
            return 0, 1
        held = self.held_tokens(context_tokens)
        if self.per_step:
            return self.bytes_per_token + self.bytes_per_token_pair * (2 * held + 1), self.step_tokens
        return self.bytes_per_token + self.bytes_per_token_pair * (2 * held + self.step_tokens), 1

    def times(self, factor: int) -> "GrowthLaw":
        """The law of ``factor`` equal things side by side, such as sequences."""
        return replace(
            self,
            fixed_bytes=self.fixed_bytes * factor,
            bytes_per_token=self.bytes_per_token * factor,
            bytes_per_token_pair=self.bytes_per_token_pair * factor,
        )


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that holds ``value``: what is reserved in whole steps."""
    return -(-value // multiple) * multiple


def slope_sum(laws: Iterable[GrowthLaw], context_tokens: int) -> int:
    """Bytes that one more token adds to all these laws together at this length, rounded down once, at the end."""
    slopes: dict[int, int] = {}
    for law in laws:
        num_bytes, tokens = law.slope_at(context_tokens)
        slopes[tokens] = slopes.get(tokens, 0) + num_bytes
    period = math.lcm(*slopes)
    return sum(num_bytes * (period // tokens) for tokens, num_bytes in slopes.items()) // period


def sum_of_laws(laws: Iterable[GrowthLaw]) -> tuple[GrowthLaw, ...]:
    """The fewest laws whose bytes sum to those of all ``laws`` at every length: laws that grow in the same way become
    one, and everything constant is in the first."""
    fixed = 0
    shapes: dict[GrowthLaw, tuple[int, int, int]] = {}
    for law in laws:
        if law.from_tokens == 0:
            fixed += law.fixed_bytes
        late = law.fixed_bytes if law.from_tokens else 0
        if late or law.bytes_per_token or law.bytes_per_token_pair:
            shape = replace(law, fixed_bytes=0, bytes_per_token=0, bytes_per_token_pair=0)
            known = shapes.get(shape, (0, 0, 0))
            shapes[shape] = (known[0] + late, known[1] + law.bytes_per_token, known[2] + law.bytes_per_token_pair)
    growing = [
        replace(shape, fixed_bytes=late, bytes_per_token=linear, bytes_per_token_pair=pair)
        for shape, (late, linear, pair) in shapes.items()
    ]
    return (constant(fixed), *growing)


def constant(num_bytes: int) -> GrowthLaw:
    """Bytes that do not depend on the context length."""
    return GrowthLaw(fixed_bytes=num_bytes)
