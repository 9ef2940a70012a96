"""How each program is used; the module is named like the suite."""
