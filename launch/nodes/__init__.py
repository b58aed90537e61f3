"""What nodes are like, as they say themselves: how they are asked, and what this machine has."""
