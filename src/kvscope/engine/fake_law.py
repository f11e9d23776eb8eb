"""The laws that the fake engine obeys: its settings, all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kvscope.engine.base import ClientHealth
from kvscope.engine.client_health import limits_passed
from kvscope.engine.fake_answers import Reader
from kvscope.engine.fake_noise import Noise
from kvscope.errors import InvalidSettings
from kvscope.scenario import SettingValue
from kvscope.units import MIB

# Settings that are shares, and not there unless given.
_SHARES = ("answer_right",)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeLaw:
    """Settings of the fake engine, all of them. Requests count from 1, warm-ups included.

    Memory, bytes: ``process_bytes`` before load; at load ``weights_bytes`` (file-backed), ``fixed_bytes`` and
    ``bytes_per_token`` × n_ctx; the compute buffer as far as a prompt fills a microbatch; a copy of each finished
    conversation (``bytes_per_token`` a token) up to ``cache_ram_mib``. After unload, ``fixed_bytes`` are kept.

    Time, seconds, for n prompt tokens that were not cached: TTFT = ``ttft_s`` + ``ttft_s_per_token`` n +
    ``ttft_s_per_token_pair`` n²; each later token ``itl_s`` + ``itl_s_per_token`` × the tokens held.

    Several at once: n_ctx is one pool, made at load and divided between ``n_parallel`` slots. Each slot holds one
    request; the others wait, first come first served. While k requests are in slots, all that they do takes 1 +
    ``slowdown_per_request`` × (k − 1) times as long. A slot keeps the last prompt it had, and only a request that is
    given that slot can reuse it: the free slot with the longest common beginning is taken.

    Noise, from ``noise_seed``: the time of a first token and that of the later ones are each multiplied by a factor
    with mean 1 and standard deviation ``noise_share``, normal or (``noise_is_skewed`` 1) lognormal. In one minute of
    five everything takes 1 + ``slow_share`` times as long; and it takes 1 + ``drift_per_s`` × the seconds on the clock
    times as long. ``noise_bytes``: standard deviation of the memory of a process after load.

    Answers (``fake_answers``): with any of these settings it reads the prompt and answers the question in its last
    paragraph; without them it says words. ``answer_right``: the share of facts given right; ``answer_seed``: which.
    ``guesses`` 1: names anything of the kind. ``ignores_middle`` 1: passes over the middle third of the text.
    ``cuts_at_tokens``: of a longer prompt only the end reaches it (``cut_keeps_head`` 1: the begin and the question);
    ``cut_states`` 0: it states no count of prompt tokens then, 1: that of what it read, 2: that of what was sent.
    ``score_kl``: how far its distribution is from that of an engine without (``fake_scores``), in nats.

    Faults, to see whether they are found. ``leak_bytes``: anonymous memory more with each request, given back by the
    end of the process alone. ``states_copies`` 0: it says nothing of the copies that it keeps.
    ``more_bytes_per_launch``: each process holds so much more than the one before. ``heap_noise_bytes``: standard
    deviation of its heap from one request to the next. ``swapped_bytes`` of the cache are swapped out once
    ``swaps_at_request`` is answered. ``counts_more_tokens``, ``counts_fewer_tokens``: of each prompt than it has.
    ``client_lag_s``: how late the client says that it came to what was due.
    """

    n_ctx: int = 4096
    n_ubatch: int = 512
    cache_ram_mib: int = 0
    process_bytes: int = 8 * MIB
    weights_bytes: int = 92 * MIB
    fixed_bytes: int = 28 * MIB
    bytes_per_token: int = 23_040
    compute_bytes: int = 16 * MIB
    load_s: float = 0.1
    ttft_s: float = 0.01
    ttft_s_per_token: float = 0.0001
    ttft_s_per_token_pair: float = 0.0
    itl_s: float = 0.001
    itl_s_per_token: float = 0.0
    n_parallel: int = 1
    slowdown_per_request: float = 0.5
    noise_seed: int = 0
    noise_share: float = 0.0
    noise_is_skewed: int = 0
    slow_share: float = 0.0
    drift_per_s: float = 0.0
    noise_bytes: int = 0
    die_at_request: int | None = None
    stall_at_request: int | None = None
    prompt_limit_tokens: int | None = None  # longer prompts are cut in silence
    natural_end_tokens: int | None = None  # where an answer ends by itself, unless told to go on
    answer_right: float | None = None
    answer_seed: int = 0
    guesses: int = 0
    ignores_middle: int = 0
    cuts_at_tokens: int | None = None
    cut_keeps_head: int = 0
    cut_states: int = 2
    score_kl: float = 0.0
    leak_bytes: int = 0
    states_copies: int = 1
    more_bytes_per_launch: int = 0
    heap_noise_bytes: int = 0
    swapped_bytes: int = 0
    swaps_at_request: int = 1
    counts_more_tokens: int = 0
    counts_fewer_tokens: int = 0
    client_lag_s: float = 0.0

    def first_token_s(self, num_tokens: int) -> float:
        """TTFT for that many tokens to process."""
        return self.ttft_s + self.ttft_s_per_token * num_tokens + self.ttft_s_per_token_pair * num_tokens**2

    def noise(self) -> Noise:
        """What makes its times and its memory scatter."""
        return Noise(
            seed=self.noise_seed,
            share=self.noise_share,
            is_skewed=bool(self.noise_is_skewed),
            slow_share=self.slow_share,
            drift_per_s=self.drift_per_s,
            bytes_deviation=self.noise_bytes,
            bytes_per_launch=self.more_bytes_per_launch,
            heap_deviation=self.heap_noise_bytes,
        )

    def client_health(self) -> ClientHealth:
        """How the client was, by its own word."""
        if not self.client_lag_s:
            return ClientHealth()
        lag_s = self.client_lag_s
        return ClientHealth(loop_lag_p99_s=lag_s, loop_lag_max_s=lag_s, limited_by=limits_passed([lag_s] * 100))

    @property
    def reads(self) -> bool:
        """Whether it reads prompts and answers them."""
        return (
            self.answer_right is not None
            or self.cuts_at_tokens is not None
            or bool(self.guesses or self.ignores_middle)
        )

    def reader(self, text_words: int) -> Reader:
        """Who reads a prompt of which so many words reach it before the question."""
        return Reader(
            right=1.0 if self.answer_right is None else self.answer_right,
            seed=self.answer_seed,
            most_words=None if self.cuts_at_tokens is None else text_words,
            keeps_head=bool(self.cut_keeps_head),
            ignores_middle=bool(self.ignores_middle),
            guesses=bool(self.guesses),
        )

    @property
    def slot_tokens(self) -> int:
        """What one slot holds."""
        return self.n_ctx // self.n_parallel

    def loaded_bytes(self) -> int:
        """Anonymous memory after load, before any request."""
        return self.process_bytes + self.fixed_bytes + self.bytes_per_token * self.n_ctx


def fake_law(settings: Mapping[str, SettingValue]) -> FakeLaw:
    """The law with these settings. Raises InvalidSettings for a name or a value that it does not have."""
    known = {each.name: each.default for each in fields(FakeLaw)}
    for name, value in settings.items():
        if name not in known:
            raise InvalidSettings(
                f"The fake engine has no setting {name!r}.", hint=f"It has: {', '.join(sorted(known))}."
            )
        wanted = float if isinstance(known[name], float) or name in _SHARES else int
        allowed = (int, float) if wanted is float else (int,)
        if isinstance(value, bool) or not isinstance(value, allowed) or value < 0:
            raise InvalidSettings(f"{name} does not take {value!r}.", hint="Give a number of 0 or more.")
        if name in _SHARES and value > 1:
            raise InvalidSettings(f"{name} does not take {value!r}.", hint="Give a share from 0 to 1.")
    if settings.get("n_parallel") == 0:
        raise InvalidSettings("n_parallel does not take 0.", hint="Give 1 slot or more.")
    return FakeLaw(**settings)  # type: ignore[arg-type]  # names and kinds of values are checked above
