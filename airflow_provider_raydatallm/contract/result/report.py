"""`Report`, the contract from Ray to Airflow: what was done."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, create_model

from airflow_provider_raydatallm.contract.base import Contract
from airflow_provider_raydatallm.contract.result.counters import Section, counters_of
from airflow_provider_raydatallm.contract.result.probes import (
    GoldenFigures,
    JudgeFigures,
    ProbeFigures,
    RepeatFigures,
)
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.spec.gate import MOST_GATES, PROBES

T = TypeVar("T")

#: How many labels a report names: the most frequent ones.
MOST_LABELS = 50
#: How many its commit counts: functions of users may return a text of its own for each row.
MOST_COUNTED = 10_000
#: How many workers it names, how many spans of time its history has, and how much advice it gives.
MOST_WORKERS = 64
MOST_SPANS = 120
MOST_ADVICE = 50

#: A value for each span of a history.
_Spans = Annotated[tuple[T, ...], Field(max_length=MOST_SPANS)]


def _declared_in(section: Section) -> type[Contract]:
    """A model with a field for each counter of the section."""
    fields: dict[str, Any] = {
        c.report_field: (int | None, Field(None, description=c.help)) for c in counters_of(section)
    }
    return create_model(f"Declared{section.title()}", __base__=Contract, **fields)


class _Rows(Contract):
    planned: int
    succeeded: int
    resumed: int | None = None
    quarantined: int = 0
    invalid_output: int | None = None
    repaired: int | None = None


class Counts(_declared_in("counts"), _Rows):  # type: ignore[misc]
    """Numbers of rows, with those of `counters`. `planned = succeeded + quarantined`; the others overlap
    these. None: not measured."""


class Tokens(_declared_in("tokens")):  # type: ignore[misc]
    """`cached` is the part of `input` that the engine had computed before. `saved`, in neither `input` nor
    `output`, is what the `Counts.cached` rows took when they were inferred."""


class StartupSeconds(Contract):
    """Parts of the time before the first request; None: unknown or not spent.

    environment: from the job's submission to its process, while Ray installs code and packages.
    imports: from there to its first step.
    worker_imports: of vLLM and torch, by the first worker. This and the following are also set for a shared
        engine that another slice started and this one waited for, and None for one that was ready.
    engine: from there until the engine is ready. Parts of it, as far as vLLM logs them:
    load: loading the model.
    compile: 0 when nothing was compiled.
    warm_up: profiling, the cache, CUDA graphs.
    """

    environment: float | None = None
    imports: float | None = None
    worker_imports: float | None = None
    engine: float | None = None
    load: float | None = None
    compile: float | None = None
    warm_up: float | None = None

    def __str__(self) -> str:
        known = {name: value for name, value in self if value is not None}
        return ", ".join(f"{name.replace('_', ' ')} {seconds:,.1f} s" for name, seconds in known.items())


class Seconds(Contract):
    """Wall-clock seconds. `engine_start` runs from the plan to the first request in the engine, without the
    time in the queue; `inference` from there to the last row out of it. `start` splits the startup."""

    start: StartupSeconds | None = None
    engine_start: float | None = None
    inference: float | None = None
    publish: float | None = None


class Throughput(Contract):
    """Rates over `Seconds.inference`."""

    rows_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None


class Utilisation(Contract):
    """Percent over `Seconds.inference`, of the GPUs that the engine's workers hold (all GPUs when those are
    unknown) and of the nodes' CPUs and memory. `flops_share`: of what those GPUs compute at most at the
    weights' precision, where the cards and the model are known; a GPU that waits for its memory is busy, too.
    `bandwidth_share`: of their memory's bandwidth, which cards count from Hopper on, for all that runs there.
    """

    gpu_mean: float | None = None
    gpu_p10: float | None = None
    gpu_memory_max: float | None = None
    flops_share: float | None = None
    bandwidth_share: float | None = None
    cpu_mean: float | None = None
    memory_max: float | None = None


class Cost(Contract):
    """What the slice's GPUs cost, by `gpu_hour_price`. `total`: of this run, with golden rows, those asked
    twice and the judge, and of earlier tries of the same version as far as they kept it, as `limits.max_cost`
    counts. The others are of this run's `gpu_seconds`, by the rows that it finished and its tokens, in and
    out. Where it finished no row, `per_1000_rows` is of `total`.
    """

    total: float
    per_1000_rows: float | None
    per_million_tokens: float | None
    gpu_hour_price: float

    @classmethod
    def of(
        cls,
        gpu_seconds: float | None,
        gpu_hour_price: float | None,
        rows: int,
        tokens: int,
        earlier: float = 0.0,
        now: float = 0.0,
        rows_of_tries: int = 0,
    ) -> Cost | None:
        """Returns None without a price, or without GPUs, and where it is not known how many had rows.

        :param earlier: what other tries cost.
        :param now: what this one cost, with all engines of it.
        :param rows_of_tries: which all tries finished together.
        """
        cost = cost_of(gpu_seconds, gpu_hour_price) or 0.0
        total = (now or cost) + earlier
        if gpu_hour_price is None or not (cost or (total and not rows)):
            return None
        of_rows, finished = (cost, rows) if rows else (total, rows_of_tries)
        return cls(
            total=round(total, 6),
            per_1000_rows=round(1e3 * of_rows / finished, 6) if finished else None,
            per_million_tokens=round(1e6 * cost / tokens, 6) if cost and tokens else None,
            gpu_hour_price=gpu_hour_price,
        )


def cost_of(gpu_seconds: float | None, gpu_hour_price: float | None) -> float | None:
    """Returns None where one of them is not known."""
    return None if gpu_seconds is None or gpu_hour_price is None else gpu_seconds / 3600 * gpu_hour_price


class Balance(Contract):
    workers: int | None = None
    max_over_mean: float | None = None


class WorkerShare(Contract):
    """What one worker of the engine did. `busy_share` is the part of `Seconds.inference` in which it had a
    request."""

    name: str
    rows: int
    busy_share: float


#: Those of a run's workers; of very many, only some.
WorkerShares = Annotated[tuple[WorkerShare, ...], Field(max_length=MOST_WORKERS)]
#: Rows with each value, the most frequent ones first.
LabelCounts = Annotated[dict[str, int], Field(max_length=MOST_LABELS)]


class History(Contract):
    """The time of inference in equal spans of `span_s` seconds; the first begins `offset_s` after the first
    request, or before it when that is negative. `rows` finished in each span, also those that failed. The
    rest are means in percent, of what `Utilisation` covers: null in spans without samples, and altogether
    where none were taken, as of GPUs on nodes that have none."""

    span_s: float
    offset_s: float
    rows: _Spans[int]
    gpu_busy: _Spans[float | None] | None = None
    cpu_busy: _Spans[float | None] | None = None


class Advice(Contract):
    """A setting to change in the next run (`change`), why (`evidence`), and a stable `code`."""

    code: str
    evidence: str
    change: str

    def __str__(self) -> str:
        return f"{self.evidence}: {self.change} [{self.code}]"


#: What is too large for XCom.
_ONLY_STORED = ("per_worker", "history")


class Report(Contract):
    """The content of a version's report file; XCom adds the job's id and links and Airflow's timings, and
    lacks `per_worker` and `history`."""

    version: Literal[1] = 1
    #: `kept`: the input is empty now, `source.on_empty` is "skip", and what was published before stays.
    #: `held`: all rows are answered, and a person decides whether they are published.
    outcome: Literal["published", "unchanged", "attached", "empty", "kept", "held"]
    slice_key: str
    output_path: str
    #: Number of the version that the slice's folder shows; None when nothing is published.
    published_version: int | None = None
    #: Name of the version that waits for a person.
    staged_version: str | None = None
    fingerprint: str
    counts: Counts
    tokens: Tokens = Tokens()
    seconds: Seconds = Seconds()
    throughput: Throughput = Throughput()
    utilisation: Utilisation = Utilisation()
    balance: Balance = Balance()
    #: From the engine's start to its last row, without the time in the queue, times the GPUs of the workers
    #: that answered: also of a shared engine, whose GPUs answered other slices at the same time. None: no
    #: GPUs, or not known which.
    gpu_seconds: float | None = None
    cost: Cost | None = None
    #: The busiest first; of very many workers, the busiest and the idlest.
    per_worker: WorkerShares | None = None
    history: History | None = None
    #: Rows with each label, where answers are labels: the most frequent ones first.
    labels: LabelCounts | None = None
    #: Rows in quarantine with each type of error, and of the user's functions with the line: the most
    #: frequent ones first.
    quarantine_reasons: LabelCounts | None = None
    #: How well `quality.golden` was answered.
    golden: GoldenFigures | None = None
    #: How many of the rows of `quality.repeat` have another answer when they are asked again.
    repeat: RepeatFigures | None = None
    #: How many answers the model of `quality.judge` agrees with.
    judge: JudgeFigures | None = None
    #: What `quality.gates` said.
    gates: Annotated[tuple[GateVerdict, ...], Field(max_length=MOST_GATES)] | None = None
    advice: Annotated[tuple[Advice, ...], Field(max_length=MOST_ADVICE)] | None = None

    @property
    def awaits_person(self) -> bool:
        """Whether a gate leaves it to a person."""
        return any(gate.verdict == "held" for gate in self.gates or ())

    @property
    def probes(self) -> dict[str, ProbeFigures]:
        """What was learnt of the answers by asking more, by the arguments in `quality`."""
        told = {name: getattr(self, name) for name in PROBES}
        return {name: figures for name, figures in told.items() if figures is not None}

    def to_xcom(
        self,
        *,
        report_path: str | None,
        ray_job_id: str | None,
        dashboard_url: str | None,
        queued: float | None,
        total: float | None,
        gpus_held: Contract | None = None,
    ) -> dict[str, Any]:
        """Returns the operator's `return_value`; `queued` and `total` are seconds, `gpus_held` is a
        `GpusHeld`."""
        result = self.model_dump(mode="json", exclude={"version", *_ONLY_STORED})
        result["advice"] = None if self.advice is None else [a.code for a in self.advice]
        result["report_path"] = report_path
        result["ray_job_id"] = ray_job_id
        result["dashboard_url"] = dashboard_url
        result["gpus_held"] = None if gpus_held is None else gpus_held.model_dump(mode="json")
        result["seconds"] = {"queued": queued, **result["seconds"], "total": total}
        return result
