"""Packs a folder into a zip file without compression, because weights do not shrink."""

import lzma
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

from workers.exports.errors import invalid

_COPY_BYTES = 1 << 20
_MAX_FILES = 200
# Errors of zipfile and of its decompressors for a damaged or unusual archive.
_DAMAGES = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError),
    *(zlib.error, lzma.LZMAError, struct.error, UnicodeDecodeError),
)


def pack(folder: Path, archive: Path) -> None:
    """Writes the same bytes for the same files, without times and independent of the order on disk."""
    with zipfile.ZipFile(archive, "x", zipfile.ZIP_STORED) as out:
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            entry = zipfile.ZipInfo(path.name)
            with path.open("rb") as source, out.open(entry, "w", force_zip64=True) as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)


def unpack(archive: Path, folder: Path, *, limit_bytes: int) -> None:
    """Unpacks the files of the archive, or of its only folder, into an existing folder.

    Raises: ExchangeError: not a zip file, a name outside the folder, or too many files or bytes.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            _unpack(source, folder, limit_bytes)
    except _DAMAGES as error:
        raise invalid(f"the file is no readable zip archive: {error}") from error


def _unpack(source: zipfile.ZipFile, folder: Path, limit_bytes: int) -> None:
    entries = [entry for entry in source.infolist() if not entry.is_dir()]
    if not 1 <= len(entries) <= _MAX_FILES:
        raise invalid(f"an archive holds 1 to {_MAX_FILES} files, got {len(entries)}")
    tops = {entry.filename.rpartition("/")[0] for entry in entries}
    if len(tops) > 1 or any(top.count("/") for top in tops):
        raise invalid("the archive must hold the speculator's files, or one folder with them and nothing else")
    left = limit_bytes
    for entry in entries:
        name = entry.filename.rpartition("/")[2]
        if not name or name in (".", "..") or "\\" in name or "\0" in name or (folder / name).exists():
            raise invalid(f"{entry.filename!r:.120} can't be the name of a file in the archive")
        with source.open(entry) as data, (folder / name).open("xb") as copy:
            while chunk := data.read(_COPY_BYTES):  # the sizes in the archive are not trusted
                left -= len(chunk)
                if left < 0:
                    raise invalid(f"the files must have at most {limit_bytes:,} bytes together")
                copy.write(chunk)
