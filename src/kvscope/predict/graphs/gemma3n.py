"""Gemma 3n in llama.cpp's graphs: several copies of every row (AltUp), a low-rank side path (LAuReL), embeddings for
each layer. Orders of b11549, read from recorded graphs (tests/golden/llamacpp/README.md)."""

from collections.abc import Callable

from kvscope.predict.graphs.tensor import Graph, Tensor, like, node, source, view
from kvscope.predict.graphs.weights import Block

SPARSE_LAYERS = 10  # the first so many keep only the strongest of their feed-forward rows


class Gemma3nLayers:
    """``side``: width of the rows that each layer has for itself. ``attention``: a layer's own, of one row, up to and
    without the output matrix."""

    def __init__(self, graph: Graph, model: Block, side: int, tokens: int) -> None:
        self.graph = graph
        self.model = model
        self.tokens = tokens
        self.side = side
        self.num_layers = model.shape("per_layer_token_embd.weight")[0] // side
        self.copies = 0
        self.per_layer: Tensor | None = None

    def start(self, rows: Tensor) -> Tensor:
        """The stacked copies [hidden, tokens, copies] of the first ``rows``, and the rows for each layer."""
        hidden, tokens = rows.shape[:2]
        self.graph.expand(rows)
        chosen = node("GET_ROWS", (self.side * self.num_layers, tokens), source(tokens, element_bytes=4))
        shape = (self.side, self.num_layers, tokens)
        chosen = self.graph.expand(like("SCALE", view(chosen, *shape)))
        self._chosen = chosen
        self._rows = rows
        self.copies = 1 + self.model.shape("altup_proj.weight")[2]
        wide = node(
            "MUL_MAT", (hidden, tokens, self.copies - 1), node("REPEAT", (hidden, tokens, self.copies - 1), rows)
        )
        magnitude = like("SQRT", node("SUM_ROWS", (1, tokens), like("SQR", rows)))
        scaled = like("MUL", wide, magnitude)
        other = like("SQRT", node("SUM_ROWS", (1, tokens, self.copies - 1), like("SQR", wide)))
        return node("CONCAT", (hidden, tokens, self.copies), rows, like("DIV", scaled, other))

    def _layer_rows(self) -> Tensor:
        """One row of every token for each layer, made once, where the first layer needs it."""
        if self.per_layer is None:
            shape = (self.side, self.num_layers, self.tokens)
            projected = node("MUL_MAT", (self.side * self.num_layers, self.tokens), self._rows)
            normed = self.model.norm("per_layer_proj_norm", view(like("SCALE", projected), *shape))
            mixed = like("SCALE", like("ADD", normed, self._chosen))
            shape = (self.side, self.tokens, self.num_layers)
            self.per_layer = node("CONT", shape, view(mixed, *shape))
        return view(self.per_layer, self.side, self.tokens)

    def layer(self, index: int, block: Block, stacked: Tensor, attention: Callable[[Tensor], Tensor]) -> Tensor:
        hidden, tokens, copies = stacked.shape[:3]
        predicted = self._predict(block, stacked)
        active = view(predicted, hidden, tokens)
        row = block.norm("attn_norm", active)
        found = block.norm("post_attention_norm", block.linear("attn_output", attention(row)))
        gated = like("ADD", found, active)
        low = block.norm("laurel_post_norm", block.linear("laurel_r", block.linear("laurel_l", row)))
        middle = like("SCALE", like("ADD", gated, like("ADD", low, row)))
        wide = self._feed_forward(index, block, block.norm("ffn_norm", middle))
        gated = like("ADD", block.norm("post_ffw_norm", wide), middle)
        corrected = self._correct(block, gated, predicted)
        first = view(corrected, hidden, tokens)
        rest = view(corrected, hidden, tokens, copies - 1)
        side = like("MUL", view(corrected, hidden, tokens)) if block.has("altup_correct_scale.weight") else first
        side = like("UNARY", block.linear("inp_gate", side))
        side = like("MUL", side, self._layer_rows())
        side = block.norm("post_norm", block.linear("proj", side))
        return node("CONCAT", stacked.shape, first, like("ADD", rest, side))

    def _modalities(self, block: Block, row: Tensor) -> Tensor:
        return like("UNARY", block.linear("altup_router", like("SCALE", block.norm("altup_router_norm", row))))

    def _predict(self, block: Block, stacked: Tensor) -> Tensor:
        hidden, tokens, copies = stacked.shape[:3]
        active = view(stacked, hidden, tokens)
        weights = block.linear("altup_predict_coef", self._modalities(block, active))
        turned = node("CONT", (copies, hidden, tokens), view(stacked, copies, hidden, tokens))
        mixed = node("MUL_MAT", (hidden, copies, tokens), turned, view(weights, copies, copies, tokens))
        back = node("CONT", stacked.shape, view(mixed, *stacked.shape))
        return like("ADD", back, stacked)

    def _correct(self, block: Block, row: Tensor, predicted: Tensor) -> Tensor:
        hidden, tokens, copies = predicted.shape[:3]
        change = like("SUB", row, view(predicted, hidden, tokens))
        spread = node("REPEAT", predicted.shape, change)
        weights = like("SCALE", block.linear("altup_correct_coef", self._modalities(block, row)))
        weights = node("CONT", (1, tokens, copies), view(weights, tokens, copies))
        return like("ADD", like("MUL", spread, weights), predicted)

    def _feed_forward(self, index: int, block: Block, row: Tensor) -> Tensor:
        up = block.linear("ffn_up", row)
        gate = block.linear("ffn_gate", row)
        if index < SPARSE_LAYERS:
            mean = node("MEAN", (1, self.tokens), gate)
            spread = node("SUM_ROWS", (1, self.tokens), like("SQR", like("SUB", gate, mean)))
            cutoff = like("ADD", mean, like("SCALE", like("SQRT", like("SCALE", spread))))
            gate = like("UNARY", like("SUB", gate, cutoff))
        return block.linear("ffn_down", like("MUL", up, like("UNARY", gate)))

    def finish(self, stacked: Tensor) -> Tensor:
        """One row of every token again, from all copies."""
        hidden, tokens, copies = stacked.shape[:3]
        rest = view(stacked, hidden, tokens, copies - 1)
        first = view(stacked, hidden, tokens)
        wide = node("MUL_MAT", rest.shape, rest)
        magnitude = like("SQRT", node("SUM_ROWS", (1, tokens), like("SQR", first)))
        scaled = like("MUL", wide, magnitude)
        other = like("SQRT", node("SUM_ROWS", (1, tokens, copies - 1), like("SQR", wide)))
        wide = like("DIV", scaled, other)
        total = view(stacked, hidden, tokens)
        for _ in range(copies - 1):
            total = like("ADD", total, view(wide, hidden, tokens))
        return like("SCALE", total)
