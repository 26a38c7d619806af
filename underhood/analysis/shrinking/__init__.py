"""Networks made small: prune, merge, polish, reduce."""
