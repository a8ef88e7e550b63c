"""Feature plans: fitted on the cluster, applied anywhere, carried inside the model."""
