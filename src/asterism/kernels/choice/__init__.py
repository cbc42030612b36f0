"""Which way computes a call: prices, and where they come from."""
