from project import *
from project import INSTALLED_APPS

# -- what the guide shows --
INSTALLED_APPS += ["procrastinate.contrib.django"]
