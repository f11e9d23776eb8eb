"""The decoder that most dense families are a variation of: embeddings, layers of attention and one feed-forward between
norms, a final norm, and an output matrix. A family adds its own parts and says which norms and biases it has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import (
    Architecture,
    Heads,
    full_attention_model,
    read_context,
    read_heads,
)
from kvscope.model.modules import attention, embedding, gated_mlp, head, linear, norm, norms
from kvscope.model.spec import CacheKind, WeightGroup

LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The common numbers of such a model. ``base``: the module that holds embeddings and layers in transformers."""

    config: ConfigReader
    num_layers: int
    heads: Heads
    width: int
    vocab: int
    tied: bool
    base: str = "model"

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_layers))

    def path(self, module: str) -> str:
        """The name of a module of every layer."""
        return f"{self.base}.layers.{{}}.{module}"

    def attention(self, *, qkv_bias: bool = False, out_bias: bool = False, out: str = "o_proj") -> list[WeightGroup]:
        heads = self.heads
        return attention(
            self.path("self_attn"),
            heads.hidden,
            heads.q_heads,
            heads.kv_heads,
            heads.head_dim,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            layers=self.layers,
            out=out,
        )

    def gated_mlp(self, *, bias: bool = False) -> list[WeightGroup]:
        return gated_mlp(self.path("mlp"), self.heads.hidden, self.width, bias=bias, layers=self.layers)

    def fused_mlp(self) -> list[WeightGroup]:
        """gate_up_proj and down_proj, without bias."""
        return [
            *linear(self.path("mlp.gate_up_proj"), self.heads.hidden, 2 * self.width, layers=self.layers),
            *linear(self.path("mlp.down_proj"), self.width, self.heads.hidden, layers=self.layers),
        ]

    def plain_mlp(self, up: str = "up_proj", down: str = "down_proj", *, bias: bool = False) -> list[WeightGroup]:
        """Two matrices with an activation between them."""
        return [
            *linear(self.path(f"mlp.{up}"), self.heads.hidden, self.width, bias=bias, layers=self.layers),
            *linear(self.path(f"mlp.{down}"), self.width, self.heads.hidden, bias=bias, layers=self.layers),
        ]

    def norms(self, names: Iterable[str] = LLAMA_NORMS, *, bias: bool = False) -> list[WeightGroup]:
        """Norms as wide as the model, in every layer."""
        return norms([self.path(name) for name in names], self.heads.hidden, bias=bias, layers=self.layers)

    def head_norms(self, *names: str, bias: bool = False) -> list[WeightGroup]:
        """Norms of one head's width, shared by all heads of a layer (q_norm, k_norm)."""
        return norms([self.path(name) for name in names], self.heads.head_dim, bias=bias, layers=self.layers)

    def outer(
        self,
        *,
        final_norm: str | None = "norm",
        norm_bias: bool = False,
        head_bias: bool = False,
        head_rows: int | None = None,
    ) -> list[WeightGroup]:
        """Embeddings, final norm (None: it has no weight), output matrix (``head_rows``: other than the vocabulary)."""
        hidden = self.heads.hidden
        final = [] if final_norm is None else norm(f"{self.base}.{final_norm}", hidden, bias=norm_bias)
        rows = self.vocab if head_rows is None else head_rows
        return [
            *embedding(f"{self.base}.embed_tokens", self.vocab, hidden),
            *final,
            *head("lm_head", hidden, rows, tied=self.tied, bias=head_bias),
        ]

    def model(
        self,
        family: str,
        *weights: Sequence[WeightGroup],
        caches: Sequence[CacheKind] | None = None,
        library: Sequence[CacheKind | None] | None = None,
    ) -> Architecture:
        """The whole model. ``caches``: one per layer, which transformers keeps alike unless ``library`` says otherwise;
        None: full attention, where transformers' cache goes by stray keys of the config."""
        if caches is not None and library is None:
            library = [None] * self.num_layers
        return full_attention_model(
            self.config,
            family,
            self.heads,
            self.num_layers,
            self.width,
            [group for groups in weights for group in groups],
            context=read_context(self.config),
            caches=caches,
            library=library,
        )


def read_decoder(
    config: ConfigReader, *, head_dim_key: bool = True, kv_heads_key: bool = True, rounds_down: bool = False
) -> Decoder:
    """Reads the usual keys. ``head_dim_key``/``kv_heads_key`` False: the class ignores head_dim/num_key_value_heads.
    ``rounds_down``: it takes heads that do not divide hidden_size."""
    return Decoder(
        config=config,
        num_layers=config.num_layers(),
        heads=read_heads(config, head_dim_key=head_dim_key, kv_heads_key=kv_heads_key, rounds_down=rounds_down),
        width=config.number("intermediate_size", field="ffn.width"),
        vocab=config.number("vocab_size"),
        tied=config.flag("tie_word_embeddings"),
    )
