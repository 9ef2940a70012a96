"""Sessions: what a program opens, and the values that it is given."""
