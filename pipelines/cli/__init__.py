"""The mutirao command line."""
