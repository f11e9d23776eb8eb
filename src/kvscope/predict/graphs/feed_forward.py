"""Feed-forward parts of llama.cpp's graphs: one dense, or a mixture of experts. Orders of b11549, read from recorded
graphs (tests/golden/llamacpp/README.md)."""

from kvscope.predict.graphs.tensor import Graph, Tensor, like, node, view
from kvscope.predict.graphs.traits import Traits
from kvscope.predict.graphs.weights import Block


def dense(block: Block, tensor: Tensor, traits: Traits, suffix: str = "") -> Tensor:
    """Gate and up projections side by side, or up alone; ``suffix`` "_shexp": the experts all tokens share."""
    up, gate, down = f"ffn_up{suffix}", f"ffn_gate{suffix}", f"ffn_down{suffix}"
    if block.has(f"{gate}.weight"):
        opened = block.linear(gate, tensor)
        mixed = like("GLU", opened, block.linear(up, tensor))
    else:
        wide = block.linear(up, tensor)
        half = block.shape(f"{down}.weight")[0]
        if wide.shape[0] == 2 * half:
            mixed = node("GLU", (half, *wide.shape[1:]), wide)
        else:
            mixed = like("UNARY", wide)
            if traits.squared_activation:
                mixed = like("SQR", mixed)
    if block.has("ffn_sub_norm.weight") and not suffix:
        mixed = block.norm("ffn_sub_norm", mixed)
    return block.linear(down, mixed)


def experts(
    graph: Graph, block: Block, tensor: Tensor, used: int, traits: Traits, *, routed: Tensor | None = None
) -> Tensor:
    """The sum of the ``used`` experts chosen for each token, by ``routed`` where that is another row."""
    width, tokens = tensor.shape[0], tensor.shape[1]
    logits = block.linear("ffn_gate_inp", tensor if routed is None else routed)
    num_experts = logits.shape[0]
    late_softmax = traits.gate == "late_softmax"
    chances = logits if late_softmax else like("UNARY" if traits.gate == "sigmoid" else "SOFT_MAX", logits)
    ranked = like("ADD", chances) if block.has("exp_probs_b.bias") else chances
    order = like("ARGSORT", ranked)
    chosen = view(order, used, tokens)
    weights = node("GET_ROWS", (1, used, tokens), view(chances, 1, num_experts, tokens), chosen)
    if late_softmax:
        weights = view(like("SOFT_MAX", view(weights, used, tokens)), 1, used, tokens)
    elif traits.normalised_weights:
        flat = view(weights, used, tokens)
        total = like("CLAMP", node("SUM_ROWS", (1, tokens), flat))
        weights = view(like("DIV", flat, total), 1, used, tokens)
    graph.expand(weights)
    row = view(tensor, width, 1, tokens)
    if traits.weights_before:
        row = like("MUL", node("REPEAT", (width, used, tokens), row), weights)
    down = _expert_rows(block, row, chosen, used, tokens, squared=traits.squared_activation)
    if not traits.weights_before:
        down = like("MUL", down, weights)
    parts = [graph.expand(view(down, width, tokens)) for _ in range(used)]
    total = parts[0]
    for part in parts[1:]:
        total = node("ADD", (width, tokens), total, part)
    if used == 1:
        total = node("CONT", (width, tokens), total)
    return total


def _expert_rows(block: Block, row: Tensor, chosen: Tensor, used: int, tokens: int, *, squared: bool) -> Tensor:
    def apply(name: str, source: Tensor) -> Tensor:
        product = node("MUL_MAT_ID", (block.rows(name), used, tokens), source, chosen)
        return like("ADD_ID", product, chosen) if block.has(f"{name}.bias") else product

    if block.has("ffn_gate_up_exps.weight"):
        both = apply("ffn_gate_up_exps", row)
        half = both.shape[0] // 2
        mixed = node("GLU", (half, used, tokens), view(both, half, used, tokens), view(both, half, used, tokens))
    elif block.has("ffn_gate_exps.weight"):
        opened = apply("ffn_gate_exps", row)
        mixed = like("GLU", opened, apply("ffn_up_exps", row))
    else:
        mixed = like("UNARY", apply("ffn_up_exps", row))
        if squared:
            mixed = like("SQR", mixed)
    return apply("ffn_down_exps", mixed)


def shared_experts(block: Block, tensor: Tensor, traits: Traits) -> Tensor:
    """The experts every token uses, behind a gate of their own where the file has one."""
    found = dense(block, tensor, traits, "_shexp")
    if block.has("ffn_gate_inp_shexp.weight"):
        opened = node("MUL_MAT", (1, *tensor.shape[1:]), tensor)
        gate = like("UNARY", opened)
        found = like("MUL", found, like("DIV", gate, opened) if traits.divided_gate else gate)
    return found
