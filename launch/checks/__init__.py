"""Before anything starts: every node is looked at, and each finding names what to do."""
