"""A spec compiled into a frozen plan that explains itself before anything runs."""
