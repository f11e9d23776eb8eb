"""What ``kvscope reuse`` says, in English."""

REUSE: dict[str, str] = {
    "reuse.unknown": "How much turn 2 reuses is not known; {common:count} of its {prompt:count} tokens are the same as "
    "before.",
    "reuse.exact_one": "Turn 2 reuses {reused:count} of {prompt:count} tokens; 1 is computed anew.",
    "reuse.exact": "Turn 2 reuses {reused:count} of {prompt:count} tokens; {anew:count} are computed anew.",
    "reuse.estimated_one": "Turn 2 reuses {reused:count} of {prompt:count} tokens; 1 is computed anew (estimated).",
    "reuse.estimated": "Turn 2 reuses {reused:count} of {prompt:count} tokens; {anew:count} are computed anew "
    "(estimated).",
    "reuse.of_answer": "{sure:count} of them are the first prompt, {more:count} more if the model's answer is the "
    "history's.",
    "reuse.of_answer_confirmed": "{sure:count} of them are the first prompt (confirmed), {more:count} more if the "
    "model's answer is the history's (not confirmed).",
    "reuse.later": "With that mended, the next break is at token {token:count}:",
    "reuse.later_what": "{what} [{cause}; {place}]",
    "reuse.nothing_repeated": "Nothing broke: all of the second request is held. Its last token is computed for the "
    "answer.",
    "reuse.nothing": "Nothing broke: the second request goes on where the first and its answer end.",
    "reuse.breaks": "It breaks at token {token:count}: {place}.",
    "reuse.what": "{what} [{cause}]",
    "reuse.part.system": "the system prompt",
    "reuse.part.user": "the user's message",
    "reuse.part.retrieved": "retrieved text",
    "reuse.part.history": "the history",
    "reuse.part.tools": "the tools",
    "reuse.part.template": "the template's own text",
    "reuse.place": "{part}, character {character:count}",
    "reuse.place_message": "{part}, message {message}, character {character:count}",
    "reuse.place_tool": "{part}, tool {tool}, character {character:count}",
    "reuse.place_message_tool": "{part}, message {message}, tool {tool}, character {character:count}",
    "reuse.was_is": "was {first}, is {second}",
    "reuse.quoted": '"{text}"',
    "reuse.no_text": "nothing",
    "reuse.first": "first",
    "reuse.second": "second",
    "reuse.rule": "{engine}: {because} ({source})",
    "reuse.steps": "Reuse comes in steps of {tokens:count} tokens.",
    "reuse.least": "A beginning of fewer than {tokens:count} tokens is not reused.",
    "reuse.run_unstated": "Run on the engine, holding the first prompt ({held:count} tokens) and no answer: it did not "
    "say how many tokens it reused.",
    "reuse.run_no_rule": "Run on the engine, holding the first prompt ({held:count} tokens) and no answer: it reused "
    "{measured:count} tokens; the rule did not say how many.",
    "reuse.run_confirmed": "Confirmed on the engine, holding the first prompt ({held:count} tokens) and no answer: it "
    "reused {measured:count} tokens, as predicted.",
    "reuse.run_differs": "NOT as predicted: holding the first prompt ({held:count} tokens) and no answer, the engine "
    "reused {measured:count} tokens, not {predicted:count}.",
    "reuse.other_count": "The engine counted {theirs:count} prompt tokens of {source}, not {ours:count}.",
    "reuse.no_time": "The one token of turn {turn}'s answer had no text, so when it came is not known.",
    "reuse.times": "First token of turn 1 after {first}, of turn 2 after {second} (one run each).",
    "reuse.log": "{count:count} requests reuse {reused:count} of {prompt:count} prompt tokens ({share:percent}); "
    "{computed:count} are computed.",
    "reuse.log_empty": "{count:count} requests reuse {reused:count} of {prompt:count} prompt tokens; {computed:count} "
    "are computed.",
    "reuse.log_unknown": "{count:count} requests; how much they reuse is not known for all of them.",
    "reuse.log_broke": "What broke, the most frequent first:",
    "reuse.log_cause_one": "{cause}, 1 time. What to do: {advice}",
    "reuse.log_cause": "{cause}, {count} times. What to do: {advice}",
    "reuse.log_left_out": "Left out:",
    "reuse.log_problem": "turn {turn}: {problem}",
    "reuse.col_turn": "turn",
    "reuse.col_after": "after",
    "reuse.col_prompt": "prompt tokens",
    "reuse.col_reused": "reused",
    "reuse.col_computed": "computed",
    "reuse.col_share": "reused %",
    "reuse.col_broken": "broken by",
    "reuse.broken_at": "{cause} at token {token:count}",
    "reuse.see_below": "(see below)",
    "reuse.progress": "{done} of {total} requests compared",
}
