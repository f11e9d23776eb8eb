"""Renders the tests' chat templates with the real transformers (needs it): cases.json into expected.json, in two
folders (a template that is not in the second one is in the first).

The clock stands at 2026-03-09 14:05:06. Where transformers raises, the message of its error is kept.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from transformers.utils import chat_template_utils

DATA = Path(__file__).parent.parent / "tests" / "prompt" / "data"
FIRST, SECOND = DATA / "chat_templates", DATA / "chat_templates_blocks"


class StandingClock(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return datetime(2026, 3, 9, 14, 5, 6)  # noqa: DTZ001


def main() -> None:
    chat_template_utils.datetime = StandingClock
    for folder in (FIRST, SECOND):
        expected = {case["name"]: rendered(case) for case in json.loads((folder / "cases.json").read_text("utf-8"))}
        content = {"transformers": transformers.__version__, "expected": expected}
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


def rendered(case: dict[str, Any]) -> dict[str, str]:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
    paths = [folder / f"{case['template']}.jinja" for folder in (SECOND, FIRST)]
    tokenizer.chat_template = next(path for path in paths if path.exists()).read_text(encoding="utf-8")
    try:
        text = tokenizer.apply_chat_template(
            case["messages"],
            tools=case.get("tools") or None,
            tokenize=False,
            add_generation_prompt=case["add_generation_prompt"],
            continue_final_message=case.get("continued", False),
            **case.get("extra", {}),
        )
        return {"text": text}
    except Exception as error:
        return {"error": str(error)}


if __name__ == "__main__":
    main()
