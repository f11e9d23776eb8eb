"""What a picture costs: against transformers' own processors, and a published measurement."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.prompt.conversation import Image
from kvscope.prompt.counting.image_tokens import ImageCost, image_cost, image_tokens, smart_resize, with_image_tokens

DATA = Path(__file__).parent / "data" / "images"
CASES = {case["name"]: case for case in json.loads((DATA / "cases.json").read_text(encoding="utf-8"))}
# Made by tools/make_image_expectations.py with the real transformers.
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
# nibor1896/Crow#142: sizes after the resize, patches of 16, merged 2 x 2, and two markers.
PUBLISHED = {
    (512, 512): 258,
    (1024, 1024): 1026,
    (1376, 992): 1335,
    (1536, 1152): 1730,
    (2560, 1376): 3442,
    (1472, 2784): 4004,
}
SQUARE = Image(source="data:", width=512, height=512)


def folder_of(case: dict[str, Any], folder: Path, **changes: Any) -> str:
    files = {
        "config.json": case["config"] | changes.get("config", {}),
        "preprocessor_config.json": case["preprocessor"] | changes.get("preprocessor", {}),
        "processor_config.json": case["processor"] | changes.get("processor", {}),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("size", PUBLISHED)
def test_six_published_pictures(size: tuple[int, int]) -> None:
    assert image_tokens(*size, patch=16, merge=2, markers=2) == PUBLISHED[size]


@pytest.mark.parametrize("name", CASES)
def test_every_cost_is_what_the_real_processor_makes_of_the_picture(name: str, tmp_path: Path) -> None:
    source = folder_of(CASES[name], tmp_path)
    measured = [case for case in EXPECTED["tokens"] if case["case"] == name]
    assert measured
    for case in measured:
        width, height = case["size"]
        assert image_cost(Image(source="data:", width=width, height=height), source).tokens == case["tokens"]


def test_three_hundred_random_pictures_are_resized_as_the_library_does() -> None:
    refused = 0
    for width, height, factor, least, most, across, down in EXPECTED["resized"]:
        if across == 0:
            refused += 1
            with pytest.raises(UsageError, match="refused"):
                smart_resize(width, height, factor=factor, min_pixels=least, max_pixels=most)
        else:
            size = smart_resize(width, height, factor=factor, min_pixels=least, max_pixels=most)
            assert size == (across, down), (width, height, factor)
    assert len(EXPECTED["resized"]) == 300
    assert 0 < refused < 30


def test_a_picture_that_is_none_is_refused_and_a_tiny_one_has_a_token() -> None:
    assert image_tokens(1, 1, patch=16, merge=2) == 1
    with pytest.raises(UsageError):
        image_tokens(0, 5, patch=16, merge=2)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("Qwen3-VL", {"config": {"model_type": "internvl"}}, "no rule for pictures is known for internvl"),
        ("Qwen3-VL", {"config": {"vision_config": None}}, "no vision part"),
        ("Qwen3-VL", {"config": {"vision_config": {"patch_size": 14}}}, "disagree"),
        ("Qwen3-VL", {"preprocessor": {"patch_size": None}}, "disagree"),
        ("Qwen3-VL", {"preprocessor": {"image_processor_type": "Glm4vImageProcessor"}}, "Glm4vImageProcessor"),
        ("Qwen3-VL", {"preprocessor": {"do_resize": False}}, "does not resize"),
        ("Qwen3-VL", {"preprocessor": {"size": {"height": 3, "width": 3}}}, "shortest_edge"),
        ("Qwen3-VL", {"preprocessor": {"merge_size": "2"}}, "no numbers"),
        ("Gemma 3", {"preprocessor": {"do_pan_and_scan": True}}, "do_pan_and_scan"),
        ("Gemma 3", {"config": {"mm_tokens_per_image": 64}}, "disagree"),
        ("LLaVA 1.5", {"processor": {"patch_size": None}}, "do not say"),
        ("LLaVA 1.5", {"preprocessor": {"crop_size": None}}, "do not say"),
        ("LLaVA 1.5", {"preprocessor": {"do_center_crop": False}}, "one size"),
    ],
)
def test_where_the_rule_is_not_known_the_cost_is_not_known(
    name: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    cost = image_cost(SQUARE, folder_of(CASES[name], tmp_path, **changes))
    assert cost.tokens is cost.placeholder is cost.expanded is None
    assert why in cost.because


def test_a_picture_of_unknown_size_has_a_cost_only_where_size_does_not_matter(tmp_path: Path) -> None:
    unsized = Image(source="https://example.org/a.png")
    assert "width and height" in image_cost(unsized, folder_of(CASES["Qwen3-VL"], tmp_path)).because
    assert image_cost(unsized, folder_of(CASES["Gemma 3"], tmp_path)).tokens == 258


def test_files_that_are_missing_or_damaged_are_said(tmp_path: Path) -> None:
    assert "no folder" in image_cost(SQUARE, "model.gguf").because
    assert "config.json" in image_cost(SQUARE, str(tmp_path)).because
    folder_of(CASES["Qwen3-VL"], tmp_path)
    (tmp_path / "preprocessor_config.json").write_bytes(b"\xff{")
    assert "cannot be read" in image_cost(SQUARE, str(tmp_path)).because
    (tmp_path / "preprocessor_config.json").write_text("[1]")
    assert "no JSON object" in image_cost(SQUARE, str(tmp_path)).because
    (tmp_path / "preprocessor_config.json").unlink()
    assert "no preprocessor_config.json" in image_cost(SQUARE, str(tmp_path)).because
    # Newer releases keep it inside processor_config.json, and read it there first.
    inside = {"image_processor": CASES["Qwen3-VL"]["preprocessor"]}
    (tmp_path / "processor_config.json").write_text(json.dumps(inside))
    assert image_cost(SQUARE, str(tmp_path)).tokens == 258


def test_the_text_of_a_template_with_its_pictures_tokens(tmp_path: Path) -> None:
    cost = image_cost(SQUARE, folder_of(CASES["Qwen3-VL"], tmp_path))
    text = "a<|vision_start|><|image_pad|><|vision_end|>b"
    whole = with_image_tokens(text * 2, [cost, cost])
    assert whole is not None
    assert whole.count("<|image_pad|>") == 2 * 256
    assert whole.replace("<|image_pad|>", "") == "a<|vision_start|><|vision_end|>b" * 2
    assert with_image_tokens(text, [cost, cost]) is None
    assert with_image_tokens(text * 2, [cost]) is None
    assert with_image_tokens(text, [ImageCost(tokens=None, because="?")]) is None
    assert with_image_tokens("plain", []) == "plain"
