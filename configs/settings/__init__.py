"""Every setting, as a dataclass: one field is one flag, one YAML key and one line of --help."""
