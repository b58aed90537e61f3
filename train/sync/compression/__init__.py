"""Ways to send fewer bytes than the gradients; a file's name is a value of --compress."""
