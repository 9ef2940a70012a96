"""Network file systems are found by the list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vibe_llms.storage.mounts import find_network_mount

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local ext4 rw 0 0
//server/share /mnt/my\\040files cifs rw 0 0
/dev/sdc1 /over nfs rw 0 0
tmpfs /over tmpfs rw 0 0
ada@host: /mnt/ssh fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/data", ""),
        ("/home/ada/.local", "nfs4"),
        ("/home/local/ada", ""),
        ("/homeless", ""),
        ("/mnt/my files/x", "cifs"),
        ("/over/x", ""),
        ("/mnt/ssh", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert find_network_mount(Path(path), mounts) == kind


def test_without_a_list_nothing_is_known(tmp_path: Path) -> None:
    assert find_network_mount(tmp_path, tmp_path / "none") == ""


def test_the_folder_of_this_test_is_local(tmp_path: Path) -> None:
    assert find_network_mount(tmp_path / "not-there-yet") == ""
