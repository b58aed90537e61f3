"""Model + data + loss + metric; a file's name is a value of --task."""
