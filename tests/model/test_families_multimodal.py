"""Multimodal models: every tensor of text, towers and projectors against the modules of transformers 5.24.0, parameter
totals of published checkpoints, layers that see an image, and what is refused.

tests/golden/multimodal_tensors.json lists, for cases of tests/golden/transformers, what the library's model of that
config has: [name with {} for its first number, shape, whether it is the weight of an nn.Linear, those numbers]. It was
written from model.named_parameters().
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import MalformedFile, UnsupportedArchitecture
from kvscope.model.load import load_model
from kvscope.model.spec import CrossAttention, FullAttention, ModelSpec, SlidingWindow
from kvscope.predict.memory import predict

GOLDEN = Path(__file__).parent.parent / "golden"
TENSORS: dict[str, list[list[Any]]] = json.loads((GOLDEN / "multimodal_tensors.json").read_text(encoding="utf-8"))

Tensor = tuple[tuple[int, ...], bool]


def library_tensors(case: str) -> dict[str, Tensor]:
    return {
        name.replace("{}", str(number)): (tuple(shape), is_linear)
        for name, shape, is_linear, numbers in TENSORS[case]
        for number in numbers or [None]
    }


def predicted_tensors(model: ModelSpec) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for group in model.weights:
        for layer in group.layers or (None,):
            name = group.name.replace("{}", str(layer))
            assert name not in found
            found[name] = (group.shape, group.kind in ("linear", "head"))
    return found


def golden(case: str) -> dict[str, Any]:
    loaded = json.loads((GOLDEN / "transformers" / f"{case}.json").read_text(encoding="utf-8"))
    return {"model_type": loaded["model_type"], **loaded["config_kwargs_given"]}


@pytest.mark.parametrize("case", sorted(TENSORS))
def test_every_tensor_is_named_and_shaped_as_in_the_library(case: str) -> None:
    assert predicted_tensors(load_model(golden(case))) == library_tensors(case)


@pytest.mark.parametrize("case", ["qwen2_5_omni_thinker", "gemma4__towers"])
def test_parts_are_told_apart(case: str) -> None:
    """Towers, their mergers and embedders are not the text's; everything of the language model and the head is."""
    for group in load_model(golden(case)).weights:
        is_text = group.name.startswith(("model.language_model.", "lm_head."))
        assert (group.part == "text") == is_text
        if "audio" in group.name:
            assert group.part == "audio"


DEFAULTS: dict[str, int] = json.loads((GOLDEN / "multimodal_defaults.json").read_text(encoding="utf-8"))
WHOLE_CLASSES = {
    "llama4": "Llama4ForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
}


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_a_bare_config_stands_for_the_defaults_of_its_class(model_type: str) -> None:
    """multimodal_defaults.json: parameters of transformers 5.24.0's multimodal class of each model_type with the config
    class's own defaults, built on the meta device. What a wrapper assumes of a part that is not described at all is not
    always what the part's own class does."""
    classes = {"architectures": [WHOLE_CLASSES[model_type]]} if model_type in WHOLE_CLASSES else {}
    assert load_model({"model_type": model_type, **classes}).num_parameters == DEFAULTS[model_type]


PUBLISHED: dict[str, Any] = json.loads((GOLDEN / "multimodal_published.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_count_what_their_checkpoints_have(name: str) -> None:
    """The fields of published configs that bear on shapes, and the number of elements that the hub reports for the
    safetensors files beside them."""
    assert load_model(PUBLISHED[name]["config"]).num_parameters == PUBLISHED[name]["parameters"]


QWEN2_5_VL_7B = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}


def test_a_published_flat_config_counts_what_the_checkpoint_has() -> None:
    """Qwen2.5-VL-7B-Instruct: its checkpoint has 8,292,166,656 elements, 676,550,144 of them in the tower."""
    model = load_model(QWEN2_5_VL_7B)
    assert model.num_parameters == 8_292_166_656
    assert sum(group.num_elements for group in model.weights if group.part == "vision") == 676_550_144
    assert {layer.cache for layer in model.layers} == {FullAttention(num_kv_heads=4, key_dim=128, value_dim=128)}


LLAMA_4_SCOUT = {
    "model_type": "llama4",
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "model_type": "llama4_text",
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 1,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "vocab_size": 202048,
    },
    "vision_config": {
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "vision_output_dim": 4096,
    },
}


def test_llama_4_scout_counts_what_the_checkpoint_has() -> None:
    """108,641,793,536 elements in the published safetensors files. Without the class's name the file may as well be
    one of Llama4ForCausalLM, the text model alone."""
    assert load_model(LLAMA_4_SCOUT).num_parameters == 108_641_793_536
    text = load_model({**LLAMA_4_SCOUT, "architectures": ["Llama4ForCausalLM"]})
    assert {group.part for group in text.weights} == {"text"}


MLLAMA = {
    "model_type": "mllama",
    "text_config": {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "cross_attention_layers": [1],
    },
    "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4},
}


def test_keys_of_the_image_do_not_grow_with_the_text() -> None:
    """One layer of cross attention: 4 tiles of (560 / 14)² patches and a class token, 6,404 tokens; 2 heads of 16
    elements, keys and values in 2 bytes: 6,404 × 128 B. The other three layers: 3 × 128 B a token. transformers keeps
    nothing for the image while there is none."""
    model = load_model(MLLAMA)
    assert model.layers[1].cache == CrossAttention(num_kv_heads=2, key_dim=16, value_dim=16, source_tokens=6404)
    for tokens in (10, 1000):
        logical = predict(model, engine="logical", tokens=tokens, dtype="bfloat16")
        assert logical.cache_bytes == 6404 * 128 + 3 * 128 * tokens
        library = predict(model, engine="transformers", tokens=tokens, dtype="bfloat16")
        assert library.cache_bytes == 3 * 128 * tokens


def test_the_outer_flag_says_whether_the_head_is_tied() -> None:
    """Qwen3-VL-MoE's text class assumes tied embeddings, but the whole model's flag counts; Qwen2-VL's class takes
    either."""
    moe = golden("qwen3_vl_moe")
    assert load_model(moe).is_tied is False
    assert load_model({**moe, "tie_word_embeddings": True}).is_tied is True
    qwen2 = golden("qwen2_vl")
    assert load_model(qwen2).is_tied is False
    text = {**qwen2["text_config"], "tie_word_embeddings": True}
    assert load_model({**qwen2, "text_config": text}).is_tied is True


def test_qwen3_5_may_be_the_text_model_alone() -> None:
    """transformers reads the same model_type as Qwen3_5ForCausalLM, which has no tower."""
    case = golden("qwen3_5")
    whole, text = load_model(case), load_model({**case, "architectures": ["Qwen3_5ForCausalLM"]})
    assert {group.part for group in whole.weights} == {"text", "vision"}
    assert {group.part for group in text.weights} == {"text"}
    assert whole.layers == text.layers


def test_the_text_model_is_read_by_its_own_type() -> None:
    llava = {"model_type": "llava", "text_config": {"model_type": "mistral", "sliding_window": 64}}
    assert all(isinstance(layer.cache, SlidingWindow) for layer in load_model(llava).layers)
    assert load_model({"model_type": "llava"}).family == "llama"  # the class's default


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "llava", "text_config": {"model_type": "bert"}}, "bert"),
        ({"model_type": "qwen2_vl", "text_config": {"model_type": "llama"}}, "llama"),
        ({"model_type": "paligemma", "text_config": {"model_type": "llama"}}, "llama"),
        ({"model_type": "llava_next_video", "spatial_pool_mode": "conv"}, "convolution"),
    ],
)
def test_what_is_not_known_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=named):
        load_model(config)


def test_an_unknown_tower_leaves_the_parameters_unknown() -> None:
    """The caches are the text's, whatever the tower."""
    model = load_model({"model_type": "llava", "vision_config": {"model_type": "dinov2"}})
    assert model.num_parameters is None
    assert len(model.layers) == 32


def test_a_nested_config_that_is_no_object_is_malformed() -> None:
    with pytest.raises(MalformedFile, match="vision_config"):
        load_model({"model_type": "llava", "vision_config": [1]})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"model_type": "gemma3n", "text_config": {"num_hidden_layers": 10, "num_kv_shared_layers": 5}},
            {"model_type": "gemma3n_text", "num_hidden_layers": 10, "num_kv_shared_layers": 5},
        ),
        ({"model_type": "janus"}, {"model_type": "llama"}),
        (
            {"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2", "num_hidden_layers": 3}},
            {"model_type": "qwen2", "num_hidden_layers": 3},
        ),
        (
            {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"num_hidden_layers": 3}}},
            {"model_type": "qwen2_5_vl", "text_config": {"num_hidden_layers": 3, "num_attention_heads": 28,
             "num_key_value_heads": 4, "hidden_size": 3584, "intermediate_size": 18944}},
        ),
    ],
)  # fmt: skip
def test_caches_are_the_texts_where_parameters_are_unknown(config: dict[str, Any], text: dict[str, Any]) -> None:
    model = load_model(config)
    assert model.num_parameters is None
    assert [layer.cache for layer in model.layers] == [layer.cache for layer in load_model(text).layers]


def test_a_wrapper_whose_text_has_other_defaults_needs_it_stated() -> None:
    with pytest.raises(UnsupportedArchitecture, match="llm_config"):
        load_model({"model_type": "internvl_chat"})


SMALL = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("config", "held"),
    [
        ({"model_type": "chameleon", **SMALL}, [3072, 4608, 33024]),
        ({"model_type": "janus", "text_config": {"model_type": "llama", **SMALL}}, [3072, 4608, 33024]),
        ({"model_type": "nemotron_h_omni", "text_config": SMALL}, [4374528, 4382720, 8892416]),
    ],
)
def test_caches_alone_equal_what_the_library_held(config: dict[str, Any], held: list[int]) -> None:
    """Measured with transformers 5.24.0 in float32: one sequence of 8 tokens, the same after 4 steps, two sequences of
    40 tokens after 3 steps."""
    model = load_model(config)
    for (sequences, tokens), expected in zip([(1, 8), (1, 12), (2, 43)], held, strict=True):
        predicted = predict(model, engine="transformers", tokens=tokens, sequences=sequences, dtype="float32")
        assert predicted.cache_bytes == expected


@pytest.mark.parametrize("model_type", ["llama4", "qwen3_5", "qwen3_5_moe"])
def test_which_of_two_classes_was_counted_is_said_where_the_file_names_none(model_type: str) -> None:
    unnamed = load_model({"model_type": model_type})
    assert any("names no class" in warning for warning in unnamed.warnings)
    class_name = {"llama4": "Llama4", "qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}[model_type]
    named = load_model({"model_type": model_type, "architectures": [f"{class_name}ForConditionalGeneration"]})
    assert not any("names no class" in warning for warning in named.warnings)
    assert named.layers == unnamed.layers  # only the weights differ
    assert named.num_parameters is not None
    assert unnamed.num_parameters is not None
    assert named.num_parameters > unnamed.num_parameters
