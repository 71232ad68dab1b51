"""Tells the death of an actor from the errors of its calls."""

from __future__ import annotations


def is_death(error: Exception) -> bool:
    """Returns whether a call ended because its actor died, or cannot be reached.

    An error that the call raised is none, although Ray makes it look like one where it tells of the death of
    another actor.
    """
    from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError

    # Ray's memory monitor ends actors with the latter.
    return isinstance(error, RayActorError | OutOfMemoryError) and not isinstance(error, RayTaskError)
