"""What all probes have in common: rows that a run asks to learn how good its answers are.

Nobody publishes them, and no figure of the slice counts them but its cost. They have a folder of fragments in
the slice's checkpoint, which goes with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.probes import ProbeFigures, ProbeTokens
from airflow_provider_raydatallm.contract.spec.gate import MOST_SLICES
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import TOKEN_FIELDS
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.publish.row_details import detail_columns
from airflow_provider_raydatallm.processor.request.answers import label_confidence
from airflow_provider_raydatallm.processor.request.answers.details import AnswerDetails
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader
from airflow_provider_raydatallm.processor.store.fragments import fragment_fields
from airflow_provider_raydatallm.processor.store.ledger import Fragments, Ledger
from airflow_provider_raydatallm.processor.store.table_versions import newest_versions


@dataclass(frozen=True)
class Answered:
    """The answers to rows of a plan."""

    plan: Plan
    checkpoint: Checkpoint
    ledger: Ledger

    def fields(self) -> dict[str, pa.Field]:
        """The columns of the answers, by name; none where there is no answer."""
        fragments = self.ledger.rows
        return {f.name: f for f in fragment_fields(self.checkpoint.store, self.checkpoint.folder, fragments)}

    def reader(self, of: Fragments, fields: Sequence[pa.Field]) -> FragmentReader:
        """Reads the fragments: those of answers, or of failures."""
        units = self.plan.units
        [pieces] = of.divide([range(len(units))], len(units))
        ids = {unit.id: index for index, unit in enumerate(units)}
        return FragmentReader(self.checkpoint.store, self.checkpoint.folder, pieces, ids, fields)


@dataclass(frozen=True, kw_only=True)
class Probe(ABC):
    """
    :cvar name: its argument in `quality`, its section of the report, and its gate.
    :cvar shares_engine: whether the engine of the slice's rows answers them.
    :cvar as_new_as_answers: whether they are asked again where rows of the slice were answered since, by
        another model perhaps.
    :ivar inference: how they are answered.
    :ivar hash: of what its argument says.
    :ivar unasked: rows of the plan that are not asked; None: all are.
    """

    name: ClassVar[str]
    shares_engine: ClassVar[bool] = True
    as_new_as_answers: ClassVar[bool] = False
    inference: InferencePlan
    hash: str
    unasked: Fragments | None = None

    @classmethod
    @abstractmethod
    def find(cls, inference: InferencePlan) -> Self | None:
        """Returns None where the job asks for none.

        :param inference: of the slice's rows.
        :raises SliceError: when it cannot be asked.
        """

    @property
    def plan(self) -> Plan:
        return self.inference.plan

    def checkpoint(self, of_slice: Checkpoint) -> Checkpoint:
        """The folder of their answers, within the slice's."""
        name = f"{self.name}-{self.hash}"
        return of_slice.of_probe(name, as_new_as_answers=self.as_new_as_answers)

    def open(self, of_slice: Answered) -> Self:
        """Returns the probe with its rows, where it has them only once the slice's are answered."""
        return self

    def share_before(self) -> float | None:
        """What gates looked at in the newest slice before this one that asked the same.

        :raises StorageError: when the store cannot be read now.
        """
        job = self.inference.job
        for version in islice(
            newest_versions(job.address, job.source.slice_format, before=True), MOST_SLICES
        ):
            try:
                told = Facts.of_commit(version.body).probes.get(self.name)
            except ValueError:
                continue
            if told is not None and told.hash == self.hash:
                return told.gated
        return None

    def look_back(self, answered: Answered, of_slice: Answered, *, is_finished: bool) -> None:  # noqa: B027
        """Is told of what earlier runs answered, before more rows of the slice are asked.

        :param is_finished: whether that is all of the probe's rows.
        """

    @abstractmethod
    def figures(self, answered: Answered, of_slice: Answered) -> ProbeFigures:
        """Returns what the answers say.

        :param answered: the probe's.
        :raises CorruptFileError: naming a damaged fragment.
        :raises StorageError: when the store cannot be read now.
        """


class Tokens:
    """Counts what rows took, failed attempts included."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def _add(self, attempts: pa.Table) -> None:
        for name in ("input", "output"):
            total = pc.sum(attempts.column(f"__{name}_tokens")).as_py()
            if total is not None:
                self._found[name] = self._found.get(name, 0) + total

    def add_all(self, answered: Answered) -> None:
        ledger = answered.ledger
        for kind in (ledger.rows, ledger.failures):
            reader = answered.reader(kind, TOKEN_FIELDS)
            for index, unit in enumerate(answered.plan.units):
                self._add(reader.window(index, 0, unit.rows, every=True)[1])

    def total(self) -> ProbeTokens:
        return ProbeTokens(**self._found)


def beside_answers(job: SliceJob) -> set[str]:
    """Columns that say more of an answer, and are none."""
    beside: list[Any] = [*label_confidence.fields(job), *AnswerDetails(job).fields, *detail_columns(job)]
    return {field.name for field in beside}
