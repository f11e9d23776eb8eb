"""Looking a field up: the file's own names, the class's aliases and defaults, what a null means, what is refused."""

import math
from typing import Any

import pytest

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.config_reader import MAX_LAYERS, MAX_WIDTH, ConfigReader, every, short


def reader(model_type: str = "llama", **config: Any) -> ConfigReader:
    return ConfigReader(config, model_type, where="folder/config.json")


def test_the_file_wins_over_the_class_default_and_each_says_so() -> None:
    given = reader(hidden_size=64)
    assert given.number("hidden_size") == 64
    assert given.sources["hidden_size"] == "config.json: hidden_size"
    silent = reader()
    assert silent.number("hidden_size") == 4096  # LlamaConfig of transformers 5.24.0
    assert silent.sources["hidden_size"] == "class default of transformers 5.24.0 LlamaConfig"


def test_a_field_is_found_under_the_classes_other_name() -> None:
    """GPT2Config's attribute_map: hidden_size is n_embd; ExaoneConfig's: num_layers is num_hidden_layers."""
    gpt2 = reader("gpt2", hidden_size=48)
    assert gpt2.number("n_embd") == 48
    assert gpt2.sources["n_embd"] == "config.json: hidden_size"
    assert reader("exaone", num_layers=3).num_layers() == 3
    with pytest.raises(MalformedFile, match="another name of the same field"):
        reader("gpt2", n_embd=32, hidden_size=48).number("n_embd")


def test_another_classes_name_is_not_read() -> None:
    """n_embd in a Llama's config means nothing to the class."""
    assert reader(n_embd=48).number("hidden_size") == 4096


def test_a_null_overrides_the_class_default_and_is_never_zero() -> None:
    """Ernie4_5Config: num_key_value_heads defaults to 2, but a null means as many as query heads."""
    ernie = reader("ernie4_5", num_key_value_heads=None)
    assert ernie.lookup("num_key_value_heads")[0] is None
    assert ernie.number_or("num_key_value_heads", 16, "num_attention_heads") == 16
    assert ernie.sources["num_key_value_heads"] == "derived: num_attention_heads"
    with pytest.raises(MissingField, match="hidden_size"):
        reader(hidden_size=None).number("hidden_size")
    assert reader(max_position_embeddings=None).optional("max_position_embeddings") is None


def test_a_number_that_nobody_states_names_every_place_looked_in() -> None:
    with pytest.raises(MissingField, match=r"folder/config\.json: window, folder/config\.json: sliding"):
        reader().number("window", "sliding")


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, 1.5, math.nan, math.inf, "64", True, False, [64], {}, MAX_WIDTH + 1, 10**40]
)
def test_what_is_no_whole_number_in_range_is_refused_with_file_key_and_expectation(value: Any) -> None:
    with pytest.raises(MalformedFile, match=r"folder/config\.json: .* a whole number from 1 to") as caught:
        reader(hidden_size=value).number("hidden_size")
    assert caught.value.where == "hidden_size"


def test_layers_have_a_limit_of_their_own() -> None:
    assert reader(num_hidden_layers=MAX_LAYERS).num_layers() == MAX_LAYERS
    with pytest.raises(MalformedFile):
        reader(num_hidden_layers=MAX_LAYERS + 1).num_layers()


@pytest.mark.parametrize("value", [0, 1, "true", [], {}])
def test_a_flag_is_true_or_false(value: Any) -> None:
    assert reader(attention_bias=True).flag("attention_bias") is True
    assert reader().flag("attention_bias") is False  # class default
    assert reader().flag("no_such_flag", default=True) is True
    with pytest.raises(MissingField):
        reader().flag("no_such_flag")
    with pytest.raises(MalformedFile, match="true or false"):
        reader(attention_bias=value).flag("attention_bias")


def test_texts_and_lists() -> None:
    assert reader(hidden_act="gelu").word("hidden_act") == "gelu"
    assert reader(x=["a", "b"]).words("x") == ("a", "b")
    assert reader(x=[1, 0]).numbers("x") == (1, 0)
    assert reader().words("x") is None
    for bad in ("a", [1], [None], {"a": 1}, 3):
        with pytest.raises(MalformedFile, match="a list of texts"):
            reader(x=bad).words("x")
    for bad in ("a", ["1"], [-1], [1.5], 3, [True]):
        with pytest.raises(MalformedFile):
            reader(x=bad).numbers("x")
    with pytest.raises(MalformedFile, match="text was expected"):
        reader(hidden_act=3).word("hidden_act")


def test_one_number_for_all_layers_or_one_for_each() -> None:
    assert reader(x=3).per_layer("x", 2) == (3, 3)
    assert reader(x=[3, 0]).per_layer("x", 2) == (3, 0)
    with pytest.raises(MalformedFile, match="2 were expected, one per layer"):
        reader(x=[3]).per_layer("x", 2)


def test_layer_types_must_be_one_per_layer() -> None:
    assert reader(layer_types=["full_attention"] * 2).layer_types(2) == ("full_attention",) * 2
    assert reader().layer_types(2) is None
    with pytest.raises(MalformedFile, match="1 entries for 2 layers"):
        reader(layer_types=["full_attention"]).layer_types(2)


def test_a_nested_config_has_its_own_class_and_place() -> None:
    outer = reader("gemma3", text_config={"model_type": "gemma3_text", "head_dim": 0})
    inner = outer.nested("text_config")
    assert inner.number("hidden_size") == 2304  # Gemma3TextConfig
    assert outer.sources["hidden_size"] == "class default of transformers 5.24.0 Gemma3TextConfig"
    with pytest.raises(MalformedFile) as caught:
        inner.number("head_dim")
    assert caught.value.where == "text_config.head_dim"
    assert reader("gemma3").nested("text_config", "gemma3_text").number("hidden_size") == 2304
    with pytest.raises(MalformedFile, match="a JSON object"):
        reader(text_config=[1]).nested("text_config")


def test_fields_of_single_layers() -> None:
    """transformers writes per_layer_config with the layer's number as text."""
    asked = reader(per_layer_config={"1": {"head_dim": 8}})
    assert asked.per_layer_config(2) == {1: {"head_dim": 8}}
    asked.refuse_unread_layers()
    assert reader().per_layer_config(2) == {}
    with pytest.raises(UnsupportedArchitecture, match="per_layer_config"):
        reader(per_layer_config={"1": {"head_dim": 8}}).refuse_unread_layers()
    with pytest.raises(UnsupportedArchitecture, match="per_layer_config"):
        reader(text_config={"per_layer_config": {"1": {}}}).refuse_unread_layers()
    for bad in ([1], {"2": {}}, {"x": {}}, {"1": 3}, {"-1": {}}):
        with pytest.raises(MalformedFile):
            reader(per_layer_config=bad).per_layer_config(2)


def test_refusals_name_the_key_its_value_and_a_way_out() -> None:
    with pytest.raises(UnsupportedArchitecture, match="num_experts = 8") as caught:
        reader(num_experts=8).refuse_keys("num_experts", "other")
    assert "--layers" in str(caught.value.hint)
    reader(num_experts=0, other=None).refuse_keys("num_experts", "other")


def test_values_are_cut_to_fit_a_message() -> None:
    assert short("x" * 100) == '"' + "x" * 56 + "..."
    assert short(10**5000) == "a number of thousands of digits"


def test_a_repeating_pattern() -> None:
    assert list(every(3, 7, inside="s", last="f")) == ["s", "s", "f", "s", "s", "f", "s"]
