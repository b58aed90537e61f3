"""The supervisor of a node, one agent for each, and the launcher's side of them."""
