"""What several experiments share: students, sizes, comparisons."""
