"""Packs a folder into a zip file, and unpacks an uploaded one. Packing does not compress: weights hardly shrink."""

import shutil
import struct
import zipfile
import zlib
from pathlib import Path

from workers.exports.errors import ExchangeError, invalid

_COPY_BYTES = 1 << 20
_MAX_FILES = 200
# All errors that zipfile and its decompressors raise for a damaged or unsupported archive.
_ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError),
    *(zlib.error, struct.error, ValueError, OverflowError),
)


def pack(folder: Path, archive: Path) -> None:
    """Packs the files of a folder and of its subfolders.

    Entries are sorted and have no timestamps, so equal files give equal archives.
    """
    with zipfile.ZipFile(archive, "x", zipfile.ZIP_STORED) as out:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            with path.open("rb") as source, out.open(entry, "w", force_zip64=True) as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)


def unpack(archive: Path, folder: Path, *, limit_bytes: int) -> None:
    """Unpacks the archive's files into an existing folder. If all files are in one folder of the archive, the
    name of this folder is dropped.

    Raises: ExchangeError: the file is no zip archive, a file name is not allowed, or there are too many files or bytes.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            _unpack(source, folder, limit_bytes)
    except ExchangeError:
        raise
    except _ARCHIVE_ERRORS as error:
        raise invalid(f"the file is no readable zip archive: {error}") from error


def _unpack(source: zipfile.ZipFile, folder: Path, limit_bytes: int) -> None:
    entries = [entry for entry in source.infolist() if not entry.is_dir()]
    if not 1 <= len(entries) <= _MAX_FILES:
        raise invalid(f"an archive holds 1 to {_MAX_FILES} files, got {len(entries)}")
    parents = {entry.filename.rpartition("/")[0] for entry in entries}
    if len(parents) > 1 or any(parent.count("/") for parent in parents):
        raise invalid("the archive must hold the speculator's files, or one folder with them and nothing else")
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        # The decompressors of bzip2 and LZMA have no limit: a megabyte can fill the memory before it is counted.
        raise invalid("files in the archive must be stored or compressed with deflate")
    remaining_bytes = limit_bytes
    for entry in entries:
        name = entry.filename.rpartition("/")[2]
        if not name or name in (".", "..") or "\\" in name or "\0" in name or (folder / name).exists():
            raise invalid(f"{entry.filename!r:.120} can't be the name of a file in the archive")
        with source.open(entry) as data, (folder / name).open("xb") as copy:
            while chunk := data.read(_COPY_BYTES):
                remaining_bytes -= len(chunk)  # bytes are counted here, because the archive may state wrong sizes
                if remaining_bytes < 0:
                    raise invalid(f"the files must have at most {limit_bytes:,} bytes together")
                copy.write(chunk)
