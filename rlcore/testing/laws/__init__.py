"""The laws, one file for each kind of component."""
