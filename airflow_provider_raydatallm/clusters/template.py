"""What is read of the RayCluster that a task gives. Kubernetes checks the rest. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_raydatallm.contract.log.secret_shapes import is_secret_name


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class _Variable(_Read):
    name: str
    value: Any = None


class _WithVariables(_Read):
    env: list[_Variable] | None = None


class _Pod(_Read):
    containers: Annotated[list[_WithVariables], Field(min_length=1)]
    initContainers: list[_WithVariables] | None = None


class _PodTemplate(_Read):
    spec: _Pod


class _Group(_Read):
    template: _PodTemplate
    rayStartParams: dict[str, Any] | None = None


class _Authentication(_Read):
    mode: str | None = None
    secretName: str | None = None


class _Password(_Read):
    value: Any = None


class _FaultTolerance(_Read):
    redisPassword: _Password | None = None


class _Spec(_Read):
    headGroupSpec: _Group
    workerGroupSpecs: list[_Group] | None = None
    rayVersion: str | None = None
    authOptions: _Authentication | None = None
    autoscalerOptions: _WithVariables | None = None
    gcsFaultToleranceOptions: _FaultTolerance | None = None
    suspend: bool | None = None

    def plain_secrets(self) -> Iterator[str]:
        """Yields where a secret stands in plain text."""
        with_variables = [self.autoscalerOptions] if self.autoscalerOptions is not None else []
        for group in (self.headGroupSpec, *(self.workerGroupSpecs or ())):
            pod = group.template.spec
            with_variables += [*pod.containers, *(pod.initContainers or ())]
            for name, value in (group.rayStartParams or {}).items():
                if is_secret_name(name) and _is_plain(value):
                    yield f"rayStartParams.{name}"
        for one in with_variables:
            for variable in one.env or ():
                if is_secret_name(variable.name) and _is_plain(variable.value):
                    yield f"variable {variable.name}"
        options = self.gcsFaultToleranceOptions
        if options is not None and options.redisPassword and _is_plain(options.redisPassword.value):
            yield "gcsFaultToleranceOptions.redisPassword"


def _is_plain(value: Any) -> bool:
    """Whether it is neither nothing, nor another variable's value, nor a file's path."""
    return bool(value) and not re.fullmatch(r"\$\w+|\$\(\w+\)|\$\{\w+\}|/.*", str(value))


def check_spec(spec: Mapping[str, Any]) -> None:
    """
    :param spec: of a RayCluster.
    :raises ValueError: naming what no cluster could come of, or what must not be in it.
    """
    try:
        read = _Spec.model_validate(spec)
    except ValidationError as e:
        error = e.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, error["loc"]))
        if error["type"] == "missing" or place.endswith("containers"):
            raise ValueError(f"it lacks {place}, which says what its pods run") from None
        raise ValueError(f"{place}: {error['msg']}") from None
    options = read.authOptions
    asks_for_token = "authOptions" not in read.model_fields_set or (options and options.mode == "token")
    if asks_for_token and not read.rayVersion:
        raise ValueError(
            "it has no rayVersion, by which KubeRay knows that its Ray can ask for a token: give that of "
            "its image, or authOptions: {mode: disabled}"
        )
    if read.suspend:
        raise ValueError("it has suspend: true, and KubeRay would never start its pods: leave that out")
    for where in read.plain_secrets():
        raise ValueError(
            f"its {where} holds a secret in plain text: take it from a Secret, with valueFrom.secretKeyRef"
        )
