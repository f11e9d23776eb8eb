"""What a layer keeps of the past, in English: the kinds of layers of a prediction."""

from collections.abc import Mapping

LAYER_KINDS: Mapping[str, str] = {
    "layer_kind.full_attention": "full attention",
    "layer_kind.latent_attention": "latent attention",
    "layer_kind.sliding_window": "sliding window",
    "layer_kind.chunked_attention": "chunked attention",
    "layer_kind.compressed_attention": "compressed attention",
    "layer_kind.recurrent": "recurrent {form}",
    "layer_kind.indexed": "{kind} indexed",
    "layer_kind.cross_attention": "cross attention",
    "layer_kind.hidden_state_memory": "hidden state memory",
    "layer_kind.shared_cache": "shared cache",
    "layer_kind.no_cache": "no cache",
}
