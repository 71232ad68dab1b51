"""`python -m tests.chaos`: kill, run again until it is published, audit; some hundred times.

Everything follows from the seed. A finished trial is noted in `.chaos/<seed>.jsonl`, and a run with that seed
goes on behind it. The exit status is 1 when any row was lost, published twice or altered, when a slice never
got published, or when anything else was not as promised; what a failed trial left is kept, and `--only` runs
it again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests import conftest  # noqa: F401  Airflow's home, before anything imports Airflow
from tests.chaos.journal import Journal
from tests.chaos.life import Outcome
from tests.chaos.on_ray import OnRay, pause_trials, ray_trials, vllm_trials
from tests.chaos.on_shared import OnShared, shared_trials
from tests.chaos.processes import Processes
from tests.chaos.storage import S3
from tests.chaos.table import table
from tests.chaos.trials import Trial, process_trials, staged_trials

_SAY_SECONDS = 15.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--modes",
        default="processes,staged,ray,vllm,shared",
        help="of processes, staged, ray, vllm, shared",
    )
    parser.add_argument("--processes", type=int, default=1000, metavar="N", help="slices in plain processes")
    parser.add_argument("--staged", type=int, default=200, metavar="N", help="staged versions")
    parser.add_argument("--storage", default="disk,s3", help="of the slices in plain processes")
    parser.add_argument("--ray", type=int, default=60, metavar="N", help="kills on Ray with a stub engine")
    parser.add_argument("--pauses", type=int, default=16, metavar="N", help="pauses on Ray, of mode ray")
    parser.add_argument("--vllm", type=int, default=30, metavar="N", help="kills on Ray with vLLM")
    parser.add_argument("--shared", type=int, default=20, metavar="N", help="trials on shared engines")
    parser.add_argument("--fresh", action="store_true", help="forget what is done of this seed")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="run these trials, done or not")
    args = parser.parse_args()
    journal = Journal(args.seed, fresh=args.fresh)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    ids: list[str] = []
    modes, storages = args.modes.split(","), args.storage.split(",")
    plain = [
        *(process_trials(args.seed, args.processes) if "processes" in modes else ()),
        *(staged_trials(args.seed, args.staged) if "staged" in modes else ()),
    ]
    if plain:
        trials = [t for t in plain if t.storage in storages]
        ids += [t.id for t in trials]
        _run_processes(trials, args.seed, folder, journal, args.only)
    on_ray = [
        *(ray_trials(args.ray) if "ray" in args.modes.split(",") else ()),
        *(pause_trials(args.pauses) if "ray" in args.modes.split(",") else ()),
        *(vllm_trials(args.vllm) if "vllm" in args.modes.split(",") else ()),
    ]
    on_shared = list(shared_trials(args.shared)) if "shared" in args.modes.split(",") else []
    ids += [id for trial in (*on_ray, *on_shared) for id in trial.ids]
    _run_on_ray(OnRay, on_ray, args.seed, folder, journal, args.only)
    _run_on_ray(OnShared, on_shared, args.seed, folder, journal, args.only)
    if not any(folder.iterdir()):
        folder.rmdir()
    done = [journal.outcomes[i] for i in args.only or ids if i in journal.outcomes]
    print(table(done))
    failed = [o for o in done if o["faults"] or o["lost"] or o["duplicated"] or o["altered"]]
    for outcome in failed:
        print(f"\nFAILED {outcome['id']}: {' / '.join(outcome['point'])}, slice {outcome['scenario']!r}")
        print(f"  lost {outcome['lost']}, twice {outcome['duplicated']}, altered {outcome['altered']}")
        for fault in outcome["faults"][:6]:
            print(f"  {fault[:300]}")
        print(f"  kept in {outcome['folder']}")
        print(f"  again: python -m tests.chaos --seed {args.seed} --only {outcome['id']}")
    print(f"\n{len(done)} trials, {len(failed)} failed")
    return 1 if failed else 0


def _run_processes(
    trials: Iterable[Trial], seed: int, folder: Path, journal: Journal, only: list[str]
) -> None:
    s3 = S3()
    runner = Processes(folder, s3, seed)
    wanted = [t for t in trials if (t.id in only if only else t.id not in journal.outcomes)]
    said = time.monotonic()
    try:
        for number, trial in enumerate(wanted, 1):
            outcome = runner.run(trial)
            journal.add(outcome)
            if not outcome.clean or time.monotonic() - said > _SAY_SECONDS or number == len(wanted):
                said = time.monotonic()
                _say(number, len(wanted), outcome)
    finally:
        s3.close()


def _run_on_ray(
    kind: type[Any], trials: Iterable[Any], seed: int, folder: Path, journal: Journal, only: list[str]
) -> None:
    wanted = [t for t in trials if any((i in only if only else i not in journal.outcomes) for i in t.ids)]
    if not wanted:
        return
    runner = kind(folder, seed)
    try:
        for number, trial in enumerate(wanted, 1):
            outcomes = runner.run(trial)
            for outcome in outcomes:
                journal.add(outcome)
            _say(number, len(wanted), outcomes[-1])
    finally:
        left = runner.close()
    if left:
        raise SystemExit(f"processes of the head live on: {left}")


def _say(number: int, of: int, outcome: Outcome) -> None:
    where = ", ".join(filter(None, outcome.point))
    print(f"{number:,} of {of:,}: {outcome.id} {where}: {'clean' if outcome.clean else 'FAILED'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
