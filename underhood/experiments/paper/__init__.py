"""The claims of the paper, one file each."""
