"""The supervisor of a node, called agent, and the launcher's side of it."""
