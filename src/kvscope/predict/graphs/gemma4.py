"""What Gemma 4 has beside a plain layer in llama.cpp's graphs: a row of every token for each layer, and experts beside
the dense feed-forward. Orders of b11549, read from recorded graphs (tests/golden/llamacpp/README.md)."""

from collections.abc import Callable

from kvscope.predict.graphs.feed_forward import dense, experts
from kvscope.predict.graphs.tensor import Graph, Tensor, like, node, source, view
from kvscope.predict.graphs.traits import Traits
from kvscope.predict.graphs.weights import Block


class LayerRows:
    """The rows that each layer adds at its end; ``side``: their width."""

    def __init__(self, graph: Graph, model: Block, side: int, tokens: int) -> None:
        self.model = model
        self.side = side
        self.tokens = tokens
        width = model.shape("per_layer_token_embd.weight")[0]
        self.num_layers = width // side
        self._chosen = graph.expand(node("GET_ROWS", (width, tokens), source(tokens, element_bytes=4)))
        self._made: Tensor | None = None

    def add(self, block: Block, hidden: Tensor, first: Tensor, chosen: Callable[[Tensor], Tensor] | None) -> Tensor:
        """``hidden`` with the layer's row added. ``first``: the model's first rows; ``chosen``: takes the rows that are
        put out, in the last layer."""
        gate = like("UNARY", block.linear("inp_gate", hidden))
        if self._made is None:
            shape = (self.side, self.num_layers, self.tokens)
            projected = like("SCALE", node("MUL_MAT", self._chosen.shape, first))
            normed = self.model.norm("per_layer_proj_norm", view(projected, *shape))
            mixed = like("SCALE", like("ADD", normed, view(like("SCALE", self._chosen), *shape)))
            shape = (self.side, self.tokens, self.num_layers)
            self._made = node("CONT", shape, view(mixed, *shape))
        row = view(self._made, self.side, self.tokens)
        if chosen is not None:
            row = chosen(row)
        found = block.norm("post_norm", block.linear("proj", like("MUL", gate, row)))
        return like("ADD", hidden, found)


def mixed_feed_forward(graph: Graph, block: Block, hidden: Tensor, used: int, traits: Traits) -> Tensor:
    """Experts and the dense feed-forward side by side, each normalised before and after."""
    routed = like("MUL", like("SCALE", like("RMS_NORM", hidden)))
    found = graph.expand(experts(graph, block, block.norm("pre_ffw_norm_2", hidden), used, traits, routed=routed))
    plain = block.norm("post_ffw_norm_1", dense(block, block.norm("ffn_norm", hidden), traits))
    return like("ADD", plain, block.norm("post_ffw_norm_2", found))
