"""What is said of effects, in English: the tables of differences, the charts, what repeating ended with."""

from collections.abc import Mapping

EFFECTS: Mapping[str, str] = {
    "effects.lead": "Each row is a difference from the baseline with its 95 % interval. {method} A difference is "
    "called one (seen) only where it holds for all {levels} changed levels together.",
    "effects.lead_one": "Each row is a difference from the baseline with its 95 % interval. {method} A difference is "
    "called one (seen) where a slightly wider interval leaves out zero.",
    "method.paired_t": "Paired by block, Student's t.",
    "method.welch_t": "Not paired (no blocks in common), Welch's t.",
    "method.none": "Too few repeats for an interval.",
    "effects.caption": "What changed, and by how much ({name}). {lead}",
    "effects.summary": "Each difference with its interval, share and number of pairs",
    "effects.against": "{factor}: {level} against {base}",
    "effects.counts": "{measured} measured, {pairs} pairs with the baseline",
    "effects.counts_failed": "{measured} measured, {failed} failed (in no difference), {pairs} pairs with the baseline",
    "effects.nothing": "nothing measured, {failed} failed",
    "effects.none": "No level was measured besides the baseline: there is nothing to compare.",
    "effects.ruled_out": "no; more than {size} would be",
    "effects.more": "yes, more",
    "effects.less": "yes, less",
    "effects.unknown": "unknown: one pair",
    "effects.no_interval": "no interval",
    "effects.share": "{value} %",
    "effects.width": "{low} to {high}",
    "effects.seen": "seen?",
    "effects.yes": "yes",
    "effects.no": "no",
    "effects.one_pair": "n = 1",
    "effects.more_levels": "({count} more levels: see the report.)",
    "col.level_changed": "changed to",
    "col.what": "what",
    "col.at_baseline": "baseline",
    "col.difference": "difference",
    "col.interval": "95 % interval",
    "col.share": "share",
    "col.pairs": "pairs",
    "col.seen_difference": "difference seen?",
    "effect_unit.s": "{name} (ms)",
    "effect_unit.whole_s": "{name} (s)",
    "effect_unit.gib": "{name} (GiB)",
    "effect_unit.bytes": "{name} (MiB)",
    "effect_unit.per_s": "{name} (tokens/s)",
    "effect_unit.other": "{name}",
    "effect_name.ttft_s": "first token",
    "effect_name.tpot_s": "each later token",
    "effect_name.completion_s": "whole answer",
    "effect_name.ttft_max_s": "longest first token",
    "effect_name.queue_wait_s": "wait for its turn",
    "effect_name.load_wall_s": "all requests",
    "effect_name.output_tokens_per_s_all": "output of all",
    "effect_name.memory_loaded_bytes": "memory, loaded",
    "effect_name.memory_peak_bytes": "memory, peak",
    "effect_name.memory_after_bytes": "memory, after",
    "effect_name.memory_loaded_bytes_device": "device, loaded",
    "effect_name.memory_peak_bytes_device": "device, peak",
    "effects.chart_title": "What each change did, as a share of the baseline, with its 95 % interval ({name})",
    "effects.chart_description": "A row for each changed level and quantity. A mark is the change as a share of the "
    "baseline, the line through it is the 95 % interval, and the upright dashed line is no change. A dot is a "
    "difference that is called one; a square may be noise.",
    "effects.axis_share": "change against the baseline (%)",
    "series.seen": "difference seen",
    "series.not_seen": "may be noise",
    "until.reached": "Narrow enough after {blocks} of at most {most} repeats: the widest interval of {metric} reaches "
    "{share:percent} of the baseline to either side ({asked_share:percent} was asked).",
    "until.not_reached": "Not narrow enough after {blocks} of at most {most} repeats: the widest interval of {metric} "
    "reaches {share:percent} of the baseline to either side ({asked_share:percent} was asked). At this noise about "
    "{needed} repeats would do.",
    "until.not_sure": "Narrow, but not often enough in a row: after {blocks} of at most {most} repeats the widest "
    "interval of {metric} reaches {share:percent} of the baseline to either side ({asked_share:percent} was asked). It "
    "has to be that narrow at {looks} looks, {between} repeats apart, as at one look the noise may just happen to be "
    "small. Allow more repeats (--most-repeats).",
    "until.unknown": "After {blocks} of at most {most} repeats no interval of {metric} can be given yet "
    "({asked_share:percent} was asked).",
    "drift.doubt": "The machine changed under way: the baseline's time to the first token went from first to last by "
    "{share:percent}. Differences are paired by block, so most of that is not in them.",
    "check_name.precision": "As precise as asked",
    "check_short.precision": "wide intervals",
    "check.precision": "The widest interval in {design} reaches {share:percent} of the baseline to either side, after "
    "{blocks} of at most {most} repeats ({asked_share:percent} was asked, at three looks in a row). At this noise "
    "about {needed} repeats would do.",
    "check.drift": "From the first baseline to the last, the time to the first token changed by {share:percent} "
    "(limit {limit_share:percent}). The line through all {count} baselines changes by {trend_share:percent}, 95 % "
    "interval {low_share:percent} to {high_share:percent} (a doubt where that is surely not zero, and beyond "
    "{trend_limit_share:percent}). Differences are paired by block, so most of it is not in them.",
}
