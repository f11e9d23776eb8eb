"""The recurrent state of one layer and sequence, from a GGUF's keys. Sizes as llama.cpp b11549 allocates them
(tests/golden/llamacpp/README.md); each formula is that of the model's own description."""

from kvscope.model.gguf_keys import Keys
from kvscope.model.layer_kinds import Family
from kvscope.model.spec import RecurrentState, StateForm, StateTensor

TOKEN_SHIFTS = 2


def read_state(keys: Keys, family: Family, hidden_size: int, q_heads: tuple[int, ...]) -> RecurrentState:
    """Raises MissingField, MalformedFile."""
    match family.state:
        case "short_conv":
            taps = keys.number("shortconv.l_cache", "conv_kernel")
            return RecurrentState(form="short_conv", conv_channels=hidden_size, conv_kernel=taps)
        case "rwkv":
            return _rwkv(keys, hidden_size)
        case "kda":
            return _kda(keys, q_heads)
        case "mamba" | "mamba2" | "gated_delta_net":
            if family.name == "mamba" and keys.number("ssm.inner_size", "inner_size") != 2 * hidden_size:
                raise keys.malformed("ssm.inner_size", "llama.cpp runs mamba with twice the embedding_length only")
            return _state_space(keys, family.state)
        case None:
            raise AssertionError(f"{family.name} has no recurrent layers")


def _state_space(keys: Keys, form: StateForm) -> RecurrentState:
    """Mamba 1 and 2 and the gated delta net: a convolution over the inner channels and, but for Mamba 1, in each group
    two vectors as long as the state (B and C; keys and queries); one state vector per inner channel."""
    inner = keys.number("ssm.inner_size", "inner_size")
    state = keys.number("ssm.state_size", "state_size")
    taps = keys.number("ssm.conv_kernel", "conv_kernel")
    # Mamba 1 convolves the inner channels alone, and llama.cpp does not read the key for it.
    groups = 0 if form == "mamba" else keys.number("ssm.group_count", "group_count")
    return RecurrentState(
        form=form,
        conv_channels=inner + 2 * groups * state,
        conv_kernel=taps,
        states=(StateTensor(name="ssm_state", shape=(inner, state)),),
    )


def _kda(keys: Keys, q_heads: tuple[int, ...]) -> RecurrentState:
    """Kimi delta attention: a convolution for each of queries, keys and values; one matrix per head."""
    if len(set(q_heads)) != 1:
        raise keys.malformed("attention.head_count", "layers with different numbers of heads were not expected")
    heads = q_heads[0]
    dim = keys.number("kda.head_dim", "head_dim")
    taps = keys.number("ssm.conv_kernel", "conv_kernel")
    return RecurrentState(
        form="kda",
        conv_channels=3 * heads * dim,
        conv_kernel=taps,
        states=(StateTensor(name="delta_state", shape=(heads, dim, dim)),),
    )


def _rwkv(keys: Keys, hidden_size: int) -> RecurrentState:
    """The last token's hidden state for each token shift, and one matrix per head."""
    head = keys.number("wkv.head_size", "head_size")
    if hidden_size % head:
        raise keys.malformed("wkv.head_size", f"heads of {head} do not divide embedding_length {hidden_size}")
    # Two, before the time mix and before the channel mix; llama.cpp has graphs for no other number.
    shifts = keys.optional("token_shift_count")
    if shifts not in (None, TOKEN_SHIFTS):
        raise keys.malformed("token_shift_count", f"the value is {shifts}; {TOKEN_SHIFTS} was expected")
    return RecurrentState(
        form="rwkv",
        states=(
            StateTensor(name="token_shift", shape=(TOKEN_SHIFTS, hidden_size)),
            StateTensor(name="wkv_state", shape=(hidden_size // head, head, head)),
        ),
    )
