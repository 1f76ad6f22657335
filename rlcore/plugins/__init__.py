"""Find, check, load, choose and isolate plugins."""
