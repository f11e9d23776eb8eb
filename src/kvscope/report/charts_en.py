"""What charts say in English, under the pointer where scripts run and about their files; and what Markdown says of
itself."""

CHARTS: dict[str, str] = {
    "chart.ttft.finding": "Each 1,000 tokens of prompt delay the first token by {each_s:s} (95 %: {low_s:s} to "
    "{high_s:s})",
    "chart.ttft.ends": "The first token comes after {first_s:s} with {first:count} tokens of prompt, and after "
    "{last_s:s} with {last:count}",
    "chart.ttft.one": "The first token comes after {time_s:s} with {tokens:count} tokens of prompt",
    "chart.tpot.ends": "Each later token takes {first_s:s} behind {first:count} tokens of prompt, and {last_s:s} "
    "behind {last:count}",
    "chart.tpot.one": "Each later token takes {time_s:s} behind {tokens:count} tokens of prompt",
    "chart.completion.finding": "Each token of output adds {each_s:s} to the answer (95 %: {low_s:s} to {high_s:s})",
    "chart.completion.ends": "An answer of {first:count} tokens takes {first_s:s}, one of {last:count} tokens takes "
    "{last_s:s}",
    "chart.completion.one": "An answer of {tokens:count} tokens takes {time_s:s}",
    "chart.law.many": "{count:count} trials, too many to draw each: a dot is the mean of a length, the thick bar its "
    "95 % interval, the thin bar goes from the least to the most. A dashed line is the fit; there is none where the "
    "times are not seen to lie on one. A × is a failed trial; its height means nothing.",
    "chart.law.chosen": "{shown} of {total:count} lengths are drawn, evenly chosen; the fit is of all of them. Bars "
    "are 95 % intervals, or from the least to the most of a length's trials. A × is a failed trial; its height means "
    "nothing.",
    "chart.release.one": "{loaded_bytes:mib} held after the load, {held_bytes:mib} after {count} conversations, "
    "{unloaded_bytes:mib} after the release",
    "chart.release.one_again": "{loaded_bytes:mib} held after the load, {held_bytes:mib} after {count} conversations "
    "and the same text again {again} times, {unloaded_bytes:mib} after the release",
    "chart.release.most_again": "With {level}: {loaded_bytes:mib} held after the load, {held_bytes:mib} after {count} "
    "conversations and the same text again {again} times, {unloaded_bytes:mib} after the release",
    "chart.release.most": "With {level}: {loaded_bytes:mib} held after the load, {held_bytes:mib} after {count} "
    "conversations, {unloaded_bytes:mib} after the release",
    "effects.chart_seen": "{name}: {seen} of {count} differences are seen; the largest is {share:signed_percent} "
    "({what})",
    "effects.chart_none": "{name}: none of {count} differences can be told from noise",
    "quality.chart_best": "{best} of {total} levels are beaten by none on memory, time and quality",
    "series.means": "mean, with its 95 % interval",
    "series.span": "least to most",
    "tip.x": "x",
    "tip.y": "y",
    "tip.text": "name",
    "tip.color": "part",
    "tip.from": "{what}, from",
    "tip.to": "{what}, to",
    "markdown.shortened": "This report is shortened: an issue takes no more. Whole tables, charts and the rows are on "
    "the page: kvscope report --out report.html",
    "markdown.left_out": "{what}: {rows:count} lines, left out here.",
    "markdown.cut": "The rest is left out here.",
    "charts.written": "Wrote {count} charts to {folder}, each as SVG and PNG.",
    "charts.no_korean_font": "The PNG files have English labels: no font of this machine has Hangul. The SVG files are "
    "in Korean. To have both, install a Korean font (Debian, Ubuntu: apt install fonts-nanum), then run this again "
    "with --force.",
    "charts.hangul_lost": "Names in Korean are empty boxes in the PNG files: no font of this machine has Hangul. The "
    "SVG files hold them as text. Install a Korean font (Debian, Ubuntu: apt install fonts-nanum), then run this again "
    "with --force.",
}
