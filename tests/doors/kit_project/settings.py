"""Settings of the project: one database, which KIT_DATABASE names; with KIT_JOBS another one for the jobs."""

import json
import os

SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["pgqueue_django", "invoices"]
DATABASES = {"default": json.loads(os.environ["KIT_DATABASE"])}
if name := os.environ.get("KIT_JOBS"):
    DATABASES["jobs"] = DATABASES["default"] | {"TEST": {"NAME": name}}
    DATABASE_ROUTERS = ["invoices.router.Router"]
