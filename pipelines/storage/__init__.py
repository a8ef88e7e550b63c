"""URLs to file systems for reading, and to object stores for atomic writes."""
