"""A model with a smaller one that drafts tokens for it (speculative decoding) on llama.cpp.

The engine holds both: the draft has weights, a cache and buffers of its own. Its cache is sized by the same context and
slots as the main model's, not by the draft's trained context; its cache's formats are its own. Not measured with the
engine: the draft's share is marked as an estimate.
"""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.errors import UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict
from kvscope.predict.prediction import MemoryItem, Prediction, Unknown
from kvscope.scenario import SettingValue

DRAFT = "draft model"
# llama.cpp's limit on the difference of two vocabularies' sizes.
MOST_DIFFERENT = 128


def predict_with_draft(
    model: ModelSpec,
    draft: ModelSpec,
    *,
    engine: str = "llama.cpp",
    engine_version: str | None = None,
    tokens: int | None = None,
    sequences: int = 1,
    settings: Mapping[str, SettingValue] | None = None,
    draft_settings: Mapping[str, SettingValue] | None = None,
) -> Prediction:
    """What ``model`` takes, with rows for ``draft`` beside its own; their ``because`` begins with the draft's name.

    ``draft_settings``: those of the draft that differ from ``settings``. Raises as ``predict``; UsageError for another
    engine, and where the two models' vocabularies are too different to draft (llama.cpp allows 128 entries).
    """
    if engine != "llama.cpp":
        raise UsageError(f"What a draft model takes on {engine} is not known here.", hint="Use llama.cpp.")
    if abs(model.vocab_size - draft.vocab_size) > MOST_DIFFERENT:
        raise UsageError(
            f"{draft.name} has {draft.vocab_size} tokens, {model.name} {model.vocab_size}: llama.cpp does not draft "
            f"with vocabularies that differ by more than {MOST_DIFFERENT}.",
            hint="Use a draft of the same family.",
        )
    main = predict(
        model, engine=engine, engine_version=engine_version, tokens=tokens, sequences=sequences, settings=settings
    )
    shared = {name: value for name, value in _plain(settings or {}).items() if name not in _OWN}
    chosen: dict[str, SettingValue] = {
        **shared,
        "n_ctx": main.effective["context_tokens"],
        "n_parallel": main.effective["slots"],
        "kv_unified": main.effective["kv_unified"],
        **_plain(draft_settings or {}),
    }
    held = main.scenario.workload.tokens
    other = predict(
        draft, engine=engine, engine_version=engine_version, tokens=held, sequences=sequences, settings=chosen
    )
    return _joined(main, other)


_OFFLOAD = ("n_gpu_layers", "gpu_layers", "ngl", "split_mode", "sm", "tensor_split", "ts", "main_gpu", "mg")
# Settings the draft has of its own: its cache's formats are f16, and it lies on the host, unless it is told otherwise.
# The context, its slots and whether they share it are the main model's, as resolved there.
_OWN = frozenset({
    "cache_type_k", "ctk", "cache_type_v", "ctv", *_OFFLOAD,
    "n_ctx", "ctx_size", "c", "n_parallel", "parallel", "np", "kv_unified", "kvu", "kv_unified_per_slot",
})  # fmt: skip


def _plain(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Names as llama.cpp's rules spell them."""
    return {name.strip().lstrip("-").replace("-", "_").lower(): value for name, value in settings.items()}


def _joined(main: Prediction, draft: Prediction) -> Prediction:
    name = f"{DRAFT} {draft.model.name}"
    rows = tuple(_row(item, name) for item in draft.items if item.component != "host_cache")
    buffers = tuple(replace(buffer, kind=f"{buffer.kind} ({DRAFT})") for buffer in draft.buffers)
    doubts = [
        Unknown(what=entry.what, why=f"{name}: {entry.why}") for entry in draft.unknown if entry not in main.unknown
    ]
    why = f"estimated: the rows of {name} follow from its files and the context; the two were not measured together"
    return replace(
        main,
        items=(*main.items, *rows),
        buffers=(*main.buffers, *buffers),
        status="estimated" if main.status == "exact" == draft.status else "partial",
        unknown=(*main.unknown, *doubts, Unknown(what=DRAFT, why=why)),
        missing=main.missing | draft.missing,
        notes=(*main.notes, f"Layers shown are those of {main.model.name}; {name} is in the rows and buffers."),
    )


def _row(item: MemoryItem, name: str) -> MemoryItem:
    return replace(item, because=f"{name}: {item.because}", layer_index=None, status="estimated")
