"""More data than one machine holds: fits of Dask collections.

The loop runs in the client on a problem whose entries live in shards. Dask is not imported before a
Dask collection is passed to an estimator.
"""

from .. import estimators as estimators  # first, whichever of our modules a worker asks for
