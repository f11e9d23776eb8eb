"""BERT and its relatives as decoders (is_decoder true): full attention in every layer, learned positions, and an output
matrix behind one more layer. Tensors of the causal classes in transformers 5.24.0.

The same files describe encoders, which keep nothing between steps and whose class, and so whose tensors, the file does
not say: those are refused.
"""

from dataclasses import dataclass, replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, Heads, full_attention_model, read_context, read_heads
from kvscope.model.families.multimodal_parts import section
from kvscope.model.families.vision import clip, placed
from kvscope.model.modules import Layers, embedding, head, linear, norm, norms, parameter
from kvscope.model.spec import WeightGroup

NORMS_AFTER = ("attention.output.LayerNorm", "output.LayerNorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a relative differs. ``base``: its module. ``head``: the layer before the output matrix. ``layer_norms``:
    in every layer; ``last_norm``: after all. ``narrow``: embeddings may be narrower than the model (embedding_size).
    ``first_position``: positions are counted from pad_token_id + 1."""

    base: str
    head: str = "cls"
    layer_norms: tuple[str, str] = NORMS_AFTER
    last_norm: str = ""
    has_types: bool = True
    has_embedding_norm: bool = True
    rotary: bool = False
    narrow: bool = False
    first_position: bool = False


FORMS = {
    "bert": Form(base="bert"),
    "bert-generation": Form(base="bert", head="none", has_types=False),
    "ernie": Form(base="ernie"),
    "roberta": Form(base="roberta", head="roberta", first_position=True),
    "xlm-roberta": Form(base="roberta", head="roberta", first_position=True),
    "camembert": Form(base="roberta", head="roberta", first_position=True),
    "data2vec-text": Form(base="data2vec_text", head="roberta", first_position=True),
    "roberta-prelayernorm": Form(
        base="roberta_prelayernorm",
        head="roberta",
        layer_norms=("attention.LayerNorm", "intermediate.LayerNorm"),
        last_norm="LayerNorm",
        first_position=True,
    ),
    "xlm-roberta-xl": Form(
        base="roberta",
        head="roberta",
        layer_norms=("attention.self_attn_layer_norm", "LayerNorm"),
        last_norm="encoder.LayerNorm",
        has_embedding_norm=False,
        first_position=True,
    ),
    "roformer": Form(base="roformer", rotary=True, narrow=True),
    "electra": Form(base="electra", head="electra", narrow=True),
}


def bert_like(config: ConfigReader) -> Architecture:
    form = FORMS[config.model_type]
    if not config.flag("is_decoder"):
        raise config.refuse("its is_decoder is false: it is an encoder, which keeps no cache")
    config.refuse_keys("add_cross_attention", "use_task_id")
    heads, num_layers = read_heads(config, head_dim_key=False, kv_heads_key=False), config.num_layers()
    layers, width = tuple(range(num_layers)), config.number("intermediate_size", field="ffn.width")
    narrow = config.optional("embedding_size", smallest=1) if form.narrow else None
    narrow = heads.hidden if narrow is None else narrow
    positions = config.number("max_position_embeddings", field="trained_context_tokens")
    weights = [
        *_embeddings(config, form, heads, narrow, positions),
        *_layers(form, heads, width, layers),
        *(norm(f"{form.base}.{form.last_norm}", heads.hidden, bias=True) if form.last_norm else []),
        *_head(config, form, heads.hidden, narrow),
    ]
    if form.first_position:
        padding = config.optional("pad_token_id")
        positions -= 2 if padding is None else padding + 1
    return full_attention_model(
        config, "bert", heads, num_layers, width, weights, context=positions if positions > 0 else None
    )


def git(config: ConfigReader) -> Architecture:
    """GIT: BERT's layers as a decoder, with CLIP's tower before the text."""
    config.refuse_keys("num_image_with_embedding")
    form = Form(base="git", has_types=False)
    heads, num_layers = read_heads(config, head_dim_key=False, kv_heads_key=False), config.num_layers()
    width, positions = config.number("intermediate_size", field="ffn.width"), config.number("max_position_embeddings")
    vision = section(config, "vision_config", "git_vision_model", fixed=True)
    joint = [
        *linear("git.visual_projection.visual_projection.0", vision.number("hidden_size"), heads.hidden, bias=True),
        *norm("git.visual_projection.visual_projection.1", heads.hidden, bias=True),
    ]
    weights = [
        *_embeddings(config, form, heads, heads.hidden, positions),
        *_layers(form, heads, width, tuple(range(num_layers))),
        *placed("git.image_encoder.vision_model", clip(vision)),
        *(replace(group, part="vision") for group in joint),
        *head("output", heads.hidden, config.number("vocab_size"), tied=config.flag("tie_word_embeddings"), bias=True),
    ]
    return full_attention_model(config, "git", heads, num_layers, width, weights, context=read_context(config))


def _embeddings(config: ConfigReader, form: Form, heads: Heads, width: int, positions: int) -> list[WeightGroup]:
    place = f"{form.base}.embeddings"
    weights = embedding(f"{place}.word_embeddings", config.number("vocab_size"), width)
    if form.rotary:
        weights += embedding(f"{form.base}.encoder.embed_positions", positions, heads.head_dim)
    else:
        weights += embedding(f"{place}.position_embeddings", positions, width)
    if form.has_types:
        weights += embedding(f"{place}.token_type_embeddings", config.number("type_vocab_size"), width)
    if form.has_embedding_norm:
        weights += norm(f"{place}.LayerNorm", width, bias=True)
    if width != heads.hidden:
        weights += linear(f"{form.base}.embeddings_project", width, heads.hidden, bias=True)
    return weights


def _layers(form: Form, heads: Heads, width: int, layers: Layers) -> list[WeightGroup]:
    layer, hidden = f"{form.base}.encoder.layer.{{}}", heads.hidden
    weights = []
    for name in ("self.query", "self.key", "self.value", "output.dense"):
        weights += linear(f"{layer}.attention.{name}", hidden, hidden, bias=True, layers=layers)
    return [
        *weights,
        *linear(f"{layer}.intermediate.dense", hidden, width, bias=True, layers=layers),
        *linear(f"{layer}.output.dense", width, hidden, bias=True, layers=layers),
        *norms([f"{layer}.{name}" for name in form.layer_norms], hidden, bias=True, layers=layers),
    ]


def _head(config: ConfigReader, form: Form, hidden: int, narrow: int) -> list[WeightGroup]:
    """What stands before the output matrix, and its bias; an untied matrix has one more bias of its own."""
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    if form.head == "electra":
        return [
            *linear("generator_predictions.dense", hidden, narrow, bias=True),
            *norm("generator_predictions.LayerNorm", narrow, bias=True),
            *head("generator_lm_head", narrow, vocab, tied=tied, bias=True),
        ]
    place = "cls.predictions" if form.head == "cls" else "lm_head"
    weights = parameter(f"{place}.bias", (vocab,))
    if form.head == "cls":
        weights += linear(f"{place}.transform.dense", hidden, narrow, bias=True)
        weights += norm(f"{place}.transform.LayerNorm", narrow, bias=True)
    elif form.head == "roberta":
        weights += linear(f"{place}.dense", hidden, hidden, bias=True)
        weights += norm(f"{place}.layer_norm", hidden, bias=True)
    return weights if tied else weights + head(f"{place}.decoder", narrow, vocab, tied=False, bias=True)


READERS = dict.fromkeys(FORMS, bert_like)
