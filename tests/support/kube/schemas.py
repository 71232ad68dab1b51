"""What the API knows of RayJobs and RayClusters: types, defaults, and the version that brought a field.

Written from KubeRay's types, as far as a provider may send them. What goes into pods is known by name only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema

from tests.support.kube.errors import ApiError, invalid

Schema = dict[str, Any]

ANY: Schema = {"x-keep": True}
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object", "x-keep": True}
STRINGS: Schema = {"type": "object", "additionalProperties": STRING}


def _integer(**rules: Any) -> Schema:
    return {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1, **rules}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _list(items: Schema, **rules: Any) -> Schema:
    return {"type": "array", "items": items, **rules}


def _object(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _since(version: str, schema: Schema) -> Schema:
    return {**schema, "x-since": version}


_ENV = _object("name", name=STRING, value=STRING, valueFrom=OBJECT)
_CONTAINER = _object(
    "name",
    name=STRING,
    image=STRING,
    imagePullPolicy=STRING,
    command=_list(STRING),
    args=_list(STRING),
    workingDir=STRING,
    env=_list(_ENV),
    envFrom=_list(OBJECT),
    ports=_list(OBJECT),
    resources=_object(limits=OBJECT, requests=OBJECT, claims=_list(OBJECT)),
    volumeMounts=_list(OBJECT),
    volumeDevices=_list(OBJECT),
    livenessProbe=OBJECT,
    readinessProbe=OBJECT,
    startupProbe=OBJECT,
    lifecycle=OBJECT,
    securityContext=OBJECT,
    restartPolicy=STRING,
    terminationMessagePath=STRING,
    terminationMessagePolicy=STRING,
    stdin=BOOLEAN,
    tty=BOOLEAN,
)
_POD_SPEC = _object(
    "containers",
    containers=_list(_CONTAINER),
    initContainers=_list(_CONTAINER),
    volumes=_list(OBJECT),
    nodeSelector=STRINGS,
    affinity=OBJECT,
    tolerations=_list(OBJECT),
    topologySpreadConstraints=_list(OBJECT),
    priorityClassName=STRING,
    schedulerName=STRING,
    runtimeClassName=STRING,
    serviceAccountName=STRING,
    automountServiceAccountToken=BOOLEAN,
    imagePullSecrets=_list(OBJECT),
    restartPolicy=STRING,
    terminationGracePeriodSeconds=_integer(),
    securityContext=OBJECT,
    hostNetwork=BOOLEAN,
    hostIPC=BOOLEAN,
    shareProcessNamespace=BOOLEAN,
    dnsPolicy=STRING,
    dnsConfig=OBJECT,
    enableServiceLinks=BOOLEAN,
    nodeName=STRING,
    resourceClaims=_list(OBJECT),
)
_TEMPLATE = _object(
    metadata=_object(
        name=STRING, namespace=STRING, labels=STRINGS, annotations=STRINGS, finalizers=_list(STRING)
    ),
    spec=_POD_SPEC,
)
_HEAD_GROUP = _object(
    "template",
    template=_TEMPLATE,
    headService=OBJECT,
    enableIngress=BOOLEAN,
    ingressOptions=_since("1.7", OBJECT),
    resources=STRINGS,
    labels=STRINGS,
    rayStartParams=STRINGS,
    serviceType=STRING,
)
_WORKER_GROUP = _object(
    "groupName",
    "minReplicas",
    "maxReplicas",
    "template",
    groupName=STRING,
    suspend=BOOLEAN,
    replicas=_integer(default=0),
    minReplicas=_integer(default=0),
    maxReplicas=_integer(default=2**31 - 1),
    numOfHosts=_integer(default=1),
    idleTimeoutSeconds=_integer(),
    priority=_since("1.7", _integer(default=0)),
    resources=STRINGS,
    labels=STRINGS,
    rayStartParams=STRINGS,
    scaleStrategy=_object(workersToDelete=_list(STRING)),
    template=_TEMPLATE,
)
_CLUSTER_SPEC = _object(
    "headGroupSpec",
    headGroupSpec=_HEAD_GROUP,
    workerGroupSpecs=_list(_WORKER_GROUP),
    rayVersion=STRING,
    suspend=BOOLEAN,
    managedBy=STRING,
    enableInTreeAutoscaling=BOOLEAN,
    autoscalerOptions=OBJECT,
    headServiceAnnotations=STRINGS,
    gcsFaultToleranceOptions=OBJECT,
    authOptions=_object(
        mode=_one_of("disabled", "token"),
        secretName=_since("1.6", STRING),
        enableK8sTokenAuth=_since("1.6", BOOLEAN),
    ),
    upgradeStrategy=_since("1.6", _object(type=_one_of("Recreate", "None"))),
    historyServerOptions=_since("1.7", OBJECT),
    networkPolicy=_since("1.7", OBJECT),
    tlsOptions=_since("1.7", _object(enabled=BOOLEAN)),
)
_DELETION_POLICY = _one_of("DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone")
_JOB_SPEC = _object(
    activeDeadlineSeconds=_integer(),
    preRunningDeadlineSeconds=_since("1.6", _integer(minimum=1)),
    backoffLimit=_integer(default=0),
    rayClusterSpec=_CLUSTER_SPEC,
    submitterPodTemplate=_TEMPLATE,
    submitterConfig=_object(backoffLimit=_integer()),
    metadata=STRINGS,
    clusterSelector=STRINGS,
    managedBy=STRING,
    deletionStrategy=_object(
        onSuccess=_object(policy=_DELETION_POLICY),
        onFailure=_object(policy=_DELETION_POLICY),
        deletionRules=_list(
            _object("policy", "condition", policy=_DELETION_POLICY, condition=OBJECT), minItems=1
        ),
    ),
    entrypoint=STRING,
    runtimeEnvYAML=STRING,
    jobId=STRING,
    submissionMode={"type": "string", "default": "K8sJobMode"},
    entrypointResources=STRING,
    entrypointNumCpus=NUMBER,
    entrypointNumGpus=NUMBER,
    ttlSecondsAfterFinished=_integer(default=0),
    shutdownAfterJobFinishes=BOOLEAN,
    suspend=BOOLEAN,
)
_SPECS = {"rayjobs": _JOB_SPEC, "rayclusters": _CLUSTER_SPEC}


@cache
def _schema(plural: str, kuberay: str) -> Schema:
    body = _object(
        apiVersion=STRING, kind=STRING, metadata=OBJECT, spec=_known(_SPECS[plural], kuberay), status=OBJECT
    )
    body["required"] = ["spec"] if plural == "rayclusters" else []
    return body


def _known(schema: Schema, kuberay: str) -> Schema:
    """Returns what this version of KubeRay knows of it."""
    known = dict(schema)
    if "properties" in schema:
        known["properties"] = {
            name: _known(value, kuberay)
            for name, value in schema["properties"].items()
            if _version(kuberay) >= _version(value.get("x-since", "1.0"))
        }
    if "items" in schema:
        known["items"] = _known(schema["items"], kuberay)
    return known


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def admit(
    plural: str, kind: str, name: str, body: dict[str, Any], kuberay: str, *, is_strict: bool
) -> dict[str, Any]:
    """Returns a RayJob or RayCluster as the API keeps it: without unknown fields, with defaults.

    :raises ApiError: 422, for a value of the wrong type or outside its range; 400 for an unknown field, if it
        is strict
    """
    schema = _schema(plural, kuberay)
    unknown: list[str] = []
    kept: dict[str, Any] = _prune(body, schema, "", unknown)
    if unknown and is_strict:
        short = kind.partition(".")[0]
        listed = ", ".join(f'unknown field "{field}"' for field in unknown)
        what = f'{short} in version "v1" cannot be handled as a {short}'
        raise ApiError(400, f"{what}: strict decoding error: {listed}")
    validator = jsonschema.Draft202012Validator(schema)
    causes = [_cause(error) for error in sorted(validator.iter_errors(kept), key=lambda e: list(e.path))]
    if causes:
        raise invalid(kind, name, causes)
    return kept


def _prune(value: Any, schema: Schema, path: str, unknown: list[str]) -> Any:
    """Drops what the schema does not name; adds defaults.

    :param unknown: takes the paths of what is dropped
    """
    if schema.get("x-keep"):
        return value
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        kept = {name: p["default"] for name, p in known.items() if "default" in p}
        for name, item in value.items():
            place = f"{path}.{name}".lstrip(".")
            if name not in known:
                unknown.append(place)
            elif item is not None or "default" not in known[name]:
                kept[name] = _prune(item, known[name], place, unknown)
        return kept
    if isinstance(value, list) and "items" in schema:
        return [_prune(item, schema["items"], f"{path}[{n}]", unknown) for n, item in enumerate(value)]
    return value


def _cause(error: jsonschema.ValidationError) -> tuple[str, str, str]:
    field = ""
    for part in error.path:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    value = _quoted(error.instance)
    limit: Any = error.validator_value
    match error.validator:
        case "required":
            missing = error.message.split("'")[1]
            return f"{field}.{missing}".lstrip("."), "FieldValueRequired", "Required value"
        case "enum":
            supported = ", ".join(f'"{choice}"' for choice in limit)
            return (
                field,
                "FieldValueNotSupported",
                f"Unsupported value: {value}: supported values: {supported}",
            )
        case "type":
            kind = _type_of(error.instance)
            sentence = f'Invalid value: "{kind}": {field} in body must be of type {limit}: "{kind}"'
            return field, "FieldValueTypeInvalid", sentence
        case "minItems":
            return field, "FieldValueInvalid", f"Invalid value: 0: should have at least {limit} items"
    side = "greater" if error.validator == "minimum" else "less"
    sentence = f"Invalid value: {value}: {field} in body should be {side} than or equal to {limit}"
    return field, "FieldValueInvalid", sentence


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names[type(value)]
