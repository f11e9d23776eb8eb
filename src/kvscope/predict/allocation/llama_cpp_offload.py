"""llama.cpp with layers on a GPU: which device holds what. By llama.cpp's published rule (n_gpu_layers counts from the
last layer, and one more than there are layers takes the output too); not measured, for want of a GPU. Sizes follow from
shapes as on a CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from kvscope.errors import UsageError
from kvscope.model.spec import ModelSpec, TensorInfo
from kvscope.predict.allocation.llama_cpp_layers import held_by
from kvscope.predict.allocation.llama_cpp_settings import canonical_settings as cpu_settings
from kvscope.predict.growth import constant
from kvscope.predict.prediction import Buffer, LayerCache, MemoryItem, Prediction, Unknown
from kvscope.predict.weights import OUTPUT, TOKEN_EMBEDDINGS, cpu_weight_buffers, is_ignored
from kvscope.scenario import SettingValue

HOST = "cpu"
_NAMES = {
    "n_gpu_layers": "n_gpu_layers", "gpu_layers": "n_gpu_layers", "ngl": "n_gpu_layers",
    "split_mode": "split_mode", "sm": "split_mode",
    "tensor_split": "tensor_split", "ts": "tensor_split",
    "main_gpu": "main_gpu", "mg": "main_gpu",
}  # fmt: skip
SETTING_NAMES = tuple(dict.fromkeys(_NAMES.values()))
_COUNTS = ("n_gpu_layers", "main_gpu")
_MOVED = ("weights", "kv_cache", "recurrent_state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """``layers``: from the last one on, one more than the model has with the output. ``shares``: of each device."""

    layers: int
    shares: tuple[float, ...]
    first_device: int
    keeps_cache_on_host: bool
    as_asked: Mapping[str, SettingValue]

    def device_of(self, layer: int, num_layers: int) -> str:
        """Of a layer's weights; ``layer`` = ``num_layers``: of the output."""
        start = max(num_layers - self.layers, 0)
        count = min(self.layers, num_layers + 1)
        if not 0 <= layer - start < count:
            return HOST
        place = (layer - start) / count * sum(self.shares)
        index = sum(1 for bound in accumulate(self.shares) if place >= bound)
        return f"gpu{self.first_device + min(index, len(self.shares) - 1)}"


def canonical_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """As ``llama_cpp_settings.canonical_settings``, with the settings that put layers on devices: these are predicted,
    and not run by kvscope."""
    offload, rest = split_offload(settings)
    return {**({} if offload is None else offload.as_asked), **cpu_settings(rest)}


def settings_to_run(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """As ``llama_cpp_settings.canonical_settings``, with n_gpu_layers, which may be 0: what kvscope runs. Raises as
    that, and UsageError for a number of layers that is not one."""
    plain = {name.strip().lstrip("-").replace("-", "_").lower(): name for name in settings}
    layers = [name for key, name in plain.items() if _NAMES.get(key) == "n_gpu_layers"]
    if len(layers) > 1:
        raise UsageError("n_gpu_layers is given twice.", hint="Give it once.")
    found = cpu_settings({name: value for name, value in settings.items() if name not in layers})
    return {"n_gpu_layers": _count("n_gpu_layers", settings[layers[0]]), **found} if layers else found


def split_offload(settings: Mapping[str, SettingValue]) -> tuple[Offload | None, dict[str, SettingValue]]:
    """The settings that put layers on a device, None where there are none, and the others.

    Raises UsageError for a number of layers that is not one, and for splits by rows."""
    asked: dict[str, SettingValue] = {}
    rest: dict[str, SettingValue] = {}
    for given, value in settings.items():
        key = given.strip().lstrip("-").replace("-", "_").lower()
        name = _NAMES.get(key)
        if name is None:
            rest[given] = value
        elif name in asked:
            raise UsageError(f"{name} is given twice.", hint="Give it once.")
        else:
            asked[name] = value
    layers = _count("n_gpu_layers", asked.get("n_gpu_layers", 0))
    mode = str(asked.get("split_mode", "layer")).lower()
    if mode not in ("none", "layer"):
        raise UsageError(
            f"split_mode is {mode!r}; what each device then holds is not known here.", hint="Use layer or none."
        )
    shares = _shares(asked.get("tensor_split")) if mode == "layer" else (1.0,)
    main = _count("main_gpu", asked.get("main_gpu", 0))
    if layers == 0:
        return None, rest
    asked |= {name: int(str(value)) for name, value in asked.items() if name in _COUNTS and str(value).isdecimal()}
    keeps = {name.strip().lstrip("-").replace("-", "_").lower(): value for name, value in rest.items()}
    return (
        Offload(
            layers=layers,
            shares=shares,
            first_device=main if mode == "none" else 0,
            keeps_cache_on_host=keeps.get("no_kv_offload") in (True, "true", "1", 1, "on", "yes"),
            as_asked=asked,
        ),
        rest,
    )


def _count(name: str, value: SettingValue) -> int:
    if name == "n_gpu_layers" and str(value).lower() == "all":
        return 2**31 - 1
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal():
        hint = "Give the number of layers, or all." if name == "n_gpu_layers" else "Give a device's number, from 0."
        raise UsageError(f"{name} is {value!r}; a whole number from 0 was expected.", hint=hint)
    return int(text)


def _shares(value: SettingValue) -> tuple[float, ...]:
    if value is None:
        return (1.0,)
    try:
        found = tuple(float(part) for part in str(value).replace("/", ",").split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 0 or not 0 < sum(found) < float("inf"):
        raise UsageError(f"tensor_split is {value!r}; shares such as 3,1 were expected, one for each device.")
    return found


def offloaded(
    model: ModelSpec, prediction: Prediction, offload: Offload, *, is_mapped: bool, repack: bool
) -> Prediction:
    """``prediction``, made for a CPU, with each layer where the rule puts it."""
    count = len(model.layers)
    devices = [offload.device_of(index, count) for index in range(count + 1)]
    weights = _weights(model, devices, is_mapped=is_mapped, repack=repack) if model.tensors else ([], [])
    kept = [item for item in prediction.items if item.component not in ("weights", "compute_buffer")]
    moved = [_placed(item, HOST if offload.keeps_cache_on_host else _of(item, devices)) for item in kept]
    cache_devices = [HOST] * count if offload.keeps_cache_on_host else devices[:count]
    others = [
        b for b in prediction.buffers if b.name not in ("weights", "kv_cache", "recurrent_state", "compute_buffer")
    ]
    why = (
        "which device holds what is llama.cpp's published rule; it was not measured on a GPU, and what its driver and "
        "kernels take beside (hundreds of MiB) is left out"
    )
    compute = "the graph is split between devices, which was not measured; total_bytes leaves it out"
    return replace(
        prediction,
        scenario=replace(
            prediction.scenario,
            settings=replace(
                prediction.scenario.settings, values={**prediction.scenario.settings.values, **offload.as_asked}
            ),
        ),
        effective={**prediction.effective, "layers_on_devices": sum(device != HOST for device in devices[:count])},
        items=(*weights[0], *moved),
        buffers=(*weights[1], *_cache_buffers(model, prediction.layers, cache_devices), *others),
        status="partial",
        unknown=(
            *(entry for entry in prediction.unknown if entry.what != "compute_buffer"),
            Unknown(what="placement", why=f"estimated: {why}"),
            Unknown(what="compute_buffer", why=compute),
        ),
        missing=prediction.missing | {"compute_buffer"},
    )


def _of(item: MemoryItem, devices: list[str]) -> str:
    return HOST if item.layer_index is None else devices[item.layer_index]


def _placed(item: MemoryItem, device: str) -> MemoryItem:
    if item.component not in _MOVED:
        return item
    return replace(item, device=device, status="estimated")


def _weights(
    model: ModelSpec, devices: list[str], *, is_mapped: bool, repack: bool
) -> tuple[list[MemoryItem], list[Buffer]]:
    """Every tensor on its layer's device; the token embeddings stay on the host, and are copied to the output's device
    where they serve as output too."""
    output = devices[-1]
    groups: dict[str, list[TensorInfo]] = {}
    for tensor in model.tensors:
        if not is_ignored(model, tensor):
            groups.setdefault(_tensor_device(tensor, devices), []).append(tensor)
    if output != HOST and all(tensor.name != OUTPUT for tensor in model.tensors):
        groups.setdefault(output, []).extend(t for t in model.tensors if t.name == TOKEN_EMBEDDINGS)
    items: list[MemoryItem] = []
    buffers: list[Buffer] = []
    host = replace(model, tensors=tuple(groups.pop(HOST, ())))
    if host.tensors:
        for kept in cpu_weight_buffers(host, is_mapped=is_mapped, repack=repack, has_output=output == HOST):
            item = MemoryItem(
                component="weights",
                needed=constant(kept.needed_bytes),
                allocated=constant(kept.num_bytes),
                because=f"{kept.name}: {kept.because}",
                backing=kept.backing,
                status="estimated",
            )
            items.append(item)
            buffers.append(_weight_buffer(item, kept.name, kept.num_tensors))
    for device, tensors in sorted(groups.items()):
        total = sum(tensor.num_bytes for tensor in tensors)
        item = MemoryItem(
            component="weights",
            needed=constant(total),
            allocated=constant(total),
            because=f"{len(tensors)} tensors of the layers on {device} = {total} B",
            device=device,
            status="estimated",
        )
        items.append(item)
        buffers.append(_weight_buffer(item, device.upper(), len(tensors)))
    return items, buffers


def _weight_buffer(item: MemoryItem, name: str, num_tensors: int) -> Buffer:
    return Buffer(
        name="weights",
        kind=name,
        num_bytes=item.allocated.fixed_bytes,
        device=item.device,
        backing=item.backing,
        details={"tensors": num_tensors},
    )


def _tensor_device(tensor: TensorInfo, devices: list[str]) -> str:
    if tensor.layer_index is not None:
        return devices[tensor.layer_index]
    return devices[-1] if tensor.name.startswith("output") else HOST


def _cache_buffers(model: ModelSpec, layers: tuple[LayerCache, ...], devices: list[str]) -> list[Buffer]:
    """Keys and values, and recurrent states, by device."""
    sums: dict[tuple[str, str, str], int] = {}
    for spec, layer, device in zip(model.layers, layers, devices, strict=True):
        held = held_by(model, spec.cache)
        kind = "SWA" if held is not None and held.is_windowed else "full"
        for tensor in layer.tensors:
            key = (tensor.component, "RS" if tensor.component == "recurrent_state" else kind, device)
            sums[key] = sums.get(key, 0) + tensor.num_bytes
    return [
        Buffer(name=component, kind=kind, num_bytes=total, device=device)
        for (component, kind, device), total in sorted(sums.items())
    ]
