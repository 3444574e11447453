"""Floodmark under spark-submit: `spark-submit --master … floodmark_job.py --config floodmark.yaml sync --all`.

The submitted Spark is used, with its master and settings; the exit code is Floodmark's.
"""

from floodmark.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
