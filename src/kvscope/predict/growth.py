"""GrowthLaw: bytes as a function of context length. Constant, linear, windowed, paged and quadratic growth are
settings of five numbers; predictions, charts and fits all speak in them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthLaw:
    """bytes(t) = fixed + per_token × u + per_token_pair × u², where u is t, capped, then rounded up to whole steps.

    ``cap_tokens``: no growth beyond this many tokens (a sliding window). ``step_tokens``: memory comes in steps of
    this many tokens (a page); 1 is smooth. ``per_step``: u counts finished steps instead, t / step rounded down, and
    ``bytes_per_token`` is then the bytes of one step (an entry that stands for ``step_tokens`` tokens).
    """

    fixed_bytes: int = 0
    bytes_per_token: int = 0
    bytes_per_token_pair: int = 0
    cap_tokens: int | None = None
    step_tokens: int = 1
    per_step: bool = False

    def held_tokens(self, context_tokens: int) -> int:
        """Tokens (or finished steps) that take memory at this context length: capped, then in whole steps."""
        capped = context_tokens if self.cap_tokens is None else min(context_tokens, self.cap_tokens)
        if self.per_step:
            return capped // self.step_tokens
        return round_up(capped, self.step_tokens)

    def bytes_at(self, context_tokens: int) -> int:
        held = self.held_tokens(context_tokens)
        return self.fixed_bytes + self.bytes_per_token * held + self.bytes_per_token_pair * held * held

    def times(self, factor: int) -> "GrowthLaw":
        """The law of ``factor`` equal things side by side, such as sequences."""
        return GrowthLaw(
            fixed_bytes=self.fixed_bytes * factor,
            bytes_per_token=self.bytes_per_token * factor,
            bytes_per_token_pair=self.bytes_per_token_pair * factor,
            cap_tokens=self.cap_tokens,
            step_tokens=self.step_tokens,
            per_step=self.per_step,
        )


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that holds ``value``: what is reserved in whole steps."""
    return -(-value // multiple) * multiple


def constant(num_bytes: int) -> GrowthLaw:
    """Bytes that do not depend on the context length."""
    return GrowthLaw(fixed_bytes=num_bytes)
