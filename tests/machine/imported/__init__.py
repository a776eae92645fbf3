"""An app whose module of tasks tells which processes import it."""
