"""Whose directories are taken."""

import os
from typing import Any

from kfit.user_files.ownership import check_owner


def test_the_directory_of_the_administrator_is_taken(tmp_path: Any) -> None:
    """A mounted volume belongs to root, whoever trains."""
    check_owner("backup_dir", str(tmp_path), geteuid=lambda: os.geteuid() or 4712)


def test_where_all_files_belong_to_one_user_the_directory_is_taken(tmp_path: Any) -> None:
    """As on a network's file system that squashes users: ours come out as that user's, too."""
    check_owner("backup_dir", str(tmp_path), geteuid=lambda: 4712)
    assert os.listdir(tmp_path) == []
