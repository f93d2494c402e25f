"""Whole recordings through one parser and one normaliser, as in use: memory of earlier bodies changes no number."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from upstream.bodies import Body
from upstream.recount import recount
from vllmeter.exposition.parse import Parser
from vllmeter.recording.format import Answer, RecordingReader
from vllmeter.snapshot import Layout, ServerReading
from vllmeter.upstream.normalise import Normaliser

_CAPTURES = Path(__file__).parent.parent / "captures"


def _answers(recording: str) -> dict[str, list[Answer]]:
    out: dict[str, list[Answer]] = {}
    with RecordingReader(_CAPTURES / recording) as reader:
        for record in reader:
            if isinstance(record, Answer) and record.status == 200:
                out.setdefault(record.server, []).append(record)
    return out


def _flat(reading: ServerReading) -> dict[object, object]:
    scalars: dict[object, object] = {
        (r.family, r.labels): v for r, v in zip(reading.layout.scalars, reading.values, strict=True)
    }
    histograms: dict[object, object] = {
        (r.family, r.labels, r.bounds): (tuple(b), s)
        for r, b, s in zip(reading.layout.histograms, reading.buckets, reading.sums, strict=True)
    }
    return {**scalars, **histograms, "start": reading.process_start, "created": reading.created}


@pytest.mark.parametrize("recording", sorted(path.name for path in _CAPTURES.glob("*.vmrec")))
def test_successive_bodies(recording: str) -> None:
    """Every body of every server reads the same with and without what came before, and agrees with a recount."""
    for answers in _answers(recording).values():
        parser, normaliser = Parser(), Normaliser()
        layouts: list[Layout] = []
        for number, answer in enumerate(answers):
            warm = normaliser.normalise(parser.parse(answer.body, answer.content_type))
            if warm.layout not in layouts:
                layouts.append(warm.layout)
            if number % 6 and number < len(answers) - 1:
                continue
            cold = Normaliser().normalise(Parser().parse(answer.body, answer.content_type))
            assert _flat(warm) == _flat(cold)
            wanted = recount(Body("", answer.body.decode(), (), answer.content_type))
            for ref, value in zip(warm.layout.scalars, warm.values, strict=True):
                assert value == wanted.scalars[ref.family, tuple(sorted(ref.labels))], ref
            for ref_, buckets, total in zip(warm.layout.histograms, warm.buckets, warm.sums, strict=True):
                counts, sum_ = wanted.histograms[ref_.family, ref_.labels]
                assert dict(zip((*ref_.bounds, math.inf), buckets, strict=True)) == counts, ref_
                assert total == sum_
        # Shapes change when a new HTTP handler answers or a first request is counted, not with every body.
        assert len(layouts) <= 12


def test_recorded_restart_is_seen_in_start_times() -> None:
    """Across the recorded restart of the chat server process start and birth move forward and counters fall to 0."""
    parser, normaliser = Parser(), Normaliser()
    readings = [
        normaliser.normalise(parser.parse(answer.body, answer.content_type))
        for answer in _answers("vllm-0.26.0-h200-three-instances.vmrec")["vllm-qwen3"]
    ]
    starts = sorted({reading.process_start for reading in readings if reading.process_start is not None})
    births = sorted({reading.created for reading in readings if reading.created is not None})
    assert len(starts) == len(births) == 2
    first_after = next(reading for reading in readings if reading.process_start == starts[1])
    last_before = [reading for reading in readings if reading.process_start == starts[0]][-1]
    before, after = last_before.scalar("prompt_tokens_total"), first_after.scalar("prompt_tokens_total")
    assert before is not None
    assert before > 0
    assert after == 0
