"""What holds of every interface alike: one law a file."""
