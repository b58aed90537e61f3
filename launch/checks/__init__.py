"""Before anything starts: every node is looked at, and each finding names what to do."""

from launch.checks.examination import quick

__all__ = ["quick"]
