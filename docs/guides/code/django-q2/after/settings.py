from project import *
from project import INSTALLED_APPS

# -- what the guide shows --
INSTALLED_APPS += ["pgqueue_django"]
PGQUEUE = {}  # the defaults will do
DATABASES["default"] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
