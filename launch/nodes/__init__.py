"""What nodes are like: each is asked, over whatever reaches it."""
