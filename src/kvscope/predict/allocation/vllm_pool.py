"""How many blocks vLLM's pool gets from the memory given to it, and what fits. Rules of vLLM 0.32.0 (V1).

Blocks = memory // bytes of a block, on the pipeline stage that affords the fewest. One block is always held back. At
start vLLM refuses a max_model_len of which not one sequence fits; its message's two numbers are ``needed_bytes`` and
``estimated_length``. "KV cache size" in its log is concurrency × max_model_len, a derived number (before 0.21 the same
words meant blocks × block size, or that over the number of groups).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.errors import UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.allocation.vllm_groups import FULL_KINDS, Demand, Group, block_bytes, group_pages, longest_length
from kvscope.predict.allocation.vllm_settings import AUTO_LENGTH, VERSION, VllmSettings
from kvscope.predict.allocation.vllm_specs import Page, Plan, plan_pages
from kvscope.predict.parallel import split_layers
from kvscope.predict.prediction import Pool, PoolGroup

# vLLM's own, where the model's config states no length.
DEFAULT_LENGTH = 2048
_MLA_CPU_BATCH = 2048
_SEQUENCES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """``stage_block_bytes``: one block, on a rank of each pipeline stage. ``num_blocks`` None: no memory was given.
    ``needed_bytes``: what one sequence of ``max_model_len`` may take on the stage that runs short first, against
    ``usable_bytes`` there. ``estimated_length``: what vLLM says would fit; None where max_model_len does."""

    plan: Plan
    groups: tuple[Group, ...]
    demand: Demand
    max_model_len: int
    derived_length: int
    batched_tokens: int
    stages: tuple[range, ...]
    stage_block_bytes: tuple[int, ...]
    num_blocks: int | None
    sequence_blocks: int
    needed_bytes: int
    usable_bytes: int | None
    estimated_length: int | None

    @property
    def fullest_stage(self) -> int:
        return max(range(len(self.stages)), key=lambda stage: self.stage_block_bytes[stage])

    @property
    def bytes_per_block(self) -> int:
        return self.stage_block_bytes[self.fullest_stage]

    @property
    def fits(self) -> bool | None:
        """Whether vLLM would start; None where no memory was given."""
        return None if self.usable_bytes is None else self.estimated_length is None

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of full attention, else of the first group."""
        sizes = [group.first.block_tokens for group in self.groups if group.first.kind in FULL_KINDS]
        return sizes[0] if sizes else self.groups[0].first.block_tokens

    def pool(self) -> Pool | None:
        """The pool as vLLM reports it; None for a model without cache."""
        if not self.groups:
            return None
        concurrency = None if self.num_blocks is None else self.num_blocks / self.sequence_blocks
        return Pool(
            num_blocks=self.num_blocks,
            block_tokens=self.block_tokens,
            bytes_per_block=self.bytes_per_block,
            groups=tuple(self._group(group) for group in self.groups),
            capacity_tokens=None if concurrency is None else int(concurrency * self.max_model_len),
            max_concurrency=concurrency,
        )

    def _group(self, group: Group) -> PoolGroup:
        return PoolGroup(
            kind=group.first.kind,
            layers=tuple(dict.fromkeys(page.layer for page in group.pages)),
            page_bytes=max(page.page_bytes for page in group.pages),
            blocks_per_sequence=self.demand.sequence_blocks((group,), self.max_model_len),
            block_tokens=group.first.block_tokens,
        )


def plan_pool(model: ModelSpec, settings: VllmSettings) -> PoolPlan:
    """Raises UnsupportedArchitecture for layers vLLM does not run, and UsageError with its reason for what it refuses
    whatever the memory."""
    derived = model.trained_context_tokens or DEFAULT_LENGTH
    asked = settings.max_model_len
    length = derived if asked is None or asked == AUTO_LENGTH else asked
    plan = plan_pages(model, settings, length)
    groups = group_pages(plan.pages, hybrid_manager=settings.hybrid_manager)
    _check_kernels(groups, settings)
    _check_context_parallel(groups, settings)
    batched = _batched_tokens(settings, plan, length)
    demand = Demand(
        in_flight_tokens=batched * settings.batches_in_flight,
        encoder_tokens=batched,
        mamba_mode=plan.mamba_mode,
        speculative_tokens=settings.speculative_tokens,
        context_parallel=settings.context_parallel,
    )
    stages = split_layers(len(model.layers), settings.pipeline_parallel)
    stage_bytes = tuple(block_bytes(_on_stage(groups, stage)) for stage in stages)
    memory = _memory(settings, stage_bytes)
    usable = None if memory is None else [have - one for have, one in zip(memory, stage_bytes, strict=True)]
    if asked == AUTO_LENGTH and usable is not None:
        length = min(
            _estimate(groups, demand, one, have, derived) for one, have in zip(stage_bytes, usable, strict=True)
        )
        if length < 1:
            raise UsageError("vLLM refuses this: not enough memory available to serve even a single token.")
    blocks = demand.sequence_blocks(groups, length)
    short = _first_short(stage_bytes, usable, blocks)
    judged = stage_bytes.index(max(stage_bytes)) if short is None else short
    return PoolPlan(
        plan=plan,
        groups=groups,
        demand=demand,
        max_model_len=length,
        derived_length=derived,
        batched_tokens=batched,
        stages=stages,
        stage_block_bytes=stage_bytes,
        num_blocks=_num_blocks(settings, memory, stage_bytes),
        sequence_blocks=blocks,
        needed_bytes=stage_bytes[judged] * blocks,
        usable_bytes=None if usable is None else usable[judged],
        estimated_length=None
        if short is None or usable is None
        else _estimate(groups, demand, stage_bytes[short], usable[short], length),
    )


def _check_kernels(groups: Sequence[Group], settings: VllmSettings) -> None:
    """A device's attention takes blocks that are multiples of its kernel's."""
    kernel = settings.backend.kernel_tokens
    for page in (page for group in groups for page in group.pages):
        if page.kind not in ("mamba", "mla_attention", "sliding_window_mla") and page.block_tokens % kernel:
            name = "CPU_ATTN" if settings.backend.device == "cpu" else "FLASH_ATTN"
            raise UsageError(
                f"vLLM refuses this: No common block size for {page.block_tokens} ({name}: [MultipleOf({kernel})]).",
                hint=f"Choose a block_size that is a multiple of {kernel}.",
            )


def _check_context_parallel(groups: Sequence[Group], settings: VllmSettings) -> None:
    if settings.context_parallel == 1:
        return
    if settings.tensor_parallel % settings.context_parallel:
        raise UsageError("decode_context_parallel_size must divide tensor_parallel_size.")
    if any(page.kind not in FULL_KINDS for group in groups for page in group.pages):
        raise UsageError(f"{VERSION} splits only full attention and MLA over decode_context_parallel_size.")


def _batched_tokens(settings: VllmSettings, plan: Plan, length: int) -> int:
    """max_num_batched_tokens as vLLM completes it, for offline use (``vllm serve`` has smaller defaults)."""
    is_cpu = settings.backend.device == "cpu"
    if plan.is_mla and is_cpu:
        return max(length, _MLA_CPU_BATCH)  # chunked prefill is off there
    if settings.max_num_batched_tokens is not None:
        return settings.max_num_batched_tokens
    ranks = settings.world_size if is_cpu else 1
    sequences = settings.max_num_seqs or _SEQUENCES * ranks
    return min(sequences * length, settings.backend.batched_tokens * ranks)


def _on_stage(groups: Sequence[Group], stage: range) -> tuple[Group, ...]:
    held = (tuple(page for page in group.pages if page.layer in stage) for group in groups)
    return tuple(Group(pages=pages) for pages in held if pages)


def stage_pages(pool: PoolPlan, stage: int) -> tuple[Page, ...]:
    """Pages of the layers that a pipeline stage runs."""
    return tuple(page for group in _on_stage(pool.groups, pool.stages[stage]) for page in group.pages)


def _memory(settings: VllmSettings, stage_bytes: Sequence[int]) -> list[int] | None:
    """Memory of the pool on each stage. num_gpu_blocks_override replaces what is available."""
    if settings.num_gpu_blocks_override is not None:
        return [settings.num_gpu_blocks_override * one for one in stage_bytes]
    return None if settings.pool_bytes is None else [settings.pool_bytes] * len(stage_bytes)


def _num_blocks(settings: VllmSettings, memory: Sequence[int] | None, stage_bytes: Sequence[int]) -> int | None:
    if settings.num_gpu_blocks_override is not None:
        return settings.num_gpu_blocks_override
    if memory is None:
        return None
    return min((have // one for have, one in zip(memory, stage_bytes, strict=True) if one), default=None)


def _estimate(groups: Sequence[Group], demand: Demand, one: int, usable: int, limit: int) -> int:
    return longest_length(lambda tokens: one * demand.sequence_blocks(groups, tokens) <= usable, limit)


def _first_short(stage_bytes: Sequence[int], usable: Sequence[int] | None, blocks: int) -> int | None:
    """The first stage on which one sequence of the longest length does not fit."""
    if usable is None:
        return None
    for stage, (one, have) in enumerate(zip(stage_bytes, usable, strict=True)):
        if one and (have <= 0 or one * blocks > have):
            return stage
    return None
