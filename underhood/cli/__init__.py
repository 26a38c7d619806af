"""The command line: a file or a folder per command, and what they share."""
