"""The trainer: eight modules in reading order, and the few that they lean on."""

__version__ = "0.1.0"
