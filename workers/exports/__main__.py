"""Exports a speculator to the format of another engine, or imports one from such a format.

    python -m workers.exports export FOLDER OUT --format speculators --model DIR
    python -m workers.exports import FOLDER OUT --format specforge --model DIR

FOLDER is the speculator to convert, and OUT a new folder for the result. `python -m workers.exports formats` lists the
kinds of speculators that each format supports.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from workers.exports.errors import ExchangeError
from workers.exports.formats import FORMATS, export_speculator, import_speculator
from workers.exports.target import Target


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.exports",
        description="Exports speculators to the formats of other engines, and imports them.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("formats", help="list the kinds of speculators that each format supports")
    for name in ("export", "import"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("out", type=Path)
        command.add_argument("--format", required=True, choices=FORMATS)
        command.add_argument("--model", type=Path, required=True, metavar="DIR", help="the speculator's target model")
        command.add_argument("--model-name", metavar="NAME", help="name of the model in the other engine (default DIR)")
    args = parser.parse_args(arguments)
    if args.command == "formats":
        for form in FORMATS.values():
            print(f"{form.name}: {', '.join(form.kinds)}")
        return 0
    try:
        args.out.mkdir(parents=True)
    except FileExistsError:
        print(f"error: {args.out} already exists", file=sys.stderr)
        return 2
    try:
        target = Target.read(args.model, name=args.model_name)
        if args.command == "export":
            export_speculator(args.folder, args.format, target, args.out)
        else:
            kind = import_speculator(args.folder, args.format, target, args.out, provenance={})
            print(f"a speculator of kind {kind}")
    except (ExchangeError, OSError) as error:
        shutil.rmtree(args.out)
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
