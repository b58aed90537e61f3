"""The facts about nodes: how they are asked for them, and those of this machine."""
