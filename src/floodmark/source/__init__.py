"""The source. Only this package talks to MySQL: connections, discovery, bounds and the reader of slices."""
