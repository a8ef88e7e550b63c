"""Train, evaluate, version and use models on sharded Parquet datasets over Dask."""
