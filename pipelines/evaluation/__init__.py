"""Metrics over splits and segments, calibration, thresholds and gates."""
