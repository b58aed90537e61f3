"""What all parts stand on, and what a program imports: errors, and the files of a run."""
