"""The supervisor of a node, called agent, and its leader's side."""
