from tests.unit.task.conftest import cluster

__all__ = ["cluster"]
