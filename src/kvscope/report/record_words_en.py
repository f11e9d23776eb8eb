"""What ``kvscope report``, ``export`` and ``merge`` say of files, in English."""

RECORD: dict[str, str] = {
    "record.warning": "warning: {text}",
    "record.see": "See it: {command}",
    "report.wrote": "Wrote {file}.",
    "report.many": "{attempts:count} attempts: the report holds them all at once, which takes about {size:bytes} of "
    "memory. kvscope export takes one at a time.",
    "export.wrote_rows": "Wrote {count} rows to {file}.",
    "export.wrote_tables": "Wrote {tables} to {file}.",
    "export.table": "{table} {count}",
    "merge.added": "{file}: {added} attempts added, {known} there already.",
    "merge.added_unfinished": "{file}: {added} attempts added, {known} there already, {unfinished} not ended yet and "
    "left out.",
    "merge.added_further": "{file}: {added} attempts added ({further} of them of trials that were there from another "
    "sitting), {known} there already.",
    "merge.added_further_unfinished": "{file}: {added} attempts added ({further} of them of trials that were there "
    "from another sitting), {known} there already, {unfinished} not ended yet and left out.",
}
