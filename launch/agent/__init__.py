"""The supervisor of a node, called the agent, and the leader's side of it."""
