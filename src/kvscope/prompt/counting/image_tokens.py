"""What a picture costs in the context: how many tokens a model's processor puts in its place.

Held against the processors of transformers for three kinds: Qwen-VL's (resized to whole patches, as many tokens as
groups of patches), Gemma 3's (a fixed number), LLaVA's (the patches of a fixed crop). For any other model the cost is
None, and it is said why: rules differ too much to be guessed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.errors import UsageError
from kvscope.prompt.conversation import Image

# Qwen2VLImageProcessor refuses pictures that are longer than this, as transformers does.
_LONGEST_RATIO = 200
_QWEN_TYPES = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"))
_QWEN_PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
# What Qwen2VLImageProcessor takes where preprocessor_config.json says nothing.
_QWEN_DEFAULTS = {"patch_size": 14, "merge_size": 2, "shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
_QWEN_MARKERS = 2  # <|vision_start|> and <|vision_end|>
_GEMMA_MARKERS = 2  # <start_of_image> and <end_of_image>
_GEMMA_TOKENS = 256
_MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCost:
    """``tokens`` in the context, its markers included; None where it is not known. ``because`` says how it comes
    about, or what is missing.

    In a text that the model's chat template has made, ``placeholder`` stands for the picture, and the processor writes
    ``expanded`` in its place (see ``with_image_tokens``). Both are None where ``tokens`` is.
    """

    tokens: int | None
    because: str
    placeholder: str | None = None
    expanded: str | None = None


def smart_resize(
    width: int, height: int, *, factor: int, min_pixels: int | None = None, max_pixels: int | None = None
) -> tuple[int, int]:
    """(width, height) that Qwen-VL's processor makes of a picture: both a multiple of ``factor``, their product within
    ``min_pixels`` and ``max_pixels``, the shape kept as well as that allows. Without bounds, at least one multiple.

    Raises UsageError for a picture that the processor refuses.
    """
    if min(width, height, factor) < 1:
        raise UsageError(f"A picture of {width} x {height} pixels has no tokens.", hint="Give its size in pixels.")
    if max(width, height) / min(width, height) > _LONGEST_RATIO:
        raise UsageError(
            f"A picture of {width} x {height} pixels is refused: its sides differ more than {_LONGEST_RATIO} times.",
            hint="Cut it into several.",
        )
    least = factor * factor if min_pixels is None else min_pixels
    across, down = (round(side / factor) * factor for side in (width, height))
    if max_pixels is not None and across * down > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        across, down = (max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif across * down < least:
        grow = math.sqrt(least / (width * height))
        across, down = (math.ceil(side * grow / factor) * factor for side in (width, height))
    return across, down


def image_tokens(
    width: int,
    height: int,
    *,
    patch: int,
    merge: int,
    markers: int = 0,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> int:
    """Tokens of a picture under Qwen-VL's rule: one for ``merge`` x ``merge`` patches of ``patch`` x ``patch`` pixels,
    and its ``markers``. Raises UsageError as ``smart_resize``."""
    factor = patch * merge
    across, down = smart_resize(width, height, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
    return (across // factor) * (down // factor) + markers


def image_cost(image: Image, model_source: str) -> ImageCost:
    """What ``image`` costs with the model in the folder ``model_source`` (config.json, preprocessor_config.json,
    processor_config.json). Never raises for what is missing: ``tokens`` is None then."""
    folder = Path(model_source).expanduser()
    if not folder.is_dir():
        return _unknown(f"{model_source} is no folder with a preprocessor_config.json, which says how pictures are cut")
    try:
        config = _json(folder / "config.json")
        processor = _json(folder / "processor_config.json")
        pixels = _dict(processor.get("image_processor")) or _json(folder / "preprocessor_config.json")
    except _Unreadable as error:
        return _unknown(str(error))
    kind = config.get("model_type")
    if kind is None:
        return _unknown(f"{folder / 'config.json'} is missing or does not say the model's type")
    if not isinstance(config.get("vision_config"), dict):
        return _unknown(f"{folder / 'config.json'} describes no vision part ({kind})")
    if not pixels:
        return _unknown(f"{folder} has no preprocessor_config.json, which says how pictures are cut")
    if kind in _QWEN_TYPES:
        return _qwen(image, config, pixels)
    if kind == "gemma3":
        return _gemma(config, processor, pixels)
    if kind == "llava":
        return _llava(processor, pixels)
    return _unknown(f"no rule for pictures is known for {kind}")


def with_image_tokens(text: str, costs: Sequence[ImageCost]) -> str | None:
    """``text`` of a chat template as the processor hands it on: each picture's placeholder, in order, replaced by its
    tokens. None where a cost is not known, or the text does not hold one placeholder for each picture."""
    pieces, at = [], 0
    for cost in costs:
        if cost.placeholder is None or cost.expanded is None:
            return None
        found = text.find(cost.placeholder, at)
        if found < 0:
            return None
        pieces += [text[at:found], cost.expanded]
        at = found + len(cost.placeholder)
    rest = text[at:]
    if any(cost.placeholder is not None and cost.placeholder in rest for cost in costs):
        return None
    return "".join([*pieces, rest])


def _unknown(why: str) -> ImageCost:
    return ImageCost(tokens=None, because=f"Not known: {why}.")


def _qwen(image: Image, config: Mapping[str, Any], pixels: Mapping[str, Any]) -> ImageCost:
    if pixels.get("image_processor_type", _QWEN_PROCESSORS[0]) not in _QWEN_PROCESSORS:
        return _unknown(f"no rule is known for the processor {pixels['image_processor_type']}")
    if pixels.get("do_resize") is False:
        return _unknown("this model's processor does not resize pictures")
    size = _dict(pixels.get("size"))
    found = {
        "patch_size": pixels.get("patch_size"),
        "merge_size": pixels.get("merge_size"),
        "shortest_edge": pixels.get("min_pixels", size.get("shortest_edge") if size else None),
        "longest_edge": pixels.get("max_pixels", size.get("longest_edge") if size else None),
    }
    if size and None in (found["shortest_edge"], found["longest_edge"]):
        return _unknown("the size in preprocessor_config.json has no shortest_edge and longest_edge")
    values = {name: _QWEN_DEFAULTS[name] if value is None else value for name, value in found.items()}
    if not all(type(value) is int and value > 0 for value in values.values()):
        return _unknown(f"preprocessor_config.json holds sizes that are no numbers of pixels: {values}")
    patch, merge = values["patch_size"], values["merge_size"]
    vision = config["vision_config"]
    if vision.get("patch_size", patch) != patch or vision.get("spatial_merge_size", merge) != merge:
        return _unknown("config.json and preprocessor_config.json disagree about the size of patches")
    if image.width is None or image.height is None:
        return _unknown("the picture's width and height are not known, and its tokens depend on them")
    bounds = {"min_pixels": values["shortest_edge"], "max_pixels": values["longest_edge"]}
    try:
        across, down = smart_resize(image.width, image.height, factor=patch * merge, **bounds)
    except UsageError as error:
        return _unknown(error.message.rstrip("."))
    columns, rows = across // (patch * merge), down // (patch * merge)
    return ImageCost(
        tokens=columns * rows + _QWEN_MARKERS,
        because=f"{image.width} x {image.height} pixels, resized to {across} x {down}: {columns} x {rows} groups of "
        f"{merge} x {merge} patches of {patch} pixels, and {_QWEN_MARKERS} markers.",
        placeholder="<|image_pad|>",
        expanded="<|image_pad|>" * (columns * rows),
    )


def _gemma(config: Mapping[str, Any], processor: Mapping[str, Any], pixels: Mapping[str, Any]) -> ImageCost:
    tokens = processor.get("image_seq_length", _GEMMA_TOKENS)
    if config.get("mm_tokens_per_image", _GEMMA_TOKENS) != tokens or type(tokens) is not int:
        return _unknown("config.json and processor_config.json disagree about the tokens of a picture")
    if pixels.get("do_pan_and_scan"):
        return _unknown("this model's processor also sends parts of the picture (do_pan_and_scan)")
    return ImageCost(
        tokens=tokens + _GEMMA_MARKERS,
        because=f"{tokens} tokens for a picture of any size, and {_GEMMA_MARKERS} markers; a blank line before and one "
        "after it are text.",
        placeholder="<start_of_image>",
        expanded="\n\n<start_of_image>" + "<image_soft_token>" * tokens + "<end_of_image>\n\n",
    )


def _llava(processor: Mapping[str, Any], pixels: Mapping[str, Any]) -> ImageCost:
    patch, strategy = processor.get("patch_size", 0), processor.get("vision_feature_select_strategy")
    more = processor.get("num_additional_image_tokens", 0)
    crop = _dict(pixels.get("crop_size"))
    sides = (patch, crop.get("height"), crop.get("width"))
    if pixels.get("do_center_crop") is False or pixels.get("do_resize") is False:
        return _unknown("this model's processor does not cut pictures to one size")
    if strategy is None or type(more) is not int or not all(type(side) is int and side > 0 for side in sides):
        return _unknown("processor_config.json and preprocessor_config.json do not say the patches and the crop")
    height, width = int(crop["height"]), int(crop["width"])
    rows, columns = height // int(patch), width // int(patch)
    tokens = rows * columns + more - (1 if strategy == "default" else 0)
    return ImageCost(
        tokens=tokens,
        because=f"Every picture is cut to {width} x {height} pixels: {columns} x {rows} patches of {patch} pixels"
        + (f", and {tokens - rows * columns} more." if tokens > rows * columns else "."),
        placeholder="<image>",
        expanded="<image>" * tokens,
    )


class _Unreadable(Exception):
    """A file that is there and cannot be used; its message says why."""


def _json(path: Path) -> dict[str, Any]:
    """The object in ``path``, empty where there is no such file. Raises _Unreadable."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise _Unreadable(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise _Unreadable(f"{path} holds no JSON object")
    return value


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
