"""The objects behind the API: versions, admission, deletion, garbage collection and the history that watches
read. Any thread may use it; what it returns are copies."""

from __future__ import annotations

import base64
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.kube import schemas
from tests.support.kube.errors import ApiError, already_exists, conflict, invalid, not_found
from tests.support.kube.selectors import Selector

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    plural: str
    kind: str
    group: str = ""
    namespaced: bool = True
    #: By which it can be selected, besides its name and namespace.
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def selectable(self) -> tuple[str, ...]:
        return ("metadata.name", "metadata.namespace", *self.fields)


RAY = "ray.io"
_INVOLVED = tuple(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion"))
RESOURCES = {
    resource.plural: resource
    for resource in (
        Resource("rayjobs", "RayJob", RAY),
        Resource("rayclusters", "RayCluster", RAY),
        Resource("pods", "Pod", fields=("status.phase", "spec.nodeName")),
        Resource("services", "Service"),
        Resource("secrets", "Secret", fields=("type",)),
        Resource("events", "Event", fields=(*_INVOLVED, "reason", "type")),
        Resource("namespaces", "Namespace", namespaced=False),
    )
}


@dataclass(frozen=True)
class Change:
    version: int
    plural: str
    #: None: it was not there.
    before: Object | None
    #: As it was last, if it was deleted.
    after: Object
    is_deletion: bool = False

    def event(self, selects: Selector) -> dict[str, Any] | None:
        """Returns what a watch that selects so is told of it."""
        was = self.before is not None and selects(self.before)
        is_now = not self.is_deletion and selects(self.after)
        if not was and not is_now:
            return None
        kind = "MODIFIED" if was and is_now else "ADDED" if is_now else "DELETED"
        return {"type": kind, "object": self.after}


class Store:
    """:param kuberay: the version whose CRDs are installed, "" for none"""

    def __init__(self, namespaces: Iterable[str], kuberay: str) -> None:
        self.kuberay = kuberay
        self.history_length = 1000
        self._lock = threading.RLock()
        self._objects: dict[str, dict[tuple[str, str], Object]] = {plural: {} for plural in RESOURCES}
        self._history: list[Change] = []
        self._version = 1000
        self._passed = timedelta(0)
        self._listeners: list[Callable[[], None]] = []
        for namespace in namespaces:
            self.create("namespaces", "", {"metadata": {"name": namespace}})

    # --- time

    def now(self) -> datetime:
        return datetime.now(UTC) + self._passed

    def timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def micro_timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def pass_time(self, seconds: float) -> None:
        """Moves the cluster's clock, by which deadlines are counted."""
        self._passed += timedelta(seconds=seconds)

    def reset_clock(self) -> None:
        self._passed = timedelta()

    # --- reading

    @property
    def version(self) -> str:
        return str(self._version)

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """:raises ApiError: 404"""
        with self._lock:
            found = self._objects[plural].get((namespace, name))
            if found is None:
                raise not_found(RESOURCES[plural].qualified, name)
            return deepcopy(found)

    def objects(self, plural: str, namespace: str = "", selects: Selector | None = None) -> list[Object]:
        """:param namespace: "" for all"""
        with self._lock:
            return [
                deepcopy(item)
                for (where, _), item in sorted(self._objects[plural].items())
                if namespace in ("", where) and (selects is None or selects(item))
            ]

    def changes_since(self, version: int) -> Sequence[Change]:
        """:raises ApiError: 410, if they are forgotten"""
        with self._lock:
            oldest = self._history[0].version if self._history else self._version + 1
            if version < oldest - 1:
                raise ApiError(410, f"too old resource version: {version} ({oldest - 1})", "Expired")
            return [change for change in self._history if change.version > version]

    def forget_history(self) -> None:
        """Makes every version that was listed so far too old to watch from."""
        with self._lock:
            self._version += 1
            self._history.clear()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    # --- writing

    def create(
        self,
        plural: str,
        namespace: str,
        body: Object,
        *,
        is_strict: bool = False,
        is_dry_run: bool = False,
    ) -> Object:
        """:param is_strict: refuses unknown fields instead of dropping them
        :param is_dry_run: checks it, and keeps nothing
        :raises ApiError: 400, 404 for its namespace, 409 or 422
        """
        resource = RESOURCES[plural]
        with self._lock:
            item = self._checked(resource, namespace, body)
            metadata = item["metadata"]
            if not metadata.get("name") and metadata.get("generateName"):
                metadata["name"] = metadata["generateName"] + _suffix()
            item = self._admitted(resource, item, is_strict)
            metadata = item["metadata"]
            name = metadata["name"]
            if (existing := self._objects[plural].get((namespace, name))) is not None:
                raise already_exists(resource.qualified, name, "deletionTimestamp" in existing["metadata"])
            metadata.update(uid=str(uuid.uuid4()), creationTimestamp=self.timestamp(), generation=1)
            metadata.pop("deletionTimestamp", None)
            if resource.group or plural == "pods":
                item.pop("status", None)
            if plural == "pods":
                item["status"] = {"phase": "Pending", "qosClass": "Burstable"}
            if plural == "namespaces":
                item["status"] = {"phase": "Active"}
            return item if is_dry_run else self._write(resource, None, item)

    def update(self, plural: str, namespace: str, body: Object, *, status: bool = False) -> Object:
        """Replaces an object, or only its status; the other part stays as it is.

        :raises ApiError: 404, 409 if its version is not the newest, or 422
        """
        resource = RESOURCES[plural]
        with self._lock:
            item = self._checked(resource, namespace, body)
            name = item["metadata"].get("name", "")
            existing = self.get(plural, namespace, name)
            given = item["metadata"].get("resourceVersion")
            if not given and resource.group:
                sentence = "Invalid value: 0x0: must be specified for an update"
                cause = ("metadata.resourceVersion", "FieldValueInvalid", sentence)
                raise invalid(resource.qualified_kind, name, [cause])
            if given and given != existing["metadata"]["resourceVersion"]:
                why = "the object has been modified; please apply your changes to the latest version"
                raise conflict(resource.qualified, name, f"{why} and try again")
            uid, own_uid = item["metadata"].get("uid"), existing["metadata"]["uid"]
            if uid and uid != own_uid:
                why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {own_uid}"
                raise conflict(resource.qualified, name, why)
            if status:
                return self._write(resource, existing, {**existing, "status": item.get("status") or {}})
            item = self._admitted(resource, item)
            kept = ("uid", "creationTimestamp", "deletionTimestamp", "generation", "generateName")
            item["metadata"].update(
                {key: existing["metadata"][key] for key in kept if key in existing["metadata"]}
            )
            item.pop("status", None)
            if "status" in existing:
                item["status"] = existing["status"]
            if item.get("spec") != existing.get("spec"):
                item["metadata"]["generation"] += 1
            self._check_finalizers(resource, existing, item)
            return self._write(resource, existing, item)

    def patch(
        self,
        plural: str,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        *,
        status: bool = False,
    ) -> Object:
        """:param change: returns the object as it shall be; its version is checked if the change sets it"""
        with self._lock:
            return self.update(plural, namespace, change(self.get(plural, namespace, name)), status=status)

    def delete(
        self,
        plural: str,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
    ) -> Object:
        """Deletes an object, or marks it as long as it has finalizers.

        :raises ApiError: 404, or 409 if it has another uid or version
        """
        resource = RESOURCES[plural]
        with self._lock:
            item = self.get(plural, namespace, name)
            metadata = item["metadata"]
            for what, wanted, found in (
                ("UID", uid, metadata["uid"]),
                ("ResourceVersion", version, metadata["resourceVersion"]),
            ):
                if wanted not in (None, found):
                    why = f"{what} in precondition: {wanted}, {what} in object meta: {found}"
                    raise conflict(resource.qualified, name, f"Precondition failed: {why}")
            if propagation == "Orphan":
                self._orphan(metadata["uid"])
            if propagation == "Foreground" and self._dependents(metadata["uid"]):
                metadata["finalizers"] = [*metadata.get("finalizers", []), "foregroundDeletion"]
            if metadata.get("finalizers"):
                if "deletionTimestamp" not in metadata:
                    metadata.update(deletionTimestamp=self.timestamp(), deletionGracePeriodSeconds=0)
                    metadata["generation"] += 1
                    return self._write(resource, self.get(plural, namespace, name), item)
                return item
            return self._remove(resource, item)

    def collect_garbage(self) -> None:
        """Deletes what only objects own that are gone, and, below one that waits for it, all that it owns."""
        with self._lock:
            everything = [(p, item) for p in RESOURCES if p != "events" for item in self.objects(p)]
            waiting = {
                item["metadata"]["uid"]
                for _, item in everything
                if "foregroundDeletion" in item["metadata"].get("finalizers", [])
            }
            alive = {item["metadata"]["uid"] for _, item in everything} - waiting
            for plural, item in everything:
                metadata = item["metadata"]
                owners = {owner["uid"] for owner in metadata.get("ownerReferences", [])}
                where = (plural, metadata.get("namespace", ""))
                if owners and not owners & alive and "deletionTimestamp" not in metadata:
                    self.delete(*where, metadata["name"])
                elif metadata["uid"] in waiting and not self._dependents(metadata["uid"]):
                    metadata["finalizers"].remove("foregroundDeletion")
                    self.update(*where, item)

    # --- what the above share

    def _checked(self, resource: Resource, namespace: str, body: Object) -> Object:
        if not isinstance(body, dict):
            raise ApiError(400, "the object provided is unrecognized (must be of type " + resource.kind + ")")
        item = deepcopy(body)
        for key, what, expected in (
            ("apiVersion", "API version", resource.api_version),
            ("kind", "kind", resource.kind),
        ):
            if item.get(key) not in (None, expected):
                given = f"the {what} in the data ({item[key]})"
                raise ApiError(400, f"{given} does not match the expected {what} ({expected})")
            item[key] = expected
        metadata = item["metadata"] = item.get("metadata") or {}
        if resource.namespaced:
            if metadata.get("namespace") not in (None, "", namespace):
                raise ApiError(
                    400,
                    "the namespace of the provided object does not match the namespace sent on the request",
                )
            if ("", namespace) not in self._objects["namespaces"]:
                self.get("namespaces", "", namespace)
            metadata["namespace"] = namespace
        return item

    def _admitted(self, resource: Resource, item: Object, is_strict: bool = False) -> Object:
        metadata = item["metadata"]
        name = metadata.get("name", "")
        causes = [*_name_faults(name), *_label_faults(metadata.get("labels") or {})]
        if causes:
            raise invalid(resource.qualified_kind, name, causes)
        if resource.group:
            return schemas.admit(
                resource.plural, resource.qualified_kind, name, item, self.kuberay, is_strict=is_strict
            )
        if resource.kind == "Secret":
            written = item.pop("stringData", None) or {}
            encoded = {key: base64.b64encode(value.encode()).decode() for key, value in written.items()}
            item["data"] = {**(item.get("data") or {}), **encoded}
            item.setdefault("type", "Opaque")
        return item

    def _check_finalizers(self, resource: Resource, existing: Object, item: Object) -> None:
        added = set(item["metadata"].get("finalizers") or []) - set(
            existing["metadata"].get("finalizers") or []
        )
        if added and "deletionTimestamp" in existing["metadata"]:
            sentence = (
                "Forbidden: no new finalizers can be added if the object is being deleted, found new "
                f"finalizers []string{{{', '.join(repr(name) for name in sorted(added))}}}"
            )
            cause = ("metadata.finalizers", "FieldValueForbidden", sentence)
            raise invalid(resource.qualified_kind, item["metadata"]["name"], [cause])

    def _write(self, resource: Resource, before: Object | None, item: Object) -> Object:
        metadata = item["metadata"]
        for field in ("finalizers", "ownerReferences", "labels", "annotations"):
            if not metadata.get(field):
                metadata.pop(field, None)
        if "deletionTimestamp" in metadata and "finalizers" not in metadata:
            return self._remove(resource, item)
        if before is not None and item == before:
            return deepcopy(item)
        self._version += 1
        metadata["resourceVersion"] = self.version
        self._objects[resource.plural][(metadata.get("namespace", ""), metadata["name"])] = item
        self._record(Change(self._version, resource.plural, before, deepcopy(item)))
        return deepcopy(item)

    def _remove(self, resource: Resource, item: Object) -> Object:
        metadata = item["metadata"]
        before = self._objects[resource.plural].pop((metadata.get("namespace", ""), metadata["name"]))
        self._version += 1
        metadata["resourceVersion"] = self.version
        self._record(Change(self._version, resource.plural, before, deepcopy(item), is_deletion=True))
        return deepcopy(item)

    def _record(self, change: Change) -> None:
        self._history.append(change)
        del self._history[: -self.history_length]
        for listener in self._listeners:
            listener()

    def _owned(self, uid: str) -> Iterator[tuple[Resource, Object]]:
        for plural, resource in RESOURCES.items():
            for item in self.objects(plural):
                if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", [])):
                    yield resource, item

    def _dependents(self, uid: str) -> bool:
        return any(
            owner["uid"] == uid and owner.get("blockOwnerDeletion")
            for _, item in self._owned(uid)
            for owner in item["metadata"]["ownerReferences"]
        )

    def _orphan(self, uid: str) -> None:
        for resource, item in self._owned(uid):
            before, metadata = deepcopy(item), item["metadata"]
            metadata["ownerReferences"] = [o for o in metadata["ownerReferences"] if o["uid"] != uid]
            self._write(resource, before, item)


def _suffix() -> str:
    """Returns five letters as Kubernetes draws them: without vowels and what looks like another."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LABEL_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_LABEL_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    f"start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_SUBDOMAIN}')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_LABEL_NAME}')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    f"for validation is '{_LABEL_VALUE}')"
)


def _fault(field: str, value: str, rule: str) -> tuple[str, str, str]:
    return f"metadata.{field}", "FieldValueInvalid", f'Invalid value: "{value}": {rule}'


def _name_faults(name: str) -> Iterator[tuple[str, str, str]]:
    if not name:
        yield "metadata.name", "FieldValueRequired", "Required value: name or generateName is required"
        return
    if len(name) > 253:
        yield _fault("name", name, "must be no more than 253 bytes")
    if not re.fullmatch(_SUBDOMAIN, name):
        yield _fault("name", name, _NAME_RULE)


def _label_faults(labels: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if len(name) > 63:
            yield _fault("labels", key, "name part must be no more than 63 bytes")
        if not re.fullmatch(_LABEL_NAME, name) or (slash and not re.fullmatch(_SUBDOMAIN, prefix)):
            yield _fault("labels", key, _KEY_RULE)
        if not isinstance(value, str):
            raise ApiError(400, f"cannot unmarshal {value!r} into Go struct field ObjectMeta.metadata.labels")
        if len(value) > 63:
            yield _fault("labels", value, "must be no more than 63 bytes")
        if not re.fullmatch(_LABEL_VALUE, value):
            yield _fault("labels", value, _VALUE_RULE)
