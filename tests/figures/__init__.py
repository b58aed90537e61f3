"""The pictures of README and docs/ that are no benchmark's and no report's: `make figures`."""
