"""What is compiled: attention as heads, as products, and as its definition."""
