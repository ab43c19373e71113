"""From bytes to observations: framing, streams, log formats, and the other kinds of input."""
