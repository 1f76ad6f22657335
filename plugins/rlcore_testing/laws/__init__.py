"""Laws of the conformance kit, one file for each kind of component."""
