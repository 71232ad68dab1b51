"""What happens to a slice that is published already, or that another run works on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from airflow_provider_raydatallm.contract.base import Group
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf


class Rerun(Group):
    """What happens when the slice is published already, or another run works on it. Instead of the dict:
    `"keep"` (the default: fail when the configuration or the input is another), `"recompute"` (replace what
    is published in both cases) or `"extend"` (add new input files)."""

    short_forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "keep": {},
        "recompute": {"on_config_change": "recompute", "on_input_change": "recompute"},
        "extend": {"on_input_change": "extend"},
    }

    on_config_change: Literal["fail", "recompute"] = leaf(
        "fail",
        affects=Affects.NOTHING,
        doc="when it is published with another configuration: `fail` or `recompute`.",
    )
    on_input_change: Literal["fail", "recompute", "extend"] = leaf(
        "fail",
        affects=Affects.NOTHING,
        doc="when it is published, or half finished, from other input files: `fail`, `recompute`, or "
        "`extend`: add new files and keep the rows of the others, also in quarantine.",
    )
    on_running: Literal["attach", "fail"] = leaf(
        "attach",
        affects=Affects.NOTHING,
        doc="when another run works on it: `fail`, or `attach`: wait for its result, and take over if it "
        "died. Default: `attach`.",
    )
    force: bool = leaf(
        False, affects=Affects.NOTHING, doc="recompute a finished slice every time the task runs."
    )
    retry_quarantined: bool = leaf(
        False,
        affects=Affects.NOTHING,
        doc="answer the quarantined rows of a finished slice again, also those that `extend` would keep.",
    )
    verify: Literal["listing", "content"] = leaf(
        "listing",
        affects=Affects.NOTHING,
        doc="how a finished slice is checked: `listing` its files, or also reading their `content`.",
    )
