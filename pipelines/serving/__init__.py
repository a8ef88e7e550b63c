"""Using models: batch scoring."""
