from project import *
from project import INSTALLED_APPS

# -- what the guide shows --
INSTALLED_APPS += ["django_q"]
Q_CLUSTER = {
    "name": "shop",
    "orm": "default",
    "workers": 2,
    "timeout": 30,
    "retry": 60,
    "max_attempts": 5,
}
