"""What transformers' own processors make of pictures (needs it, with torchvision and Pillow): the tokens of each in
tests/prompt/data/images/expected.json, and the size that Qwen-VL's smart_resize gives to random ones."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

DATA = Path(__file__).parent.parent / "tests" / "prompt" / "data" / "images"
QWEN_WORDS = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]
GEMMA_WORDS = ["<start_of_image>", "<image_soft_token>", "<end_of_image>"]
GEMMA_NAMES = {"boi_token": GEMMA_WORDS[0], "image_token": GEMMA_WORDS[1], "eoi_token": GEMMA_WORDS[2]}


def tokenizer(words: list[str], **names: str) -> Any:
    vocabulary = {word: index for index, word in enumerate(["a", "<unk>", *words])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens(words)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", pad_token="a", extra_special_tokens=names
    )


def processor(kind: str, values: dict[str, Any], outer: dict[str, Any]) -> tuple[Any, str]:
    """The real processor, its pictures' settings read from a preprocessor_config.json, and the text of one picture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "preprocessor_config.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        images = transformers.AutoImageProcessor.from_pretrained(folder)
    if kind == "gemma3":
        return transformers.Gemma3Processor(images, tokenizer(GEMMA_WORDS, **GEMMA_NAMES), **outer), GEMMA_WORDS[0]
    if kind == "llava":
        return transformers.LlavaProcessor(images, tokenizer(["<image>"]), **outer), "<image>"
    known = {
        "qwen2_vl": transformers.Qwen2VLProcessor,
        "qwen2_5_vl": transformers.Qwen2_5_VLProcessor,
        "qwen3_vl": transformers.Qwen3VLProcessor,
    }
    videos = transformers.Qwen2VLVideoProcessor() if kind != "qwen3_vl" else transformers.Qwen3VLVideoProcessor()
    return known[kind](images, tokenizer(QWEN_WORDS), videos), "".join(QWEN_WORDS[:3])


def main() -> None:
    chosen = random.Random(7)
    cases = json.loads((DATA / "cases.json").read_text(encoding="utf-8"))
    expected = []
    for case in cases:
        made, text = processor(case["config"]["model_type"], case["preprocessor"], case["processor"])
        for width, height in case["sizes"]:
            colour = tuple(chosen.randrange(256) for _ in range(3))
            answer = made(images=[Image.new("RGB", (width, height), colour)], text=[text])
            expected.append({"case": case["name"], "size": [width, height], "tokens": len(answer["input_ids"][0])})
    resized = []
    for _ in range(300):
        width, height = (int(10 ** chosen.uniform(1, 3.7)) for _ in range(2))
        factor = chosen.choice([28, 32])
        bounds = chosen.choice([(56 * 56, 28 * 28 * 1280), (65536, 16777216), (4 * 28 * 28, 200_000)])
        try:
            down, across = smart_resize(height, width, factor, *bounds)
        except ValueError:
            down, across = 0, 0  # refused
        resized.append([width, height, factor, *bounds, across, down])
    content = {"transformers": transformers.__version__, "tokens": expected, "resized": resized}
    lines = json.dumps(content).replace('{"case"', '\n{"case"').replace("], [", "],\n[")
    (DATA / "expected.json").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
