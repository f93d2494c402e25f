"""Small mistakes put into one rule at a time; a mistake that no test notices is a hole in the tests."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from rules.cases import Case, all_cases
from rules.promtool_files import (
    NAME,
    Rule,
    closure,
    in_groups,
    load_rules,
    promtool_test,
    record_test,
    rule_name,
)
from rules.recorded import World, worlds

FLIPPED = {">": "<", "<": ">", ">=": "<=", "<=": ">=", "==": "!=", "!=": "=="}
_TOKEN = re.compile(
    r"""
    (?P<braces>\{[^}]*\})
  | (?P<range>\[[^\]]*\])
  | (?P<string>"[^"]*")
  | (?P<word>[a-zA-Z_:][\w:]*)
  | (?P<duration>\d+[smhdw]\b)
  | (?P<number>\d+(?:\.\d+)?)
  | (?P<comparison>==|!=|<=|>=|<|>)
    """,
    re.VERBOSE,
)
_MATCHER = re.compile(r'\s*\w+\s*(?:=~|!~|!=|=)\s*"[^"]*"\s*,?')


@dataclass(frozen=True)
class Mutant:
    """Rule number ``index`` of all rules with another expression."""

    index: int
    rule: str
    what: str
    expr: str


def of_expression(expr: str) -> Iterator[tuple[str, str]]:
    """(what was done, expression): each comparison flipped, each number but 0 times ten, each matcher dropped."""
    for match in _TOKEN.finditer(expr):
        start, end = match.span()
        text = match.group()
        line = expr.count("\n", 0, start) + 1
        if match.lastgroup == "comparison":
            yield f"line {line}: {text} -> {FLIPPED[text]}", expr[:start] + FLIPPED[text] + expr[end:]
        elif match.lastgroup == "number" and float(text) != 0:
            yield f"line {line}: {text} -> {float(text) * 10:g}", f"{expr[:start]}{float(text) * 10!r}{expr[end:]}"
        elif match.lastgroup == "braces":
            for matcher in _MATCHER.finditer(text, 1):
                left = text[: matcher.start()] + text[matcher.end() :]
                left = re.sub(r",?\s*\}$", "}", re.sub(r"^\{\s*", "{", left))
                yield f"line {line}: without {matcher.group().strip(' ,')}", expr[:start] + left + expr[end:]


def all_mutants(rules: Sequence[Rule]) -> list[Mutant]:
    return [
        Mutant(index, rule_name(rule), what, expr)
        for index, rule in enumerate(rules)
        for what, expr in of_expression(rule["expr"])
    ]


class Judge:
    """Runs the tests of one rule against a mutant of it."""

    def __init__(self, promtool: str) -> None:
        self.promtool = promtool
        self.rules = load_rules()
        self.cases: dict[str, list[Case]] = {}
        for case in all_cases():
            self.cases.setdefault(case.alert, []).append(case)
        self.worlds = worlds()

    def tests(self, name: str) -> list[tuple[str, list[dict[str, object]]]]:
        """(evaluation interval, tests) for a rule; the quick ones first."""
        out: dict[str, list[dict[str, object]]] = {}
        needed = closure(self.rules, [name])
        if name in self.cases:
            for case in self.cases[name]:
                out.setdefault(case.evaluation, []).append(promtool_test(case, needed))
        for world in self.worlds:
            about = [q for q in world.questions if name in NAME.findall(q.name)]
            if about:
                small = World(world.name, world.series, about, world.step_ms, world.evaluation)
                out.setdefault(world.evaluation, []).append(record_test(small, needed))
        return sorted(out.items(), key=lambda item: ("15s", "30s", "1m", "15m", "20m").index(item[0]))

    def survives(self, mutant: Mutant) -> bool:
        """True when all tests of the rule pass although it was changed."""
        rules = [*self.rules]
        rules[mutant.index] = {**rules[mutant.index], "expr": mutant.expr}
        return self.passes(mutant.rule, closure(rules, [mutant.rule]))

    def passes(self, name: str, needed: Sequence[Rule]) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "rules.yaml").write_text(yaml.safe_dump(in_groups(needed)), encoding="utf-8")
            for number, (evaluation, tests) in enumerate(self.tests(name)):
                path = Path(folder, f"{number}.yaml")
                data = {"rule_files": ["rules.yaml"], "evaluation_interval": evaluation, "tests": tests}
                path.write_text(yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
                # Tests over days run beside promtool's own block writing, and a look back of a week then finds nothing
                # now and then, so that a mistake can pass once by chance: it has to pass several times.
                for _ in range(5 if evaluation in ("15m", "20m") else 1):
                    done = subprocess.run(
                        [self.promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
                    )
                    if done.returncode != 0:
                        output = done.stdout + done.stderr
                        if "parse error" in output or "could not parse" in output:
                            raise AssertionError(f"the mutant does not parse: {output[:600]}")
                        return False
        return True


ACCEPTED: dict[tuple[str, str], str] = {
    ("VllmeterWatchdog", "line 1: 1 -> 10"): "the value of an alert that always fires means nothing",
}
"""(rule, what) -> why this change is no mistake that a test could see."""
