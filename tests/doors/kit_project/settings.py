"""Settings of the project: one database, whose server KIT_DATABASE names."""

import json
import os

SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["pgqueue_django", "invoices"]
DATABASES = {"default": json.loads(os.environ["KIT_DATABASE"])}
