"""How fast and how right collectives are, among all ranks and between every two nodes."""
