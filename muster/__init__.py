"""What a program imports to work well with its launcher; it needs the standard library alone."""

from muster.orderly_stop import on_stop, stopping

__all__ = ["on_stop", "stopping"]
