"""Tasks: model, data, loss and metric; a file's name is a value of --task."""
