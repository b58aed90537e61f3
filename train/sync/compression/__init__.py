"""Ways to send less than the gradients; a file's name is a value of --compress."""
