"""Ranks that train together: started all or none, watched, and ended together."""
