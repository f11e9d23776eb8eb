"""Recurrent layers of llama.cpp's graphs: Mamba 1 and 2 and the short convolution. Orders of b11549, read from recorded
graphs (tests/golden/llamacpp/README.md). Tokens are cut into as many equal parts as there are sequences."""

from kvscope.predict.graphs.attention import Run
from kvscope.predict.graphs.tensor import Graph, Tensor, into_cache, like, node, source, view
from kvscope.predict.graphs.weights import Block


class States:
    """The recurrent states of all sequences: the input that says which one each sequence goes on from."""

    def __init__(self, graph: Graph, run: Run) -> None:
        self.graph = graph
        self.sequences = run.sequences
        self.tokens = run.tokens
        self.steps = run.tokens // run.sequences
        self.copies = source(run.sequences, element_bytes=4)
        self.main_copies = view(self.copies, run.sequences)
        self.other_copies = view(self.copies, run.sequences - 1)

    def load(self, width: int) -> Tensor:
        """The states of ``width`` elements, one per sequence; what is left over is put back."""
        rows = node("GET_ROWS", (width, self.sequences), self.copies)
        main = self.graph.expand(view(rows, width, self.sequences))
        self.graph.expand(into_cache(view(rows, width, 0)))
        return main

    def keep(self, tensor: Tensor, *sizes: int) -> None:
        """Writes a part of ``tensor`` back as the new state."""
        self.graph.expand(into_cache(view(tensor, *sizes)))

    def scan(self, width: int, elements: int, *sources: Tensor) -> Tensor:
        """A selective scan giving ``elements`` outputs and behind them the new states of ``width`` elements."""
        found = node("SSM_SCAN", (elements + width * self.sequences,), *sources, self.main_copies)
        self.graph.expand(found)
        others = node("GET_ROWS", (width, self.sequences - 1), self.other_copies)
        self.graph.expand(into_cache(view(others, width, 0)))
        self.keep(found, width, self.sequences)
        return found


def convolved(states: States, block: Block, past: Tensor, channels: int, rows: Tensor, name: str) -> Tensor:
    """``rows`` behind the ``past`` columns, convolved; the last columns become the new state."""
    kernel = block.shape(f"{name}.weight")[0]
    steps, sequences = states.steps, states.sequences
    columns = node(
        "CONCAT",
        (kernel - 1 + steps, channels, sequences),
        view(past, kernel - 1, channels, sequences),
        view(rows, steps, channels, sequences),
    )
    states.keep(columns, kernel - 1, channels, sequences)
    return columns


def mamba(states: States, block: Block, row: Tensor) -> Tensor:
    """Mamba 1. Returns [hidden, tokens]."""
    steps, sequences = states.steps, states.sequences
    kernel, inner = block.shape("ssm_conv1d.weight")
    state = block.shape("ssm_a")[0]
    past = states.load((kernel - 1) * inner)
    both = block.linear("ssm_in", view(row, row.shape[0], steps, sequences))
    columns = convolved(states, block, past, inner, view(both, inner, steps, sequences), "ssm_conv1d")
    mixed = node("SSM_CONV", (inner, steps, sequences), columns)
    if block.has("ssm_conv1d.bias"):
        mixed = like("ADD", mixed)
    mixed = like("UNARY", mixed)
    joint = block.linear("ssm_x", mixed)
    rank = block.shape("ssm_dt.weight")[0]
    step = view(joint, rank, steps, sequences)
    inward, outward = (view(joint, state, 1, steps, sequences) for _ in range(2))
    if block.has("ssm_dt_norm.weight"):
        step, inward, outward = (
            block.norm(name, part)
            for name, part in (("ssm_dt_norm", step), ("ssm_b_norm", inward), ("ssm_c_norm", outward))
        )
    else:
        step = like("CONT", step)
    step = block.linear("ssm_dt", step)
    heads = view(mixed, 1, inner, steps, sequences)
    found = states.scan(state * inner, inner * states.tokens, heads, step, inward, outward)
    gate = node("CONT", (inner, steps, sequences), view(both, inner, steps, sequences))
    summed = node("ADD", mixed.shape, view(found, *mixed.shape), like("MUL", mixed))
    found = block.linear("ssm_out", like("GLU", gate, summed))
    return view(found, found.shape[0], states.tokens)


def mamba2(states: States, block: Block, row: Tensor) -> Tensor:
    """Mamba 2. Returns [hidden, tokens]."""
    steps, sequences, tokens = states.steps, states.sequences, states.tokens
    kernel, channels = block.shape("ssm_conv1d.weight")
    heads = block.shape("ssm_a")[-1]
    inner = block.shape("ssm_out.weight")[0]
    groups_state = (channels - inner) // 2
    groups = block.shape("ssm_norm.weight")[1] if block.has("ssm_norm.weight") else 1
    past = states.load((kernel - 1) * channels)
    joint = block.linear("ssm_in", row)
    joint = view(joint, joint.shape[0], steps, sequences)
    columns = convolved(states, block, past, channels, view(joint, channels, steps, sequences), "ssm_conv1d")
    mixed = node("SSM_CONV", (channels, steps, sequences), columns)
    if block.has("ssm_conv1d.bias"):
        mixed = like("ADD", mixed)
    mixed = like("UNARY", mixed)
    head_shape = (inner // heads, heads, steps, sequences)
    entered = view(mixed, *head_shape)
    step = like("ADD", node("CONT", (heads, steps, sequences), view(joint, heads, steps, sequences)))
    inward, outward = (view(mixed, groups_state, 1, steps, sequences) for _ in range(2))
    state = block.state_elements
    found = states.scan(state, inner * tokens, entered, step, inward, outward)
    gate = node("CONT", head_shape, view(joint, *head_shape))
    summed = node("ADD", head_shape, view(found, *head_shape), node("MUL", head_shape, entered))
    found = node("GLU", head_shape, gate, summed)
    if block.has("ssm_norm.weight"):
        found = block.norm("ssm_norm", view(found, inner // groups, groups, steps, sequences))
    return block.linear("ssm_out", view(found, inner, tokens))


def short_convolution(states: States, block: Block, row: Tensor) -> Tensor:
    """LFM2's gated short convolution. Returns [hidden, tokens]."""
    steps, sequences = states.steps, states.sequences
    kernel, channels = block.shape("shortconv.conv.weight")
    past = states.load((kernel - 1) * channels)
    shape = (channels, steps, sequences)
    joint = block.linear("shortconv.in_proj", view(row, row.shape[0], steps, sequences))
    gated = node("MUL", shape, view(joint, *shape), view(joint, *shape))
    columns = convolved(states, block, past, channels, gated, "shortconv.conv")
    found = node("MUL", shape, view(joint, *shape), node("SSM_CONV", shape, columns))
    found = block.linear("shortconv.out_proj", found)
    return view(found, found.shape[0], states.tokens)
