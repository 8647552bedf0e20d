"""What the file system refuses is told in one line."""

from pathlib import Path

import pytest

from binep.errors import BinepError
from binep.files import make_folder, write_whole


def test_a_folder_that_is_not_there_is_told(tmp_path: Path):
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(BinepError, match="cannot write .*nowhere/file: there is no such folder"):
        write_whole(path, "text")


def test_a_file_in_the_way_of_a_folder_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BinepError, match="cannot create .*: it exists and is not a folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(BinepError, match="cannot create .*: a part of the path is not a folder"):
        make_folder(tmp_path / "file" / "inside")
