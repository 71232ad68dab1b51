"""Pairs of jobs that differ in one argument: for each argument, what the first has, and the value that the
second has instead.

An argument whose effect depends on the rest of the job has a case for each effect. One that several kinds of
tasks, or engines, have, has a case with each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.effects.functions import (
    ASK,
    ASK_OTHERWISE,
    ENGINE,
    OTHER_ENGINE,
    READ,
    READ_OTHERWISE,
)
from tests.support.effects.observation import Mishap
from tests.support.effects.world import KEY, World

Arguments = dict[str, Any]

_TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
_SCHEMA = {
    "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
    "additionalProperties": False,
}  # fmt: skip
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}:"
_GREEDY = {"temperature": 0}
_LABELS = ["red", "blue"]


@dataclass(frozen=True)
class Case:
    """
    :param first: the arguments of the first job (`arguments.written`).
    :param other: the value of the second.
    :param beside: of a task or an engine of another kind, the arguments that it needs.
    :param answer: of a model that writes.
    :param may_fail: whether one of the two publishes nothing.
    """

    first: Arguments
    other: Any
    beside: Arguments = field(default_factory=dict)
    answer: str = "red"
    mishap: Mishap = "invalid"
    may_fail: bool = False


def find_cases(world: World) -> Mapping[str, list[Case]]:
    """By the arguments' paths; `task` is the kind of the task."""
    job = _Jobs(world)
    return {**_of_job(job), **_of_source(job), **_of_policies(job), **_of_tasks(job), **_of_engines(job)}


class _Jobs:
    """Arguments of valid jobs. Prompts read all columns that a case chooses from: ids of units cover which
    are read, and so they stay."""

    def __init__(self, world: World) -> None:
        self.path = world.path

    def _job(self, rows: str, model: str, **arguments: Any) -> Arguments:
        common: Arguments = {
            "slice_key": KEY, "input_path": self.path(rows), "output_path": self.path("out/table"),
            "model_source": self.path(model), "quality__max_quarantine": 0.9,
        }  # fmt: skip
        return {**common, **arguments}

    def generate(self, **arguments: Any) -> Arguments:
        return self._job("rows", "model", **{"prompt": "{a}", "engine": "vllm", **arguments})

    def labels(self, **arguments: Any) -> Arguments:
        """Greedy, so that a request does not tell how its label is found."""
        return self.generate(choices=_LABELS, sampling_params=_GREEDY, **arguments)

    def function(self, **arguments: Any) -> Arguments:
        return {name: v for name, v in self.generate(preprocess=ASK, **arguments).items() if name != "prompt"}

    def images(self, **arguments: Any) -> Arguments:
        given = {"prompt": "{photo_1} {photo_2}", "images__column": "photo_1"}
        sources = [self.path("files")]
        return self.generate(input_path=self.path("media"), images__sources=sources, **{**given, **arguments})

    def adapters(self, **arguments: Any) -> Arguments:
        paths = {name: self.path(name) for name in ("acme", "beta")}
        given = {"prompt": "{tenant_1} {tenant_2}", "adapter__column": "tenant_1"}
        return self.generate(adapter__paths=paths, **{**given, **arguments})

    def classify(self, **arguments: Any) -> Arguments:
        given = {"task": "classify", "prompt": "{a}", "choices": _LABELS, "engine": "vllm"}
        return self._job("rows", "bert", **{**given, **arguments})

    def embed(self, **arguments: Any) -> Arguments:
        return self._job("rows", "bert", **{"task": "embed", "prompt": "{a}", "engine": "vllm", **arguments})

    def score(self, **arguments: Any) -> Arguments:
        given = {"task": "score", "prompt": "{a}", "query": "{b}", "engine": "vllm"}
        return self._job("rows", "bert", **{**given, **arguments})

    def transcribe(self, **arguments: Any) -> Arguments:
        given = {
            "task": "transcribe", "prompt": "{sound_1} {sound_2}", "engine": "vllm",
            "audio__column": "sound_1", "audio__sources": [self.path("files")],
        }  # fmt: skip
        return self._job("media", "speech", **{**given, **arguments})

    def ray(self, **arguments: Any) -> Arguments:
        return self.generate(engine="ray_data_llm", **arguments)

    def http(self, **arguments: Any) -> Arguments:
        return self.generate(engine={"kind": "http", "url": "https://host/v1"}, **arguments)

    def own(self, **arguments: Any) -> Arguments:
        return self.generate(engine=ENGINE, **arguments)

    def on_workers(self) -> list[Callable[..., Arguments]]:
        return [self.generate, self.ray, self.own]

    def of_all_engines(self) -> list[Callable[..., Arguments]]:
        return [*self.on_workers(), self.http]


def _of_job(job: _Jobs) -> dict[str, list[Case]]:
    sliced = {"input_path": job.path("of-slices/{slice}"), "prompt": "{b}"}
    return {
        "version": [],  # there is one
        "slice_key": [Case(job.generate(**sliced), "2026-02-01")],
        "slice_instant": [Case(job.generate(), "2026-01-31T00:00:00+00:00")],
        "other_slice_keys": [Case(job.generate(), ["2026-01-30"])],
        "slice_timezone": [
            Case(job.generate(source__column="at"), "Asia/Taipei"),
            Case(job.generate(), "Asia/Taipei"),
        ],
        "code_hash": [
            Case(job.generate(code_hash="v1"), "v2"),
            Case(job.function(code_hash="v1"), "v2"),
            Case(job.generate(postprocess=READ, code_hash="v1"), "v2"),
            Case(job.own(code_hash="v1"), "v2"),
        ],
        "input_path": [Case(job.generate(), job.path("other-rows"))],
        "output_path": [Case(job.generate(), job.path("out/other"))],
        "model_source": [
            Case(job.generate(), job.path("other-model")),
            Case(job.ray(), job.path("other-model")),
            Case(job.http(), "another"),
        ],
        "output_column": [Case(job.generate(), "said"), Case(job.embed(), "vector")],
        "columns": [Case(job.generate(), ["a", "b"])],
        "preprocess": [Case(job.function(), ASK_OTHERWISE)],
        "postprocess": [Case(job.generate(), READ), Case(job.generate(postprocess=READ), READ_OTHERWISE)],
    }


def _of_source(job: _Jobs) -> dict[str, list[Case]]:
    lines = job.generate(input_path=job.path("lines"), prompt="Say it.")
    csv = job.generate(input_path=job.path("csv"), prompt="{a} {b}", source__encoding="latin-1")
    by_month = {"slice_key": "01", "source__column": "day", "source__slice_format": "%m"}
    trial = job.generate(source__max_rows=3, source__trial="mine")
    return {
        "source.format": [Case(lines, "jsonl"), Case({**lines, "source__format": "jsonl"}, "csv")],
        "source.column": [
            Case(job.generate(), "key_1"),
            Case(job.generate(prompt="{key_1} {key_2} {a}", source__column="key_1"), "key_2"),
        ],
        "source.slice_format": [Case(job.generate(**by_month), "%d"), Case(job.generate(), "%Y-%m")],
        "source.column_types": [
            Case(job.generate(), {"n": "int32"}),
            Case(job.generate(prompt="{n}"), {"n": "double"}),
        ],
        "source.csv": [Case(csv, {"quote_char": "'"})],
        "source.encoding": [Case(csv, "cp1252")],
        "source.on_invalid_text": [
            Case({**csv, "source__encoding": "utf-8"}, "replace", may_fail=True),
            Case(csv, "replace"),
        ],
        "source.max_rows": [Case(trial, 2), Case(job.generate(), 2)],
        "source.trial": [Case(trial, "yours")],
        "source.on_empty": [Case(job.generate(), "publish"), Case(job.generate(), "skip")],
    }


def _of_policies(job: _Jobs) -> dict[str, list[Case]]:
    shaped = job.generate(regex="red|blue")
    return {
        "rerun.on_config_change": [Case(job.generate(), "recompute")],
        "rerun.on_input_change": [Case(job.generate(), "recompute"), Case(job.generate(), "extend")],
        "rerun.on_running": [Case(job.generate(), "fail")],
        "rerun.force": [Case(job.generate(), True)],
        "rerun.retry_quarantined": [Case(shaped, True)],
        "rerun.verify": [Case(job.generate(), "content")],
        "quality.max_quarantine": [Case(shaped, 0.1, may_fail=True), Case(shaped, 0.8)],
        "quality.max_invalid": [Case(shaped, 0.5)],
        "quality.repair": [Case(shaped, 1)],
        "quality.max_attempts": [Case(job.generate(), 2, mishap="error")],
        "quality.on_too_long": [
            Case(job.generate(engine__kwargs={"max_model_len": 128}), "truncate"),
            Case(job.embed(), "chunk"),
        ],
        "publish.max_file_bytes": [Case(job.generate(), 1 << 20)],
        "quality.gates": [Case(job.generate(), ({"of": "rows", "max": 10**6},))],
        "quality.repeat": [Case(job.generate(), 2)],
        "quality.judge": [Case(job.generate(), {"model": "m/other", "prompt": "Is {answer} right?"})],
        "quality.golden": [Case(job.generate(), {"path": job.path("golden.jsonl")})],
        "publish.details": [Case(job.generate(), ("attempts", "finish_reason"))],
        "publish.file_per_input": [Case(job.generate(), True)],
        "publish.keep_versions": [Case(job.generate(), 3)],
        "publish.on_schema_change": [Case(job.generate(), "accept")],
        "publish.metadata_path": [Case(job.generate(), job.path("out/notes"))],
        "publish.quarantine_path": [Case(shaped, job.path("out/failed"))],
        "limits.queue": [Case(job.generate(), 60.0)],
        "limits.stall": [Case(job.generate(), 60.0)],
        "limits.max_cost": [Case(job.generate(engine__gpu_hour_price=2.5), 100.0)],
    }


def _of_tasks(job: _Jobs) -> dict[str, list[Case]]:
    chats = {"prompt": None, "messages": "chat_1", "system_prompt": "{chat_1} {chat_2}"}
    sounds = {"audio__column": "sound_1", "audio__sources": [job.path("files")]}
    recordings = {"input_path": job.path("media"), "model_source": job.path("speech"), "prompt": "{sound_1}"}
    return {
        "task": [
            # Requests are the same, and only a worker tells them apart.
            Case(job.generate(sampling_params=_GREEDY), "embed", {"sampling_params": None}),
            Case(job.embed(), "classify", {"choices": _LABELS}),
            Case(job.embed(), "score", {"query": "{a}"}),
            Case(job.embed(**recordings), "transcribe", sounds),
        ],
        "prompt": [
            *(Case(of_task(), "{a}!") for of_task in (job.generate, job.classify, job.embed, job.score)),
            *(Case(of_engine(), "{a}!") for of_engine in (job.ray, job.http, job.own)),
            Case(job.transcribe(), "Names: {sound_1} {sound_2}"),
        ],
        "messages": [Case(job.generate(**chats), "chat_2")],
        "system_prompt": [Case(job.generate(), "Be brief."), Case(job.http(), "Be brief.")],
        "query": [Case(job.score(), "What is {b}?")],
        **_of_answers(job),
        **_of_media(job),
        **_of_adapters(job),
        **_of_chats(job),
        "embedding.dimensions": [Case(job.embed(), 3), Case(_vectors_of_endpoint(job), 3)],
        "embedding.dtype": [Case(job.embed(), "float16"), Case(job.embed(), "int8")],
        "embedding.normalize": [Case(job.embed(), False), Case(_vectors_of_endpoint(job), False)],
    }  # fmt: skip


def _vectors_of_endpoint(job: _Jobs) -> Arguments:
    return job.embed(engine={"kind": "http", "url": "https://host/v1"})


def _of_answers(job: _Jobs) -> dict[str, list[Case]]:
    schema = job.generate(output_schema=_SCHEMA)
    written = job.labels(labels__exact=True)
    return {
        "choices": [
            Case(job.generate(), _LABELS),
            Case(job.labels(), ["red", "green"]),
            Case(written, ["red", "green"]),
            Case(job.classify(), ["green", "blue"]),
        ],
        "labels.confidence": [Case(job.labels(), True), Case(job.classify(), True)],
        "labels.exact": [Case(job.labels(), True), Case(job.labels(engine="ray_data_llm"), True)],
        "labels.multi": [Case(job.labels(), True)],
        "output_schema": [Case(job.generate(), _SCHEMA, answer='{"x": 1}')],
        "output_mode": [Case(schema, mode, answer='{"x": 1}') for mode in ("json", "columns")],
        "regex": [Case(job.generate(), "red|blue")],
        "grammar": [Case(job.generate(), 'root ::= "red" | "blue"')],
        "reasoning_parser": [Case(job.generate(), "qwen3")],
        "logprobs": [Case(job.generate(), True), Case(job.http(), True)],
    }


def _of_media(job: _Jobs) -> dict[str, list[Case]]:
    return {
        "images.column": [Case(job.images(), "photo_2")],
        "images.max_pixels": [Case(job.images(), 1000)],
        "images.max_bytes": [Case(job.images(), 3000), Case(job.images(), 1 << 20)],
        "images.sources": [
            Case(job.images(), [job.path("files"), "https://cdn.example.com"]),
            Case(job.ray(prompt=None, messages="chat_1"), ["data:"]),
        ],
        "images.timeout": [Case(job.images(), 5.0)],
        "audio.column": [Case(job.transcribe(), "sound_2")],
        "audio.language": [Case(job.transcribe(), "en")],
        "audio.max_seconds": [Case(job.transcribe(), 0.5), Case(job.transcribe(), 60.0)],
        "audio.max_bytes": [Case(job.transcribe(), 10_000), Case(job.transcribe(), 1 << 20)],
        "audio.sources": [Case(job.transcribe(), [job.path("files"), "https://cdn.example.com"])],
        "audio.timeout": [Case(job.transcribe(), 5.0)],
    }  # fmt: skip


def _of_adapters(job: _Jobs) -> dict[str, list[Case]]:
    acme, beta = job.path("acme"), job.path("beta")
    return {
        "adapter.path": [Case(job.generate(), acme), Case(job.generate(adapter__path=acme), beta)],
        "adapter.paths": [Case(job.adapters(), {"acme": beta, "beta": acme})],
        "adapter.column": [Case(job.adapters(), "tenant_2")],
        "adapter.on_null": [Case(job.adapters(), "base")],
        "adapter.base_model": [Case(job.generate(adapter__path=acme), "m/base")],
    }


def _of_chats(job: _Jobs) -> dict[str, list[Case]]:
    of_engines = (job.generate, job.ray, job.http)
    return {
        "sampling_params": [
            *(Case(of_engine(), {"max_tokens": 9}) for of_engine in of_engines),
            Case(job.generate(), {"seed": "{n}"}),
            Case(job.generate(), {"n": 2}),
            Case(job.labels(), {"temperature": 1}),
        ],
        "chat_template": [Case(job.generate(), _TEMPLATE)],
        "chat_template_kwargs": [Case(of_engine(), {"tone": "Kindly."}) for of_engine in of_engines],
        "tools": [Case(job.generate(), [_TOOL]), Case(job.http(), [_TOOL])],
    }


def _of_engines(job: _Jobs) -> dict[str, list[Case]]:
    random, greedy = {"engine__deduplicate": True}, {"engine__deduplicate": True, "sampling_params": _GREEDY}
    fitted = {"engine__kwargs": {"max_model_len": "auto"}}
    cached, cache = (job.generate, job.http), job.path("out/cache")
    of_workers = {
        "engine.kwargs": [*[(of, {}, {"dtype": "float16"}) for of in job.on_workers()],
                          *[(of, {}, {"max_num_seqs": 8}) for of in job.on_workers()],
                          (job.generate, {}, {"tokenizer": job.path("other-model")})],
        "engine.accelerator": [(of, {}, "L4") for of in job.on_workers()],
        "engine.gpu_hour_price": [(of, {}, 2.5) for of in job.on_workers()],
        "engine.workers": [(of, {}, 2) for of in job.on_workers()],
        "engine.max_model_len_percentile": [
            (of, given, 50.0) for of in job.on_workers() for given in (fitted, {})
        ],
        "engine.batch_size": [(of, {}, 2) for of in job.on_workers()],
        "engine.max_concurrent_batches": [(of, {}, 2) for of in job.on_workers()],
    }  # fmt: skip
    return {
        "engine.kind": [
            Case(job.generate(), "ray_data_llm"),
            Case(job.generate(), "http", {"engine__url": "https://host/v1"}),
            Case(job.own(), OTHER_ENGINE),
            Case(job.own(), "vllm"),
        ],
        "engine.deduplicate": [
            *(Case(of_engine(), True) for of_engine in cached),
            *(Case(of_engine(sampling_params=_GREEDY), True) for of_engine in cached),
            *(Case(of_engine(), False) for of_engine in job.of_all_engines()),
        ],
        "engine.blocks": [Case(of_engine(), 2) for of_engine in job.of_all_engines()],
        **{
            path: [Case(of_engine(**given), other) for of_engine, given, other in cases]
            for path, cases in of_workers.items()
        },
        "engine.cache": [Case(of(**given), cache) for of in cached for given in (random, greedy, {})],
        "engine.cache_max_bytes": [Case(of(**random, engine__cache=cache), 1 << 21) for of in cached],
        "engine.cache_max_days": [Case(of(**random, engine__cache=cache), 2.0) for of in cached],
        "engine.scope": [Case(job.generate(), "shared")],
        "engine.idle_timeout": [Case(job.generate(engine__scope="shared"), 60.0)],
        "engine.max_shared": [Case(job.generate(engine__scope="shared"), 3)],
        "engine.processor": [Case(job.ray(), {"chat_template_stage": {"chat_template": _TEMPLATE}})],
        "engine.url": [Case(job.http(), "https://gateway/v1")],
        "engine.allow_http": [Case(job.http(), True)],
        "engine.in_flight": [Case(job.http(), 2)],
        "engine.requests_per_minute": [Case(job.http(), 60.0)],
        "engine.tokens_per_minute": [Case(job.http(), 1e6)],
        "engine.token_budget": [Case(job.http(), 10**6)],
        "engine.request_timeout": [Case(job.http(), 60.0)],
    }  # fmt: skip


#: Arguments that declare more than what a row's answer needs, and why.
STRONGER: Mapping[str, str] = {
    "source.format": "ids of units cover the format that is found; another one hardly ever reads the same "
    "rows, and so is a part of the rule as it is written",
    "adapter.on_null": "the model's answers to rows that name no adapter are to go when they are not wanted "
    "any more, and not to stay as published",
}
