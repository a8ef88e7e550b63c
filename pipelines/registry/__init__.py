"""Model versions, aliases and lineage on plain object storage."""
