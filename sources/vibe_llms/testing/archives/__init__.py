"""The checks of `check_archive`, by subject."""
