"""Root errors in texts of Ray, Ray Data and vLLM (`data/failures`), or from the sources of vLLM and torch
where a GPU is needed to see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError, UserCodeException

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.processor.ray_runtime import driver
from airflow_provider_raydatallm.processor.root_error import root_error, starting
from tests.support.paths import FAILURES


def text(name: str) -> str:
    return (FAILURES / name).read_text()


def raised(name: str) -> Exception:
    """As Ray Data raises it: an actor's death from an exception without text, a task's error by itself."""
    if name.startswith(("engine_call", "engine_core")):
        cause = UserCodeException("UDF failed to process a data block.")
        return RayTaskError("submit", text(name), cause).as_instanceof_cause()
    error = ActorDiedError()
    RayActorError.__init__(error, "a1", text(name))
    error.__cause__ = Exception()
    return error


@pytest.mark.parametrize(
    ("name", "kind", "root", "advice"),
    [
        ("engine_init_error.txt", "transient", "AttributeError: 'NoneType' object has no", "at /home/me/"),
        ("engine_call_error.txt", "transient", "AttributeError: 'NoneType' object has no", "at /home/me/"),
        ("engine_init_gpu_memory.txt", "gpu_memory", "torch.OutOfMemoryError: CUDA out of", "max_num_seqs"),
        ("engine_core_dead.txt", "engine", "vllm.v1.engine.exceptions.EngineDeadError: E", "A retry"),
        (
            "engine_process_exit.txt",
            "engine",
            "ActorDiedError: The actor is dead because its worker process has died. Worker exit",
            "A process of the job died",
        ),
        (
            "vllm_max_model_len.txt",
            "input",
            "ModelConfig: Value error, User-specified max_model_len (10000000) is greater than the derived",
            "check engine.kwargs",
        ),
        ("vllm_unknown_argument.txt", "input", "TypeError: AsyncEngineArgs.__init__() got", "check engine"),
        ("hub_out_of_reach.txt", "transient", "OSError: We couldn't connect to 'https", "do not reach"),
    ],
)  # fmt: skip
def test_root_error_comes_first_and_then_what_to_do(name: str, kind: str, root: str, advice: str) -> None:
    failure = root_error(raised(name))
    assert failure.message.startswith(root)
    assert (failure.kind, advice in failure.message) == (kind, True)
    assert "\x1b" not in failure.message


def test_last_lines_of_the_users_code_follow() -> None:
    failure = root_error(raised("engine_call_error.txt"))
    assert failure.message.splitlines()[-2:] == list(failure.frames)
    assert list(failure.frames) == [
        "at /home/me/my_engine.py:8 in __call__: die(self.how);",
        'at /home/me/my_engine.py:19 in die: if how=="class": return None.foo',
    ]
    # Lines of Ray and vLLM mean nothing to the user.
    assert root_error(raised("vllm_max_model_len.txt")).frames == ()


def test_error_of_an_engine_that_got_no_row_yet_is_told_whatever_hides_rows() -> None:
    failure = root_error(raised("engine_init_error.txt"))
    assert failure.before_rows
    assert "before any row was asked" in failure.advice[0]
    assert failure.without_row_texts().message == failure.message
    with pytest.raises(ValueError, match="no licence") as of_driver, starting():
        raise ValueError("no licence")
    assert root_error(of_driver.value).without_row_texts().sentence == "ValueError: no licence"
    for asked in (raised("engine_call_error.txt"), ValueError(str(raised("engine_init_error.txt")))):
        assert not root_error(asked).before_rows
    with pytest.raises(RayTaskError) as of_others, starting():
        raise raised("engine_call_error.txt")
    assert not root_error(of_others.value).before_rows


@pytest.mark.parametrize(("log", "kind", "root"), [
    ("vllm_no_weights.log", "model", "RuntimeError: Cannot find any model weights with `/models/tiny`"),
    ("vllm_no_cache_memory.log", "gpu_memory", "ValueError: No available memory for the cache blocks."),
    ("", "engine", "RuntimeError: Engine core initialization failed. See root cause above."),
])  # fmt: skip
def test_reason_that_vllm_leaves_in_its_log_is_found(log: str, kind: str, root: str) -> None:
    asked: list[str] = []

    def log_of(*, actor_id: str) -> str:
        asked.append(actor_id)
        return text(log) if log else ""

    failure = root_error(raised("vllm_core_failed.txt"), log_of)
    assert asked == ["a1"]
    assert (failure.kind, failure.cause.startswith(root)) == (kind, True), failure


@pytest.mark.parametrize(("log", "kind", "root"), [
    ("vllm_no_weights.log", "model", "RuntimeError: Cannot find any model weights with `/models/tiny`"),
    ("", "engine", "RuntimeError: Engine core initialization failed. See root cause above."),
])  # fmt: skip
def test_log_of_an_actor_is_found_by_its_id_in_another_actors_error(log: str, kind: str, root: str) -> None:
    """A feeder may fail because its worker died, before the job itself notices."""
    said = (
        "Failed to deserialize exception. Refer to https://docs.ray.io/ for more information.\n"
        "Original exception:\n"
        "ray.exceptions.RayTaskError: \x1b[36mray::MapWorker(MapBatches(Feeder)).submit()\x1b[39m (pid=7, "
        "ip=127.0.0.1, actor_id=fee0, repr=MapWorker(MapBatches(Feeder)))\n"
        "    found.process = ray.get(found.ready)\n"
        "                    ^^^^^^^^^^^^^^^^^^^^\n"
        f"ray.exceptions.ActorDiedError: {text('vllm_core_failed.txt')}"
    )
    logs = {"fee0": ":actor_name:MapWorker(MapBatches(Feeder))\n"}
    logs["dcd0ebf10b2c7093471f79e907000000"] = text(log) if log else ""
    failure = root_error(RuntimeError(said), lambda *, actor_id: logs.pop(actor_id))
    assert not logs
    assert (failure.kind, failure.cause.startswith(root)) == (kind, True), failure


@pytest.mark.parametrize(("log", "kind", "root"), [
    ("vllm_cuda_error.log", "engine", "RuntimeError: Worker failed with error 'CUDA error: an illegal"),
    ("vllm_no_cache_memory.log", "gpu_memory", "ValueError: No available memory for the cache blocks."),
    ("", "engine", "the engine died 3 times"),
])  # fmt: skip
def test_reason_of_an_engines_death_comes_before_its_effect(log: str, kind: str, root: str) -> None:
    died = SliceError("the engine died 3 times", kind="engine", log={"node_id": "n", "pid": 7})
    failure = root_error(died, lambda *, node_id, pid: text(log) if log else "")
    assert failure.kind == kind
    assert (failure.cause or failure.sentence).startswith(root)
    assert failure.sentence.startswith("the engine died 3 times")
    assert root in failure.sentence


CORE_DEAD = "the engine died: EngineCore encountered an issue. See stack trace (above) for the root cause."


@pytest.mark.parametrize(
    "before", ["INFO loaded", "torch.OutOfMemoryError: CUDA out of memory. It was handled."]
)
def test_engine_that_was_killed_is_said_to_be_killed_and_no_setting_is_blamed(before: str) -> None:
    log = f"{before}\n{CORE_DEAD} Failed core proc(s): {{'EngineCore_DP0': -9}}\n"
    died = SliceError("the engine died 3 times", kind="engine", log={"pid": 7})
    failure = root_error(died, lambda *, pid: log)
    assert failure.kind == "engine"
    assert failure.sentence == "the engine died 3 times: EngineCore_DP0 was killed by SIGKILL (exit code -9)"
    assert failure.log[-1] == log.splitlines()[-1]
    assert "engine." not in failure.text
    start = RuntimeError(
        "ray::A.ready() (pid=1, actor_id=fee0)\nTraceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
        "{'EngineCore_DP0': -9}"
    )
    failure = root_error(start, lambda *, actor_id: before)
    assert (failure.kind, "SIGKILL" in failure.sentence) == ("engine", True)
    assert "engine." not in failure.text


@pytest.mark.parametrize("core", ["", " Failed core proc(s): {'EngineCore': 1}"])
def test_log_of_an_engine_that_died_without_a_reason_is_kept(core: str) -> None:
    died = SliceError("the engine died 3 times", kind="engine", log={"pid": 7})
    failure = root_error(died, lambda *, pid: f"INFO loaded\n{CORE_DEAD}{core}\n")
    assert (failure.kind, failure.log) == ("engine", ("INFO loaded", f"{CORE_DEAD}{core}"))


def test_error_that_cannot_be_unpickled_is_known_by_its_text() -> None:
    said = (
        "Failed to deserialize exception. Refer to https://docs.ray.io/ for more information.\n"
        "Original exception:\n"
        "ray.exceptions.RayTaskError: ray::MapWorker(MapBatches(Feeder)).submit() (pid=1, ip=127.0.0.1)\n"
        "    found.process = ray.get(found.ready)\n"
        "                    ^^^^^^^^^^^^^^^^^^^^\n"
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: VllmWorker\n"
        "The actor is dead because its worker process has died."
    )
    failure = root_error(RuntimeError(said))
    assert failure.kind == "engine"
    assert failure.cause.startswith(
        "ray.exceptions.ActorDiedError: The actor is dead because its worker process"
    )


#: Of vLLM (v1/worker/utils.py, v1/core/kv_cache_utils.py), torch, transformers (utils/hub.py) and the hub.
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            "ValueError: Free memory on device cuda:0 (10.5/139.8 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 125.8 GiB). Decrease GPU memory utilization.",
            "gpu_memory",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (9.1 GiB).",
            "gpu_memory",
        ),
        ("RuntimeError: CUDA error: out of memory", "gpu_memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "gpu_memory"),
        (
            "OSError: nobody/nothing is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'",
            "model",
        ),
        ("OSError: You are trying to access a gated repo.\nMake sure to have access to it", "model"),
        ("OSError: v9 is not a valid git identifier (branch name, tag name or commit id)", "model"),
        ("OSError: m/m does not appear to have a file named config.json.", "model"),
        ("HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api", "model"),
        ("ModuleNotFoundError: No module named 'my_models'", "input"),
        ("KeyError: 'n'", "transient"),
    ],
)  # fmt: skip
def test_kind_of_a_failure_is_known_by_its_text(said: str, kind: str) -> None:
    error = ActorDiedError()
    trace = 'Traceback (most recent call last):\n  File "/x/site-packages/a.py", line 1, in f\n    g()\n'
    RayActorError.__init__(
        error, "a", f"The actor died because of an error raised in its creation task, x\n{trace}{said}"
    )
    assert root_error(error).kind == kind


def test_known_cause_counts_more_than_earlier_exceptions() -> None:
    chained = (
        "ConnectionResetError: [Errno 104] Connection reset by peer\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "ray.exceptions.RayActorError: The actor died"
    )
    failure = root_error(RuntimeError(chained))
    assert (failure.kind, failure.cause) == ("gpu_memory", "torch.OutOfMemoryError: CUDA out of memory.")


def test_node_out_of_memory_is_reported_without_the_list_of_its_processes() -> None:
    failure = root_error(OutOfMemoryError(text("node_out_of_memory.txt")))
    assert failure.kind == "engine"
    assert failure.cause.startswith(
        "OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory."
    )
    assert "nodes with more memory" in failure.advice[0]
    assert len(failure.cause) < 600


def test_slice_errors_are_reported_unchanged() -> None:
    inner = SliceError("the real thing", kind="cluster")
    outer = RuntimeError("task failed")
    outer.cause = inner  # type: ignore[attr-defined]
    wrapped = ValueError("pipeline failed")
    wrapped.__cause__ = outer
    assert root_error(wrapped) == Failure("cluster", "the real thing")
    assert root_error(KeyError("k")) == Failure("transient", "KeyError: 'k'", cause="KeyError: 'k'")


def test_error_whose_text_cannot_be_made_is_known_by_its_class() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert root_error(Odd()).sentence == "Odd"


def test_circular_chain_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert root_error(first) == Failure("transient", "ValueError: b", cause="ValueError: b")


def test_reason_of_a_failed_serve_deployment_is_read_from_its_workers_log() -> None:
    text_of_serve = (
        "the shared engine could not be started: The deployment failed to start 1 times in a row. Error:\n"
        "ray::ServeReplica:m:w.initialize_and_get_metadata() (pid=1, ip=127.0.0.1, actor_id=60da, repr=<r>)\n"
        '  File "replica.py", line 1928, in initialize\n'
        "    raise RuntimeError(traceback.format_exc()) from None\n"
        "RuntimeError: Traceback (most recent call last):\n"
        '  File "core_client.py", line 1, in wait\n'
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    )
    logs = {"60da": "RuntimeError: Cannot find any model weights with `m`"}
    failure = root_error(RuntimeError(text_of_serve), lambda **process: logs[process["actor_id"]])
    assert (failure.kind, failure.cause) == ("model", logs["60da"])


def test_log_of_a_process_on_a_busy_node_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ConnectionError(), "", ":job_id:01000000\n:actor_name:Worker\nit broke\n"]

    def get_log(**asked: Any) -> Iterator[str]:
        answer = answers.pop(0) if asked["suffix"] == "out" else ":job_id:01000000\nFatal: no such file\n"
        if isinstance(answer, Exception):
            raise answer
        return iter([answer])

    def not_moved(suffix: str, **process: Any) -> dict[str, str]:
        raise FileNotFoundError

    monkeypatch.setattr("ray.util.state.get_log", get_log)
    monkeypatch.setattr(driver, "_moved_log", not_moved)
    monkeypatch.setattr(driver.time, "sleep", lambda seconds: None)
    assert driver.process_log(node_id="n", pid=1) == "it broke\nFatal: no such file\n"
    answers[:] = [ConnectionError()] * 9
    assert driver.process_log(node_id="n", pid=1) == ""
