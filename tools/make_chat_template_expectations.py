"""Renders the tests' chat templates with the real transformers (needs it): cases.json into expected.json.

The clock stands at 2026-03-09 14:05:06. Where transformers raises, the message of its error is kept.
"""

import json
from datetime import datetime
from pathlib import Path

import tokenizers
import transformers
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent.parent / "tests" / "prompt" / "data" / "chat_templates"


class StandingClock(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return datetime(2026, 3, 9, 14, 5, 6)  # noqa: DTZ001


def main() -> None:
    chat_template_utils.datetime = StandingClock
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    expected = {}
    for case in json.loads((HERE / "cases.json").read_text(encoding="utf-8")):
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
        tokenizer.chat_template = (HERE / f"{case['template']}.jinja").read_text(encoding="utf-8")
        try:
            text = tokenizer.apply_chat_template(
                case["messages"],
                tools=case["tools"] or None,
                tokenize=False,
                add_generation_prompt=case["add_generation_prompt"],
                **case["extra"],
            )
            expected[case["name"]] = {"text": text}
        except Exception as error:
            expected[case["name"]] = {"error": str(error)}
    content = {"transformers": transformers.__version__, "expected": expected}
    (HERE / "expected.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
