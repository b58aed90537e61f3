"""Ways to make gradients equal on all ranks; a file's name is a value of --sync."""
