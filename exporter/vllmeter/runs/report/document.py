"""A comparison as JSON, for scripts and CI: numbers as numbers, reasons as text."""

from __future__ import annotations

from typing import Any

from vllmeter.runs.compare import Comparison, Conclusion, Row, Section
from vllmeter.runs.model import to_json

SCHEMA = 1


def document(comparison: Comparison) -> dict[str, Any]:
    """JSON-ready data; ``regression`` is what ``--fail-on regression`` looks at."""
    return {
        "schema": SCHEMA,
        "baseline": comparison.names[0],
        "candidates": list(comparison.names[1:]),
        "relevant_effect": comparison.relevant,
        "regression": comparison.regression,
        "problems": list(comparison.problems),
        "sections": [_section(each) for each in comparison.sections],
        "tables": [
            {
                "metric": table.metric.id,
                "unit": table.metric.unit,
                "server": table.server,
                "cells": [
                    {"candidate": candidate, "scenario": scenario, "value": cell.value, "best": cell.best}
                    for (candidate, scenario), cell in table.cells.items()
                ],
                "notes": list(table.notes),
            }
            for table in comparison.tables
        ],
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "server": section.server,
        "scenario": section.scenario,
        "runs": {column.name: [each.run.id for each in column.subjects] for column in section.columns},
        "left_out": {column.name: list(column.left_out) for column in section.columns if column.left_out},
        "conclusions": [_conclusion(each) for each in section.conclusions],
        "metrics": [_row(section, row) for row in section.rows],
        "notes": list(section.notes),
        "stored_spread_of": section.spread or None,
    }


def _conclusion(conclusion: Conclusion) -> dict[str, Any]:
    return {
        "candidate": conclusion.candidate,
        "word": conclusion.word,
        "regression": conclusion.regression,
        "reasons": list(conclusion.reasons),
        "attribution": conclusion.attribution.word,
        "differences": [
            {
                "category": each.category,
                "name": each.name,
                "baseline": each.a,
                "candidate": each.b,
                "counts": each.counts,
                "note": each.note,
            }
            for each in conclusion.attribution.differences
        ],
        "not_compared": list(conclusion.attribution.unknown),
    }


def _row(section: Section, row: Row) -> dict[str, Any]:
    return {
        "metric": row.metric.id,
        "title": row.metric.title,
        "unit": row.metric.unit,
        "values": {
            column.name: {**to_json(value), "runs": list(value.runs)}
            for column, value in zip(section.columns, row.values, strict=True)
        },
        "verdicts": {
            column.name: None
            if verdict is None
            else {
                "word": verdict.word.value,
                "reason": verdict.reason,
                "ratio": verdict.ratio,
                "low": verdict.low,
                "high": verdict.high,
                "includes_run_to_run_noise": verdict.between_runs,
                "effective_n": [verdict.effective_a, verdict.effective_b],
                "needed_requests": verdict.needed_requests,
                "needed_runs": verdict.needed_runs,
            }
            for column, verdict in zip(section.columns[1:], row.verdicts, strict=True)
        },
    }
