"""How the Ray side fails: one type, with a record that the Airflow side maps to its public exceptions."""

from __future__ import annotations

import contextlib
import copyreg
import difflib
import errno
import importlib.util
import os
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from airflow_provider_raydatallm.contract.result.failure import Code, Failure, Kind, Place
from airflow_provider_raydatallm.contract.result.failure_patterns import find_frames


class SliceError(Exception):
    """A slice cannot be answered, for a reason a person can act on.

    log: the process (`node_id`, `pid`) whose log holds the reason when the message does not.
    """

    log: Mapping[str, Any] | None = None

    def __init__(
        self,
        sentence: str,
        *,
        kind: Kind,
        advice: str | Sequence[str] = (),
        place: Place | None = None,
        row_texts: Sequence[str] = (),
        frames: Sequence[str] = (),
        counts: Mapping[str, int] | None = None,
        code: Code = "",
        log: Mapping[str, Any] | None = None,
    ) -> None:
        """The arguments are those of a `Failure`."""
        self._set(
            Failure(
                kind,
                sentence,
                advice=(advice,) if isinstance(advice, str) else tuple(advice),
                place=place or Place(),
                row_texts=tuple(row_texts),
                frames=tuple(frames),
                counts=counts or {},
                code=code,
            )
        )
        self.log = log

    @classmethod
    def of(cls, failure: Failure) -> Self:
        """Returns an error with this record, without calling `__init__`: what a subclass adds is not set."""
        error = cls.__new__(cls)
        error._set(failure)
        return error

    def _set(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.text)

    @property
    def kind(self) -> Kind:
        return self.failure.kind

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without calling `__init__` again, so that subclasses may have any arguments."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class StorageError(SliceError):
    """A store cannot be read or written now; a path that is too long for it, never."""

    def __init__(self, what: str, path: str, why: str) -> None:
        fix = "Free space there" if os.strerror(errno.ENOSPC) in why else "Fix that"
        super().__init__(
            f"{why.removesuffix('.')}: cannot {what} {path}",
            kind="input" if os.strerror(errno.ENAMETOOLONG) in why else "transient",
            advice=f"{fix} and run the slice again",
        )


def text_of(error: BaseException) -> str:
    """Returns an error's own text; "" where its own code raises."""
    with contextlib.suppress(Exception):
        return str(error)
    return ""


@contextlib.contextmanager
def loading(what: str, module: str = "") -> Iterator[None]:
    """Within, modules of the user's are imported, which may raise anything, and even end the process.

    :param module: the one that the job names.
    :raises SliceError: for all that they raise, but for an error with a record of its own, and Ctrl-C.
    """
    try:
        yield
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt) or isinstance(getattr(e, "failure", None), Failure):
            raise
        why = ": ".join(filter(None, [type(e).__name__, text_of(e)]))
        sentence = f"{what} cannot be loaded on the cluster ({why})"
        frames = find_frames("".join(traceback.format_exception(e)))
        advice = _import_advice(e, module, is_in_code=bool(frames))
        raise SliceError(sentence, kind="input", advice=advice, frames=frames) from e


def _import_advice(error: BaseException, module: str, *, is_in_code: bool) -> str:
    """
    :param is_in_code: whether a line of the user's own code raised it.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        fault = "Fix what its code does when it is imported"
        return fault if is_in_code else "Check the name, and that code_paths ships the code that has it"
    package = error.name.partition(".")[0]
    if package == module.partition(".")[0]:
        return "Ship its code with code_paths"
    with contextlib.suppress(ImportError, ValueError):
        if package != error.name and importlib.util.find_spec(package) is not None:
            return f"The cluster has another version of {package!r}: install the one that has that module"
    install = f"Install {package!r} on the cluster's nodes or with runtime_env"
    return f"{install}; if it is a module of your own, ship it with code_paths"


#: Errors of Python and Arrow that quote the value which they are about.
_OF_VALUES = (ValueError, TypeError, LookupError)


def log_text(error: BaseException) -> str:
    """An error's text for a log, where no setting hides what rows hold: without what may quote a row."""
    if isinstance(error, SliceError):
        return error.failure.sentence
    name = type(error).__name__
    return name if isinstance(error, _OF_VALUES) else f"{name}: {text_of(error)}"


def problem_of(error: Exception) -> Failure:
    """Returns the record of what cannot be read, without what to do about a run."""
    if isinstance(error, SliceError):
        return replace(error.failure, advice=()) if isinstance(error, StorageError) else error.failure
    is_of_store = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    return Failure("transient" if is_of_store else "input", text_of(error) or type(error).__name__)


def missing_column(sentence: str, name: str, columns: Collection[str]) -> SliceError:
    """An argument that names a column which the input does not have.

    The input's columns are texts of rows: the header of a CSV file that has none is its first row, and keys
    of JSON may be data. One that is nearly what the argument says is no secret.
    """
    near = difflib.get_close_matches(name, columns, n=1, cutoff=0.75)
    return SliceError(
        sentence,
        kind="input",
        advice=f"Did you mean {near[0]!r}?" if near else "Name another column, or correct the input",
        place=Place(column=name),
        row_texts=(f"the columns are {', '.join(map(repr, columns))}",),
    )
