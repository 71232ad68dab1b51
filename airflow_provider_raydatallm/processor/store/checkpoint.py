"""The checkpoint of an unfinished slice: the plan and the fragments of one question.

Its folder is named after the answers' fingerprint, and units after the content of their files and how they
are read, so that its rows answer the job's question, whichever run wrote them and whatever number the version
gets. Damaged files are renamed with a warning; their rows are missing then, and run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, TypeVar

import numpy as np
import pydantic
from pydantic import ConfigDict, Field, TypeAdapter

from airflow_provider_raydatallm.processor.input.listing import Listing
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.storage.store import DOCUMENT_BYTES, CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    PLAN_BYTES,
    cost_of_epoch,
    epoch_of_cost,
    epoch_of_golden,
    epoch_of_start,
    golden_of_epoch,
    input_of_plan,
    start_of_epoch,
)
from airflow_provider_raydatallm.processor.store.forced import plans_of_forced
from airflow_provider_raydatallm.processor.store.fragments import fragment_ranges
from airflow_provider_raydatallm.processor.store.ledger import (
    Fragments,
    Ledger,
    MissingRows,
    OldRows,
    RowRanges,
    RowStates,
    holds_finished_rows,
    is_carried_from,
    newest_answers,
    position,
    read_ledger,
    row_states,
)
from airflow_provider_raydatallm.processor.store.rejections import Rejection, read_rejections
from airflow_provider_raydatallm.processor.store.spans import Spans, merge_spans
from airflow_provider_raydatallm.processor.store.versions import Version

T = TypeVar("T")

_POSITIVE = TypeAdapter(Annotated[float, Field(ge=0, allow_inf_nan=False)], config=ConfigDict(strict=True))
_TEXTS = TypeAdapter(list[str], config=ConfigDict(strict=True))
_NO_SPANS = np.empty((0, 2), np.int64)
#: In the document of a plan, beside the plan: the arguments that decide answers.
ASKED = "asked"


@dataclass
class CheckpointState:
    """Which rows of a plan are missing and quarantined, by the fragments that exist.

    `max_attempts`: failures that put a row into quarantine; those before the epoch `failed_since` do not
    count. `repair`: how often a row with an invalid answer is asked again. `unasked`: rows that are not to be
    answered; None: all are. `honoured`: the decisions of people by which some are asked again.
    """

    plan: Plan
    ledger: Ledger
    max_attempts: int
    failed_since: int = 0
    repair: int = 0
    unasked: Fragments | None = None
    honoured: tuple[str, ...] = ()

    @property
    def missing(self) -> MissingRows:
        """Rows to be answered, without `suspects`."""
        return self._rows.missing

    @property
    def suspects(self) -> MissingRows:
        """Rows to be answered that engines held when they died, more than once."""
        return self._rows.suspects

    @property
    def rows_asked(self) -> int:
        """All rows but the unasked ones."""
        return self.plan.rows - (self.unasked.rows if self.unasked is not None else 0)

    @property
    def is_finished(self) -> bool:
        return not self.rows_missing

    @property
    def is_taken_over(self) -> bool:
        """Whether nothing is of a run: all answers, and failures, are the published version's."""
        return all(kind.carried.all() for kind in vars(self.ledger).values())

    @property
    def rows_missing(self) -> int:
        """Rows to be answered, suspects too."""
        return self.missing.rows + self.suspects.rows

    @property
    def quarantined(self) -> MissingRows:
        return self._rows.quarantined

    @property
    def rows_quarantined(self) -> int:
        return self.quarantined.rows

    @property
    def quarantined_for_answers(self) -> MissingRows:
        """Those in quarantine whose answer was invalid or cut."""
        return self._rows.invalid

    @property
    def rows_invalid(self) -> int:
        return self.quarantined_for_answers.rows

    @property
    def repairable(self) -> MissingRows:
        """Those of `missing` with an invalid answer."""
        return self._rows.repairable

    def release_ledger(self) -> None:
        """Forgets the fragments, which only publishing needs, and keeps which rows are missing, and
        `invalid`."""
        assert self._rows
        nothing = read_ledger([], {}, lambda name: None)
        self.ledger = replace(nothing, invalid=self.invalid)

    @property
    def invalid(self) -> Fragments:
        """The invalid answers that this version counts; those carried over counted in the one before it."""
        invalid = self._counted(self.ledger.invalid)
        return invalid.filter(~invalid.carried)

    def _counted(self, failures: Fragments) -> Fragments:
        return failures.filter(failures.epochs >= self.failed_since) if self.failed_since else failures

    @cached_property
    def _rows(self) -> RowStates:
        kinds = ("failed", "invalid", "cut")
        counted = replace(self.ledger, **{kind: self._counted(getattr(self.ledger, kind)) for kind in kinds})
        if self.unasked is not None:  # as if they had their answers
            counted = replace(counted, rows=counted.rows + self.unasked)
        unit_rows = [unit.rows for unit in self.plan.units]
        return row_states(unit_rows, counted, self.max_attempts, self.repair)


class Checkpoint:
    """The folder of one question: a fingerprint, and for versions that differ from what they follow only by
    being asked again, also that version (`version_policy.Mode`).

    :param is_forced: whether all rows are asked again where a person rejected their answers.
    :param base: the version whose rows are taken over, if any. They lie beside those that runs of this
        question answered. Of what was there when it was published, only rows that it has not count.
    """

    def __init__(
        self,
        store: Store,
        question: str,
        base: Version | None = None,
        *,
        is_forced: bool = False,
    ) -> None:
        self.store = store
        self.question = question
        self.base = base
        self._is_forced = is_forced
        self._of_probe = self._is_as_new_as_answers = False
        self.folder = f"{CHECKPOINT}/{question}"
        #: Where it says which rows a person had asked again.
        self._decisions = self.folder

    def of_probe(self, name: str, *, as_new_as_answers: bool = False) -> Checkpoint:
        """The folder of rows that are asked beside the slice's, within this one: it goes when this one does.
        Rows of the slice that a person had asked again are asked again as such, too. Nothing counts that was
        there when the version was published whose rows are taken over: other answers were asked with it.

        :param as_new_as_answers: whether nothing counts either that is older than the slice's newest answers,
            which may be another model's.
        """
        checkpoint = Checkpoint(self.store, f"{self.question}/{name}", self.base, is_forced=self._is_forced)
        checkpoint._of_probe, checkpoint._is_as_new_as_answers = True, as_new_as_answers
        checkpoint._decisions = self.folder
        return checkpoint

    def planned_inputs(self) -> set[str]:
        """Hashes of the inputs that have a plan here."""
        names = self.store.names(self.folder)
        return {of_input for name in names if (of_input := input_of_plan(name)) is not None}

    def has_finished_rows(self) -> bool:
        return any(map(holds_finished_rows, self.store.names(self.folder)))

    def load_plan(self, listing: Listing, types: str) -> Plan | None:
        """:param types: hash of what decides the types of published columns."""
        return load_plan(self.store, f"{self.folder}/plan-{listing.hash}-{types}.json", listing)

    def save_plan(self, plan: Plan, types: str, asked: Mapping[str, Any]) -> None:
        """:param asked: the arguments that decide answers, for people who ask what changed since."""
        name = f"{self.folder}/plan-{plan.input_hash}-{types}.json"
        self.store.create_document(name, {**plan.to_json(), ASKED: asked})

    def read_ledger(self, plan: Plan, *, retry: bool = False) -> tuple[Ledger, tuple[str, ...]]:
        """Returns also the decisions of people by which some of its rows are asked again.

        :param retry: whether rows that are in quarantine are asked again.
        """
        units = {unit.id: index for index, unit in enumerate(plan.units)}

        def read_ranges(name: str) -> RowRanges | None:
            path = f"{self.folder}/{name}"
            try:
                return fragment_ranges(self.store, path, units)
            except CorruptFileError as e:
                self.keep_damaged_file(path, e)
                return None

        names = self.store.names(self.folder)
        beside = names if self._decisions == self.folder else self.store.names(self._decisions)
        rejections = [
            (name, one)
            for name, one in read_rejections(self.store, self._decisions, beside)
            if one.rows or self._is_forced
        ]
        ledger = read_ledger(
            names,
            units,
            read_ranges,
            self.base.number if self.base is not None and self.has_rows_of_base(units.keys()) else None,
            retry=retry,
            asked_again=[
                OldRows(one.last_epoch, _asked_spans(one, units) if one.rows else _all_spans(plan))
                for _, one in rejections
            ],
            superseded=self._superseded(plan, units, beside),
        )
        return ledger, tuple(one.decision_on(name) for name, one in rejections)

    def _superseded(self, plan: Plan, units: Mapping[str, int], beside: Sequence[str]) -> list[OldRows]:
        """Returns the rows that do not count as they were answered when the version was published whose rows
        are taken over, or one that was forced, or before the slice's newest.

        :param beside: names of the slice's own files, if it is a probe.
        """
        forced = plans_of_forced(self.store, self._decisions, beside, in_doubt=True)
        if self._of_probe:
            epochs = [epoch for epoch, _ in forced]
            epoch = max([self.base.epoch if self.base is not None else 0, *epochs])
            if self._is_as_new_as_answers:
                epoch = max(epoch, newest_answers(beside) - 1)
            return [OldRows(epoch, _all_spans(plan))] if epoch > 0 else []
        every = {unit.id: unit.rows for unit in plan.units}
        planned = []
        for epoch, name in forced:
            rows = _planned_rows(self.store, name)
            planned.append((epoch, every if rows is None else rows))
        if self.base is not None:
            planned.append((self.base.epoch, self.rows_of_base))
        return [
            OldRows(epoch, _spans((units[unit], rows[unit]) for unit in rows.keys() & units.keys()))
            for epoch, rows in planned
        ]

    @cached_property
    def rows_of_base(self) -> Mapping[str, int]:
        """Of the units of the version whose rows are taken over; nothing where its plan is gone or
        damaged."""
        assert self.base is not None
        return _planned_rows(self.store, self.base.plan) or {}

    def has_rows_of_base(self, units: Set[str]) -> bool:
        """Whether a plan of these has all rows of that version: nothing is taken over by another reading of
        the same files, also where an earlier reading did that."""
        return self.rows_of_base.keys() <= units

    def rejections(self, honoured: Sequence[str]) -> int:
        """How often a person rejected its answers, and no row was asked again, nor were they approved since.

        :param honoured: by these decisions some were, or all.
        """
        names = self.store.names(self.folder)
        return sum(
            not one.rows and one.decision_on(name) not in honoured and not self._is_published(one, names)
            for name, one in read_rejections(self.store, self.folder, names)
        )

    def _is_published(self, rejection: Rejection, names: Sequence[str]) -> bool:
        """Whether all rows of the rejected version are in a later one, whose rows are taken over, or which
        was forced.

        :param names: of the files in this folder.
        """
        forced = [
            (epoch, _planned_rows(self.store, name))
            for epoch, name in plans_of_forced(self.store, self.folder, names, in_doubt=False)
        ]
        of_base = [(self.base.epoch, self.rows_of_base)] if self.base is not None else []
        later = [rows.keys() for epoch, rows in [*forced, *of_base] if rows and epoch > rejection.last_epoch]
        # It may have been read in several ways, and which of these was rejected, nothing says.
        of_input = [name for name in names if input_of_plan(name) == rejection.input_hash]
        readings = [_planned_rows(self.store, f"{self.folder}/{name}") for name in of_input]
        return bool(readings) and all(
            rows and any(rows.keys() <= units for units in later) for rows in readings
        )

    def keep_damaged_file(self, name: str, why: Exception) -> None:
        is_carried = self.base is not None and is_carried_from(name.rpartition("/")[2], self.base.number)
        then = "its rows are copied again" if is_carried else "its rows are answered again"
        self.store.keep_damaged_file(name, why, then)
        if is_carried:  # else its rows would count twice
            self.store.remove(self._carried_over_name)

    def carried_over(self, plan: Plan) -> dict[str, Any] | None:
        """`counts` of the answered rows that were taken over, what is `known` of these, and `tokens` of all
        of that version; None when no version is taken over.

        :param plan: of the version that has these rows, too.

        :raises CorruptFileError: when the document is damaged.
        """
        if self.base is None or not self.has_rows_of_base({unit.id for unit in plan.units}):
            return None
        body: dict[str, Any] | None = self.store.read_document(self._carried_over_name)
        if body is not None and not _are_totals(body):
            raise CorruptFileError(self.store, self._carried_over_name, "it holds other than totals")
        return body

    def save_carried_over(self, body: dict[str, Any]) -> None:
        self.store.create_document(self._carried_over_name, body)

    def costs(self, answered_by: Set[int] = frozenset()) -> dict[int, float]:
        """What runs spent since the version was published whose rows are taken over, if any, by the epochs of
        their leases. Of one that kept nothing that can be read, nothing is known.

        :param answered_by: epochs of those that count, whenever they ran.
        """
        published = self.base.epoch if self.base is not None else 0
        kept = self._of_epochs(epoch_of_cost, _POSITIVE)
        return {epoch: cost for epoch, cost in kept.items() if epoch > published or epoch in answered_by}

    def save_cost(self, epoch: int, cost: float) -> None:
        self.store.put_document(f"{self.folder}/{cost_of_epoch(epoch)}", cost)

    def starts(self) -> dict[int, float]:
        """When runs began to ask whose answers nobody has doubted, in epoch seconds, by the epochs of their
        leases."""
        return self._of_epochs(epoch_of_start, _POSITIVE)

    def save_start(self, epoch: int, seconds: float) -> None:
        self.store.put_document(f"{self.folder}/{start_of_epoch(epoch)}", seconds)

    def remove_starts(self, epochs: Set[int]) -> None:
        self.store.remove_all([f"{self.folder}/{start_of_epoch(epoch)}" for epoch in epochs])

    def golden_notes(self) -> dict[int, list[str]]:
        """What golden rows were answered beside the answers of runs, by the epochs of these."""
        return self._of_epochs(epoch_of_golden, _TEXTS, PLAN_BYTES)

    def save_golden_note(self, epoch: int, parts: Sequence[str]) -> None:
        self.store.put_document(f"{self.folder}/{golden_of_epoch(epoch)}", parts)

    def _of_epochs(
        self, epoch_of: Callable[[str], int | None], body: TypeAdapter[T], max_bytes: int = DOCUMENT_BYTES
    ) -> dict[int, T]:
        """Returns the documents of a kind, without those that cannot be read."""
        kept = {}
        for name in self.store.names(self.folder):
            if (epoch := epoch_of(name)) is not None:
                with contextlib.suppress(CorruptFileError, pydantic.ValidationError):
                    read = self.store.read_document(f"{self.folder}/{name}", max_bytes)
                    kept[epoch] = body.validate_python(read)
        return kept

    @property
    def _carried_over_name(self) -> str:
        assert self.base is not None
        return f"{self.folder}/carried-over-{self.base.number:06}.json"


def _are_totals(body: Any) -> bool:
    if not isinstance(body, dict):
        return False
    # Earlier versions of the provider did not keep what is known.
    sections = [body.get("counts"), body.get("tokens"), body.get("known", {})]
    return all(
        isinstance(section, dict) and all(isinstance(total, int | None) for total in section.values())
        for section in sections
    )


def _spans(rows: Iterable[tuple[int, int]]) -> Spans:
    """:param rows: of whole units, by their plan indices."""
    spans = [position(unit, np.array([[0, count]])) for unit, count in rows if count]
    return merge_spans(np.concatenate([_NO_SPANS, *spans]))


def _all_spans(plan: Plan) -> Spans:
    return _spans((index, unit.rows) for index, unit in enumerate(plan.units))


def _asked_spans(rejection: Rejection, units: Mapping[str, int]) -> Spans:
    """:param units: plan indices by unit id."""
    spans = [
        position(units[unit], np.array(offsets, np.int64).reshape(-1, 2))
        for unit, offsets in rejection.rows.items()
        if unit in units
    ]
    return merge_spans(np.concatenate([_NO_SPANS, *spans]))


def _planned_rows(store: Store, name: str) -> Mapping[str, int] | None:
    """Returns how many rows a stored plan has of each unit; None where it is gone or damaged."""
    try:
        return {unit.id: unit.rows for unit in Plan.from_json(plan_document(store, name)).units}
    except ValueError:
        return None


def load_plan(store: Store, name: str, listing: Listing | None = None) -> Plan | None:
    """Returns the stored plan; None when there is none, or it is damaged.

    :param listing: the files that it may read: whoever may write here must not choose others.
    """
    try:
        body = store.read_document(name, PLAN_BYTES)
        if body is None:
            return None
        plan = Plan.from_json(body)
        if listing is not None and not plan.is_of(listing):
            raise ValueError("it names other files than the input has")
        return plan
    except (CorruptFileError, ValueError) as e:
        damage = e if isinstance(e, CorruptFileError) else CorruptFileError(store, name, str(e))
        store.keep_damaged_file(name, damage, "the slice is planned again")
        return None


def plan_document(store: Store, name: str) -> Mapping[str, Any]:
    """Returns a stored plan as it is written; nothing where it is gone or damaged."""
    try:
        document = store.read_document(name, PLAN_BYTES)
    except CorruptFileError:
        return {}
    return document if isinstance(document, Mapping) else {}


def asked_before(store: Store, name: str) -> Mapping[str, Any] | None:
    """Returns the arguments that decided the answers to a stored plan; None where it does not say."""
    asked = plan_document(store, name).get(ASKED)
    return asked if isinstance(asked, Mapping) else None
