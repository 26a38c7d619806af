"""Units on dask.distributed: all that knows Dask."""
