"""How the size of each finding of a design is written: the slug of the finding → the words of its interval."""

from collections.abc import Mapping

_SECONDS = "size.difference_s"
_BYTES = "size.difference_bytes"
_VERDICTS = ("more", "less", "equal", "no_difference_seen", "cannot_tell", "unknown")
_BUFFERS = ("confirmed", "reported", "not_in_memory")
_HOST_CACHE = (
    "as_predicted",
    "as_predicted_with_warmup",
    "bounded",
    "with_checkpoints",
    "none_kept",
    "nothing_listed",
    "listed_only",
    "differs",
    "over_limit",
)
_LOST_BY = ("reasoning_dropped", "window", "recurrent", "lost")
_SIGNS = ("head_never_arrives", "tail_never_arrives", "middle_ignored", "middle_weaker")
_LINEAR = ("linear", "linear_start_unclear", "linear_from_below", "linear_unclear")
_QUADRATIC = ("quadratic", "quadratic_not_seen", "quadratic_cannot_tell", "bends_down", "quadratic_unknown")

DESIGN_SIZES: Mapping[str, str] = {
    **{f"turns_{how}": "size.wait_s" for how in ("last", "last_unstated")},
    **{f"turns_reuse_{at}{cause}": "size.wait_s" for at in ("", "at_") for cause in _LOST_BY},
    "prefix_saved": "size.saved_per_token",
    **dict.fromkeys(("retrieval_even", "retrieval_even_at_once"), "size.questions"),
    **dict.fromkeys(("retrieval_right", "retrieval_right_sent", "retrieval_guessed"), "size.right"),
    **dict.fromkeys(("quality_share", *(f"quality_{sign}" for sign in _SIGNS)), "size.right"),
    **{f"quality_{verdict}": "size.points" for verdict in ("loss", "gain", "no_loss", "cannot_tell")},
    **{f"fidelity_{verdict}": "size.nats" for verdict in ("loss", "no_loss", "cannot_tell")},
    **{f"copy_gain_{verdict}": "size.nats" for verdict in ("used", "not_used", "cannot_tell")},
    "fidelity_order": "size.ratio",
    **{f"time_{verdict}": _SECONDS for verdict in _VERDICTS if verdict != "equal"},
    **{f"memory_{verdict}{end}": _BYTES for verdict in _VERDICTS for end in ("", "_predicted")},
    **{f"memory_{verdict}_beside": _BYTES for verdict in ("more", "less", "equal", "no_difference_seen")},
    **{f"rate_{verdict}": "size.difference_per_s" for verdict in _VERDICTS if verdict != "equal"},
    **{f"buffer_{how}": "size.seen_bytes" for how in _BUFFERS},
    **{f"reuse_{how}": "size.difference_tokens" for how in ("differs", "unclear")},
    **{f"host_cache_{how}": "size.growth_bytes" for how in _HOST_CACHE},
    **{f"load_{name}": "size.share_bytes" for name in ("share", "capacity")},
    **{f"load_memory_{how}": _BYTES for how in ("flat", "grows", "falls", "unclear")},
    **{f"input_length_{how}": "size.thousand_s" for how in _LINEAR},
    **{f"input_length_{how}": "size.thousand_squared_s" for how in _QUADRATIC},
    **{f"output_length_{how}": "size.output_token_s" for how in ("per_token", "per_token_unclear")},
    **{f"interaction_time_{how}": _SECONDS for how in ("seen", "not_seen", "cannot_tell", "unknown")},
    **{f"interaction_memory_{how}": _BYTES for how in ("seen", "not_seen", "cannot_tell", "unknown")},
}
