"""One thin shell per place where a cluster can run."""
