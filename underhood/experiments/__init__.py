"""The paper's results, one file each, and the rules by which they are judged."""
