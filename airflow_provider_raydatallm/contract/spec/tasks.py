"""What can be asked of a model: each task's own arguments, and the engines that do it.

Prompts, the engine's request and the published columns of a task are on the Ray side:
`processor/engines/vllm/request/prompts` and `processor/request/answers/parsers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_raydatallm.contract.spec.audio import AudioSpec
from airflow_provider_raydatallm.contract.spec.images import ImageSpec

_SHAPES = frozenset({"output_schema", "regex", "grammar"})
_ADAPTER = frozenset({
    "adapter_path", "adapter_paths", "adapter_column", "adapter_on_null", "adapter_base_model",
})  # fmt: skip
_IMAGES = frozenset(ImageSpec.model_fields)
_AUDIO = frozenset(AudioSpec.model_fields) - _IMAGES
_EMBEDDING = frozenset({"embedding_dimensions", "embedding_dtype", "embedding_normalize"})


@dataclass(frozen=True)
class Task:
    """
    :param engines: of the provider's, those that do it.
    :param fields: of `RequestSpec`, those that some tasks have and this one does, too.
    :param draws: whether answers are drawn, so that equal requests may have different ones.
    """

    engines: frozenset[str]
    fields: frozenset[str]
    draws: bool = False


TASKS: Mapping[str, Task] = {
    # A text.
    "generate": Task(
        engines=frozenset({"vllm", "ray_data_llm", "http"}),
        fields=_SHAPES
        | _ADAPTER
        | _IMAGES
        | {
            "system_prompt", "choices", "exact_labels", "label_confidence", "multi_label", "sampling_params",
            "chat_template_kwargs", "postprocess", "repair", "messages", "chat_template", "tools",
            "reasoning_parser", "logprobs",
        },
        draws=True,
    ),
    # One of the labels that the model's classification head was trained for.
    "classify": Task(
        engines=frozenset({"vllm"}), fields=frozenset({"choices", "label_confidence", "postprocess"})
    ),
    # The vector of a text.
    "embed": Task(engines=frozenset({"vllm", "http"}), fields=_EMBEDDING),
    # How well a text answers a query.
    "score": Task(engines=frozenset({"vllm"}), fields=frozenset({"query"})),
    # What is said in a recording.
    "transcribe": Task(engines=frozenset({"vllm"}), fields=_AUDIO | {"postprocess"}),
}  # fmt: skip
_OWN = frozenset().union(*(task.fields for task in TASKS.values()))


def tasks_with(field: str) -> list[str]:
    """Returns the tasks that have a field; [] for a field that is of all."""
    return [name for name, task in TASKS.items() if field in task.fields]


def fields_of_other_tasks(task: str) -> frozenset[str]:
    return _OWN - TASKS[task].fields
