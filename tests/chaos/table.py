"""The table that a run ends with: a line for each kill point, and the totals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

_HEAD = ("mode", "step", "when", "runs", "kills", "rows", "again", "lost", "twice", "altered", "faults")
_COUNTS = ("kills", "rows", "again", "lost", "duplicated", "altered")


def table(outcomes: Iterable[dict[str, Any]]) -> str:
    """`again`: rows inferred again; `faults`: trials in which something else was not as promised."""
    points: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * (len(_COUNTS) + 2))
    total = [0] * (len(_COUNTS) + 2)
    for outcome in outcomes:
        figures = [1, *(outcome[c] for c in _COUNTS), int(bool(outcome["faults"]))]
        for line in (points[tuple(outcome["point"])], total):
            line[:] = [a + b for a, b in zip(line, figures, strict=True)]
    lines = [_HEAD, *((*point, *points[point]) for point in sorted(points)), ("total", "", "", *total)]
    cells = [[f"{c:,}" if isinstance(c, int) else c for c in line] for line in lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEAD))]
    texts = [
        "  ".join(
            c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    rule = "-" * len(texts[0])
    return "\n".join([texts[0], rule, *texts[1:-1], rule, texts[-1]])
