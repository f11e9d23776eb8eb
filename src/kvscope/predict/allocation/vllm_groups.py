"""vLLM's pool: layers that take blocks together, bytes of a block, how many sequences fit. Rules of vLLM 0.32.0 (V1).

All groups draw blocks from one pool, so a block is as large as the largest group's pages together, and a sequence takes
the sum of the groups' blocks. Layers of one kind are split into groups of equal size: that of the smallest kind, or of
the largest where it is less than 1.5 times that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvscope.errors import UsageError
from kvscope.predict.allocation.vllm_specs import Page, PageKind

FULL_KINDS = frozenset({"full_attention", "mla_attention"})
_WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla", "chunked_local_attention"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``pages``: one of each layer, in the group's order. Pages of one group may differ in size where all its layers
    always need the same number of blocks."""

    pages: tuple[Page, ...]

    @property
    def first(self) -> Page:
        return self.pages[0]

    @property
    def block_bytes(self) -> int:
        return sum(page.page_bytes for page in self.pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What decides how many blocks a sequence may take. ``in_flight_tokens``: batches in flight × tokens of a batch."""

    in_flight_tokens: int
    encoder_tokens: int
    mamba_mode: str
    speculative_tokens: int
    context_parallel: int

    def blocks(self, page: Page, tokens: int) -> int:
        """Most blocks that one sequence of ``tokens`` tokens may hold at once in this page's group."""
        size = page.block_tokens
        match page.kind:
            case "full_attention" | "mla_attention":
                return _ceil(_ceil(tokens, self.context_parallel), size)
            case "sliding_window" | "sliding_window_mla":
                # One more, because a window need not start where a block does.
                return _ceil(min(self.window_cap(page), tokens), size) + 1
            case "chunked_local_attention":
                return _ceil(min(self.window_cap(page), tokens), size)
            case "cross_attention":
                return _ceil(self.encoder_tokens, size)
            case "mamba":
                if self.mamba_mode == "align":
                    return 2 + self.speculative_tokens + page.checkpoint_blocks
                return 1 + self.speculative_tokens

    def window_cap(self, page: Page) -> int:
        """Tokens beyond which a window's or chunk's layer takes no more blocks."""
        assert page.window_tokens is not None
        seen = page.window_tokens if page.kind == "chunked_local_attention" else page.window_tokens - 1
        return seen + self.in_flight_tokens

    def sequence_blocks(self, groups: Iterable[Group], tokens: int) -> int:
        """Blocks of all groups together."""
        return sum(max((self.blocks(page, tokens) for page in group.pages), default=0) for group in groups)


def group_pages(pages: Sequence[Page], *, hybrid_manager: bool) -> tuple[Group, ...]:
    """The pool's groups, in vLLM's order. ``hybrid_manager`` False: windows are kept like full attention.

    Raises UsageError with vLLM's reason where it cannot make one pool of these pages.
    """
    if not pages:
        return ()
    if not hybrid_manager:
        pages = _promote(pages)
    if _is_one_spec(pages) or _is_uniform(pages):
        return (Group(pages=tuple(pages)),)
    unified = _unify(pages)
    if unified is None:
        return (Group(pages=_fallback(pages)),)
    return _split(unified)


def block_bytes(groups: Iterable[Group]) -> int:
    """Bytes of one block of the pool."""
    return max((group.block_bytes for group in groups), default=0)


def longest_length(fits: Callable[[int], bool], limit: int) -> int:
    """vLLM's estimated maximum length: the largest that fits, found by halving; 0 if not even one token does."""
    if not fits(1):
        return 0
    low, high, found = 1, limit, 1
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            found, low = middle, middle + 1
        else:
            high = middle - 1
    return found


def _is_one_spec(pages: Sequence[Page]) -> bool:
    """Whether all layers have one and the same spec. Full attention with and without a recorded window is one; two
    different windows are not, and stop vLLM."""
    first = pages[0]
    if first.kind != "full_attention":
        return all(page.identity == first.identity for page in pages)
    if any(_without_window(page).identity != _without_window(first).identity for page in pages):
        return False
    if len({page.window_tokens for page in pages if page.window_tokens is not None}) > 1:
        raise UsageError(
            "vLLM refuses this: All attention layers in the same KV cache group must have the same window size.",
            hint="Leave the hybrid KV cache manager on.",
        )
    return True


def _without_window(page: Page) -> Page:
    return replace(page, window_tokens=None)


def _is_uniform(pages: Sequence[Page]) -> bool:
    """Whether all layers always need the same number of blocks, though their pages may differ in size."""
    first = pages[0]
    if len({page.block_tokens for page in pages}) > 1:
        return False
    if first.kind in FULL_KINDS:
        return all(page.kind in FULL_KINDS for page in pages)
    if first.kind == "mamba":
        like = (first.checkpoint_blocks, first.page_bytes)
        return all(page.kind == "mamba" and (page.checkpoint_blocks, page.page_bytes) == like for page in pages)
    if first.kind in _WINDOW_KINDS:
        wider = {"sliding_window", "sliding_window_mla"} if first.kind == "sliding_window" else {first.kind}
        return all(page.kind in wider and page.window_tokens == first.window_tokens for page in pages)
    return all(page.kind == first.kind for page in pages)


def _promote(pages: Sequence[Page]) -> tuple[Page, ...]:
    """Windows and chunks kept in full, where the model has full attention too (hybrid manager off)."""
    if _is_one_spec(pages) or _is_uniform(pages):
        return tuple(pages)
    full = [page for page in pages if page.kind in FULL_KINDS]
    promoted = tuple(pages)
    if full and any(page.kind in _WINDOW_KINDS for page in pages):
        sizes = {page.block_tokens for page in full}
        common = full[0].block_tokens if len(sizes) == 1 else None
        promoted = tuple(_promoted(page, common) for page in pages)
    if not (_is_one_spec(promoted) or _is_uniform(promoted)):
        raise UsageError(
            "vLLM refuses this: Failed to promote local KV cache specs to one unified type.",
            hint="Leave the hybrid KV cache manager on.",
        )
    return promoted


def _promoted(page: Page, block_tokens: int | None) -> Page:
    if page.kind not in _WINDOW_KINDS:
        return page
    kind: PageKind = "mla_attention" if page.kind == "sliding_window_mla" else "full_attention"
    return replace(page, kind=kind, block_tokens=block_tokens or page.block_tokens)


def _unify(pages: Sequence[Page]) -> tuple[Page, ...] | None:
    """All pages as large as the largest: a state is padded; an attention block holds more tokens where that makes its
    page exactly as large, and is padded elsewhere. None where MLA's rows, which cannot be padded, do not divide it."""
    largest = max(page.page_bytes for page in pages)
    unified = []
    for page in pages:
        if page.page_bytes == largest:
            unified.append(page)
        elif page.kind == "mamba":
            unified.append(replace(page, padded_bytes=largest))
        elif largest % page.page_bytes == 0:
            unified.append(replace(page, block_tokens=page.block_tokens * (largest // page.page_bytes)))
        elif page.kind == "mla_attention":
            return None
        else:
            unified.append(replace(page, padded_bytes=largest))
    return tuple(unified)


def _fallback(pages: Sequence[Page]) -> tuple[Page, ...]:
    """Plain windows beside MLA whose pages cannot be made equal: kept in full, in one group of unequal pages."""
    kinds = {page.kind for page in pages}
    if "sliding_window" in kinds and not kinds & {"sliding_window_mla", "chunked_local_attention", "mamba"}:
        return _promote(pages)
    raise UsageError(
        "vLLM refuses this: a layer's page size is not divisible by the maximum page size and cannot be padded.",
        hint="Choose another block_size or kv_cache_dtype.",
    )


def _split(pages: Sequence[Page]) -> tuple[Group, ...]:
    buckets: list[list[Page]] = []
    by_identity: dict[tuple[object, ...], list[Page]] = {}
    for page in pages:
        by_identity.setdefault(page.identity, []).append(page)
    for same in by_identity.values():
        for bucket in buckets:
            if _mergeable(bucket, same[0]):
                bucket.extend(same)
                break
        else:
            buckets.append(list(same))
    sizes = [len(bucket) for bucket in buckets]
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    groups = []
    for bucket in buckets:
        count = _ceil(len(bucket), size)
        # Every count-th layer, so that each pipeline stage has layers of every group.
        groups += [Group(pages=tuple(bucket[start::count])) for start in range(count)]
    return tuple(groups)


def _mergeable(bucket: Sequence[Page], page: Page) -> bool:
    """Full attention whose specs differ only in a recorded window."""
    try:
        return bucket[0].kind == "full_attention" and _is_one_spec([*bucket, page])
    except UsageError:
        return False


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
