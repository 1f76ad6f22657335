"""Conversion of the configurations of trlX and TRL, by the table of synonyms and the rules of each library."""
