"""Memory that an engine takes while it computes a prompt, beside the buffers that it reserves: by its rules.

llama.cpp (xllamacpp 2026.10.11549, b11549, CPU): before ggml multiplies two matrices it copies the second one into the
format that the first one is multiplied in, into one buffer that is as large as the largest such copy and 64 B for each
thread (``ggml_graph_plan``), and keeps the largest there was. Without flash attention that is the attention's
probabilities, float32, before they are multiplied by values kept in 2 B each:

    bytes = cells in use × tokens of the microbatch × query heads × 2 + 64 × threads

Cells in use are the tokens before and in the microbatch, rounded up to 256. Where the server makes checkpoints (models
with windows or states) it ends a batch 4 tokens before the prompt's end, and one a microbatch before that.

transformers 5.24.0: of a Llama's layer most is alive when its feed-forward multiplies: the prompt's embeddings, what
the layer was given, what its attention made of it, and that normed, each ``hidden_size`` wide; the gate, the other
half and their product, each as wide as the feed-forward; and the cosines and sines of the positions.
"""

from itertools import pairwise

from kvscope.model.spec import DenseFfn, FullAttention, ModelSpec
from kvscope.predict.allocation.llama_cpp_cache import CELL_MULTIPLE
from kvscope.predict.growth import round_up

COPIED_ELEMENT_BYTES = 2
THREAD_BYTES = 64
_HIDDEN, _WIDE, _ROTARY = 4, 3, 2
_LAST_TOKENS = 4


def query_heads(model: ModelSpec) -> int:
    """The most query heads of a layer."""
    return max(layer.num_q_heads for layer in model.layers)


def score_copy_bytes(
    *,
    prompt_tokens: int,
    cached_tokens: int,
    microbatch: int,
    cells: int,
    heads: int,
    threads: int,
    has_checkpoints: bool = False,
) -> int:
    """llama.cpp's work buffer, in bytes, after a prompt was computed alone without flash attention (see the module)."""
    last = prompt_tokens - _LAST_TOKENS
    cuts = {last, last - microbatch} if has_checkpoints else set()
    ends = [*sorted(cut for cut in cuts if cached_tokens < cut < prompt_tokens), prompt_tokens]
    most = 0
    for start, stop in pairwise([cached_tokens, *ends]):
        for begin in range(start, stop, microbatch):
            end = min(begin + microbatch, stop)
            most = max(most, min(cells, round_up(end, CELL_MULTIPLE)) * (end - begin))
    return most * heads * COPIED_ELEMENT_BYTES + THREAD_BYTES * threads if most else 0


def activation_bytes_per_token(model: ModelSpec, element_bytes: int) -> int | None:
    """transformers: what each token of a prompt takes while it is computed, in bytes; None of a model whose layers are
    not a Llama's (full attention and a dense feed-forward)."""
    if not all(isinstance(x.ffn, DenseFfn) and isinstance(x.cache, FullAttention) for x in model.layers):
        return None
    width = max(layer.ffn.width for layer in model.layers if isinstance(layer.ffn, DenseFfn))
    rotary = max(layer.cache.key_dim for layer in model.layers if isinstance(layer.cache, FullAttention))
    return (_HIDDEN * model.hidden_size + _WIDE * width + _ROTARY * rotary) * element_bytes
