"""Does a prompt fit: prompt and reserved output against the context limit, before anything is sent. And its price.

Prompt and output share one window: what the next prompt may have is what the last prompt and the reply to it left.
"""

import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

from kvscope.errors import ContextOverflow, KvscopeError, UsageError

_DIGITS = 60  # more than any count of tokens times any price has, so that nothing is rounded
_LONGEST_PRICE = 30
# 0,150 and 0,15 are decimals in half of the world, so no group of thousands begins with 0.
_PRICE = re.compile(
    r"(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)?(?:\.[0-9]+)?(?<=[0-9])\.?(?:[eE][+-]?[0-9]{1,2})?", re.ASCII
)
_TOKENS_PRICED = 6  # prices are per 10⁶ tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """The most tokens a sequence may have. ``tokens`` None: not known, and ``source`` says why."""

    tokens: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFit:
    """``prompt_tokens`` and ``reserved_output_tokens`` against ``limit``. ``is_whole``: all of the prompt is counted;
    where it is not, the prompt has more tokens than stated. ``unsure_tokens``: by how many the count may be off."""

    limit: ContextLimit
    prompt_tokens: int
    reserved_output_tokens: int = 0
    is_whole: bool = True
    unsure_tokens: int = 0

    @property
    def needed_tokens(self) -> int:
        """Prompt and reserved output."""
        return self.prompt_tokens + self.reserved_output_tokens

    @property
    def remaining_tokens(self) -> int | None:
        """What the limit leaves behind prompt and reserved output; negative where it is exceeded. None: no limit is
        known, or not all is counted exactly."""
        if self.limit.tokens is None or not self.is_whole or self.unsure_tokens:
            return None
        return self.limit.tokens - self.needed_tokens

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where that is not known."""
        if self.limit.tokens is None:
            return None
        if self.needed_tokens - self.unsure_tokens > self.limit.tokens:
            return False
        return True if self.is_whole and self.needed_tokens + self.unsure_tokens <= self.limit.tokens else None

    def check(self) -> None:
        """Raises ContextOverflow, with the counts, where it does not fit: to be asked before sending."""
        if self.fits is False:
            raise ContextOverflow(
                f"The prompt has {self.prompt_tokens:,} tokens, and {self.reserved_output_tokens:,} are reserved for "
                f"the output: {self.needed_tokens:,} of {self.limit.tokens:,} ({self.limit.source}).",
                hint="Shorten the prompt, reserve less output, or raise the context limit.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Its fields in JSON."""
        return {
            **self.limit_fields(),
            "reserved_output_tokens": self.reserved_output_tokens,
            "remaining_tokens": self.remaining_tokens,
        }

    def limit_fields(self) -> dict[str, Any]:
        """The limit and whether it is kept, in JSON."""
        return {
            "context_limit_tokens": self.limit.tokens,
            "context_limit_source": self.limit.source,
            "fits": self.fits,
        }


def fit_of_next(
    limit: ContextLimit, *, last_prompt_tokens: int, last_reply_tokens: int, next_tokens: int
) -> ContextFit:
    """The fit of a conversation's next prompt: what was sent last, the reply to it, and ``next_tokens`` of new text."""
    return ContextFit(limit=limit, prompt_tokens=last_prompt_tokens + last_reply_tokens + next_tokens)


def limit_of(context: int | None, model: str) -> ContextLimit:
    """The limit that is given; else the running server's, or the trained context of the model that ``model`` names."""
    if context is not None:
        if context < 1:
            raise UsageError(f"A context of {context} tokens holds nothing.", hint="Give it 1 token or more.")
        return ContextLimit(tokens=context, source="as given")
    from kvscope.model.load import load_model

    not_known = "not known; say it with --context"
    if re.match("https?://", model, re.IGNORECASE):
        stated = _stated_by_server(model)
        source = f"{model} does not say it: {not_known}" if stated is None else f"{model} now: /props, n_ctx"
        return ContextLimit(tokens=stated, source=source)
    if model.startswith(("tiktoken:", "bytes:")):
        return ContextLimit(tokens=None, source=f"{model} does not say it: {not_known}")
    try:
        trained = load_model(model).trained_context_tokens
    except KvscopeError:
        return ContextLimit(tokens=None, source=f"{model} is no model's description: {not_known}")
    if trained is None:
        return ContextLimit(tokens=None, source=f"{model} does not say it: {not_known}")
    return ContextLimit(tokens=trained, source=f"what {model} was trained for; an engine may be started with less")


def _stated_by_server(url: str) -> int | None:
    """The most tokens that one sequence may have on a running llama.cpp server, None where it does not say."""
    from kvscope.prompt.chat_template.server import read_props

    try:
        settings = read_props(url).get("default_generation_settings")
    except KvscopeError:
        return None
    stated = settings.get("n_ctx") if isinstance(settings, dict) else None
    return stated if type(stated) is int and stated > 0 else None


def parse_price(text: str) -> Decimal:
    """A price of a million tokens, exactly as it is written: digits with a decimal point, commas only between groups of
    three digits (1,000.5). Raises UsageError for all else: what is a comma here is a decimal point elsewhere."""
    written = text.strip()
    if len(written) > _LONGEST_PRICE or not _PRICE.fullmatch(written):
        raise UsageError(f"{text!r} is not a price.", hint=_price_hint(written))
    price = Decimal(written.replace(",", ""))
    if abs(price.adjusted()) > _LONGEST_PRICE:
        raise UsageError(f"{text!r} is not a price.", hint=_price_hint(written))
    return price


def _price_hint(written: str) -> str:
    is_decimal_comma = re.fullmatch(r"[0-9]+,[0-9]+", written) and len(written) <= _LONGEST_PRICE
    example = written.replace(",", ".") if is_decimal_comma else "0.15"
    return f"Write it per million tokens with a decimal point, like {example}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices of a million tokens, as the user states them. ``currency`` is the user's word, empty where none is."""

    input_per_million: Decimal
    output_per_million: Decimal | None = None
    currency: str = ""

    def input_cost(self, tokens: int) -> Decimal:
        """What so many prompt tokens cost. Nothing is rounded."""
        return _cost(tokens, self.input_per_million)

    def output_cost(self, tokens: int) -> Decimal | None:
        """What so many output tokens cost; None where their price is not stated."""
        return None if self.output_per_million is None else _cost(tokens, self.output_per_million)

    def to_dict(self, prompt_tokens: int, reserved_output_tokens: int) -> dict[str, Any]:
        """The cost of a prompt and, at most, of the output that is reserved. Numbers are texts: none is rounded."""
        output = self.output_cost(reserved_output_tokens)
        return {
            "currency": self.currency,
            "input_per_million": plain(self.input_per_million),
            "output_per_million": None if self.output_per_million is None else plain(self.output_per_million),
            "input_cost": plain(self.input_cost(prompt_tokens)),
            "reserved_output_cost": None if output is None else plain(output),
        }


def _cost(tokens: int, per_million: Decimal) -> Decimal:
    with localcontext(prec=_DIGITS):
        return (tokens * per_million).scaleb(-_TOKENS_PRICED)


def plain(value: Decimal) -> str:
    """A number as people write it: no exponent, no zeros at its end."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
