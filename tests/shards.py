"""Tar files of images, as people pack them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def pack(folder: Path, target: Path, shards: int = 2) -> Path:
    """Pack the files of a folder, by name, into so many tar files in the folder `target`; members keep their paths."""
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for number in range(shards):
        with tarfile.open(target / f"photos-{number:03d}.tar", "w") as tar:
            for file in files[number::shards]:
                tar.add(file, file.relative_to(folder).as_posix())
    return target


def write_tar(path: Path, members: Mapping[str, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
    """A tar file of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
