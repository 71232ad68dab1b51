"""Names of a slice's files, as the provider writes them. Others may put files of any name into a slice's
folders: what is not named like this is theirs, and is neither read nor removed. Pure.
"""

from __future__ import annotations

import re
from typing import Literal

from airflow_provider_raydatallm.contract.result.errors import SliceError

#: Folders and files of a slice's metadata.
COMMITS, PLANS, CHECKPOINT, PROGRESS = "commits", "plans", "checkpoint", "progress.json"
#: There once people rejected answers of the slice, and for good: those may lie in a cache, too.
REJECTED = "rejected.json"
#: Folder beside the table: files of versions that are not shown yet.
STAGED = "staged"
#: The highest number of a version, a lease or a document. Numbers count up by one, so that no table comes
#: near it; a name with more digits is nobody's.
LAST_NUMBER = 10**12 - 1
#: Pattern of a number in a name.
NUMBER = "[0-9]{6,12}"

#: Of a plan, in bytes: some hundred for each file, and some 50 for each unit of one.
PLAN_BYTES = 2 << 30

_COMMIT = re.compile(rf"commit-({NUMBER})\.json")
_COMPLETE = re.compile(rf"complete-({NUMBER}-[0-9a-f]{{8}})")
_STAGED_DOCUMENT = re.compile(rf"staged-({NUMBER}-[0-9a-f]{{8}})\.json")
_STAGED_FOLDER = re.compile(rf"({NUMBER})-[0-9a-f]{{8}}")
_FILE = re.compile(rf"(part|quarantine)-({NUMBER})-[0-9]{{5,9}}-of-[0-9]{{5,9}}-[0-9a-f]{{8}}\.parquet")
_CHECKPOINT_PLAN = re.compile(r"plan-([0-9a-f]{16})-[0-9a-f]{16}\.json")
_REJECTION = re.compile(rf"again-({NUMBER}-[0-9a-f]{{8}})\.json")
_COST = re.compile(rf"cost-({NUMBER})\.json")
_GOLDEN = re.compile(rf"golden-({NUMBER})\.json")
_STARTED = re.compile(rf"started-({NUMBER})\.json")
_FRAGMENT = re.compile(rf"[a-z0-9-]+-e({NUMBER})-[0-9a-f]{{16}}\.arrow")
_FORCED = re.compile(rf"forced-({NUMBER})-[0-9a-f]{{8}}\.json")
_FORCED_QUESTION = re.compile(rf"([0-9a-f]{{16}})-forced-{NUMBER}")
_PLAN = re.compile(rf"plans/plan-({NUMBER})-[0-9a-f]{{8}}\.json")

FileKind = Literal["part", "quarantine"]


def following(number: int, used: str) -> int:
    """Returns the next number.

    :param used: path of what uses up the number.
    :raises SliceError: when there is none.
    """
    if number >= LAST_NUMBER:
        raise SliceError(
            f"{used} uses up the last number that there is, which no provider comes to by counting: somebody "
            "else put it there",
            kind="input",
            advice="Remove it and run the slice again",
        )
    return number + 1


def file_name(kind: FileKind, number: int, index: int, count: int, nonce: str) -> str:
    return f"{kind}-{number:06}-{index:05}-of-{count:05}-{nonce}.parquet"


def renumbered_file(name: str, number: int, nonce: str) -> str:
    """The name of a copy of a file, for another version."""
    match = _FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no file of a version")
    kind, _, rest = name.split("-", 2)
    return f"{kind}-{number:06}-{rest.rpartition('-')[0]}-{nonce}.parquet"


def number_of_file(name: str, kind: FileKind | None = None) -> int | None:
    """The version of a file in a table's folder; None for files of others.

    :param kind: the files that count; None: both kinds.
    """
    match = _FILE.fullmatch(name)
    return int(match[2]) if match and kind in (None, match[1]) else None


def number_of_commit(name: str) -> int | None:
    match = _COMMIT.fullmatch(name)
    return int(match[1]) if match else None


def staged_of_complete(name: str) -> str | None:
    """The staged folder of the version that a file says is shown."""
    match = _COMPLETE.fullmatch(name)
    return match[1] if match else None


def staged_of_document(name: str) -> str | None:
    """The staged folder of the version of a document in the folder of staged versions."""
    match = _STAGED_DOCUMENT.fullmatch(name)
    return match[1] if match else None


def number_of_staged(name: str) -> int | None:
    """The version of a path below the folder of staged files; None for files of others."""
    match = _STAGED_FOLDER.fullmatch(name.partition("/")[0])
    return int(match[1]) if match else None


def input_of_plan(name: str) -> str | None:
    """The hash of the input of a plan in a checkpoint; None for other files."""
    match = _CHECKPOINT_PLAN.fullmatch(name)
    return match[1] if match else None


def cost_of_epoch(epoch: int) -> str:
    """The file in a checkpoint that says what the run of a lease spent."""
    return f"cost-{epoch:06}.json"


def epoch_of_cost(name: str) -> int | None:
    match = _COST.fullmatch(name)
    return int(match[1]) if match else None


def golden_of_epoch(epoch: int) -> str:
    """The file in a checkpoint that says which golden rows were wrong beside the answers of a run."""
    return f"golden-{epoch:06}.json"


def epoch_of_golden(name: str) -> int | None:
    match = _GOLDEN.fullmatch(name)
    return int(match[1]) if match else None


def start_of_epoch(epoch: int) -> str:
    """The file in a checkpoint that says when the run of a lease began to ask."""
    return f"started-{epoch:06}.json"


def epoch_of_start(name: str) -> int | None:
    match = _STARTED.fullmatch(name)
    return int(match[1]) if match else None


def epoch_in_checkpoint(name: str) -> int | None:
    """The epoch of the run that wrote a file of a checkpoint, or of the version that it is of; None where its
    name has none."""
    matches = (pattern.fullmatch(name) for pattern in (_FRAGMENT, _COST, _GOLDEN, _STARTED, _FORCED))
    return next((int(match[1]) for match in matches if match), None)


def holds_rows(name: str) -> bool:
    """Whether a file in a checkpoint is a fragment."""
    return _FRAGMENT.fullmatch(name) is not None


def question_before(question: str) -> str | None:
    """The question that a forced version asked once more (`version_policy.question`); None for others."""
    match = _FORCED_QUESTION.fullmatch(question)
    return match[1] if match else None


def plan_of_forced(epoch: int, plan: str) -> str:
    """The copy of a forced version's plan in the checkpoint of those answers that it replaces.

    :param plan: its name among the plans.
    """
    return f"forced-{epoch:06}-{nonce_of_plan(plan)}.json"


def nonce_of_plan(name: str) -> str:
    """What tells a version's plan from all others, in the copy's name, too."""
    return name.removesuffix(".json").rpartition("-")[2]


def epoch_of_forced(name: str) -> int | None:
    match = _FORCED.fullmatch(name)
    return int(match[1]) if match else None


def plan_of_staged(name: str) -> str:
    """The plan of a version, by the name of its folder of staged files."""
    return f"{PLANS}/plan-{name}.json"


def rejection_of_staged(name: str) -> str:
    """The file in a checkpoint that says that a staged version was rejected."""
    return f"again-{name}.json"


def verdicts_of_staged(name: str) -> str:
    """The file in a checkpoint that says what gates said last of a staged version."""
    return f"gates-{name}.json"


def staged_of_rejection(name: str) -> str | None:
    match = _REJECTION.fullmatch(name)
    return match[1] if match else None


def number_of_plan(name: str) -> int | None:
    match = _PLAN.fullmatch(name)
    return int(match[1]) if match else None
