"""The Muon optimizer in float32.

PyTorch's own (`torch.optim.Muon`) orthogonalizes in bfloat16: without instructions for it, which most CPUs
lack, the demo's training would take three times as long.
https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

#: Of the quintic iteration; momentum and weight decay as is usual.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.05


class Muon:
    """For matrices; other weights need another optimizer."""

    def __init__(self, matrices: Sequence[torch.Tensor]) -> None:
        self._matrices = matrices
        self._moments = [torch.zeros_like(m) for m in matrices]

    def step(self, rate: float) -> None:
        """:param rate: the learning rate of a square matrix."""
        with torch.no_grad():
            for matrix, moment in zip(self._matrices, self._moments, strict=True):
                assert matrix.grad is not None
                moment.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = _orthogonal(matrix.grad.lerp(moment, _MOMENTUM))
                rows, columns = matrix.shape
                matrix.mul_(1 - rate * _WEIGHT_DECAY)
                matrix.add_(update, alpha=-rate * math.sqrt(max(1, rows / columns)))


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """About the nearest matrix whose singular values are all one: the Newton-Schulz iteration."""
    a, b, c = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
