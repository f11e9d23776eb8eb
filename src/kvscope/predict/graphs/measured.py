"""Which compute buffers were seen equal on the engine, byte for byte, and what makes one an estimate."""

from kvscope.model.spec import ModelSpec
from kvscope.predict.allocation.llama_cpp_families import graph_family

# Architectures whose graphs were compared with the engine's (tests/golden/llamacpp): the same operations in the same
# order, and every buffer equal.
EQUAL = frozenset({
    "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom", "chatglm", "codeshell", "cohere2",
    "command-r", "dbrx", "deci", "deepseek", "deepseek2", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe",
    "exaone4", "falcon-h1", "gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "glm4", "glm4moe", "gpt-oss", "gpt2",
    "granite", "granitehybrid", "granitemoe", "hunyuan-dense", "hunyuan-moe", "internlm2", "jais", "jamba",
    "kimi-linear", "lfm2", "lfm2moe", "llama", "llama4", "mamba", "mamba2", "mimo2", "minicpm", "minicpm3",
    "minimax-m2", "mistral3", "mistral4", "mpt", "nemotron", "nemotron_h", "nemotron_h_moe", "olmo", "olmo2", "olmoe",
    "openelm", "orion", "phi3", "phimoe", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen35", "qwen35moe",
    "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "refact", "rwkv6", "rwkv7", "seed_oss", "smollm3", "stablelm",
    "starcoder", "starcoder2", "xverse",
})  # fmt: skip
# Weights of the files that were compared; a file with others may have operations that were not seen.
_SEEN = frozenset({
    "altup_correct_coef", "altup_correct_scale", "altup_predict_coef", "altup_proj", "altup_router",
    "altup_router_norm", "altup_unembd_proj", "attn_gate", "attn_k", "attn_k_b", "attn_k_norm", "attn_kv_a_mqa",
    "attn_kv_a_norm", "attn_kv_b", "attn_norm", "attn_norm_2", "attn_output", "attn_output_norm", "attn_q", "attn_q_a",
    "attn_q_a_norm", "attn_q_b", "attn_q_norm", "attn_qkv", "attn_sinks", "attn_sub_norm", "attn_v", "attn_v_b",
    "channel_mix_key", "channel_mix_lerp_k", "channel_mix_lerp_r", "channel_mix_receptance", "channel_mix_value",
    "exp_probs_b", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "ffn_gate", "ffn_gate_exps", "ffn_gate_inp",
    "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_norm", "ffn_norm_exps", "ffn_sub_norm", "ffn_up", "ffn_up_exps",
    "ffn_up_shexp", "inp_gate", "laurel_l", "laurel_post_norm", "laurel_r", "layer_output_norm", "output",
    "output_norm", "per_layer_model_proj", "per_layer_proj_norm", "per_layer_token_embd", "position_embd",
    "post_attention_norm", "post_ffw_norm", "post_ffw_norm_1", "post_ffw_norm_2", "post_norm", "pre_ffw_norm_2", "proj",
    "rope_factors_long", "rope_factors_short", "rope_freqs", "shortconv", "ssm_a", "ssm_alpha", "ssm_b_norm", "ssm_ba",
    "ssm_beta", "ssm_c_norm", "ssm_conv1d", "ssm_conv1d_k", "ssm_conv1d_q", "ssm_conv1d_v", "ssm_d", "ssm_dt",
    "ssm_dt_norm", "ssm_f_a", "ssm_f_b", "ssm_g_a", "ssm_g_b", "ssm_in", "ssm_norm", "ssm_out", "ssm_x", "time_mix_a0",
    "time_mix_a1", "time_mix_a2", "time_mix_decay", "time_mix_decay_w1", "time_mix_decay_w2", "time_mix_first",
    "time_mix_g1", "time_mix_g2", "time_mix_gate", "time_mix_k_a", "time_mix_k_k", "time_mix_key",
    "time_mix_lerp_fused", "time_mix_lerp_x", "time_mix_ln", "time_mix_output", "time_mix_r_k", "time_mix_receptance",
    "time_mix_v0", "time_mix_v1", "time_mix_v2", "time_mix_value", "time_mix_w0", "time_mix_w1", "time_mix_w2",
    "token_embd", "token_embd_norm",
})  # fmt: skip

_SEEN_WHOLE = frozenset({"ssm_a", "ssm_d", "ffn_norm", "ffn_gate_inp.scale"})


def doubt_about(model: ModelSpec) -> str | None:
    """Why the size is not certain, or None."""
    if model.source_kind != "gguf" or not model.tensors:
        return "the converted file's weights, which the graph follows from, are not known"
    name = graph_family(model).name
    if name not in EQUAL:
        return f"the buffers of {name} were equal on the models tried, but its operations come in another order"
    groups = model.graph_keys.get("expert_group_count")
    if isinstance(groups, int) and groups > 1:
        return "experts chosen by groups add small tensors that are not counted; none changed a size that was tried"
    unseen = sorted(_unseen(model))
    if unseen:
        return f"the file has weights that no compared file had: {', '.join(unseen[:3])}"
    return None


def _unseen(model: ModelSpec) -> set[str]:
    drafts = len(model.layers)
    found = set()
    for tensor in model.tensors:
        index = tensor.layer_index
        if index is not None and index >= drafts:
            continue  # a layer that only drafts tokens is not loaded
        name = tensor.name if index is None else tensor.name.split(".", 2)[-1]
        base, _, kind = name.rpartition(".")
        if name not in _SEEN_WHOLE and (base.split(".")[0] not in _SEEN or kind not in ("weight", "bias")):
            found.add(name)
    return found
