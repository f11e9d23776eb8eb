"""The identity of each row as JSON: every term at every moment, the four columns, and pairs of rows."""

from typing import Any

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.calibration import TinyModel
from kvscope.analysis.identity import Between, Moment, RowIdentity, worst_between
from kvscope.analysis.identity_lines import identity_lines
from kvscope.analysis.study import Study

_FACTS = ("engine", "engine_version", "engine_build", "machine_id", "measured_at", "layers", "vocabulary_tokens")


def identities_json(study: Study) -> list[dict[str, Any]]:
    """One object for each measured row whose mappings were read. Sizes are bytes; what is not known is None."""
    attempts = {attempt.key: attempt for attempt in study.attempts}
    return [_identity(attempts[each.key], each) for each in study.identities]


def between_json(study: Study) -> list[dict[str, Any]]:
    """Of each sitting the two rows whose unexplained rests at the peak differ by the largest share."""
    return [_between(pair) for pair in worst_between(study.identities)]


def _identity(attempt: Attempt, identity: RowIdentity) -> dict[str, Any]:
    calibration = identity.calibration
    return {
        "row": identity.key,
        "run_id": identity.run_id,
        "design": identity.design,
        "level": identity.level,
        "calibrated_on": None
        if calibration is None
        else {
            "tiny_model": _tiny(calibration.fixed),
            "tiny_model_same_vocabulary": None if calibration.vocabulary is None else _tiny(calibration.vocabulary),
        },
        "not_calibrated": identity.why_not_calibrated,
        "columns": [
            {
                "component": line.slug,
                "needed_bytes": line.needed_bytes,
                "allocated_bytes": line.allocated_bytes,
                "reported_mib": line.reported_mib,
                "resident_bytes": dict(line.resident),
                "bases": list(line.bases),
                "calibrated_on": line.calibrated_on,
            }
            for line in identity_lines(attempt, identity)
        ],
        "moments": {each.phase: _moment(each) for each in identity.moments},
    }


def _tiny(model: TinyModel) -> dict[str, Any]:
    return {name: model.facts.get(name) for name in _FACTS}


def _moment(moment: Moment) -> dict[str, Any]:
    found, bound = moment.attribution, moment.bound
    return {
        "growth_bytes": found.growth_bytes,
        "anonymous_growth_bytes": found.anon_growth_bytes,
        "file_growth_bytes": found.file_growth_bytes,
        "terms": [
            {"term": term.slug, "backing": term.backing, "bytes": term.num_bytes, "basis": term.basis}
            for term in found.terms
        ],
        "unexplained_bytes": found.unexplained_bytes,
        "unexplained_anonymous_bytes": found.unexplained_anon_bytes,
        "unexplained_file_bytes": found.unexplained_file_bytes,
        "unexplained_share": found.unexplained_share,
        "reading_bound_bytes": bound.total_bytes,
        "readings_apart_bytes": bound.seen_apart_bytes,
    }


def _between(pair: Between) -> dict[str, Any]:
    return {
        "first": pair.first,
        "second": pair.second,
        "moment": pair.phase,
        "growth_bytes": pair.growth_bytes,
        "terms": dict(pair.terms),
        "unexplained_bytes": pair.unexplained_bytes,
        "unexplained_share": pair.unexplained_share,
    }
