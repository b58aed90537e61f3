"""The processes that an agent starts on its node, and how all of them end."""
