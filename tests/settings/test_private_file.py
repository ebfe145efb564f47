"""Files that only their owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shared.service.files import make_private_directory, write_private


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes of files")
def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_text("old")
    path.chmod(0o644)

    write_private(path, "new")

    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_text("old")

    with pytest.raises(UnicodeEncodeError):
        write_private(path, "\ud800")

    assert path.read_text() == "old"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes of files")
def test_only_the_owner_reads_new_directories_and_existing_ones_stay(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    make_private_directory(tmp_path / "share" / "toolscale")

    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, tmp_path / "share", tmp_path / "share/toolscale")]
    assert modes == [0o755, 0o700, 0o700]
