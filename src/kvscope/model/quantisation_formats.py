"""Bytes of one quantised matrix [outputs, inputs], by format: the packed weights with all that is stored beside them.

Where each layout is from:
- gptq: qweight, qzeros (int32, 32 / bits values each), scales (float16), g_idx (int32): AutoGPTQ's and GPTQModel's
  checkpoint format "gptq"; 3-bit values are packed 32 into three words;
- awq: qweight, qzeros (int32, eight values each), scales (float16): AutoAWQ's version "gemm";
- fp8: float8 weights and a float32 scale for each block (the README_WEIGHTS of DeepSeek-V3), or one for the tensor;
- compressed-tensors: tensors stored by its release 0.20.1, tried for the formats below;
- mxfp4: blocks of 32 values in 16 bytes and a scale byte (gpt-oss, whose published total size is met);
- modelopt: nvfp4 and fp8 as nvidia-modelopt 0.47.0 exports them;
- bitsandbytes: what its release 0.50.2 keeps in memory. Its files hold a few bytes more or less: a text of the
  quantisation's state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

PlainBytes = int
# (outputs, inputs, bytes of an element of the model's format) → bytes; None: the matrix cannot be packed so.
MatrixBytes = Callable[[int, int, PlainBytes], int | None]
NVFP4_BLOCK = 16
MXFP4_BLOCK = 32
BNB_BLOCK = 64  # elements of a 4-bit block, whose largest value is kept
BNB_NESTED_BLOCK = 256  # of those values, when they are quantised again


class NotKnown(Exception):
    """The layout is not known for certain; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """``skips``: names or patterns of modules that stay as they are, in the manner ``matching``. ``matrix``: bytes of
    a quantised one. ``head``: whether the output matrix counts as one of the linear layers. ``experts``: whether fused
    experts are quantised ("no": nobody has checked). ``targets``: patterns of the only modules quantised; None: all."""

    name: str
    matrix: MatrixBytes
    skips: tuple[str, ...] = ()
    matching: Literal["transformers", "compressed-tensors", "modelopt"] = "transformers"
    head: bool = False
    experts: Literal["yes", "only", "no"] = "yes"
    targets: tuple[str, ...] | None = None


def format_of(config: Mapping[str, Any]) -> Format:
    """The format that a quantization_config describes. Raises NotKnown."""
    method = config.get("quant_method")
    if method is None and (config.get("load_in_4bit") or config.get("load_in_8bit")):
        method = "bitsandbytes"  # files older than the key
    readers: dict[str, Callable[[Mapping[str, Any]], Format]] = {
        "gptq": _gptq,
        "awq": _awq,
        "fp8": _fp8,
        "compressed-tensors": _compressed_tensors,
        "mxfp4": _mxfp4,
        "modelopt": _modelopt,
        "bitsandbytes": _bitsandbytes,
    }
    if not isinstance(method, str) or method not in readers:
        raise NotKnown(f"the layout of weights quantised by {str(method)[:40]!r} is not known")
    return readers[method](config)


def _divide_up(value: int, by: int) -> int:
    return -(-value // by)


def _whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotKnown(f"its {key} is no whole number")
    return value


def _truth(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise NotKnown(f"its {key} is neither true nor false")
    return value


def _names(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise NotKnown(f"its {key} is no list of names")
    return tuple(value)


def _refuse(config: Mapping[str, Any], **expected: Any) -> None:
    """Options that would change the layout, and the values with which it is known."""
    for key, allowed in expected.items():
        value = config.get(key)
        if value is not None and value not in allowed:
            raise NotKnown(f"the layout with {key} = {str(value)[:60]} is not known")


def _gptq(config: Mapping[str, Any]) -> Format:
    bits, group = _whole(config, "bits"), _whole(config, "group_size", 128)
    _refuse(
        config, checkpoint_format=("gptq", "gptq_v2"), lm_head=(False,), dynamic=({},), modules_in_block_to_quantize=()
    )
    if bits not in (2, 3, 4, 8):
        raise NotKnown(f"{bits}-bit GPTQ is not known")

    def matrix(outputs: int, inputs: int, _plain: int) -> int | None:
        if inputs % 32 or outputs % 32:
            return None
        groups = _divide_up(inputs, group if group > 0 else inputs)
        packed = inputs * bits // 32 * outputs + groups * (outputs * bits // 32)
        return 4 * packed + 2 * groups * outputs + 4 * inputs

    return Format(name=f"{bits}-bit GPTQ, groups of {group}", matrix=matrix, experts="no")


def _awq(config: Mapping[str, Any]) -> Format:
    bits = _whole(config, "bits" if "bits" in config else "w_bit")
    group = _whole(config, "group_size" if "group_size" in config else "q_group_size")
    _refuse(config, version=("gemm", "GEMM"), backend=("autoawq",), zero_point=(True,))
    if bits != 4 or group <= 0:
        raise NotKnown(f"{bits}-bit AWQ with groups of {group} is not known")

    def matrix(outputs: int, inputs: int, _plain: int) -> int | None:
        if outputs % 8 or inputs % group:
            return None
        groups = inputs // group
        return 4 * inputs * (outputs // 8) + 4 * groups * (outputs // 8) + 2 * groups * outputs

    return Format(name=f"4-bit AWQ, groups of {group}", matrix=matrix, skips=_names(config, "modules_to_not_convert"))


def _fp8(config: Mapping[str, Any]) -> Format:
    block = config.get("weight_block_size")
    skips = _names(config, "modules_to_not_convert") + _names(config, "ignored_layers")
    _refuse(config, fmt=("e4m3", "float8_e4m3fn"), kv_cache_scheme=(), modules_to_convert=())
    if config.get("scale_fmt") not in (None, "float"):
        raise NotKnown(
            f"with scale_fmt {str(config['scale_fmt'])[:20]} some files store float32 scales and others one byte each"
        )
    if block is None:
        scales = 8 if config.get("activation_scheme") == "static" else 4
        if "ignored_layers" not in config:
            raise NotKnown("the scales of fp8 weights without weight_block_size are known for AutoFP8's files only")
        return Format(
            name="fp8, one scale for each matrix", matrix=lambda o, i, _plain: o * i + scales, skips=skips, experts="no"
        )
    _refuse(config, activation_scheme=("dynamic",))
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise NotKnown("its weight_block_size is not two whole numbers")
    rows, columns = block

    def matrix(outputs: int, inputs: int, _plain: int) -> int:
        return outputs * inputs + 4 * _divide_up(outputs, rows) * _divide_up(inputs, columns)

    return Format(name=f"fp8 with a float32 scale for every {rows} × {columns}", matrix=matrix, skips=skips)


def _mxfp4(config: Mapping[str, Any]) -> Format:
    def matrix(outputs: int, inputs: int, _plain: int) -> int | None:
        return None if inputs % MXFP4_BLOCK else outputs * inputs // MXFP4_BLOCK * 17

    skips = _names(config, "modules_to_not_convert")
    return Format(name="mxfp4 experts", matrix=matrix, skips=skips, experts="only")


def _modelopt(config: Mapping[str, Any]) -> Format:
    algorithm = config.get("quant_algo")
    _refuse(config, kv_cache_scheme=(), kv_cache_quant_algo=())  # its scales are there only if it was calibrated
    if algorithm == "NVFP4":

        def matrix(outputs: int, inputs: int, _plain: int) -> int | None:
            return None if inputs % NVFP4_BLOCK else outputs * inputs // 2 + outputs * inputs // NVFP4_BLOCK + 8

    elif algorithm == "FP8":

        def matrix(outputs: int, inputs: int, _plain: int) -> int | None:
            return outputs * inputs + 8

    else:
        raise NotKnown(f"the layout of modelopt's {str(algorithm)[:40]} is not known")
    skips = _names(config, "ignore") + _names(config, "exclude_modules")
    return Format(name=f"modelopt {algorithm}", matrix=matrix, skips=skips, matching="modelopt", head=True)


def _bitsandbytes(config: Mapping[str, Any]) -> Format:
    skips = _names(config, "llm_int8_skip_modules")
    has_list = config.get("llm_int8_skip_modules") is not None  # without one, the output matrix is left as it is
    in_8bit, in_4bit = _truth(config, "load_in_8bit"), _truth(config, "load_in_4bit")
    if in_8bit and in_4bit:
        raise NotKnown("it says load_in_4bit and load_in_8bit")
    if in_8bit:
        return Format(
            name="8-bit bitsandbytes",
            matrix=lambda o, i, _plain: o * i + 4 * o,
            skips=skips,
            experts="no",
            head=has_list,
        )
    if not in_4bit:
        raise NotKnown("it says neither load_in_4bit nor load_in_8bit")
    _refuse(config, bnb_4bit_quant_storage=("uint8",), bnb_4bit_quant_type=("nf4", "fp4"))
    nested = _truth(config, "bnb_4bit_use_double_quant")

    def matrix(outputs: int, inputs: int, _plain: int) -> int:
        packed = _divide_up(outputs * inputs, 2)
        blocks = _divide_up(outputs * inputs, BNB_BLOCK)
        table = 16 * 4
        if not nested:
            return packed + 4 * blocks + table
        return packed + blocks + 4 * _divide_up(blocks, BNB_NESTED_BLOCK) + 256 * 4 + 4 + table

    name = f"4-bit bitsandbytes {config.get('bnb_4bit_quant_type', 'fp4')}{' twice quantised' if nested else ''}"
    return Format(name=name, matrix=matrix, skips=skips, experts="no", head=has_list)


def _compressed_tensors(config: Mapping[str, Any]) -> Format:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise NotKnown("only compressed-tensors with one config group is known")
    (scheme,) = groups.values()
    if not isinstance(scheme, Mapping) or not isinstance(scheme.get("weights"), Mapping):
        raise NotKnown("its config group has no weights")
    targets = _names(scheme, "targets")
    _refuse(config, kv_cache_scheme=(), transform_config=({},), quantization_status=("compressed",))
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise NotKnown("the layout of sparse weights is not known")
    layout = scheme.get("format") or config.get("format")
    weights = scheme["weights"]
    matrix = _compressed_matrix(str(layout), weights, scheme.get("input_activations"))
    return Format(
        name=f"compressed-tensors {layout}, {weights.get('num_bits')}-bit by {weights.get('strategy')}",
        matrix=matrix,
        skips=_names(config, "ignore"),
        matching="compressed-tensors",
        head=True,
        targets=None if targets == ("Linear",) else targets,
    )


def _compressed_matrix(layout: str, weights: Mapping[str, Any], inputs_scheme: Any) -> MatrixBytes:
    bits = _whole(weights, "num_bits")
    scales = {"nvfp4-pack-quantized": ("torch.float8_e4m3fn",), "mxfp4-pack-quantized": ("torch.uint8",)}
    _refuse(weights, actorder=("weight", "static"), scale_dtype=scales.get(layout, ()), dynamic=(False,))
    symmetric = _truth(weights, "symmetric", default=True)
    static_inputs = _has_static_scale(inputs_scheme)
    if layout == "pack-quantized" and bits in (2, 4, 8) and not static_inputs:
        count = _scale_count(weights)

        def packed(outputs: int, inputs: int, plain: int) -> int | None:
            scales = count(outputs, inputs)
            if scales is None or (not symmetric and scales < outputs):
                return None
            zeros = 0 if symmetric else 4 * _divide_up(outputs, 32 // bits) * (scales // outputs)
            return 4 * outputs * _divide_up(inputs, 32 // bits) + plain * scales + 2 * 8 + zeros

        return packed
    if layout in ("int-quantized", "float-quantized", "naive-quantized") and symmetric and 1 <= bits <= 8:
        count = _scale_count(weights)

        def bytewise(outputs: int, inputs: int, plain: int) -> int | None:
            scales = count(outputs, inputs)
            return None if scales is None else outputs * inputs + plain * (scales + (1 if static_inputs else 0))

        return bytewise
    if layout == "nvfp4-pack-quantized" and bits == 4:
        scalars = 4 if inputs_scheme is None else 8

        def nvfp4(outputs: int, inputs: int, _plain: int) -> int | None:
            return None if inputs % NVFP4_BLOCK else outputs * inputs // 2 + outputs * inputs // NVFP4_BLOCK + scalars

        return nvfp4
    if layout == "mxfp4-pack-quantized" and bits == 4:
        return lambda o, i, _plain: None if i % MXFP4_BLOCK else o * i // 2 + o * i // MXFP4_BLOCK
    raise NotKnown(f"the layout {layout[:40]} with {bits}-bit weights is not known")


def _has_static_scale(scheme: Any) -> bool:
    """Whether inputs have one scale stored with the weights."""
    if scheme is None:
        return False
    if not isinstance(scheme, Mapping):
        raise NotKnown("its input_activations is no object")
    if scheme.get("dynamic") in (True, "local"):
        return False
    _refuse(scheme, strategy=("tensor",), symmetric=(True,))
    return True


def _scale_count(weights: Mapping[str, Any]) -> Callable[[int, int], int | None]:
    """Scales of a matrix by the strategy."""
    strategy = weights.get("strategy")
    if strategy == "tensor":
        return lambda _outputs, _inputs: 1
    if strategy == "channel":
        return lambda outputs, _inputs: outputs
    if strategy == "group":
        size = _whole(weights, "group_size")
        return lambda outputs, inputs: None if size <= 0 or inputs % size else outputs * (inputs // size)
    block = weights.get("block_structure")
    if (
        strategy == "block"
        and isinstance(block, list)
        and len(block) == 2
        and all(type(n) is int and n > 0 for n in block)
    ):
        rows, columns = block
        return lambda outputs, inputs: _divide_up(outputs, rows) * _divide_up(inputs, columns)
    raise NotKnown(f"scales by {str(strategy)[:40]} are not known")
