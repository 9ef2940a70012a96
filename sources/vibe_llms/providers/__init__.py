"""Who answers: what providers share, and one folder for each of them."""
