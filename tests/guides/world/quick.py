"""A guide's settings, but for what a test does not have (Redis) or cannot wait for (a minute until a retry)."""

import os

from settings import *  # noqa: F403

CELERY_BROKER_URL = "filesystem://"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "data_folder_in": os.environ["SCRATCH"],
    "data_folder_out": os.environ["SCRATCH"],
    "control_folder": os.environ["SCRATCH"],
    "polling_interval": 0.1,
}
if "Q_CLUSTER" in globals():
    Q_CLUSTER |= {"timeout": 2, "retry": 3}  # noqa: F405
