#!/usr/bin/env python
"""Django's command line for the shop: `python -m testproject.manage` or `python testproject/manage.py`."""

import os
import sys
from pathlib import Path


def main() -> None:
    # Run as a file, Python puts this directory on the path and not the checkout that holds the package.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
