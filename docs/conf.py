"""Sphinx: ``make docs``."""

project = "pgqueue_django"
copyright = "2026, the pgqueue_django authors"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "pgqueue_django"
exclude_patterns = ["_build"]
nitpicky = True
