"""A whole graph of llama.cpp: embeddings, layers, logits. Orders of b11549, read from recorded graphs."""

from dataclasses import dataclass
from typing import Literal

from kvscope.model.spec import StateForm
from kvscope.predict.graphs.attention import CacheInput, Run, attend, cache_input
from kvscope.predict.graphs.delta import gated_delta_net, kimi_delta_attention
from kvscope.predict.graphs.feed_forward import dense, experts, shared_experts
from kvscope.predict.graphs.gemma3n import Gemma3nLayers
from kvscope.predict.graphs.gemma4 import LayerRows, mixed_feed_forward
from kvscope.predict.graphs.recurrent import States, mamba, mamba2, short_convolution
from kvscope.predict.graphs.rwkv import RwkvLayers
from kvscope.predict.graphs.tensor import INDEX_BYTES, Graph, Tensor, UnknownGraph, like, node, source, view
from kvscope.predict.graphs.traits import Norm, Traits
from kvscope.predict.graphs.weights import Block, Shapes

Recurrent = StateForm | Literal[""]


# Llama 4: every so many-th layer is not turned by positions; without chunks only the last is not.
UNTURNED_EVERY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer as the graph sees it: heads of its attention (0: none), whether it uses the window's cache, whether it
    has keys and values of its own, experts used per token."""

    index: int
    q_heads: int = 0
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    is_windowed: bool = False
    is_shared: bool = False
    is_latent: bool = False
    experts_used: int = 0
    recurrent: Recurrent = ""
    state_elements: int = 0


class Decoder:
    """The graph of one microbatch, built layer by layer."""

    def __init__(
        self, shapes: Shapes, layers: list[Layer], run: Run, traits: Traits, hidden: int, vocab: int, num_layers: int
    ) -> None:
        self.shapes = shapes
        self.layers = layers
        self.num_layers = num_layers
        self.run = run
        self.traits = traits
        self.hidden = hidden
        self.vocab = vocab
        self.graph = Graph()
        self.model = Block(shapes, "")
        self.positions = source(run.tokens * traits.positions_per_token, element_bytes=4)
        self.out_ids = source(run.outputs, element_bytes=4)
        self.layer_rows: LayerRows | None = None
        self.first: Tensor | None = None
        self._scale: Tensor | None = None
        self.has_windows = any(layer.is_windowed for layer in layers)
        has_shift = f"blk.{layers[0].index}.attn_norm.bias" in shapes
        self.norm: Norm = traits.norm or ("NORM" if has_shift else "RMS_NORM")
        self.states = States(self.graph, run)
        self.caches: dict[bool, CacheInput] = {}

    def build(self) -> Graph:
        hidden = self._embeddings()
        if self.layers[0].recurrent == "rwkv":
            return self._rwkv(hidden)
        if self.model.has("altup_proj.weight"):
            return self._gemma3n(hidden)
        self.first = hidden
        for layer in self.layers:
            hidden = self._layer(layer, hidden, is_last=layer is self.layers[-1])
        self._logits(hidden)
        return self.graph

    def _rwkv(self, hidden: Tensor) -> Graph:
        states = self.states
        head_size = self.layers[0].state_elements // self.hidden
        is_seventh = self.model.has(f"blk.{self.layers[0].index}.time_mix_a1.weight")
        rwkv = RwkvLayers(states, head_size, is_seventh=is_seventh)
        hidden = view(hidden, self.hidden, states.steps, states.sequences)
        for layer in self.layers:
            chosen = self._chosen if layer is self.layers[-1] else None
            hidden = rwkv.layer(Block(self.shapes, f"blk.{layer.index}."), hidden, chosen)
        self._logits(hidden)
        return self.graph

    def _gemma3n(self, hidden: Tensor) -> Graph:
        side = Block(self.shapes, f"blk.{self.layers[0].index}.").rows("inp_gate")
        gemma = Gemma3nLayers(self.graph, self.model, side, self.run.tokens)
        stacked = gemma.start(hidden)
        for layer in self.layers:
            block = Block(self.shapes, f"blk.{layer.index}.")

            def attention(row: Tensor, layer: Layer = layer, block: Block = block) -> Tensor:
                return self._attention(layer, block, row)

            stacked = gemma.layer(layer.index, block, stacked, attention)
        self._logits(self._chosen(gemma.finish(stacked)))
        return self.graph

    def _embeddings(self) -> Tensor:
        """The rows of the tokens. llama.cpp also keeps room for rows given as embeddings, mixed in by index."""
        tokens = self.run.tokens
        if self.model.has("per_layer_token_embd.weight") and not self.model.has("altup_proj.weight"):
            side = Block(self.shapes, f"blk.{self.layers[0].index}.").rows("inp_gate")
            self.layer_rows = LayerRows(self.graph, self.model, side, tokens)
        found = node("GET_ROWS", (self.hidden, tokens), source(tokens, element_bytes=4))
        self.graph.expand(found)
        mixed = node("GET_ROWS", (self.hidden, tokens), source(tokens, element_bytes=4))
        self.graph.expand(mixed)
        self.graph.expand(source(self.hidden, tokens))
        slots = source(tokens, element_bytes=INDEX_BYTES)
        room = node("DUP", (self.hidden, tokens), source(self.hidden, tokens))
        self.graph.expand(Tensor("SET_ROWS", room.shape, (mixed, slots, room), view_of=room))
        if self.traits.scaled_input:
            found = like("MUL", found, source(1, tokens)) if self.traits.scaled_rows else like("SCALE", found)
        if self.model.has("position_embd.weight"):
            found = like("ADD", found, node("GET_ROWS", (self.hidden, tokens), self.positions))
        if self.model.has("token_embd_norm.weight") and self.model.has("output_norm.weight"):
            found = self.model.norm("token_embd_norm", found, self.norm)
        return found

    def _cache(self, layer: Layer) -> CacheInput:
        found = self.caches.get(layer.is_windowed)
        if found is None:
            run = self.run
            cells = run.window_cells if layer.is_windowed and run.window_cells is not None else run.cells
            widest = 0 if layer.is_latent else max(each.kv_heads * each.value_dim for each in self.layers)
            found = self.caches[layer.is_windowed] = cache_input(run, cells, widest)
        return found

    def _layer(self, layer: Layer, hidden: Tensor, *, is_last: bool) -> Tensor:
        block, traits = Block(self.shapes, f"blk.{layer.index}.", layer.state_elements), self.traits
        has_norm = traits.bare_norm or block.has("attn_norm.weight")
        row = block.norm("attn_norm", hidden, self.norm) if has_norm else hidden
        if not layer.q_heads and not layer.recurrent:
            return self._feed_forward_alone(layer, block, hidden, row, is_last=is_last)
        if layer.recurrent and not layer.q_heads:
            found = self._recurrent(layer, block, row)
        else:
            found = self._attention(layer, block, row)
            if traits.parallel:
                return self._parallel(layer, block, hidden, row, found, is_last=is_last)
            second = self._recurrent(layer, block, block.norm("attn_norm", hidden)) if layer.recurrent else None
            if block.has("attn_sub_norm.weight"):
                found = block.norm("attn_sub_norm", found)
            found = block.linear("attn_output", found)
            if second is not None:
                found = like("ADD", found, second)
        if is_last and not traits.chosen_after:
            found, hidden, row = self._chosen(found), self._chosen(hidden), self._chosen(row)
        if traits.scaled_residual:
            found = like("SCALE", found)
        before = "ffn_norm"
        if block.has("post_attention_norm.weight"):
            if block.has("ffn_norm.weight") or block.has("post_ffw_norm.weight"):
                found = block.norm("post_attention_norm", found, self.norm)
            else:
                before = "post_attention_norm"
        middle = like("ADD", hidden, found) if traits.hidden_first else like("ADD", found, hidden)
        if is_last and traits.chosen_after:
            middle = self._chosen(middle)
        if block.has("ffn_norm_exps.weight"):
            return self._experts_beside(layer, block, hidden, middle)
        if not self._has_feed_forward(block) and not block.has("ffn_norm.weight"):
            return middle
        if block.has("attn_output_norm.weight"):
            before = "attn_output_norm"
        if traits.bare_norm:
            row = like(self.norm, middle)
        elif block.has(before):
            row = like("MUL", like("RMS_NORM", middle))
        elif block.has(f"{before}.weight"):
            row = block.norm(before, middle, self.norm)
        elif block.has("post_ffw_norm.weight"):
            row = middle
        if block.has("pre_ffw_norm_2.weight"):
            found = mixed_feed_forward(self.graph, block, middle, layer.experts_used, traits)
        else:
            found = self._feed_forward(layer, block, row)
        if traits.scaled_residual:
            found = like("SCALE", found)
        if block.has("post_ffw_norm.weight"):
            found = block.norm("post_ffw_norm", found, self.norm)
        found = like("ADD", middle, found) if traits.hidden_first == "both" else like("ADD", found, middle)
        if self.layer_rows is not None and self.first is not None:
            found = self.layer_rows.add(block, found, self.first, self._chosen if is_last else None)
        return like("MUL", found) if block.has("layer_output_scale.weight") else found

    def _experts_beside(self, layer: Layer, block: Block, hidden: Tensor, middle: Tensor) -> Tensor:
        """Arctic: a dense feed-forward after attention, and experts beside both."""
        row = block.norm("ffn_norm_exps", hidden)
        found = experts(self.graph, block, row, layer.experts_used, self.traits)
        plain = dense(block, block.norm("ffn_norm", middle, self.norm), self.traits)
        return like("ADD", found, like("ADD", plain, middle))

    def _feed_forward_alone(self, layer: Layer, block: Block, hidden: Tensor, row: Tensor, *, is_last: bool) -> Tensor:
        found = self._feed_forward(layer, block, row)
        if is_last:
            found, hidden = self._chosen(found), self._chosen(hidden)
        return like("ADD", found, hidden)

    @staticmethod
    def _has_feed_forward(block: Block) -> bool:
        return any(block.has(f"{name}.weight") for name in ("ffn_up", "ffn_up_exps", "ffn_gate_up_exps"))

    def _recurrent(self, layer: Layer, block: Block, row: Tensor) -> Tensor:
        match layer.recurrent:
            case "mamba":
                return mamba(self.states, block, row)
            case "mamba2":
                return mamba2(self.states, block, row)
            case "short_conv":
                return short_convolution(self.states, block, row)
            case "gated_delta_net":
                return gated_delta_net(self.states, block, row, repeated=self.traits.repeated_keys)
            case "kda":
                return kimi_delta_attention(self.states, block, row)
            case _:
                raise UnknownGraph(layer.recurrent)

    def _parallel(
        self, layer: Layer, block: Block, hidden: Tensor, row: Tensor, found: Tensor, *, is_last: bool
    ) -> Tensor:
        found = block.linear("attn_output", found)
        if is_last:
            found, hidden, row = self._chosen(found), self._chosen(hidden), self._chosen(row)
        return like("ADD", like("ADD", self._feed_forward(layer, block, row), hidden), found)

    def _chosen(self, tensor: Tensor) -> Tensor:
        return node("GET_ROWS", (tensor.shape[0], self.run.outputs), tensor, self.out_ids)

    def _feed_forward(self, layer: Layer, block: Block, row: Tensor) -> Tensor:
        traits = self.traits
        if not layer.experts_used or not block.has("ffn_gate_inp.weight"):
            # A feed-forward without weights is its activation alone.
            return dense(block, row, traits) if self._has_feed_forward(block) else like("UNARY", row)
        found = experts(self.graph, block, row, layer.experts_used, traits)
        if traits.experts_first:
            self.graph.expand(found)
        if block.has("ffn_up_shexp.weight"):
            found = like("ADD", found, shared_experts(block, row, traits))
        elif traits.always_shared:
            found = like("ADD", found, like("UNARY", row))  # a shared expert without weights is its activation alone
        return found

    def _attention(self, layer: Layer, block: Block, row: Tensor) -> Tensor:
        tokens, traits = self.run.tokens, self.traits
        if layer.is_latent:
            return self._latent(layer, block, row)
        if block.has("attn_kv_a_mqa.weight"):
            return self._expanded(layer, block, row)
        gated: Tensor | None = None
        key: Tensor | None = None
        value: Tensor | None = None
        if block.has("attn_qkv.weight"):
            joint = block.linear("attn_qkv", row)
            if traits.clamped_heads:
                joint = like("CLAMP", joint)
            query = view(joint, layer.key_dim, layer.q_heads, tokens)
            key = view(joint, layer.key_dim, layer.kv_heads, tokens)
            value = view(joint, layer.value_dim, layer.kv_heads, tokens)
        else:
            if block.rows("attn_q") == 2 * layer.q_heads * layer.key_dim:
                gated = block.linear("attn_q", row)
                query = view(gated, layer.key_dim, layer.q_heads, tokens)
            else:
                query = self._heads(block, "attn_q", row, layer.key_dim, layer.q_heads)
            if not layer.is_shared:
                key = self._heads(block, "attn_k", row, layer.key_dim, layer.kv_heads)
                value = self._values(layer, block, row, key)
        query = self._turned(layer, block, "attn_q_norm", query)
        key = self._turned(layer, block, "attn_k_norm", key) if key is not None else None
        if traits.scaled_query:
            query = like("SCALE", query)
        found = attend(
            self.graph,
            self.run,
            self._cache(layer),
            query,
            key,
            value,
            key_first=traits.key_first and self.has_windows,
            softcap=traits.softcap,
            value_dim=layer.value_dim,
        )
        if gated is not None:
            gate = node("CONT", found.shape, view(gated, layer.key_dim, layer.q_heads, tokens))
            found = like("MUL", found, like("UNARY", gate))
        return found

    def _values(self, layer: Layer, block: Block, row: Tensor, key: Tensor) -> Tensor:
        """The layer's values; where it has no matrix for them, the keys before they are normalised and turned."""
        heads = (layer.value_dim, layer.kv_heads, self.run.tokens)
        value = view(block.linear("attn_v", row) if block.has("attn_v.weight") else key.sources[0], *heads)
        return like("RMS_NORM", value) if self.traits.bare_value_norm else value

    def _heads(self, block: Block, name: str, row: Tensor, dim: int, heads: int) -> Tensor:
        found = block.linear(name, row)
        norm = f"{name}_norm"
        if block.has(f"{norm}.weight") and block.shape(f"{norm}.weight")[0] == dim * heads and heads > 1:
            found = block.norm(norm, found)
        return view(found, dim, heads, self.run.tokens)

    def _turned(self, layer: Layer, block: Block, norm: str, tensor: Tensor) -> Tensor:
        """The heads normalised and turned by their positions, in the architecture's order."""
        traits = self.traits
        turned = self._is_turned(layer)
        if traits.bare_head_norm:
            if turned:
                return like("RMS_NORM", like("ROPE", tensor, self.positions))
            return like("MUL", tensor, self._temperature()) if norm == "attn_q_norm" else tensor
        has_norm = block.has(f"{norm}.weight") and block.shape(f"{norm}.weight")[0] == tensor.shape[0]
        if has_norm and not traits.head_norm_after_rope:
            tensor = block.norm(norm, tensor)
        if turned:
            tensor = like("ROPE", tensor, self.positions)
        if has_norm and traits.head_norm_after_rope:
            tensor = block.norm(norm, tensor)
        return tensor

    def _is_turned(self, layer: Layer) -> bool:
        match self.traits.rope:
            case "windowed":
                return layer.is_windowed or not self.has_windows
            case "three_of_four":
                every = UNTURNED_EVERY if self.has_windows else self.num_layers
                return (layer.index + 1) % every != 0
            case rope:
                return rope == "all"

    def _temperature(self) -> Tensor:
        """The input that scales queries by their position."""
        if self._scale is None:
            self._scale = source(1, 1, self.run.tokens)
        return self._scale

    def _latent(self, layer: Layer, block: Block, row: Tensor) -> Tensor:
        """Attention over latents: the query is brought into the latent's space, one key serves all heads."""
        tokens, heads = self.run.tokens, layer.q_heads
        query = self._low_rank_query(block, row)
        latent = block.shape("attn_kv_a_norm.weight")[0]
        rope = block.rows("attn_kv_a_mqa") - latent
        plain = query.shape[0] // heads - rope
        query = view(query, plain + rope, heads, tokens)
        absorbed = node("MUL_MAT", (latent, tokens, heads), view(query, plain, tokens, heads))
        turned = self._positioned(layer, view(query, rope, heads, tokens))
        query = node("CONCAT", (latent + rope, heads, tokens), view(absorbed, latent, heads, tokens), turned)
        joint = block.linear("attn_kv_a_mqa", row)
        value = view(block.norm("attn_kv_a_norm", view(joint, latent, tokens)), latent, 1, tokens)
        key = node("CONCAT", (latent + rope, 1, tokens), value, self._positioned(layer, view(joint, rope, 1, tokens)))
        if self.traits.scaled_query:
            query = like("SCALE", query)
        return attend(
            self.graph, self.run, self._cache(layer), query, key, value, latent_out=block.shape("attn_v_b.weight")[1]
        )

    def _low_rank_query(self, block: Block, row: Tensor) -> Tensor:
        if not block.has("attn_q_a.weight"):
            return block.linear("attn_q", row)
        return block.linear("attn_q_b", block.norm("attn_q_a_norm", block.linear("attn_q_a", row)))

    def _positioned(self, layer: Layer, tensor: Tensor) -> Tensor:
        return tensor if self.traits.rope == "none" else node("ROPE", tensor.shape, tensor, self.positions)

    def _expanded(self, layer: Layer, block: Block, row: Tensor) -> Tensor:
        """Latent attention whose keys and values are expanded per head and kept so."""
        tokens, heads = self.run.tokens, layer.q_heads
        query = self._positioned(layer, view(self._low_rank_query(block, row), layer.key_dim, heads, tokens))
        joint = block.linear("attn_kv_a_mqa", row)
        latent = block.shape("attn_kv_a_norm.weight")[0]
        rope = joint.shape[0] - latent
        both = block.linear("attn_kv_b", block.norm("attn_kv_a_norm", view(joint, latent, tokens)))
        value = node("CONT", (layer.value_dim, heads, tokens), view(both, layer.value_dim, heads, tokens))
        turned = node("REPEAT", (rope, heads, tokens), self._positioned(layer, view(joint, rope, 1, tokens)))
        plain = view(both, layer.key_dim - rope, heads, tokens)
        key = node("CONCAT", (layer.key_dim, heads, tokens), plain, turned)
        return attend(self.graph, self.run, self._cache(layer), query, key, value)

    def _logits(self, hidden: Tensor) -> None:
        name = "output_norm" if self.model.has("output_norm.weight") else "token_embd_norm"
        found = self.model.norm(name, hidden, self.norm)
        found.is_output = True
        if self.traits.scaled_logits == "before":
            found = like("SCALE", found)
        found = node("MUL_MAT", (self.vocab, found.shape[1]), found)
        if self.model.has("output.bias"):
            found = like("ADD", found)
        if self.traits.scaled_logits == "after":
            found = like("SCALE", found)
        if self.traits.logit_softcap:
            found = like("SCALE", like("UNARY", like("SCALE", found)))
        found.is_output = True
        self.graph.expand(found)
