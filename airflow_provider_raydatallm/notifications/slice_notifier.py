"""`SliceNotifier`: has any of Airflow's notifiers send a message with the figures of slices."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_provider_raydatallm.notifications.message import SliceMessage
from airflow_provider_raydatallm.notifications.run_slices import collect_slices

if TYPE_CHECKING:
    from airflow.sdk import Context


class SliceNotifier(BaseNotifier):
    """Has another notifier, such as `SlackNotifier`, send a message about the slices of a task, or of a run.

    The templates of its arguments know `slices`: `{{ slices.title }}`, `{{ slices.text }}` and
    `{{ slices.html }}`, and each slice in it with `task`, `state`, `slice_key`, `figures`, `links`::

        on_failure_callback=SliceNotifier(SlackNotifier, channel="#data", text="{{ slices.text }}")

    It is a callback of tasks, where it tells of the task's slice, or of DAGs, where it tells of all; and,
    as `AsyncCallback(SliceNotifier, kwargs={...})`, of a deadline. Without figures, because Airflow cannot be
    asked for them, the message says so: it is sent all the same.

    :param notifier: the notifier's class, or its import path.
    :param only_if_late: send nothing while each slice of the run is done, or known to be done by
        `limits.finish_by`: for deadlines before that time.
    :param arguments: of the notifier.
    """

    template_fields: Sequence[str] = ()

    def __init__(
        self,
        notifier: type[BaseNotifier] | str,
        *,
        only_if_late: bool = False,
        context: Context | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(context=context)
        self.only_if_late = only_if_late
        self._notifier, self._arguments = notifier, arguments
        self._build()  # wrong arguments fail when the DAG is parsed

    def notify(self, context: Context) -> None:
        slices = collect_slices(context, self.log)
        if self._is_wanted(slices):
            self._build()({**context, "slices": slices})

    async def async_notify(self, context: Context) -> None:
        slices = await asyncio.to_thread(collect_slices, context, self.log)
        if self._is_wanted(slices):
            notifier = self._build()
            notifier.context = {**context, "slices": slices}  # type: ignore[typeddict-unknown-key]
            await notifier

    def _build(self) -> BaseNotifier:
        """Returns a new notifier: one renders its arguments in place, and can send one message.

        :raises TypeError: when it is no notifier's class, or does not take the arguments.
        """
        notifier: Any = self._notifier
        if isinstance(notifier, str):
            from airflow.sdk._shared.module_loading import import_string

            notifier = import_string(notifier)
        if not (inspect.isclass(notifier) and issubclass(notifier, BaseNotifier)):
            raise TypeError(
                f"notifier is {notifier!r}: give a notifier's class, or its import path, and its arguments "
                "after it, as in SliceNotifier(SlackNotifier, text='{{ slices.text }}')"
            )
        return notifier(**self._arguments)

    def _is_wanted(self, slices: SliceMessage) -> bool:
        return not (self.only_if_late and slices and all(s.is_in_time for s in slices))
