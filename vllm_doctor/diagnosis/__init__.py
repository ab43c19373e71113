"""Weighs the evidence of each cause over each run, ranks what remains, and says whether there is a problem at all."""
