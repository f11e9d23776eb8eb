"""llama.cpp's server as far as it decides what is reused: slots, context checkpoints, and its cache of earlier prompts.

One request at a time. Source: tools/server/server-context.cpp (get_available_slot, pre_decode, create_checkpoint) and
server-task.cpp (server_prompt_cache); build b11549 was played against it, with hundreds of random conversations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvscope.prompt.reuse_engines.llama_cpp_memory import FullMemory, Memory, Span, StateMemory, WindowMemory

# The server evaluates so many of a prompt's last tokens alone, so as to keep a checkpoint before them.
_LAST_TOKENS = 4
# A copy in the cache of prompts is not brought back for less than a quarter of it.
_LEAST_KEPT = 0.25
# A slot that loses half of what it holds or more is copied to the cache of prompts first.
_COPIED_BELOW = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """The server's settings that decide, by llama.cpp's names, with effective values. ``cells``: of the whole cache in
    one stream. ``window_tokens``: the model's sliding window, None where it has none; ``window_cells``: cells of its
    cache in one stream. ``is_recurrent``: some layers keep a state that cannot be rolled back."""

    cells: int
    n_parallel: int = 1
    kv_unified: bool = False
    n_batch: int = 2048
    n_ubatch: int = 512
    cache_prompt: bool = True
    has_prompt_cache: bool = True
    cache_idle_slots: bool = True
    slot_prompt_similarity: float = 0.1
    n_ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    window_tokens: int | None = None
    window_cells: int = 0
    swa_full: bool = False
    is_recurrent: bool = False

    @property
    def forgets_behind(self) -> int | None:
        """The window, where the server has to reckon with it."""
        return None if self.swa_full else self.window_tokens

    @property
    def forgets(self) -> bool:
        """Whether what is held cannot be cut down to any length, so that the server keeps checkpoints."""
        return self.is_recurrent or self.forgets_behind is not None

    def memory(self) -> Memory:
        """The part of the cache that forgets first."""
        if self.is_recurrent:
            return StateMemory()
        if self.window_tokens is not None:
            streams = 1 if self.kv_unified else self.n_parallel
            return WindowMemory(num_cells=self.window_cells, window=self.window_tokens, streams=streams)
        return FullMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A copy of what cannot be rolled back, made before a prompt's token number ``num_tokens``. ``stated``: the
    positions the server believes it to hold; ``saved``: those it does."""

    task: int
    num_tokens: int
    stated: Span
    saved: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one request reused: ``cached`` of the ``common`` tokens that its slot held. ``checkpoint``: the token that
    the cache was taken back to. ``was_reset``: there was no checkpoint to go back to. ``from_copy``: what is held came
    out of the cache of prompts, whose size limit is not followed. ``is_sure``: it is this number whatever the
    answers are that are not sure."""

    cached: int
    common: int
    checkpoint: int | None = None
    was_reset: bool = False
    from_copy: bool = False
    is_sure: bool = True


@dataclass(slots=True)
class _Held:
    tokens: list[int] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    sure: int | None = None  # so many tokens are certain; None: all


@dataclass(slots=True)
class _Copy:
    """An entry of the cache of prompts."""

    held: _Held
    saved: Span


@dataclass(slots=True)
class _Slot:
    number: int
    held: _Held = field(default_factory=_Held)
    last_used: int = -1


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens the two begin with in common."""
    length = min(len(first), len(second))
    return next((index for index in range(length) if first[index] != second[index]), length)


class LlamaCppSlots:
    """Play requests in order; each says how many of its tokens were reused."""

    def __init__(self, settings: SlotSettings) -> None:
        self._settings = settings
        self._memory = settings.memory()
        self._slots = [_Slot(number) for number in range(settings.n_parallel)]
        self._copies: list[_Copy] = []
        self._task = 0
        self._is_sure = True

    def play(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        *,
        user_starts: Sequence[int] = (),
        reuse: bool = True,
        slot_number: int | None = None,
        fits: bool = True,
        is_answer_sure: bool = True,
    ) -> Played:
        """What ``prompt`` reuses. ``answer``: the tokens generated for it, the last of which is never
        fed back. ``user_starts``: where users' messages start in the prompt. ``reuse``: the request's cache_prompt;
        ``slot_number``: its id_slot. ``fits``: into the context; what does not is refused, but its slot counts as used.
        ``is_answer_sure``: False where the model may have written another."""
        self._task += 1
        is_sure = self._is_sure or self._cannot_matter(prompt)
        slot, from_copy = self._choose(prompt) if slot_number is None else self._asked_for(slot_number, prompt)
        self._copy_idle_slots(slot)
        if not fits:
            slot.last_used = self._task
            return Played(cached=0, common=0, from_copy=from_copy, is_sure=is_sure)
        played = self._keep(slot, prompt, reuse=reuse)
        self._prefill(slot, prompt, user_starts)
        for token in answer[:-1]:
            self._decode(slot, (token,))
        slot.last_used = self._task
        slot.held.sure = None if is_answer_sure else len(prompt)
        self._is_sure = self._is_sure and is_answer_sure
        return replace(played, from_copy=from_copy, is_sure=is_sure)

    def _cannot_matter(self, prompt: Sequence[int]) -> bool:
        """Whether this prompt reuses the same, whatever those answers are that are not sure."""
        settings, common = self._settings, 0
        if self._copies or (settings.kv_unified and settings.n_parallel > 1):
            return False  # the answers' lengths decide what is copied, and what gets room
        for slot in self._slots:
            held = slot.held
            common = max(common, common_prefix(held.tokens, prompt))
            if held.sure is not None and held.sure < len(prompt) and held.tokens[: held.sure] == [*prompt[: held.sure]]:
                return False
        if not settings.forgets:
            return True
        # What a cache has forgotten depends on how much was written since; it is not asked where the server goes back
        # to a checkpoint of the first prompt in any case.
        return self._task == 2 and (settings.is_recurrent or self._needed_below(common, len(prompt)) == 0)

    def _choose(self, prompt: Sequence[int]) -> tuple[_Slot, bool]:
        """The slot, and whether a copy was brought back into it."""
        best, best_common = None, 0
        for slot in self._slots:
            common = common_prefix(slot.held.tokens, prompt)
            if common > best_common and common / len(prompt) > self._settings.slot_prompt_similarity > 0:
                best, best_common = slot, common
        if best is None:
            # The least recently used; of several, the last one.
            best = min(self._slots, key=lambda slot: (slot.last_used, -slot.number))
            is_copied = True
        else:
            is_copied = best_common / len(best.held.tokens) < _COPIED_BELOW
        if is_copied and self._settings.has_prompt_cache:
            self._copy(best)
            return best, self._bring_back(best, prompt)
        return best, False

    def _asked_for(self, number: int, prompt: Sequence[int]) -> tuple[_Slot, bool]:
        """As ``_choose``, of one slot. A number that is too large goes round, and then nothing is found alike."""
        slot, settings = self._slots[number % len(self._slots)], self._settings
        if not slot.held.tokens or settings.slot_prompt_similarity == 0 or not settings.has_prompt_cache:
            return slot, False
        common = common_prefix(slot.held.tokens, prompt) if number == slot.number else 0
        if common / len(prompt) <= settings.slot_prompt_similarity:
            common = 0
        if common / len(slot.held.tokens) >= _COPIED_BELOW:
            return slot, False
        self._copy(slot)
        return slot, self._bring_back(slot, prompt)

    def _copy(self, slot: _Slot) -> None:
        """A slot's tokens into the cache of prompts, unless they are there; entries that they contain are dropped."""
        tokens = slot.held.tokens
        if not tokens or any(common_prefix(each.held.tokens, tokens) == len(tokens) for each in self._copies):
            return
        self._copies = [
            each for each in self._copies if common_prefix(each.held.tokens, tokens) < len(each.held.tokens)
        ]
        held = _Held(list(tokens), list(slot.held.checkpoints))
        self._copies.append(_Copy(held, self._memory.saved(slot.number)))

    def _bring_back(self, slot: _Slot, prompt: Sequence[int]) -> bool:
        common = common_prefix(slot.held.tokens, prompt)
        best_kept = common / len(slot.held.tokens) if slot.held.tokens else -1.0
        best_similarity = common / len(prompt)
        best = None
        for copy in self._copies:
            common = common_prefix(copy.held.tokens, prompt)
            kept, similarity = common / len(copy.held.tokens), common / len(prompt)
            if kept >= _LEAST_KEPT and kept > best_kept and similarity > best_similarity:
                best, best_kept, best_similarity = copy, kept, similarity
        if best is not None:
            self._copies.remove(best)
            slot.held = best.held
            self._memory.restore(slot.number, best.saved)
        return best is not None

    def _copy_idle_slots(self, busy: _Slot) -> None:
        if not (self._settings.cache_idle_slots and self._settings.has_prompt_cache):
            return
        for slot in self._slots:
            if slot is not busy and slot.held.tokens:
                self._copy(slot)
                if self._settings.kv_unified:
                    self._memory.remove_from(slot.number, 0)
                    slot.held = _Held()

    def _keep(self, slot: _Slot, prompt: Sequence[int], *, reuse: bool) -> Played:
        """Cut the slot down to what of it serves this prompt."""
        held = slot.held
        common = common_prefix(held.tokens, prompt) if reuse else 0
        kept, following, checkpoint = common, common, None
        must_go_back = self._must_go_back(slot, common, len(prompt))
        if must_go_back:
            kept, following, checkpoint = self._go_back(slot, common, len(prompt))
        held.checkpoints = [each for each in held.checkpoints if each.stated.last <= following]
        if kept == len(prompt):
            kept -= 1
        del held.tokens[kept:]
        self._memory.remove_from(slot.number, kept)
        is_reset = must_go_back and checkpoint is None
        return Played(cached=kept, common=common, checkpoint=checkpoint, was_reset=is_reset)

    def _needed_below(self, common: int, prompt_tokens: int) -> int:
        return max(0, common - (self._settings.forgets_behind or 0) - (0 if common < prompt_tokens else 1))

    def _must_go_back(self, slot: _Slot, common: int, prompt_tokens: int) -> bool:
        """Whether the server does not trust the cache to have what token ``common`` looks back at."""
        span = self._memory.span(slot.number)
        return common > 0 and span is not None and span.first >= self._needed_below(common, prompt_tokens)

    def _go_back(self, slot: _Slot, common: int, prompt_tokens: int) -> tuple[int, int, int | None]:
        """To the last checkpoint that serves: (tokens that are kept, position that follows, its token number)."""
        needed_below = self._needed_below(common, prompt_tokens)
        for checkpoint in reversed(slot.held.checkpoints):
            first, last = checkpoint.stated.first, checkpoint.stated.last
            if last <= common and (first < needed_below or first == 0):
                self._memory.restore(slot.number, checkpoint.saved)
                following = min(common, max(first + 1, last))
                return min(following, checkpoint.num_tokens), following, checkpoint.num_tokens
        return 0, 0, None

    def _prefill(self, slot: _Slot, prompt: Sequence[int], user_starts: Sequence[int]) -> None:
        tokens = slot.held.tokens
        while len(tokens) < len(prompt):
            start = len(tokens)
            end = self._batch_end(slot, start, len(prompt), user_starts)
            if self._keeps_checkpoint(slot, start, end, len(prompt), user_starts):
                self._add_checkpoint(slot)
            self._decode(slot, prompt[start:end])

    def _decode(self, slot: _Slot, batch: Sequence[int]) -> None:
        settings, start = self._settings, len(slot.held.tokens)
        if settings.kv_unified:
            self._make_room(slot, len(batch))
        end = start + len(batch)
        for position in range(start, end, settings.n_ubatch):
            self._memory.append(slot.number, position, min(settings.n_ubatch, end - position))
        slot.held.tokens.extend(batch)

    def _make_room(self, busy: _Slot, num_tokens: int) -> None:
        """Where slots share the cells and none are free, idle slots lose what they hold, in order."""
        for slot in self._slots:
            if sum(len(each.held.tokens) for each in self._slots) + num_tokens <= self._settings.cells:
                return
            if slot is not busy:
                self._memory.remove_from(slot.number, 0)
                slot.held = _Held()

    def _makes_checkpoints(self) -> bool:
        return self._settings.forgets and self._settings.n_ctx_checkpoints > 0

    def _batch_end(self, slot: _Slot, start: int, prompt_tokens: int, user_starts: Sequence[int]) -> int:
        """Where the batch that begins at ``start`` ends: full, or before a place worth a checkpoint."""
        settings = self._settings
        ends = [prompt_tokens, start + settings.n_batch]
        if self._makes_checkpoints():
            lasts = (min(settings.n_batch, _LAST_TOKENS + settings.n_ubatch), min(settings.n_batch, _LAST_TOKENS))
            ends += [prompt_tokens - last for last in lasts]
            newest = slot.held.checkpoints[-1].num_tokens if slot.held.checkpoints else None
            ends += [
                place
                for place in user_starts
                if place == user_starts[-1] or newest is None or place > newest + settings.checkpoint_min_step
            ]
        return min(end for end in ends if end > start)

    def _keeps_checkpoint(
        self, slot: _Slot, start: int, end: int, prompt_tokens: int, user_starts: Sequence[int]
    ) -> bool:
        if not self._makes_checkpoints() or self._memory.span(slot.number) is None:
            return False
        is_near_end = prompt_tokens < end + self._settings.n_ubatch
        if start not in user_starts and not is_near_end:
            return False
        checkpoints = slot.held.checkpoints
        is_apart = not checkpoints or start > checkpoints[-1].num_tokens + self._settings.checkpoint_min_step
        return is_apart or is_near_end or start == user_starts[-1]

    def _add_checkpoint(self, slot: _Slot) -> None:
        most, step = self._settings.n_ctx_checkpoints, self._settings.checkpoint_min_step
        kept: list[Checkpoint] = []
        waiting = list(slot.held.checkpoints)
        while waiting:
            is_full = len(kept) + len(waiting) + 1 >= most
            checkpoint = waiting.pop(0)
            is_close = bool(kept) and checkpoint.num_tokens <= kept[-1].num_tokens + step
            if not (is_full and checkpoint.task != self._task and is_close):
                kept.append(checkpoint)
        num_tokens = len(slot.held.tokens)
        kept = kept[max(0, len(kept) - most + 1) :]
        kept = [each for each in kept if each.num_tokens != num_tokens]
        span = self._memory.span(slot.number)
        assert span is not None
        saved = self._memory.saved(slot.number)
        slot.held.checkpoints = [*kept, Checkpoint(task=self._task, num_tokens=num_tokens, stated=span, saved=saved)]
