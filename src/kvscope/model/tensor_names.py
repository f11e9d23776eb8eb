"""What the names of tensors in a checkpoint say: the layer they belong to, and which is a second copy of another."""

import re
from collections.abc import Iterable, Sequence

from kvscope.model.spec import TensorInfo

# The words before a layer's number: layers (Llama and most), h (GPT-2), blocks, block (T5), layer (BERT).
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|blocks|block|h)\.(\d{1,6})(?:\.|$)")
# Parts of multimodal models with layers of their own, which are not the text model's.
_OTHER_PART = re.compile(r"vision|visual|image|audio|speech|video|projector|resampler|\bvit\b|\bmtp\b")
# The output matrix in checkpoints: lm_head (most), embed_out (GPT-NeoX).
_HEADS = frozenset({"lm_head.weight", "embed_out.weight"})


def layer_indices(names: Iterable[str]) -> dict[str, int | None]:
    """The text layer of each name; None for what belongs to none. Where there is a decoder, layers are its own."""
    names = list(names)
    has_decoder = any("decoder." in name for name in names)
    return {name: _layer_index(name, has_decoder) for name in names}


def _layer_index(name: str, has_decoder: bool) -> int | None:
    found = _LAYER.search(name)
    if found is None:
        return None
    before = name[: found.start()]
    if _OTHER_PART.search(before) or (has_decoder and "encoder" in before):
        return None
    return int(found[1])


def tied_copies(tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Output matrices that a model with tied embeddings stores all the same: engines load the matrix once.

    A head counts as a copy where an embedding matrix of its shape is stored too.
    """
    embeddings = {tensor.shape for tensor in tensors if _is_embedding(tensor)}
    return tuple(tensor for tensor in tensors if _is_head(tensor.name) and tensor.shape in embeddings)


def _is_head(name: str) -> bool:
    return ".".join(name.split(".")[-2:]) in _HEADS


def _is_embedding(tensor: TensorInfo) -> bool:
    module = tensor.name.removesuffix(".weight").rpartition(".")[2]
    return len(tensor.shape) == 2 and ("emb" in module or module in ("wte", "shared")) and not _is_head(tensor.name)
