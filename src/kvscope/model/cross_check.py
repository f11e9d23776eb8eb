"""What several sources say of one model, held against each other: a config, the tensors that are stored, a GGUF.

What cannot both be true is an error; what one source leaves open, or says differently without changing the other's
numbers, is a warning.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvscope.errors import MalformedFile
from kvscope.model.quantisation import quantised_weights
from kvscope.model.spec import ModelSpec, TensorInfo
from kvscope.model.tensor_names import tied_copies

# Formats in which weights are computed with; what a quantiser stores beside them says nothing of the model's format.
_PLAIN = ("float32", "float16", "bfloat16", "float64")
_SHOWN = 3


def with_tensors(
    spec: ModelSpec, tensors: tuple[TensorInfo, ...], where: str, header_hashes: Iterable[str]
) -> ModelSpec:
    """``spec``, read from a config, with the tensors that are really stored. ``where`` names their files.

    The stored element format wins over the declared one. Raises MalformedFile where config and tensors contradict
    each other: fewer layers stored than declared, a tensor of another size.
    """
    warnings = list(spec.warnings)
    sources = dict(spec.sources)
    sources["tensors"] = where
    _check_sizes(spec, tensors, where)
    warnings += _layer_warnings(spec, tensors, where)
    dtype = spec.dtype
    stored = _main_dtype(tensors)
    if spec.quantisation is None and stored is not None:
        if dtype is not None and dtype != stored:
            warnings.append(f"The config says {dtype}, but most weights are stored as {stored} ({where}).")
        dtype = stored
        sources["dtype"] = f"most elements stored in {where}"
    num_parameters = spec.num_parameters
    if spec.quantisation is not None:
        warnings += _quantised_difference(spec, tensors, where)
    else:
        elements = _unique_elements(spec, tensors)
        if num_parameters is None:
            num_parameters = elements
            sources["num_parameters"] = f"elements of the tensors in {where}"
        elif num_parameters != elements:
            warnings.append(_parameter_difference(spec, tensors, elements, where))
    return replace(
        spec,
        tensors=tensors,
        dtype=dtype,
        num_parameters=num_parameters,
        warnings=tuple(warnings),
        sources=sources,
        fingerprint=hashlib.sha256("\n".join([spec.fingerprint, *header_hashes]).encode()).hexdigest(),
    )


def disagreements(first: ModelSpec, second: ModelSpec, first_name: str, second_name: str) -> list[str]:
    """Sentences on where two descriptions of one model differ; empty where they agree."""
    found = []
    pairs: list[tuple[str, object, object]] = [
        ("layers", len(first.layers), len(second.layers)),
        ("hidden size", first.hidden_size, second.hidden_size),
        ("vocabulary size", first.vocab_size, second.vocab_size),
        ("trained context", first.trained_context_tokens, second.trained_context_tokens),
    ]
    for what, one, other in pairs:
        if one != other:
            found.append(f"{first_name} and {second_name} disagree on the {what}: {one} and {other}.")
    differing = [a.index for a, b in zip(first.layers, second.layers, strict=False) if a.cache != b.cache]
    if differing:
        index = differing[0]
        found.append(
            f"{first_name} and {second_name} disagree on the cache of {len(differing)} layers, first layer {index}: "
            f"{first.layers[index].cache} and {second.layers[index].cache}."
        )
    return found


def _check_sizes(spec: ModelSpec, tensors: Sequence[TensorInfo], where: str) -> None:
    """Every stored tensor that has the name of one the config implies has its number of elements too."""
    if spec.quantisation is not None:
        return  # packed: other shapes under the same names
    expected = dict(_implied(spec))
    for tensor in tensors:
        shape = expected.get(tensor.name)
        if shape is not None and math.prod(shape) != math.prod(tensor.shape):
            raise MalformedFile(
                where,
                tensor.name,
                f"the tensor is {list(tensor.shape)}, but by the config it is {list(shape)}",
                hint="The config.json and the weights are of different models. Get both from one place.",
            )


def _layer_warnings(spec: ModelSpec, tensors: Sequence[TensorInfo], where: str) -> list[str]:
    """Raises MalformedFile where layers that must have tensors have none stored."""
    stored = {tensor.layer_index for tensor in tensors if tensor.layer_index is not None}
    if not stored:
        return []
    warnings = []
    missing = [index for index in range(len(spec.layers)) if index not in stored]
    if missing:
        problem = f"the config says {len(spec.layers)} layers, but no tensor of {len(missing)} of them is stored"
        if set(missing) & {index for group in spec.weights for index in group.layers}:
            hint = "The files are incomplete, or of another model than the config.json."
            raise MalformedFile(where, f"layer {missing[0]}", problem, hint=hint)
        warnings.append(f"{where}: {problem}, first layer {missing[0]}.")
    extra = [tensor for tensor in tensors if tensor.layer_index is not None and tensor.layer_index >= len(spec.layers)]
    if extra:
        numbers = sorted({tensor.layer_index for tensor in extra if tensor.layer_index is not None})
        warnings.append(
            f"{where} stores layers beyond the config's {len(spec.layers)}: {numbers[0]} to {numbers[-1]}, "
            f"{sum(tensor.num_bytes for tensor in extra)} B, most likely for predicting further tokens. They are "
            "counted as weights, but not as layers with a cache."
        )
    return warnings


def _implied(spec: ModelSpec) -> Iterable[tuple[str, tuple[int, ...]]]:
    for group in spec.weights:
        for name in [group.name.replace("{}", str(index)) for index in group.layers] or [group.name]:
            yield name, group.shape


def _main_dtype(tensors: Sequence[TensorInfo]) -> str | None:
    """The floating-point format that most elements are stored in."""
    elements: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.dtype in _PLAIN:
            elements[tensor.dtype] += math.prod(tensor.shape)
    return max(elements, key=lambda dtype: (elements[dtype], dtype)) if elements else None


def _unique_elements(spec: ModelSpec, tensors: Sequence[TensorInfo]) -> int:
    copies = {tensor.name for tensor in tied_copies(tensors)} if spec.is_tied else set()
    return sum(math.prod(tensor.shape) for tensor in tensors if tensor.name not in copies)


def _quantised_difference(spec: ModelSpec, tensors: Sequence[TensorInfo], where: str) -> list[str]:
    """Packed weights against what the quantization_config implies; layers beyond the config's are not compared."""
    implied = quantised_weights(spec)
    if isinstance(implied, str) or "bitsandbytes" in str(spec.quantisation):  # whose files differ from its memory
        return []
    copies = {tensor.name for tensor in tied_copies(tensors)} if spec.is_tied else set()
    stored = [t for t in tensors if t.name not in copies and (t.layer_index or 0) < len(spec.layers)]
    total, expected = sum(tensor.num_bytes for tensor in stored), sum(group.num_bytes for group in implied)
    if total == expected:
        return []
    return [
        f"{where} stores {total} B in the config's layers, but its quantization_config implies {expected} B: a "
        f"difference of {total - expected} B."
    ]


def _parameter_difference(spec: ModelSpec, tensors: Sequence[TensorInfo], elements: int, where: str) -> str:
    assert spec.num_parameters is not None
    implied = {name: math.prod(shape) for name, shape in _implied(spec)}
    stored = {tensor.name: math.prod(tensor.shape) for tensor in tensors}
    text = (
        f"{where} stores {elements} elements, but the config implies {spec.num_parameters} parameters: a difference of "
        f"{elements - spec.num_parameters}."
    )
    if implied.keys() & stored.keys():  # the names are comparable
        copies = {tensor.name for tensor in tied_copies(tensors)} if spec.is_tied else set()
        for what, ours, theirs in (("Not in the config's model", stored, implied), ("Not stored", implied, stored)):
            # The smallest first: experts have other names in files, while what is missing or added is small.
            names = sorted(ours.keys() - theirs.keys() - copies, key=lambda name: (ours[name], name))
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                text += f" {what}: {', '.join(names[:_SHOWN])}{more}."
    return text
