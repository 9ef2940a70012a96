"""What can be called: tools, their schemas, and how the calls of one turn are carried out."""
