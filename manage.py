#!/usr/bin/env python
"""Django's command line. `platform/` is a source folder, not a package, so it is added to `sys.path` here."""

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.core.settings.embedded")
    from django.core.management import execute_from_command_line

    from workers.parent_death import hide_memory_and_environment

    hide_memory_and_environment()
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
