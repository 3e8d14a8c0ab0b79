#!/usr/bin/env python3
"""Command line of the server. `manage.py up` runs the whole stack on this machine; see README.md."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "multica.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit("Django is not installed here: run `make install`, then use .venv/bin/python") from error

    from multica.embedded.command import services_for

    with services_for(sys.argv):
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
