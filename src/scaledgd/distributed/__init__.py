"""More data than one machine holds: fits of Dask collections.

The loop runs in the client on a problem whose entries live in shards. Nothing here is imported
before a Dask collection is passed to an estimator.
"""
