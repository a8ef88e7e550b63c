"""Parquet datasets: manifest, schema, shards, order, splits, reader, writer and checks."""
