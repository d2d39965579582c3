"""Tables of a report, as rows of text cells."""
