"""Running plans: driver, journal, stage cache, resume and cancel."""
