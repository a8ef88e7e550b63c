"""Where pipelines run: start, watch and stop Dask clusters and detached jobs; knows nothing of machine learning."""
