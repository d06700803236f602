"""Is this GPU server ready to fine-tune a 70B model? Composes `probe`, `checks` and `reports`."""

__version__ = "0.1.0"
