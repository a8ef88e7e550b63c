"""The pipeline's spec: one document, all its faults at once."""
