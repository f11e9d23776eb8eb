"""Whether a prompt with the output asked for fits, before it is sent."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a prompt with the output asked for fits the limit. ``fits`` is None where the limit is not known."""

    prompt_tokens: int
    output_limit_tokens: int
    limit_tokens: int | None

    @property
    def needed_tokens(self) -> int:
        """Prompt and reserved output."""
        return self.prompt_tokens + self.output_limit_tokens

    @property
    def fits(self) -> bool | None:
        """None where the limit is not known."""
        return None if self.limit_tokens is None else self.needed_tokens <= self.limit_tokens

    @property
    def over_tokens(self) -> int:
        """Tokens by which it is too long; 0 where it fits or the limit is not known."""
        return 0 if self.limit_tokens is None else max(self.needed_tokens - self.limit_tokens, 0)
