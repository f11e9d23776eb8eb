"""Write src/kvscope/model/class_defaults.jsonl: what transformers' config classes assume where a config.json is silent.

Run with the transformers release whose defaults are wanted:  python tools/make_class_defaults.py

One line per model_type, sorted: the class's name, the default of each field, the other names under which the class
accepts a field (``aliases``), and the model_type of each nested config. Only plain values are kept, and only fields
that can bear on shapes: token ids, label maps and training settings are left out.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src" / "kvscope" / "model" / "class_defaults.jsonl"
# Fields that say nothing about tensors or caches.
LEFT_OUT = frozenset(
    "transformers_version architectures output_hidden_states return_dict dtype chunk_size_feed_forward id2label "
    "label2id problem_type use_cache initializer_range rms_norm_eps layer_norm_eps layer_norm_epsilon "
    "attention_dropout "
    "hidden_dropout output_router_logits router_aux_loss_coef".split()
)


def plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) < 256 and all(plain(entry) for entry in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(entry) for key, entry in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def describe(config_class: Any) -> dict[str, Any]:
    defaults = {}
    for field in dataclasses.fields(config_class):
        if field.name in LEFT_OUT or field.name.endswith("_token_id"):
            continue
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is not dataclasses.MISSING and plain(value):
            defaults[field.name] = value
    nested = {
        key: sub.model_type for key, sub in (config_class.sub_configs or {}).items() if getattr(sub, "model_type", "")
    }
    entry: dict[str, Any] = {"class": config_class.__name__, "defaults": defaults}
    if config_class.attribute_map:
        entry["aliases"] = dict(config_class.attribute_map)
    if nested:
        entry["nested"] = nested
    return entry


def main() -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    lines = [json.dumps({"transformers": transformers.__version__})]
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        try:
            entry = describe(CONFIG_MAPPING[model_type])
        except (ImportError, AttributeError, KeyError) as error:
            print(f"left out {model_type}: {error}", file=sys.stderr)
            continue
        lines.append(model_type + "\t" + json.dumps(entry, separators=(",", ":"), ensure_ascii=False))
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
