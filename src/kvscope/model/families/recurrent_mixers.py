"""What stands in attention's place in recurrent layers: the state each keeps and the weights it holds.

Facts of transformers 5.24.0's mixer classes. ``RecurrentState.states`` carry the format that the model's own reference
keeps them in; what an engine makes of that is the engine's rule (predict/allocation/).
"""

from dataclasses import dataclass

from kvscope.model.config_reader import ConfigReader
from kvscope.model.modules import Layers, conv1d, linear, norm, parameter
from kvscope.model.spec import RecurrentState, StateTensor, WeightGroup

STATE_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """Mamba 1 (arXiv 2312.00752): ``inner`` channels with ``state`` numbers each; ``rank`` of the step size."""

    hidden: int
    inner: int
    state: int
    kernel: int
    rank: int
    conv_bias: bool
    proj_bias: bool

    @property
    def cache(self) -> RecurrentState:
        return RecurrentState(
            form="mamba",
            conv_channels=self.inner,
            conv_kernel=self.kernel,
            states=(StateTensor(name="ssm_state", shape=(self.inner, self.state)),),
        )


def mamba_mixer(prefix: str, mamba: Mamba, *, layers: Layers) -> list[WeightGroup]:
    """in_proj, conv1d, x_proj, dt_proj (always with a bias), A_log, D, out_proj."""
    if not layers:
        return []
    inner, bias = mamba.inner, mamba.proj_bias
    return [
        *linear(f"{prefix}.in_proj", mamba.hidden, 2 * inner, bias=bias, layers=layers),
        *conv1d(f"{prefix}.conv1d", inner, mamba.kernel, bias=mamba.conv_bias, layers=layers),
        *linear(f"{prefix}.x_proj", inner, mamba.rank + 2 * mamba.state, layers=layers),
        *linear(f"{prefix}.dt_proj", mamba.rank, inner, bias=True, layers=layers),
        *parameter(f"{prefix}.A_log", (inner, mamba.state), layers=layers),
        *parameter(f"{prefix}.D", (inner,), layers=layers),
        *linear(f"{prefix}.out_proj", inner, mamba.hidden, bias=bias, layers=layers),
    ]


def time_step_rank(config: ConfigReader, key: str, hidden: int) -> int:
    """A number, or "auto": hidden_size / 16 rounded up."""
    if config.lookup(key)[0] in ("auto", None):
        config.sources[key] = "derived: hidden_size / 16, rounded up"
        return -(-hidden // 16)
    return config.number(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Mamba 2 (arXiv 2405.21060): ``heads`` of ``head_dim`` channels with ``state`` numbers each; ``groups`` share
    their B and C. ``inner`` is the width of the projections, heads × head_dim in every working model."""

    hidden: int
    inner: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool
    in_bias: bool
    out_bias: bool
    has_norm: bool = True
    state_dtype: str | None = None

    @property
    def conv_channels(self) -> int:
        return self.inner + 2 * self.groups * self.state

    @property
    def cache(self) -> RecurrentState:
        shape = (self.heads, self.head_dim, self.state)
        return RecurrentState(
            form="mamba2",
            conv_channels=self.conv_channels,
            conv_kernel=self.kernel,
            states=(StateTensor(name="ssm_state", shape=shape, dtype=self.state_dtype),),
        )


def check_mamba2(config: ConfigReader, mamba: Mamba2, key: str) -> Mamba2:
    """The library refuses heads that do not make up the inner width; so does this. ``key`` is named in the error."""
    if mamba.heads * mamba.head_dim != mamba.inner:
        raise config.malformed(
            key, f"{mamba.heads} heads of {mamba.head_dim} do not make up the mixer's width of {mamba.inner}"
        )
    return mamba


def mamba2_mixer(prefix: str, mamba: Mamba2, *, layers: Layers) -> list[WeightGroup]:
    """in_proj, conv1d, dt_bias, A_log, D, the gated norm, out_proj."""
    if not layers:
        return []
    in_width = mamba.inner + mamba.conv_channels + mamba.heads
    return [
        *linear(f"{prefix}.in_proj", mamba.hidden, in_width, bias=mamba.in_bias, layers=layers),
        *conv1d(f"{prefix}.conv1d", mamba.conv_channels, mamba.kernel, bias=mamba.conv_bias, layers=layers),
        *parameter(f"{prefix}.dt_bias", (mamba.heads,), layers=layers),
        *parameter(f"{prefix}.A_log", (mamba.heads,), layers=layers),
        *parameter(f"{prefix}.D", (mamba.heads,), layers=layers),
        *(norm(f"{prefix}.norm", mamba.inner, layers=layers) if mamba.has_norm else ()),
        *linear(f"{prefix}.out_proj", mamba.inner, mamba.hidden, bias=mamba.out_bias, layers=layers),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Gated delta net (arXiv 2412.06464): one matrix [key_dim, value_dim] per value head, in float32; one convolution
    over queries, keys and values."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_dtype: str = "float32"

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.keys + self.values

    @property
    def cache(self) -> RecurrentState:
        shape = (self.value_heads, self.key_dim, self.value_dim)
        return RecurrentState(
            form="gated_delta_net",
            conv_channels=self.conv_channels,
            conv_kernel=self.kernel,
            states=(StateTensor(name="recurrent_state", shape=shape, dtype=self.state_dtype),),
        )


def read_delta_net(config: ConfigReader, hidden: int) -> DeltaNet:
    """linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim,
    linear_conv_kernel_dim."""
    return DeltaNet(
        hidden=hidden,
        key_heads=config.number("linear_num_key_heads"),
        value_heads=config.number("linear_num_value_heads"),
        key_dim=config.number("linear_key_head_dim"),
        value_dim=config.number("linear_value_head_dim"),
        kernel=config.number("linear_conv_kernel_dim"),
        state_dtype=stated_dtype(config, "mamba_ssm_dtype"),
    )


def delta_net_mixer(prefix: str, net: DeltaNet, *, fused: bool, layers: Layers) -> list[WeightGroup]:
    """``fused``: Qwen3-Next's in_proj_qkvz and in_proj_ba; else Qwen3.5's in_proj_qkv, in_proj_z, in_proj_b,
    in_proj_a. Then conv1d, dt_bias, A_log, norm, out_proj."""
    if not layers:
        return []
    if fused:
        projections = {"in_proj_qkvz": 2 * net.keys + 2 * net.values, "in_proj_ba": 2 * net.value_heads}
    else:
        projections = {
            "in_proj_qkv": net.conv_channels,
            "in_proj_z": net.values,
            "in_proj_b": net.value_heads,
            "in_proj_a": net.value_heads,
        }
    return [
        *(
            group
            for name, width in projections.items()
            for group in linear(f"{prefix}.{name}", net.hidden, width, layers=layers)
        ),
        *conv1d(f"{prefix}.conv1d", net.conv_channels, net.kernel, layers=layers),
        *parameter(f"{prefix}.dt_bias", (net.value_heads,), layers=layers),
        *parameter(f"{prefix}.A_log", (net.value_heads,), layers=layers),
        *norm(f"{prefix}.norm", net.value_dim, layers=layers),
        *linear(f"{prefix}.out_proj", net.values, net.hidden, layers=layers),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kda:
    """Kimi delta attention (arXiv 2510.26692): one matrix [dim, dim] per head, in float32; one convolution over
    queries, keys and values."""

    hidden: int
    heads: int
    dim: int
    kernel: int

    @property
    def width(self) -> int:
        return self.heads * self.dim

    @property
    def cache(self) -> RecurrentState:
        shape = (self.heads, self.dim, self.dim)
        return RecurrentState(
            form="kda",
            conv_channels=3 * self.width,
            conv_kernel=self.kernel,
            states=(StateTensor(name="recurrent_state", shape=shape, dtype="float32"),),
        )


def short_conv(hidden: int, kernel: int) -> RecurrentState:
    """A gated short convolution over the hidden width, and nothing else (LFM2)."""
    return RecurrentState(form="short_conv", conv_channels=hidden, conv_kernel=kernel)


def short_conv_mixer(prefix: str, hidden: int, kernel: int, *, bias: bool, layers: Layers) -> list[WeightGroup]:
    """in_proj (three streams), conv, out_proj; ``bias``: of all of them."""
    if not layers:
        return []
    return [
        *linear(f"{prefix}.in_proj", hidden, 3 * hidden, bias=bias, layers=layers),
        *conv1d(f"{prefix}.conv", hidden, kernel, bias=bias, layers=layers),
        *linear(f"{prefix}.out_proj", hidden, hidden, bias=bias, layers=layers),
    ]


def stated_dtype(config: ConfigReader, key: str, default: str = "float32") -> str:
    """The format a config states for its recurrent state; other than a plain float it is refused."""
    stated = config.word(key)
    if stated is not None and stated not in STATE_DTYPES:
        raise config.refuse(f"it keeps its recurrent state in {stated!r}")
    return stated or default
