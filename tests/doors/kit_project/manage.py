"""A project of somebody's who tests his jobs with the kit; test_kit_project.py runs its tests in every manner."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
