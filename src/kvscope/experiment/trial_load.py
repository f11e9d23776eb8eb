"""The measured part of a trial in which several requests are under way at once: prompts, a round to warm up, the load.

Nothing is asked of the engine while the load runs; memory is read by the sampler as ever. What the engine counts is
read before and after.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from kvscope.engine.base import ChatRequest, Engine, Load, LoadAnswer, LoadResult
from kvscope.errors import EngineDied, KvscopeError, OutOfMemory, ProbeLost, PromptLengthUnreachable
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.design import Condition
from kvscope.experiment.draft_counts import DraftCounts
from kvscope.experiment.own_count import OwnCount
from kvscope.experiment.request_counts import RequestCounts
from kvscope.experiment.slots import FILLING_TOKENS
from kvscope.experiment.trial_memory import TrialMemory
from kvscope.experiment.trial_prefix import prompts_salt
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import ExactPrompt
from kvscope.prompt.exact_length.sharing import SharingPrompts, build_sharing
from kvscope.record.rows import RequestRow

WARMUP_OUTPUT_TOKENS = 4
# Of an engine that does not say how many slots it has, so many are warmed up at most.
MOST_WARMED_UP = 16
# A warm-up's text is as much shorter than what would fit, as its tokens are not counted before.
WARMUP_FILL = 0.85
# Of a pool that is too small for all slots: texts whose tokens were not counted are to fit all the same.
POOL_FILL = 0.7


@dataclass(slots=True, kw_only=True)
class LoadTrial:
    """``request_of``: the request that the condition makes of messages. ``note_kept``: notes what the engine keeps of
    earlier prompts. ``now``: the trial's clock. ``block``: the trial's, which with the seed decides when requests of a
    poisson arrival are sent: alike at all levels of a block, otherwise in the next. ``most_shared_tokens``: that any
    two prompts begin with, once they are built."""

    engine: Engine
    rows: AttemptRows
    condition: Condition
    counts: RequestCounts
    memory: TrialMemory
    request_of: Callable[[tuple[Message, ...]], ChatRequest]
    note_kept: Callable[[], None]
    now: Callable[[], float]
    seed: int
    block: int = 0
    most_shared_tokens: int | None = None

    def prompts(self, trial_id: str) -> tuple[ExactPrompt, ...]:
        """One for each request, of exactly the asked length. Raises as ``build_sharing``."""
        condition = self.condition
        count = self.counts.prompt_counter((condition.prompt_tokens, condition.output_tokens))
        try:
            built = build_sharing(
                number=condition.num_requests,
                prompt_tokens=condition.prompt_tokens,
                shared_tokens=condition.shared_prefix_tokens,
                count=count,
                ids=self._ids,
                language=condition.language,
                seed=self.seed,
                salt=prompts_salt(trial_id, self.engine),
                source=condition.text,
                key_percent=condition.key_percent,
            )
        except PromptLengthUnreachable as error:
            raise (count.why_unreachable(error) if isinstance(count, DraftCounts) else error) from error
        self._note_shared(built)
        return built.prompts

    def _note_shared(self, built: SharingPrompts) -> None:
        """What the prompts have in common, and that it is not what was asked for where it is not."""
        asked = self.condition.shared_prefix_tokens
        least, most = built.shared_tokens, built.most_shared_tokens
        self.most_shared_tokens = most
        self.rows.client["shared_prefix_tokens"] = least
        self.rows.client["most_shared_tokens"] = most
        if not asked or (least == most == asked):
            return
        if least is None:
            what = "how many the prompts share is known only about, from counts of whole texts."
        else:
            what = f"all prompts share {least:,} and some {most:,}, by their ids."
        self.rows.warn(
            "shared-prefix-not-exact",
            f"{asked:,} shared tokens were asked for; {what}",
            "Give the model's own file with --model where its ids were not known.",
        )

    def _check_reuse(self) -> None:
        """Where prompts were to share so many tokens, no more of one can have come from another."""
        most = self.most_shared_tokens
        reused = max((row.cached_tokens or 0 for row in self.rows.requests if row.role == "measured"), default=0)
        if self.condition.shared_prefix_tokens and most is not None and reused > most:
            self.rows.warn(
                "reused-more-than-shared",
                f"The server reused {reused:,} tokens of a prompt; by their ids the prompts share {most:,}.",
                "Its ids are not those of the model's file, or it kept a prompt of somebody else that begins alike.",
            )

    def _ids(self, each: Sequence[tuple[Message, ...]]) -> Sequence[Sequence[int]] | None:
        return self.counts.ids_by_files([self.request_of(messages) for messages in each])

    def warm_up(self, prompts: Sequence[ExactPrompt]) -> None:
        """Other prompts: one that fills a microbatch, as far as a slot holds it, then one in every slot. All that the
        load needs has then been touched, so that memory does not rise with the first full batch that chance makes."""
        number = min(self._slots(), MOST_WARMED_UP)
        length = self._length_in_each_slot(prompts[0], number)
        self._warm_up_with([_warmup_messages(prompts, 0, self._filling_length(prompts[0]))])
        self._warm_up_with([_warmup_messages(prompts, index + 1, length) for index in range(number)])
        self.memory.settle()

    def _warm_up_with(self, texts: Sequence[tuple[Message, ...]]) -> None:
        requests = tuple(
            ChatRequest(messages=messages, max_output_tokens=WARMUP_OUTPUT_TOKENS, seed=self.seed) for messages in texts
        )
        ours = [self.counts.of_engine(messages) for messages in texts]
        error = self._send(Load(requests=requests, concurrency=len(requests)), "warmup", ours=ours, asked=None)
        if error is not None:
            raise error

    def _filling_length(self, prompt: ExactPrompt) -> int:
        """Characters of a text that fills a microbatch, or as much of one as a sequence may hold."""
        tokens = max(prompt.prompt_tokens, FILLING_TOKENS)
        limit = self.rows.limit_tokens
        most = prompt.prompt_tokens if limit is None else limit - WARMUP_OUTPUT_TOKENS
        return int(len(prompt.text) * min(tokens, most) / prompt.prompt_tokens * WARMUP_FILL)

    def _length_in_each_slot(self, prompt: ExactPrompt, number: int) -> int:
        """Characters of a text of which so many fit at once: nearly the prompt's, less where slots share a pool that
        does not hold them all. What does not fit is for the measured requests to show."""
        pool = self.rows.effective.get("n_ctx")
        most = len(prompt.text) * WARMUP_FILL
        if not isinstance(pool, int) or pool >= sum(self._stated_slots()):
            return int(most)
        room = pool / number - WARMUP_OUTPUT_TOKENS - prompt.template_tokens
        own = prompt.prompt_tokens - prompt.template_tokens
        return max(0, int(min(most, len(prompt.text) * room / own * POOL_FILL)))

    def _stated_slots(self) -> Sequence[int]:
        slots = self.rows.effective.get("slots")
        return slots if isinstance(slots, list) else []

    def _slots(self) -> int:
        return len(self._stated_slots()) or (self.condition.concurrency if self.condition.arrival == "closed" else 1)

    def run(self, prompts: Sequence[ExactPrompt]) -> None:
        """Send the load, keep every answer as a row, and read memory after it. Raises the error of the request that
        stands for the load where some failed (``standing_error``)."""
        condition = self.condition
        load = Load(
            requests=tuple(self.request_of(prompt.messages) for prompt in prompts),
            concurrency=condition.concurrency if condition.arrival == "closed" else 1,
            arrival=condition.arrival,
            rate_per_s=condition.rate_per_s if condition.arrival != "closed" else None,
            seed=arrival_seed(self.seed, self.block),
        )
        self._note_load(load)
        error = self._send(
            load, "measured", ours=[prompt.prompt_tokens for prompt in prompts], asked=condition.prompt_tokens
        )
        self._check_reuse()
        try:
            self.memory.settle()
            self.memory.mark("after_request", request_index=len(self.rows.requests) - 1, with_maps=True)
            self.note_kept()
        except (ProbeLost, EngineDied):
            if error is None:
                raise
        if error is not None:
            raise error

    def _note_load(self, load: Load) -> None:
        client = self.rows.client
        client["concurrency"] = load.concurrency if load.arrival == "closed" else None
        client["arrival"] = load.arrival
        client["rate_per_s"] = load.rate_per_s
        slots = self._slots()
        if self._stated_slots() and load.arrival == "closed" and load.concurrency > slots:
            self.rows.warn(
                "more-than-slots",
                f"{load.concurrency} requests were under way at once on {slots} slot{'s' if slots > 1 else ''}: the "
                "others waited, and their wait is in the time to the first token.",
                "That is what a user sees of a full server. To have them computed together, give the engine more slots "
                "(llama.cpp: n_parallel).",
            )

    def _send(self, load: Load, role: str, *, ours: Sequence[int | None], asked: int | None) -> KvscopeError | None:
        """Send it and keep its rows; the error that stands for it, where some of it failed."""
        first = len(self.rows.requests)
        counted = self.counts.before_sending_all(load.requests, by_engine=ours, first_index=first)
        for count, request in zip(counted, load.requests, strict=True):
            self.counts.check_fit(count, request)
        begun_s = self.now()
        result = self.engine.generate_many(load)
        if result.begin_s is not None:  # after it was made ready, and before its answers were read
            begun_s = self.now() - (perf_counter() - result.begin_s)
        if role == "measured":
            self.rows.note_health(result.health)
        for answer in result.answers:
            index = first + answer.index
            self._add(answer, self._row(answer, index, role, begun_s, load, counted[answer.index], asked))
        return self._judge(result, role)

    def _row(
        self,
        answer: LoadAnswer,
        index: int,
        role: str,
        begun_s: float,
        load: Load,
        counted: OwnCount | None,
        asked: int | None,
    ) -> RequestRow:
        return RequestRow(
            index=index,
            role=role,
            sent_at_s=begun_s + answer.sent_s,
            completed_s=None,
            prompt_tokens_asked=asked,
            prompt_tokens_ours=None if counted is None else counted.tokens,
            prompt_tokens_ours_from=None if counted is None else counted.counted_by,
            prompt_tokens_server=None,
            cached_tokens=None,
            output_tokens_limit=load.requests[answer.index].max_output_tokens,
            output_tokens=None,
            finish_reason=None,
            stream=answer.stream,
            due_s=None if answer.due_s is None else begun_s + answer.due_s,
        )

    def _add(self, answer: LoadAnswer, row: RequestRow) -> None:
        if answer.generation is not None:
            self.rows.add_answer(row, answer.generation, reuse_prefix=self.condition.reuse_prefix)
            return
        assert answer.error is not None
        self.rows.requests.append(replace(row, error_slug=answer.error.slug))

    def _judge(self, result: LoadResult, role: str) -> KvscopeError | None:
        errors = [answer.error for answer in result.answers if answer.error is not None]
        if not errors:
            return None
        counts = Counter(error.slug for error in errors)
        several = ", ".join(f"{number} × {slug}" for slug, number in counts.most_common())
        what = "warm-up" if role == "warmup" else "load"
        self.rows.warn(
            "requests-failed",
            f"{len(errors)} of {len(result.answers)} requests of the {what} failed: {several}.",
            "The attempt counts as failed, so its numbers are in no average. Each request is a row of its own "
            "(kvscope export --rows requests).",
        )
        return standing_error(errors)


def arrival_seed(seed: int, block: int) -> int:
    """What decides the gaps of a poisson arrival in one block of a study."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{block}".encode()).digest()[:6], "big")


def standing_error(errors: Sequence[KvscopeError]) -> KvscopeError:
    """The error that stands for a load: the engine's end (a lack of memory before a death), which takes all others with
    it, else that of the first failed request in the order of sending."""
    for kind in (OutOfMemory, EngineDied):
        found = next((error for error in errors if isinstance(error, kind)), None)
        if found is not None:
            return found
    return errors[0]


def _warmup_messages(prompts: Sequence[ExactPrompt], number: int, length: int) -> tuple[Message, ...]:
    """A text of about so many characters that begins as none of ``prompts``."""
    words = itertools.chain.from_iterable(
        prompt.text.split() for prompt in itertools.islice(itertools.cycle(prompts), number, None)
    )
    text = f"{number}"
    while len(text) < length:
        text += " " + next(words)
    return (Message(role="user", content=text),)
