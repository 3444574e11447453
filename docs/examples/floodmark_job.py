"""Floodmark under spark-submit: `spark-submit --master … floodmark_job.py --config floodmark.yaml sync --all`.

The submitted Spark is used, with its master and settings; the exit code is Floodmark's.
"""

import sys

if __name__ == "__main__":
    try:
        from floodmark.cli.main import main
    except ImportError as error:
        print(f"floodmark: {sys.executable} lacks what Floodmark needs: {error}", file=sys.stderr)
        print("  install it there, or name another Python: spark.pyspark.driver.python", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(main())
