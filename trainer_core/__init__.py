"""The trainer: eight modules in reading order, and the modules that support them."""

__version__ = "0.2.0.dev0"
