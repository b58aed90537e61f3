"""One process alone: its gradient is the mean already. Every other mode must equal it."""

from ..base import GradSync

build = GradSync
