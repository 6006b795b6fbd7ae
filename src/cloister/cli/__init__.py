"""The command line: one file a command, and nothing here that the Python API cannot do."""
