"""Results on disk to tables, figures and one page; never trains."""
