"""One process alone: its gradient is already the mean. Every other exact mode must equal it."""

from ..base import GradSync

build = GradSync
