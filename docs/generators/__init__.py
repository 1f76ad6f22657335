"""Write those pages of the documentation that say what the code says."""
