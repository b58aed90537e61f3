"""Facts about nodes: how a launcher asks nodes for them, and the facts about this machine."""
