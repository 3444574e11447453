"""Private services, demo data and an independent comparison, for the tests, the benchmarks and the demo.

Nothing here is part of the pipeline, and nothing in the pipeline imports it but the `demo` command.
"""
