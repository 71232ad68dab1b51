"""What GPUs can do at most, by NVIDIA's datasheets: dense figures, without sparsity.

Sources, each "<card> datasheet" or architecture white paper on nvidia.com. A card that is not listed is
unknown: names of the same letters mean cards of other speeds (H100 PCIe, H100 SXM).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """
    :ivar half: operations per second in bfloat16 and float16 (V100, T4: float16 only).
    :ivar fp8: None where it only stores fp8.
    """

    half: float
    fp8: float | None = None


_T = 1e12
_H100_SXM = Card(989.4 * _T, 1978.9 * _T)
#: By what NVML calls them, without "NVIDIA" and "Tesla", and without the memory where that changes nothing.
CARDS = {
    "T4": Card(65 * _T),
    "V100-SXM2": Card(125 * _T),
    "V100-PCIE": Card(112 * _T),
    "A10": Card(125 * _T),
    "A10G": Card(70 * _T),  # AWS's own variant of A10
    "A30": Card(165 * _T),
    "A40": Card(149.7 * _T),
    "A100-SXM4": Card(312 * _T),
    "A100-PCIE": Card(312 * _T),
    "A100 PCIe": Card(312 * _T),
    "L4": Card(121 * _T, 242 * _T),
    "L40": Card(181.05 * _T, 362 * _T),
    "L40S": Card(362.05 * _T, 733 * _T),
    "H100 HBM3": _H100_SXM,
    "H100 PCIe": Card(756 * _T, 1513 * _T),
    "H100 NVL": Card(835 * _T, 1671 * _T),
    "H200": _H100_SXM,
    "H200 NVL": Card(835.5 * _T, 1671 * _T),
    "H20": Card(148 * _T, 296 * _T),
    "B200": Card(2250 * _T, 4500 * _T),
}
_MEMORY = re.compile(r"[- ]\d+GB")


def card_of(name: str) -> Card | None:
    """Returns a card by NVML's name, such as "NVIDIA H100 80GB HBM3"; None where it is not listed."""
    return CARDS.get(_MEMORY.sub("", name.removeprefix("NVIDIA ").removeprefix("Tesla ")))
