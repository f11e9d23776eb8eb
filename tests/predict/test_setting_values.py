"""Values of settings, as people write them and as no engine takes them."""

import pytest

from kvscope.errors import UnknownName, UsageError
from kvscope.predict.allocation import vllm_settings
from kvscope.predict.allocation.setting_values import SettingTable, finite_number, truth, whole_number
from kvscope.scenario import SettingValue


@pytest.mark.parametrize(
    ("value", "number"), [(8, 8), ("8", 8), ("8k", 8192), ("AUTO", -1), (-1, -1), (2**31 - 1, 2**31 - 1)]
)
def test_whole_numbers(value: SettingValue, number: int) -> None:
    assert whole_number(1, tokens=True, words={"auto": -1})("n_ctx", value) == number


@pytest.mark.parametrize("value", [0, -2, 2**31, 1.0, True, None, "", "8.5", "eight", "nan", "8k"])
def test_what_is_no_whole_number(value: SettingValue) -> None:
    with pytest.raises(UsageError, match=r"n_batch is .* from 1 up"):
        whole_number(1, words={"auto": -1})("n_batch", value)


@pytest.mark.parametrize(("value", "is_true"), [(True, True), ("On", True), (1, True), ("no", False), ("0", False)])
def test_truth(value: SettingValue, is_true: bool) -> None:
    assert truth("swa_full", value) is is_true


@pytest.mark.parametrize("value", [None, "", 2, "maybe", 1.5])
def test_what_is_neither_true_nor_false(value: SettingValue) -> None:
    with pytest.raises(UsageError, match="true or false"):
        truth("swa_full", value)


@pytest.mark.parametrize("value", [None, True, "", "inf", "nan", float("inf"), 10**400, "1e999"])
def test_what_is_no_finite_number(value: SettingValue) -> None:
    with pytest.raises(UsageError, match="a number was expected"):
        finite_number("ratio", value)


def test_finite_numbers() -> None:
    assert [finite_number("ratio", value) for value in (1, 0.5, "1.5e3")] == [1.0, 0.5, 1500.0]


TABLE = SettingTable(
    kind="test setting",
    readers={"n_ctx": whole_number(1, tokens=True), "swa_full": truth},
    aliases={"c": "n_ctx"},
    unsupported={"lora": "its memory is not known"},
)


def test_names_are_taken_as_a_command_line_spells_them() -> None:
    assert TABLE.canonical({"--N-CTX": "8k", " swa-full": "on"}) == {"n_ctx": 8192, "swa_full": True}
    assert TABLE.canonical({"-c": 512}) == {"n_ctx": 512}


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"n_ctx": 512, "c": 512}, UsageError, "given twice, as 512 and 512"),
        ({"lora": "x"}, UsageError, "lora cannot be predicted: its memory is not known"),
        ({"n_ctxx": 512}, UnknownName, "no test setting called 'n_ctxx'"),
    ],
)
def test_what_is_no_setting(settings: dict[str, SettingValue], error: type[UsageError], words: str) -> None:
    with pytest.raises(error, match=words):
        TABLE.canonical(settings)


def test_only_a_switch_of_vllm_can_be_negated() -> None:
    assert vllm_settings.canonical_settings({"--no-enable-prefix-caching": True}) == {"enable_prefix_caching": False}
    with pytest.raises(UnknownName, match="no_block_size"):
        vllm_settings.canonical_settings({"no_block_size": 16})
