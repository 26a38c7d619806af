"""What to compute: the paper's tasks and their closed forms."""
