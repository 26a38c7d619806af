"""Students that get smaller between two recipes."""
