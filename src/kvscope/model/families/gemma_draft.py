"""Gemma 4's assistants: small models that draft tokens for a large one from its own caches. Tensors of transformers
5.24.0; what the draft model's layers read is the large model's memory, and is counted there."""

from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.gemma import gemma4_draft
from kvscope.model.modules import linear

_BORROWS = "Its layers keep no cache: they read that of the model it drafts for."


def gemma4_assistant(config: ConfigReader) -> Architecture:
    return _assistant(config, "gemma4_text", has_extras=True)


def gemma4_unified_assistant(config: ConfigReader) -> Architecture:
    return _assistant(config, "gemma4_unified_text", has_extras=False)


def _assistant(config: ConfigReader, text_type: str, *, has_extras: bool) -> Architecture:
    text = config.nested("text_config", text_type)
    if text.model_type != text_type:
        raise config.refuse(f"its text part is {text.model_type!r}")
    if has_extras:
        for key in ("hidden_size_per_layer_input", "vocab_size_per_layer_input"):
            if text.number(key, smallest=0):
                raise config.refuse(f"its text_config.{key} is not 0")
    tied = config.flag("tie_word_embeddings")
    text.config = {**text.config, "tie_word_embeddings": tied}
    model = gemma4_draft(text, has_extras=has_extras)
    outer, hidden = config.number("backbone_hidden_size"), model.hidden_size
    weights = [
        *(model.weights or ()),
        *linear("pre_projection", 2 * outer, hidden),
        *linear("post_projection", hidden, outer),
    ]
    if config.flag("use_ordered_embeddings"):
        weights += linear("masked_embedding.centroids", hidden, config.number("num_centroids"))
    return replace(model, weights=tuple(weights), warnings=(*model.warnings, _BORROWS))
