"""Ways to send gradients in fewer bytes; a file's name is a value of --compress."""
