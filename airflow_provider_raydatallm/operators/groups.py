"""The operator's arguments that stand in groups: plain dicts, whose leaves may be templates.

An upstream task's output may be a whole group, or a leaf. A group in a task replaces the one of
`default_args`. Written by `make docs`, from the declarations in `contract.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import time, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath, XComArg
    from airflow.sdk.definitions._internal.templater import LiteralValue

    Later: TypeAlias = str | XComArg
    #: With `airflow.sdk.literal`, which keeps braces as they are.
    Text: TypeAlias = Later | LiteralValue
    Path: TypeAlias = Later | ObjectStoragePath
    Duration: TypeAlias = timedelta | float | Later


class Engine(TypedDict, total=False):
    """What answers. Leaves that name code (a class as `kind`, vLLM's `trust_remote_code`) are no
    templates.

    :param kind: `vllm`, fed by the provider; `ray_data_llm`, vLLM in Ray Data LLM's own processor; `auto`:
        `vllm` where possible; `http`: an endpoint with OpenAI's API; or `"package.module:Class"` of your own
        engine.
    :param deduplicate: run identical requests once. Default: only when sampling is deterministic (temperature
        0, or a seed).
    :param blocks: blocks to cut the rows into. Default: one per batch.
    :param kwargs: vLLM's engine arguments. A `max_model_len` of "auto" is estimated from a sample of rows.
        (Not of kind `http`.)
    :param accelerator: Ray's name of the GPU that the workers need, such as `L4`. (Not of kind `http`.)
    :param workers: a number, (min, max) to scale between, or `"auto"`: as many as the cluster's GPUs and the
        slice's work allow. With `limits.finish_by`, a slice's own engine has no more of (min, max) than
        finish in time. (Not of kind `http`.)
    :param max_model_len_percentile: percentage of rows that must fit into a `max_model_len` of "auto". (Not
        of kind `http`.)
    :param batch_size: rows that go to a worker together, and the next ones when all of them are finished.
        Default: rows are admitted one by one with kind "vllm", else chosen by the provider. (Not of kind
        `http`.)
    :param max_concurrent_batches: batches per worker at once, of 128 rows without `batch_size`. Default:
        chosen by the provider. (Not of kind `http`.)
    :param gpu_hour_price: what a GPU of its workers costs an hour, by which the report says what the slice
        cost. Default: `[ray_llm] gpu_hour_price` of Airflow's configuration. (Not of kind `http`.)
    :param cache: folder (`s3://...`, or a path on every node) in which slices of the same model, also
        concurrent ones, share answers to identical requests. Follows `deduplicate`. (Of kind `http` or
        `vllm`.)
    :param cache_max_bytes: size of the cache per model and settings; the oldest answers go first. A slice
        holds them in memory. (Of kind `http` or `vllm`.)
    :param cache_max_days: days for which the cache keeps an answer. (Of kind `http` or `vllm`.)
    :param scope: `slice`: the engine ends with the slice. `shared`: it stays for slices that need an equal
        one (model, arguments, accelerator, environment), which then start in seconds; it scales within
        `workers` of (min, max). Default: `shared` on an embedded Ray where possible, else `slice`. (Of kind
        `vllm`.)
    :param idle_timeout: idle time after which a shared engine ends; None or "never". It ends sooner when
        another engine needs its resources. Default: 10 minutes. (Of kind `vllm`.)
    :param max_shared: shared engines on the cluster above which this slice queues before it starts another.
        Default: as many as its GPUs, or on CPUs the memory of its nodes, hold. (Of kind `vllm`.)
    :param processor: options of Ray Data LLM's processor, which `auto` then selects: its stages
        (`tokenize_stage={"concurrency": 4}`), `placement_group_config`, `preprocess_map_kwargs`,
        `postprocess_map_kwargs`. (Of kind `ray_data_llm`.)
    :param url: base address, such as `https://host/v1`. (Of kind `http`.)
    :param allow_http: allow an `http://` address of another machine. (Of kind `http`.)
    :param in_flight: requests at once. Default: 100. (Of kind `http`.)
    :param requests_per_minute: requests that begin in a minute, at most, retries included. (Of kind `http`.)
    :param tokens_per_minute: tokens of prompts and answers in a minute, at most. (Of kind `http`.)
    :param token_budget: tokens of prompts and answers that a run may spend; it fails before it spends more.
        (Of kind `http`.)
    :param request_timeout: how long a request may take, whatever it waits for. Default: 10 minutes. (Of kind
        `http`.)
    :param profile: an engine of the connection's extra `engines`; the other leaves override its own.
    """

    kind: Later
    deduplicate: bool | Later | None
    blocks: int | Later | None
    kwargs: Mapping[str, Any] | XComArg
    accelerator: Later | None
    workers: int | tuple[int, int] | list[int] | Literal["auto"] | Later
    max_model_len_percentile: float | Later
    batch_size: int | Later | None
    max_concurrent_batches: int | Later | None
    gpu_hour_price: float | Later | None
    cache: Path | None
    cache_max_bytes: int | Later
    cache_max_days: float | Later
    scope: Literal["slice", "shared"] | Later
    idle_timeout: Duration | None
    max_shared: int | Later | None
    processor: Mapping[str, Any] | XComArg
    url: Later
    allow_http: bool | Later
    in_flight: int | Later
    requests_per_minute: float | Later | None
    tokens_per_minute: float | Later | None
    token_budget: int | Later | None
    request_timeout: Duration
    profile: Later | None


class Source(TypedDict, total=False):
    """How the input is read.

    :param format: of the files; `auto` goes by their extensions.
    :param column: reads only rows (or Hive folders) of the dataset `input_path` whose column equals the slice
        key.
    :param slice_format: `strftime` format of a slice key that comes from a date. Default: `%Y-%m-%d`. An
        hourly DAG needs an hourly one.
    :param column_types: Arrow types of columns, and of fields in them:
        `{"amount": "decimal(12, 2)", "user.id": "int64", "orders[].at": "timestamp[us, tz=UTC]"}`. CSV
        columns are text by default.
    :param csv: `delimiter`, `quote_char`, `escape_char` of CSV files other than RFC 4180.
    :param encoding: of text files. Default: `utf-8`.
    :param on_invalid_text: text that is not valid in its encoding: `fail`, or `replace` it with U+FFFD.
    :param max_rows: a trial: answer only the first rows, into a table of its own. Empty: all.
    :param trial: name of the trial's table, `<table>.trial/<name>/`. Default: `first-<n>`. Give people tables
        of their own: `"{{ dag_run.triggering_user_name }}"`.
    :param on_empty: when the slice has no rows: `fail`; `skip` the task, which leaves what was published
        before; or `publish` an empty slice. Where no file tells its columns, they are those of the table's
        published slices.
    """

    format: Literal["auto", "parquet", "csv", "jsonl"] | Later
    column: Later | None
    slice_format: Later
    column_types: Mapping[str, str] | XComArg
    csv: Mapping[str, Any] | XComArg
    encoding: Later
    on_invalid_text: Literal["fail", "replace"] | Later
    max_rows: int | Later | None
    trial: Later | None
    on_empty: Literal["fail", "skip", "publish"] | Later


class Rerun(TypedDict, total=False):
    """What happens when the slice is published already, or another run works on it. Instead of the dict:
    `"keep"` (the default: fail when the configuration or the input is another), `"recompute"` (replace what
    is published in both cases) or `"extend"` (add new input files).

    :param on_config_change: when it is published with another configuration: `fail` or `recompute`.
    :param on_input_change: when it is published, or half finished, from other input files: `fail`,
        `recompute`, or `extend`: add new files and keep the rows of the others, also in quarantine.
    :param on_running: when another run works on it: `fail`, or `attach`: wait for its result, and take over
        if it died. Default: `attach`.
    :param force: recompute a finished slice every time the task runs.
    :param retry_quarantined: answer the quarantined rows of a finished slice again, also those that `extend`
        would keep.
    :param verify: how a finished slice is checked: `listing` its files, or also reading their `content`.
    """

    on_config_change: Literal["fail", "recompute"] | Later
    on_input_change: Literal["fail", "recompute", "extend"] | Later
    on_running: Literal["attach", "fail"] | Later
    force: bool | Later
    retry_quarantined: bool | Later
    verify: Literal["listing", "content"] | Later


class Quality(TypedDict, total=False):
    """Rows that fail for their own reasons, and slices that should not be published.

    :param max_quarantine: share of rows that may fail. Above it the task fails and publishes nothing;
        finished rows are kept for the next run. Default: 0.1.
    :param max_invalid: the same for rows whose answer lacks its shape (`counts.invalid_output`), a limit of
        their own beside `max_quarantine`. Default: none.
    :param repair: how often a row whose answer is invalid is asked again, with its answer and what is wrong
        with it, before it goes to quarantine. Answers that `max_tokens` cut are not: raise it. Default: 0.
    :param max_attempts: attempts per row, in all, before it goes to quarantine. Default: 1.
    :param gates: what must hold of the slice before it is published, such as
        `[{"of": "truncated", "max": 0.02}, {"of": "labels", "against": 7, "max": 0.2, "then": "warn"}]`.
        Default: none.
    :param golden: rows whose right answers are known, such as `{"path": "s3://lake/golden.csv"}`: the input's
        columns that the request reads, and one or more of the answers' columns. Each run answers them with
        the same engine, publishes none of them, and its report says how many are right. Default: none.
    :param repeat: random rows that are asked once more: the report says how many have another answer then.
        Below 1 a share of the rows (0.01), from 2 on so many of them (200). Their second answers are not
        published. Default: none.
    :param judge: a second model that is asked of random answers whether they are right, such as
        `{"model": "Qwen/Qwen3-8B", "prompt": "{review} Label: {answer} Is the label right?", "rows": 200}`.
        The report says how many it agrees with. Default: none.
    :param on_too_long: how to handle rows whose prompt plus max_tokens exceeds `max_model_len`: `quarantine`
        those whose prompt alone does not fit; `truncate` the end of the prompt's longest message;
        `raise_limit`: answer them last, with an engine that has a higher limit; or `chunk`, with
        `task="embed"`: publish the mean of the vectors of parts that fit.
    :param hold: who decides of a slice that a gate with `"then": "hold"` holds, such as
        `{"users": ["alice"], "reject_after": "2d"}`. Default: everybody who may answer the DAG's required
        actions, and it waits until one of them does.
    """

    max_quarantine: float | Later
    max_invalid: float | Later | None
    repair: int | Later
    max_attempts: int | Later
    gates: list[dict[str, Any]] | XComArg
    golden: Mapping[str, str] | XComArg | None
    repeat: float | Later | None
    judge: Mapping[str, Any] | XComArg | None
    on_too_long: Literal["quarantine", "truncate", "raise_limit", "chunk"] | Later
    hold: Mapping[str, Any] | XComArg


class Publish(TypedDict, total=False):
    """How the slice is published.

    :param details: columns of each row beside its answer, named `<output_column>_<detail>`: `finish_reason`,
        `input_tokens`, `output_tokens`, `cached_tokens` (found in the engine's prefix cache),
        `reasoning_tokens`, `seconds` (in the engine), `attempts`, and whether the row was `repaired`
        (answered after an invalid answer), `truncated`, `degenerate` (it repeated itself), `shortened` (its
        prompt was), `deduplicated` (has the answer to an identical request) or `cached` (answered from
        `engine.cache`): both take 0 tokens. Tokens and seconds are those of the attempt that answered. Null
        is what is not known. The files' metadata then has model and fingerprint.
    :param max_file_bytes: approximate size above which it is published as several files. Default: 1 GiB.
    :param file_per_input: publish one file per input file instead.
    :param keep_versions: how many replaced versions stay readable and can be restored. Default: 1.
    :param on_schema_change: when the slice's columns are not those of the table's other slices: `fail`,
        before a row is paid, or `accept` them.
    :param metadata_path: folder of the table's plans, checkpoints, commits and reports. Default:
        `<table>.ray_llm/`, beside the table.
    :param quarantine_path: table of the rows that failed. Default: `<table>.quarantine/`.
    """

    details: list[str] | XComArg
    max_file_bytes: int | Later
    file_per_input: bool | Later
    keep_versions: int | Later
    on_schema_change: Literal["fail", "accept"] | Later
    metadata_path: Path | None
    quarantine_path: Path | None


class Limits(TypedDict, total=False):
    """How long things may take: text such as `"30m"` or `"1h30m"`, seconds, or a timedelta.

    :param queue: how long the job may wait until all resources of its engine are free at once. Default: a
        day.
    :param stall: time without a finished row after which the job fails. A retry keeps finished rows. Default:
        30 minutes.
    :param max_cost: what the slice's GPUs may cost, all of its tries together, in the currency of
        `engine.gpu_hour_price`. A run that reaches it ends, keeps the finished rows and publishes nothing; a
        higher limit continues. Default: no limit.
    :param orphan: time without a waiting task after which the job ends, with finished rows kept; at least a
        minute. Meanwhile it publishes nothing. None or "never": it never ends, and publishes. Default: 30
        minutes.
    :param reconnect: how long the cluster, or a secrets backend, may be away, or the token refused. Default:
        10 minutes.
    :param finish_by: when the slice should be finished: a duration from the run's start, or a time of day
        (`"07:00"`, in the schedule's timezone). A job that will be late logs this early, with the workers it
        would need; it is not stopped. With bounds in `engine.workers`, as many run as finish in time.
    """

    queue: Duration
    stall: Duration
    max_cost: float | Later | None
    orphan: Duration | None
    reconnect: Duration
    finish_by: Duration | time | Later


class Labels(TypedDict, total=False):
    """How one of `choices`, or several, are found. By default, engine `vllm` asks how probable each of them
    is, mostly in a single token, and the most probable one is published. With a `temperature`, or other
    sampling parameters that decide how an answer is drawn, the model writes its choice.

    :param confidence: publish also the columns `<output>_probability`, `<output>_runner_up`,
        `<output>_runner_up_probability` and `<output>_entropy` (bits). The probabilities are of the choices
        alone: together they are 1.
    :param exact: have the model write its choice in full, by a grammar.
    :param multi: a row may have several of the choices, or none: the model is asked about each whether it
        applies, and `<output>` is a list of those that do. `confidence` then publishes the probability of
        each, in the map `<output>_probability`.
    """

    confidence: bool | Later
    exact: bool | Later
    multi: bool | Later


class Images(TypedDict, total=False):
    """Images that the model sees before the prompt; a column's name alone says the same as `column`.

    They are JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF files. Of an animation the first frame counts, and what
    is see-through shows white. A row with a file that is damaged, too large or not there goes to quarantine.

    :param column: the column: bytes, addresses, structs of `bytes` and `path`, or lists of these.
    :param max_pixels: of an image; larger ones are made smaller, to this. Default: 1,048,576.
    :param max_bytes: of an image's file; larger ones are not read. Default: 20 MiB.
    :param sources: where addresses may lead, without which none is opened: folders, such as
        `s3://lake/photos/` or `/mnt/photos`; sites, such as `https://cdn.example.com`; and addresses of
        machines (`10.1.2.3`, `10.1.0.0/16`) that are not public, where a site has one. Without `column`:
        where images in messages may lie, for any engine but `vllm`; `data:` for those that a message holds.
    :param timeout: how long a site may take to send an image. Default: 20 seconds.
    """

    column: Later | None
    max_pixels: int | Later
    max_bytes: int | Later
    sources: list[str] | XComArg
    timeout: Duration


class Adapter(TypedDict, total=False):
    """LoRA adapters: folders with `adapter_config.json` and `adapter_model.safetensors`, in object storage or
    on every node. Each node copies them once. Instead of the dict, the folder of the one adapter of all
    rows.

    :param path: the one adapter of all rows.
    :param paths: several adapters, by name: `{"acme": "s3://models/acme", ...}`.
    :param column: the column that holds a row's name among `paths`. A row with another name goes to
        quarantine.
    :param on_null: a row whose name is null, or empty: `quarantine`, or `base`: the model answers it without
        an adapter.
    :param base_model: what the adapters say they were trained on (`base_model_name_or_path`), where that is
        not `model_source`, such as for a quantized one.
    """

    path: Path | None
    paths: Mapping[str, Path] | XComArg
    column: Later | None
    on_null: Literal["quarantine", "base"] | Later
    base_model: Later | None


class Embedding(TypedDict, total=False):
    """The vectors of `task="embed"`.

    :param dimensions: numbers of a vector, for models that are trained to have it cut (Matryoshka). Default:
        the model's own.
    :param dtype: `float32`, `float16`, or `int8`, a quarter of the size: times the column `<output>_scale` it
        is the vector, each number within half a scale.
    :param normalize: whether vectors have length 1, so that their product is the cosine. Default: True.
    """

    dimensions: int | Later | None
    dtype: Literal["float32", "float16", "int8"] | Later
    normalize: bool | Later


class Audio(TypedDict, total=False):
    """Recordings that `task="transcribe"` writes down; a column's name alone says the same as `column`.

    They are WAV, FLAC, MP3, AAC, AMR, AIFF, Ogg, MP4 (M4A), Matroska or WebM files; of several channels the
    mean counts. A row with a file that is damaged, too long or not there goes to quarantine.

    :param column: the column: bytes, addresses, structs of `bytes` and `path`, or lists of these, which
        follow each other.
    :param language: what is spoken, by its code, such as `en`. Default: the model finds out for each row.
    :param max_seconds: of a recording. Default: 1800.
    :param max_bytes: of a recording's file; larger ones are not read. Default: 200 MiB.
    :param sources: where addresses may lead, as for images (`Images`).
    :param timeout: how long a site may take to send a recording. Default: 60 seconds.
    """

    column: Later | None
    language: Later | None
    max_seconds: float | Later
    max_bytes: int | Later
    sources: list[str] | XComArg
    timeout: Duration
