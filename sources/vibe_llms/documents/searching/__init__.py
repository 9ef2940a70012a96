"""Search engines of the ensemble `web`, one module for each interface."""
