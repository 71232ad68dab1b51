"""Counts of cases: how many of what, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

OUTCOMES = ("published", "refused", "violated")


class Counts:
    """Cases by feature and outcome."""

    def __init__(self) -> None:
        self.cases = 0
        self._by_feature: dict[str, Counter[str]] = {}

    def add(self, outcome: str, features: Iterable[str]) -> None:
        self.cases += 1
        for feature in {"all", *features}:
            self._by_feature.setdefault(feature, Counter())[outcome] += 1

    def share(self, outcome: str, feature: str = "all") -> float:
        counts = self._by_feature.get(feature, Counter())
        return counts[outcome] / max(1, counts.total())

    def merge(self, other: Mapping[str, Mapping[str, int]]) -> None:
        for feature, outcomes in other.items():
            self._by_feature.setdefault(feature, Counter()).update(outcomes)
        self.cases = self._by_feature.get("all", Counter()).total()

    def to_json(self) -> dict[str, dict[str, int]]:
        return {feature: dict(outcomes) for feature, outcomes in self._by_feature.items()}

    def table(self) -> str:
        lines = [f"{'':<34}{'cases':>7}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
        for feature in sorted(self._by_feature, key=lambda f: (f != "all", f)):
            counts = self._by_feature[feature]
            shares = "".join(f"{counts[outcome] / counts.total():>11.0%}" for outcome in OUTCOMES)
            lines.append(f"{feature:<34}{counts.total():>7}{shares}")
        return "\n".join(lines)
