"""What identifies a file on a disk: its modification time, and its inode where that stays the same.

Never the time of its last status change: making or removing a hard link changes that, and not the content.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

#: File systems that give a file the same inode number as long as it exists, whoever asks. Others (those in
#: user space, and Windows shares) may number a file anew each time it is looked up.
_STABLE_INODES = {
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay",
    "nfs", "nfs4", "ceph", "lustre", "gpfs",
}  # fmt: skip
_MOUNTS = Path("/proc/self/mountinfo")
#: By device number.
_has_stable_inodes: dict[int, bool] = {}


def disk_version(path: str, status: os.stat_result) -> str:
    """Changes when another file takes the path, or the file is written to."""
    if status.st_dev not in _has_stable_inodes:
        _has_stable_inodes[status.st_dev] = _find_file_system(path, status.st_dev) in _STABLE_INODES
    inode = f"-{status.st_ino}" if _has_stable_inodes[status.st_dev] else ""
    return f"{status.st_mtime_ns}{inode}"


def _find_file_system(path: str, device: int) -> str:
    """The type of the file system that holds the path; "" where it is unknown."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    real = os.path.realpath(path)
    longest, kind = -1, ""
    for fields, _, rest in (line.partition(" - ") for line in lines):
        _, _, mount_number, _, mount_point, *_ = fields.split(" ")
        if mount_number == number:
            return rest.split(" ")[0]
        # Parts of some file systems (btrfs, overlay) have device numbers of their own.
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), mount_point)
        if os.path.join(real, "").startswith(os.path.join(point, "")) and len(point) >= longest:
            longest, kind = len(point), rest.split(" ")[0]
    return kind
