"""Private services, demo data and an independent comparison, for the tests, the benchmarks and the demo.

Nothing here is part of the pipeline; within the package only the `demo` command imports it.
"""
