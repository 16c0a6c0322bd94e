"""The display of long work, on a terminal, in plain lines, or in a notebook; shared by Python and the command line."""
