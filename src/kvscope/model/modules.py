"""The modules models are built of, as the tensors they hold: building blocks for model/families/.

Names are those of the module's parameters in transformers; shapes are in PyTorch's order ([out, in] for a linear
layer). A list of groups describes equal tensors of many layers at once.
"""

from collections.abc import Iterable

from kvscope.model.spec import WeightGroup

Layers = tuple[int, ...]


def linear(
    name: str, inputs: int, outputs: int, *, bias: bool = False, layers: Layers = (), part: str = "text"
) -> list[WeightGroup]:
    """A linear layer: weight [outputs, inputs], and a bias."""
    found = [WeightGroup(name=f"{name}.weight", shape=(outputs, inputs), kind="linear", layers=layers, part=part)]
    if bias:
        found.append(WeightGroup(name=f"{name}.bias", shape=(outputs,), kind="other", layers=layers, part=part))
    return found


def conv1d_linear(
    name: str, inputs: int, outputs: int, *, layers: Layers = (), part: str = "text"
) -> list[WeightGroup]:
    """GPT-2's Conv1D: a linear layer with its weight the other way round, always with a bias."""
    return [
        WeightGroup(name=f"{name}.weight", shape=(inputs, outputs), kind="linear", layers=layers, part=part),
        WeightGroup(name=f"{name}.bias", shape=(outputs,), kind="other", layers=layers, part=part),
    ]


def norm(name: str, width: int, *, bias: bool = False, layers: Layers = (), part: str = "text") -> list[WeightGroup]:
    """An RMS norm (weight), or a layer norm (weight and bias)."""
    found = [WeightGroup(name=f"{name}.weight", shape=(width,), kind="norm", layers=layers, part=part)]
    if bias:
        found.append(WeightGroup(name=f"{name}.bias", shape=(width,), kind="norm", layers=layers, part=part))
    return found


def norms(names: Iterable[str], width: int, *, bias: bool = False, layers: Layers = ()) -> list[WeightGroup]:
    """Several norms of one width."""
    return [group for name in names for group in norm(name, width, bias=bias, layers=layers)]


def parameter(
    name: str, shape: tuple[int, ...], *, layers: Layers = (), part: str = "text", dtype: str | None = None
) -> list[WeightGroup]:
    """A tensor that is no linear layer's and no norm's."""
    return [WeightGroup(name=name, shape=shape, kind="other", layers=layers, part=part, dtype=dtype)]


def embedding(name: str, rows: int, width: int, *, part: str = "text") -> list[WeightGroup]:
    """A table of ``rows`` vectors."""
    return [WeightGroup(name=f"{name}.weight", shape=(rows, width), kind="embedding", part=part)]


def conv1d(
    name: str, channels: int, kernel: int, *, bias: bool = False, layers: Layers = (), part: str = "text"
) -> list[WeightGroup]:
    """A depthwise convolution over time: [channels, 1, kernel]."""
    found = [WeightGroup(name=f"{name}.weight", shape=(channels, 1, kernel), kind="conv", layers=layers, part=part)]
    if bias:
        found.append(WeightGroup(name=f"{name}.bias", shape=(channels,), kind="other", layers=layers, part=part))
    return found


def conv(
    name: str, shape: tuple[int, ...], *, bias: bool = True, layers: Layers = (), part: str = "text"
) -> list[WeightGroup]:
    """A convolution of any dimensions: weight [outputs, inputs / groups, ...kernel]."""
    found = [WeightGroup(name=f"{name}.weight", shape=shape, kind="conv", layers=layers, part=part)]
    if bias:
        found.append(WeightGroup(name=f"{name}.bias", shape=shape[:1], kind="other", layers=layers, part=part))
    return found


def attention(
    prefix: str,
    hidden: int,
    q_heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int | None = None,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    layers: Layers = (),
    out: str = "o_proj",
) -> list[WeightGroup]:
    """Queries, keys, values and output as four linear layers: q_proj, k_proj, v_proj, o_proj."""
    value_dim = key_dim if value_dim is None else value_dim
    return [
        *linear(f"{prefix}.q_proj", hidden, q_heads * key_dim, bias=qkv_bias, layers=layers),
        *linear(f"{prefix}.k_proj", hidden, kv_heads * key_dim, bias=qkv_bias, layers=layers),
        *linear(f"{prefix}.v_proj", hidden, kv_heads * value_dim, bias=qkv_bias, layers=layers),
        *linear(f"{prefix}.{out}", q_heads * value_dim, hidden, bias=out_bias, layers=layers),
    ]


def gated_mlp(
    prefix: str, hidden: int, width: int, *, bias: bool = False, layers: Layers = (), part: str = "text"
) -> list[WeightGroup]:
    """gate_proj, up_proj, down_proj."""
    return [
        *linear(f"{prefix}.gate_proj", hidden, width, bias=bias, layers=layers, part=part),
        *linear(f"{prefix}.up_proj", hidden, width, bias=bias, layers=layers, part=part),
        *linear(f"{prefix}.down_proj", width, hidden, bias=bias, layers=layers, part=part),
    ]


def fused_experts(
    prefix: str, num_experts: int, hidden: int, width: int, *, layers: Layers = (), gated: bool = True
) -> list[WeightGroup]:
    """All experts of a layer as two tensors: gate_up_proj [experts, 2 × width, hidden] (or up_proj), down_proj."""
    up = "gate_up_proj" if gated else "up_proj"
    return [
        WeightGroup(
            name=f"{prefix}.{up}",
            shape=(num_experts, (2 if gated else 1) * width, hidden),
            kind="experts",
            layers=layers,
        ),
        WeightGroup(name=f"{prefix}.down_proj", shape=(num_experts, hidden, width), kind="experts", layers=layers),
    ]


def head(name: str, hidden: int, vocab: int, *, tied: bool, bias: bool = False) -> list[WeightGroup]:
    """The output matrix: no weight of its own where it is tied to the embeddings."""
    found = [] if tied else [WeightGroup(name=f"{name}.weight", shape=(vocab, hidden), kind="head")]
    if bias:
        found.append(WeightGroup(name=f"{name}.bias", shape=(vocab,), kind="other"))
    return found
