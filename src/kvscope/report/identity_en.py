"""Words of the identity: how each term is known, what was calibrated on what, rows and the differences between them."""

from collections.abc import Mapping

IDENTITY: Mapping[str, str] = {
    "named.seen": "{size_bytes:mib} predicted and seen",
    "named.shared": "at most {size_bytes:mib} compute and output buffers, seen in a mapping that may hold more",
    "named.rule": "{size_bytes:mib} by the engine's rule, not seen",
    "named.calibrated": "{size_bytes:mib} of the engine's own, by calibration",
    "named.counted": "{size_bytes:mib} freed and kept by its allocator, by its own count",
    "named.measured": "{size_bytes:mib} run time and libraries, seen and predicted by no file",
    "named.swapped": "{size_bytes:mib} swapped out",
    "named.nothing": "nothing",
    "basis.predicted": "predicted, and seen in its mapping",
    "basis.reported": "stated by the engine",
    "basis.rule": "by the engine's rule, not seen",
    "basis.shared": "at most: seen in a mapping that may hold more",
    "basis.measured": "seen in this trial",
    "basis.counted": "counted by the allocator",
    "basis.computed": "counted by the allocator, no more than the model's widths give",
    "basis.calibrated": "calibrated",
    "calibrated.tiny_model": "calibrated on a tiny model",
    "calibrated.tiny_model_same_vocabulary": "calibrated on a tiny model with this vocabulary",
    "identity.compared": "{basis}; the tiny model had {size_bytes:mib2}",
    "identity.on": "Calibrated: {engine} {version} on this machine, {measured_at}. The run time is what a model of "
    "{layers:count} layers and {tokens:count} tokens held beside its buffers after the load.",
    "identity.on_vocabulary": "Vocabulary and tables are what a model with this model's {tokens:count} tokens and "
    "{layers:count} layers, each 32 wide, held more than that. Growth with the prompt is what it grew by after one of "
    "such a length.",
    "identity.not_calibrated": "Not calibrated: heap and arenas are named by their place, and what is in them is not "
    "told apart.",
    "not_calibrated.not_recorded": "Nothing was recorded of tiny models, as by an older release.",
    "not_calibrated.switched_off": "Tiny models were switched off (KVSCOPE_CALIBRATION).",
    "not_calibrated.other_engine": "Tiny models are run on llama.cpp and transformers alone.",
    "not_calibrated.attached": "The server ran already, and a tiny model cannot be loaded into it.",
    "not_calibrated.own_command": "A program of your own loads its model at once: its start cannot be told apart.",
    "not_calibrated.tiny_model_not_run": "The tiny model did not run on this engine.",
    "not_calibrated.tiny_model_not_read": "The tiny model ran, and its memory could not be read.",
    "not_calibrated.unreadable": "What was recorded of tiny models is nothing that any of them can have held.",
    "not_calibrated.of_another_engine": "What was recorded of tiny models is of another engine, build or machine.",
    "identity.bound": "The readings themselves can be off by {total_bytes:mib2} at most either way: "
    "{counters_bytes:mib2} by the kernel's counters, {pages_bytes:mib2} by pages, {time_bytes:mib2} by the time "
    "between two readings, {digits_bytes:mib2} by printed digits. No term takes that up.",
    "identity.bound_unknown": "By how much the readings themselves can be off is not known for this kernel.",
    "identity.seen_apart": "The two ways to read the same memory, totals and mappings, differed by "
    "{seen_apart_bytes:signed_mib2}.",
    "identity.lead": "Every row, from start to peak: at most {share:percent2} of what grew has no name "
    "({rows:count} rows). The most is {unexplained_bytes:signed_mib2}, in row {row}.",
    "identity.beyond": "In {count:count} rows, {rows:list}, more has no name than the readings can be off.",
    "identity.between": "Between two rows of one run, what has no name differs by at most {share:percent2} of the "
    "smaller growth ({unexplained_bytes:signed_mib2}, from row {first} to row {second}).",
    "caption.identity": "Where the memory of that trial is, in MiB, by cause; what grew since the start",
    "caption.identity_rows": "What grew from start to peak in each row, in MiB",
    "caption.identity_between": "Between rows, from the baseline's to each level's, at the peak, in MiB",
    "summary.identity_rows": "Each row's memory from start to peak ({count:count} rows)",
    "summary.identity_between": "What tells the levels' memory apart ({count:count} pairs)",
    "col.basis": "how it is known",
    "col.at_load": "after load",
    "col.at_after": "after requests",
    "col.at_peak": "at peak",
    "col.weights": "weights",
    "col.cache": "KV cache, state",
    "col.work": "compute, output",
    "col.kept_copies": "copies, checkpoints",
    "col.own": "engine's own",
    "col.library": "libraries, stacks",
    "col.rest_share": "share",
    "col.off_by": "readings ±",
    "col.between": "from, to",
    "identity.pair": "{design}: {first} → {second}",
    "resident.calibrated": "{size} (calibrated)",
    "resident.counted": "{size} (counted)",
    "resident.reported": "{size} (stated)",
    "remark.own": "Heap and arenas are places. What they hold of the engine's own is held against tiny models; "
    "libraries and stacks are read from the process, and named up to what a tiny model had of them. Whatever neither "
    "names is unexplained, and memory shared with other processes is. A leak that the engine has with every model "
    "would be in the tiny ones too, and so in its run time.",
}
