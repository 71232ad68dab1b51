"""`make bench [CASES="plan_scale row_cost"]`: runs the cases one after another and prints their tables."""

from __future__ import annotations

import argparse
import importlib

#: Comparisons with other tools and with doing without the provider: the default of `make bench`.
FIELD = ("peers", "backfill", "warm_slice", "repeated_rows", "row_cost")
#: Costs of the provider's parts.
PARTS = (
    "no_op",
    "publish_cost",
    "ledger_scale",
    "plan_scale",
    "input_scale",
    "checkpoint_cost",
    "slice_cost",
    "dedup_cost",
    "answer_cost",
    "gates",
    "labels",
    "images",
    "page",
    "own_clusters",
)
#: The way of a row around engines that run no model.
PATH = (
    "real_path",
    "tail",
    "fit_workers",
    "scale",
    "waiting_slices",
    "deferred_tasks",
    "http_engine",
    "connection_reuse",
)
CASES = FIELD + PARTS + PATH


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)}; default: {', '.join(FIELD)}"
    )
    cases = parser.parse_args().cases or FIELD
    if unknown := sorted(set(cases) - set(CASES)):
        parser.error(f"unknown case: {', '.join(unknown)}; choose from {', '.join(CASES)}")
    met = {}
    for name in cases:
        print(f"\n## {name}\n", flush=True)
        met[name] = importlib.import_module(f"benchmarks.{name}").run()
    missed = [name for name, ok in met.items() if ok is False]
    print(f"goals not met in: {', '.join(missed)}" if missed else "all goals met")


if __name__ == "__main__":
    main()
