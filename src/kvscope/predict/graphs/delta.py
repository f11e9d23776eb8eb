"""Layers with a gated delta rule (Qwen3-Next, Qwen3.5, Kimi Linear) in llama.cpp's graphs. Orders of b11549, read from
recorded graphs (tests/golden/llamacpp/README.md)."""

from kvscope.predict.graphs.recurrent import States, convolved
from kvscope.predict.graphs.tensor import Tensor, like, node, view
from kvscope.predict.graphs.weights import Block


def gated_delta_net(states: States, block: Block, row: Tensor, *, repeated: bool) -> Tensor:
    """Returns [hidden, tokens]. ``repeated``: keys are repeated for every value head before the rule."""
    graph, steps, sequences, tokens = states.graph, states.steps, states.sequences, states.tokens
    graph.expand(row)
    kernel, channels = block.shape("ssm_conv1d.weight")
    value_dim = block.shape("ssm_norm.weight")[0]
    inner = block.shape("ssm_out.weight")[0]
    value_heads = inner // value_dim
    key_dim = value_dim
    key_heads = (channels - inner) // (2 * key_dim)
    past = states.load((kernel - 1) * channels)
    joint = block.linear("attn_qkv", row)
    columns = convolved(states, block, past, channels, joint, "ssm_conv1d")
    old = states.load(key_dim * inner)
    mixed = like("UNARY", node("SSM_CONV", (channels, steps, sequences), columns))
    query, key = (_unit(view(mixed, key_dim, key_heads, steps, sequences)) for _ in range(2))
    if repeated and value_heads != key_heads:
        query, key = (_repeated(part, value_heads // key_heads, states) for part in (query, key))
    value = view(mixed, value_dim, value_heads, steps, sequences)
    if block.has("ssm_ba.weight"):
        both = view(block.linear("ssm_ba", row), 2 * value_heads // key_heads, key_heads, steps, sequences)
        part = (value_heads // key_heads, key_heads, steps, sequences)
        decay = node("CONT", (value_heads, steps, sequences), view(both, *part))
        beta = view(like("UNARY", node("CONT", part, view(both, *part))), 1, value_heads, steps, sequences)
    else:
        decay = view(block.linear("ssm_alpha", row), value_heads, steps, sequences)
        beta = like("UNARY", view(block.linear("ssm_beta", row), 1, value_heads, steps, sequences))
    decay = view(like("MUL", like("UNARY", like("ADD", decay))), 1, value_heads, steps, sequences)
    found = node(
        "GATED_DELTA_NET",
        (inner, tokens + key_dim * sequences),
        query,
        key,
        value,
        decay,
        beta,
        view(old, key_dim, value_dim, value_heads, sequences),
    )
    states.keep(found, key_dim, value_dim, value_heads, sequences)
    shape = (value_dim, value_heads, steps, sequences)
    normed = block.norm("ssm_norm", view(found, *shape))
    found = like("MUL", normed, like("UNARY", view(block.linear("attn_gate", row), *shape)))
    found = block.linear("ssm_out", view(found, inner, steps, sequences))
    return view(found, found.shape[0], tokens)


def _unit(heads: Tensor) -> Tensor:
    return like("SCALE", like("RMS_NORM", heads))


def _repeated(heads: Tensor, times: int, states: States) -> Tensor:
    dim, count = heads.shape[0], heads.shape[1]
    flat = view(heads, dim, 1, count, states.tokens)
    return view(
        node("REPEAT", (dim, times, count, states.tokens), flat), dim, times * count, states.steps, states.sequences
    )


def kimi_delta_attention(states: States, block: Block, row: Tensor) -> Tensor:
    """Queries, keys and values are convolved each by itself. Returns [hidden, tokens]."""
    steps, sequences, tokens = states.steps, states.sequences, states.tokens
    dim = block.shape("ssm_norm.weight")[0]
    inner = block.rows("attn_q")
    heads = inner // dim
    kernel = block.shape("ssm_conv1d_q.weight")[0]
    states.graph.expand(row)
    past = states.load(3 * (kernel - 1) * inner)
    columns = [
        convolved(states, block, past, inner, block.linear(f"attn_{part}", row), f"ssm_conv1d_{part}")
        for part in ("q", "k", "v")
    ]
    old = states.load(dim * inner)
    shape = (dim, heads, steps, sequences)
    query, key, value = (
        view(like("UNARY", view(node("SSM_CONV", (inner, steps, sequences), part), inner, tokens)), *shape)
        for part in columns
    )
    query, key = _unit(query), _unit(key)
    decay = like("ADD", block.linear("ssm_f_b", block.linear("ssm_f_a", row)))
    decay = view(node("MUL", (dim, heads, tokens), view(like("UNARY", decay), dim, heads, tokens)), *shape)
    beta = like("UNARY", view(block.linear("ssm_beta", row), 1, heads, steps, sequences))
    found = node(
        "GATED_DELTA_NET",
        (inner, tokens + dim * sequences),
        query,
        key,
        value,
        decay,
        beta,
        view(old, dim, dim, heads, sequences),
    )
    states.keep(found, dim, dim, heads, sequences)
    kept = view(node("CONT", shape, view(found, *shape)), dim, heads, tokens)
    gate = view(block.linear("ssm_g_b", block.linear("ssm_g_a", view(row, *row.shape))), dim, heads, tokens)
    found = like("MUL", block.norm("ssm_norm", kept), like("UNARY", gate))
    return block.linear("attn_output", node("CONT", (inner, tokens), found))
