"""The history of a series: one row per analysed capture, and what the rows say together."""
