"""The demo's model, for whoever tests or measures with a real engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def tiny_model() -> Path:
    """Its folder. It is trained once, and kept."""
    folder = ROOT / ".demo" / "model"
    folder.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "demo.tiny_model", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder
