"""How a measurement is made and kept: who is measured, in which process, what a line of results says."""
